import numpy as np
import pytest

from groupdro.utils.eigen import largest_eigenpairs


@pytest.mark.parametrize("size", [5, 40, 600])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_largest_eigenvalues_are_those_of_all(size, dtype):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(size, 3 * size)) * np.arange(1.0, 3 * size + 1) ** -0.5
    matrix = (X @ X.T).astype(dtype)
    n = min(size, 20)
    values, vectors = largest_eigenpairs(matrix, n)
    all_values = np.linalg.eigvalsh(X @ X.T)[-n:]
    assert values.dtype == vectors.dtype == np.float64
    np.testing.assert_allclose(values, all_values, rtol=1e-10 if dtype is np.float64 else 0.05)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(n), atol=1e-5)
    np.testing.assert_allclose((vectors * (matrix @ vectors)).sum(axis=0), values, rtol=1e-3)


def test_a_matrix_of_low_rank_has_no_more_than_that():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 7)).astype(np.float32)
    values, _ = largest_eigenpairs(X @ X.T, 12)
    assert (values[5:] > 100.0).all()
    assert (np.abs(values[:5]) < 1e-2).all()
