"""The checks of counts and amounts fail where the package is broken on purpose."""

import numpy as np
import pytest

from groupdro.certificate import Certificate
from groupdro.run import smoothing
from tests.campaign.part_means import KINDS, draw, has_minimiser, judge


def first(condition):
    return next(seed for seed in range(500) if condition(draw(seed)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_lower_bound_that_is_too_high_is_found(kind, monkeypatch):
    raise_to, bounds_of = Certificate._raise, smoothing._bounds_of

    def too_high(*arguments):
        risks, lower = bounds_of(*arguments)
        return risks, lower * 1.01

    if kind == "quantile":
        monkeypatch.setattr(smoothing, "_bounds_of", too_high)
    else:
        monkeypatch.setattr(Certificate, "_raise", lambda self, lower, q: raise_to(self, lower * 1.01, q))
    seed = first(
        lambda drawn: (
            drawn.kind.startswith(kind)
            and drawn.parameters["objective"] == "risk"
            and drawn.parameters["alpha"] > 0
            and drawn.parameters["tol"] < 1e-3
            and drawn.parameters["solver"] == "auto"
        )
    )
    assert any("lower bound" in sentence for sentence in judge(seed).wrong)


def test_counts_that_are_all_zero_have_no_minimiser_with_an_intercept():
    drawn = draw(first(lambda drawn: drawn.kind.startswith("poisson") and drawn.parameters["alpha"] > 0))
    drawn.y[:] = 0.0
    drawn.parameters["fit_intercept"] = True
    assert not has_minimiser(drawn)
    drawn.parameters["fit_intercept"] = False
    assert has_minimiser(drawn)


def test_cases_are_as_ugly_as_they_say():
    drawn = [draw(seed) for seed in range(300)]
    counts = [d.y for d in drawn if d.kind.startswith("poisson") and "rates" not in d.kind]
    amounts = np.concatenate([d.y for d in drawn if d.kind == "gamma"])
    exposures = np.concatenate([d.offset for d in drawn if d.offset is not None and d.kind == "gamma"])
    assert max(y.max() for y in counts) >= 1e6
    assert any(y.max() == 1e5 and np.sort(y)[-2] < 100 for y in counts if len(y) > 1)
    assert (amounts.min(), amounts.max()) == (1e-6, 1e9)
    assert exposures.min() < np.log(1e-3)
    assert exposures.max() > np.log(1e3)
