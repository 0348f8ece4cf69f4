"""The page of a report: escaped, whole, and the same numbers as the table."""

import html
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from sklearn.pipeline import Pipeline

from groupdro import GroupDROClassifier, GroupDRORegressor, group_report
from groupdro.cli.model import SavedModel, encoder_for
from groupdro.cli.page import report_page
from groupdro.solvers import Status

pd = pytest.importorskip("pandas")

HOSTILE = '<script>alert("1")</script>'
VOID = {"meta", "br"}


class Reader(HTMLParser):
    """Reads a page, checks that elements are closed in order, and keeps elements and text."""

    def __init__(self, page):
        super().__init__()
        self.open, self.elements, self.text = [], [], ""
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def example(kind="classification", n=600, objective="risk", names=("north", "south", HOSTILE)):
    rng = np.random.default_rng(0)
    group = rng.choice(names, n)
    x = rng.normal(size=n)
    y = x * np.where(group == names[-1], -1.0, 1.0) + rng.logistic(size=n)
    X = pd.DataFrame({HOSTILE: x, "z": rng.normal(size=n)})
    if kind == "classification":
        y = np.where(y > 0, HOSTILE, "no")
        model = GroupDROClassifier(objective, random_state=0)
    else:
        model = GroupDRORegressor(objective, random_state=0)
    model = Pipeline([("columns", encoder_for(X.columns.tolist(), [])), ("model", model)])
    model.fit(X, y, model__groups=group)
    facts = {"table": HOSTILE, "rows": n, "held_out_rows": 0, "seconds": 0.5}
    return SavedModel(model, HOSTILE, (HOSTILE,), facts), group_report(model, X, y, group)


@pytest.mark.parametrize("kind", ["classification", "regression"])
@pytest.mark.parametrize("objective", ["risk", "excess_risk"])
def test_the_page_is_escaped_whole_and_asks_for_nothing(kind, objective):
    fitted, report = example(kind, objective=objective)
    page = report_page(fitted, report, HOSTILE)
    reader = Reader(page)
    tags = {tag for tag, _ in reader.elements}
    assert "script" not in tags
    assert not tags & {"img", "link", "iframe", "object", "embed", "base", "form", "a"}
    assert not any(
        {"src", "href", "onload", "onclick", "onerror"} & set(attributes) for _, attributes in reader.elements
    )
    references = [attributes["xlink:href"] for _, attributes in reader.elements if "xlink:href" in attributes]
    assert all(target.startswith("#") for target in [*references, *re.findall(r"url\(([^)]*)", page)])
    assert "@import" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert html.escape(HOSTILE) in page
    assert HOSTILE in reader.text  # told as text: in title, facts, tiles, charts and table
    assert "$" not in re.sub(r"<style.*?</style>|<svg.*?</svg>", "", page, flags=re.DOTALL)


@pytest.mark.parametrize("objective", ["risk", "excess_risk"])
def test_the_page_starts_with_the_worst_group_and_has_the_numbers_of_the_report(objective):
    fitted, report = example(objective=objective, names=("north", "south", "island"))
    page = report_page(fitted, report, "t.csv")
    assert f'<p class="lead">{html.escape(report.message)}</p>' in page
    rows = re.findall(r"<tr>(.*?)</tr>", page)
    for k, group in enumerate(report.columns["group"]):
        short, long = (row for row in rows if row.startswith(f"<td>{group}</td>"))
        for key in ("risk", "accuracy"):
            assert f"<td>{report.columns[key][k]:.4g}</td>" in short
        for key in ("risk_low", "accuracy_high", "weight"):
            assert f"<td>{report.columns[key][k]:.4g}</td>" in long
    assert f"{fitted.model.upper_bound_:.4g}" in page
    assert "The certified gap is within the tolerance." in page
    assert page.count("<svg") == 3


def test_the_columns_of_the_table_are_explained():
    fitted, report = example(objective="excess_risk")
    page = report_page(fitted, report, "t.csv")
    explained = set(re.findall(r"<tr><td>(\w+)</td><td>", page))
    assert {"risk", "regret", "overconfidence", "ece", "weight", "note"} <= explained
    assert "rmse" not in explained


def test_a_fit_that_did_not_converge_is_told():
    fitted, report = example()
    fitted.model.status_, fitted.model.message_ = "time_limit", Status.TIME_LIMIT.value
    page = report_page(fitted, report, "t.csv")
    assert Status.TIME_LIMIT.value in page
    assert "time limit: relative gap" in page


def test_many_groups_bare_numbers_and_odd_reports_are_drawn():
    rng = np.random.default_rng(0)
    n = 4000
    groups, x = rng.integers(0, 400, n), rng.normal(size=n)
    X, y = x[:, None], 1e6 * (x + rng.normal(size=n))
    model = GroupDRORegressor(tol=1e-2, random_state=0).fit(X, y, groups=groups)
    report = model.report(X, y, np.where(groups < 3, -1, groups), n_bootstrap=0)
    page = report_page(SavedModel(Pipeline([("model", model)]), "y", ("hour",), {}), report, "t.csv")
    Reader(page)
    assert "101 more groups are not shown." in page
    assert "unseen" in page
    assert "nan" not in re.sub(r"<style.*?</style>|<svg.*?</svg>", "", page, flags=re.DOTALL).lower()
