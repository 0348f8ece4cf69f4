"""What may the average cost? Search, comparison and frontier answer alike on the same rows."""

import numpy as np
import pytest

from groupdro import GroupDROClassifier, GroupDROClassifierCV, compare, robustness_frontier

BLENDS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
ALPHA = 1e-6


def rows(seed=0, n=3000):
    """Return rows of two groups with different slopes, of which the smaller one is neglected by plain training."""
    rng = np.random.default_rng(seed)
    groups = rng.choice(["many", "few"], n, p=[0.85, 0.15])
    X = rng.normal(size=(n, 2))
    score = np.where(groups == "many", 2.0 * X[:, 0], -0.5 * X[:, 0] + 2.0 * X[:, 1])
    return X, (rng.random(n) < 1 / (1 + np.exp(-score))).astype(int), groups


X, Y, GROUPS = rows()


@pytest.fixture(scope="module")
def models():
    return {
        f"robustness {t}": GroupDROClassifier(robustness=t, alpha=ALPHA, tol=1e-5, random_state=0).fit(
            X, Y, groups=GROUPS
        )
        for t in BLENDS
    }


@pytest.fixture(scope="module")
def frontier():
    return robustness_frontier(X, Y, GROUPS, estimator=GroupDROClassifier(alpha=ALPHA))


@pytest.mark.parametrize("budget", [0.01, 0.03, 0.1, 0.5])
def test_search_comparison_and_frontier_give_the_same_answer_on_the_same_rows(models, frontier, budget):
    everything = np.arange(len(Y))
    search = GroupDROClassifierCV(
        alphas=[ALPHA], robustness=BLENDS, cv=[(everything, everything)], mean_budget=budget, refit=False
    ).fit(X, Y, groups=GROUPS)
    found = compare(
        y=Y, X=X, groups=GROUPS, estimator=None, models=models, baseline="robustness 0.0", mean_budget=budget,
        held_out=(X, Y, GROUPS),
    )  # fmt: skip
    at = dict(zip(found.columns["model"], found.columns["worst_risk"], strict=True))
    # The fits of a search are accurate to 1e-3: up to that, models with the same worst group are alike.
    assert at[found.recommended] == pytest.approx(at[f"robustness {search.robustness_}"], rel=1e-3)
    if budget < 0.5:
        assert found.recommended == f"robustness {search.robustness_}"

    # The frontier has all values of the robustness in between: its answer is at most one step of the grid away.
    best = frontier.least_worst(mean_budget=budget)
    step = BLENDS.index(search.robustness_)
    if budget < 0.5:  # more than any model costs
        above = BLENDS[min(step + 1, len(BLENDS) - 1)]
        assert search.robustness_ - 0.02 <= best.robustness <= above + 0.02
    mean, worst = (found.columns[key][step] for key in ("mean_risk", "worst_risk"))
    assert best.worst <= worst * (1 + 1e-3)
    assert mean <= found.columns["mean_risk"][0] * (1 + budget) + 1e-9
    # With the next step of the grid the average would cost more than is allowed, or nothing would be gained.
    if search.robustness_ < 1.0:
        more = found.columns["mean_risk"][step + 1] > (1 + budget) * found.columns["mean_risk"][0]
        assert more or found.columns["worst_risk"][step + 1] >= worst * (1 - 1e-3)


def test_without_a_budget_the_search_goes_no_further_than_needed():
    everything = np.arange(len(Y))
    options = {"alphas": [ALPHA], "robustness": BLENDS, "cv": [(everything, everything)], "refit": False}
    careful = GroupDROClassifierCV(**options).fit(X, Y, groups=GROUPS)
    budget = GroupDROClassifierCV(**options, mean_budget=1.0).fit(X, Y, groups=GROUPS)
    explicit = GroupDROClassifierCV(**options, mean_budget=1.0, prefer="caution").fit(X, Y, groups=GROUPS)
    assert 0 < careful.robustness_ < budget.robustness_
    assert explicit.robustness_ == careful.robustness_


def test_a_comparison_without_cross_validation_tries_more_than_one_blend():
    found = compare(X, Y, GROUPS, cv=None, n_bootstrap=100)
    assert [name for name in found.columns["model"] if name.startswith("blend")] == [
        "blend 0.1",
        "blend 0.5",
        "blend 0.9",
    ]
    one = compare(X, Y, GROUPS, cv=None, estimator=GroupDROClassifier(robustness=0.3), n_bootstrap=100)
    assert [name for name in one.columns["model"] if name.startswith("blend")] == ["blend 0.3"]
