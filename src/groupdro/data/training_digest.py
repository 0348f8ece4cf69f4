"""A digest of the training rows, so that reports can recognise them."""

import hashlib
from typing import Any

import numpy as np
import scipy.sparse as sp

__all__ = ["rows_digest"]

_MOST = 1 << 19  # entries of X to hash, so that the digest is cheap compared to a fit


def rows_digest(X: Any, y: Any) -> str:
    """Return a digest of a table: its shape and, for up to half a million entries, all of X and y.

    For larger tables it covers an evenly spaced sample of the rows.

    Parameters
    ----------
    X : ndarray or CSR matrix of shape (n_rows, n_features)
        Features.
    y : ndarray of shape (n_rows,)
        Targets, or codes of the classes.

    Returns
    -------
    str
        The digest in hexadecimal.
    """
    numbers = X.nnz if sp.issparse(X) else X.size
    chosen = slice(None, None, max(1, -(-numbers // _MOST)))
    rows = X[chosen]
    parts = (rows.data, rows.indices, rows.indptr) if sp.issparse(X) else (rows,)
    digest = hashlib.sha256(repr((X.shape, len(parts))).encode())
    for part in (*parts, y[chosen]):
        digest.update(np.ascontiguousarray(part, dtype=np.float64).tobytes())
    return digest.hexdigest()
