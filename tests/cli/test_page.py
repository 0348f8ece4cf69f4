"""The page of a report: escaped, whole, and the same numbers as the table."""

import html
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from groupdro import GroupDROClassifier, GroupDRORegressor, group_report
from groupdro.solvers import Status

pa = pytest.importorskip("pyarrow")
pytest.importorskip("skops")

from groupdro.cli.model import SavedModel, frame_of, pipeline_for  # noqa: E402
from groupdro.cli.page import report_page  # noqa: E402

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
    table = pa.table({HOSTILE: x, "z": rng.normal(size=n)})
    X = frame_of(table, table.column_names, [])
    if kind == "classification":
        y = np.where(y > 0, HOSTILE, "no")
        model = GroupDROClassifier(objective, random_state=0)
    else:
        model = GroupDRORegressor(objective, random_state=0)
    model = pipeline_for(X.columns.tolist(), [], model).fit(X, y, model__groups=group)
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


def test_the_table_has_the_numbers_of_the_report_and_points_out_the_worst():
    fitted, report = example(names=("north", "south", "island"))
    page = report_page(fitted, report, "t.csv")
    worst = re.search(r"<tr class=worst>(.*?)</tr>", page)[1]
    assert f'<th scope="row">{report.columns["group"][0]} <span class="badge">worst</span></th>' in worst
    assert f"{report.columns['risk'][0]:.4f}" in worst
    assert f"{report.columns['accuracy'][0]:.1%}" in worst
    assert page.count("<tr") == 1 + 3 + 1
    model = fitted.model
    assert f"{model.upper_bound_:.4g}" in page
    assert "The certified gap is within the tolerance." in page
    assert page.count("<svg") == 3


def test_the_worst_is_meant_by_regret_where_that_is_minimised():
    fitted, report = example(objective="excess_risk", names=("north", "south", "island"))
    report.columns["regret"][:] = [0.0, 0.0, 1.0]
    worst = re.search(r"<tr class=worst>(.*?)</tr>", report_page(fitted, report, "t.csv"))[1]
    assert f'<th scope="row">{report.columns["group"][2]} ' in worst


def test_a_fit_that_did_not_converge_is_told():
    fitted, report = example()
    fitted.model.status_, fitted.model.message_ = "time_limit", Status.TIME_LIMIT.value
    page = report_page(fitted, report, "t.csv")
    assert f"{Status.TIME_LIMIT.value} The bounds still hold." in page
    assert "time limit" in page


def test_many_groups_bare_numbers_and_odd_reports_are_drawn():
    rng = np.random.default_rng(0)
    n = 4000
    groups, x = rng.integers(0, 400, n), rng.normal(size=n)
    X, y = x[:, None], 1e6 * (x + rng.normal(size=n))
    model = GroupDRORegressor(tol=1e-2, random_state=0).fit(X, y, groups=groups)
    report = model.report(X, y, np.where(groups < 3, -1, groups), n_bootstrap=0)
    page = report_page(SavedModel(model, "y", ("hour",), {}), report, "t.csv")
    Reader(page)
    assert "more groups with lower risks are not shown" in page
    assert ">hour -1<" in page
    assert "unseen" in page
    assert "nan" not in re.sub(r"<style.*?</style>|<svg.*?</svg>", "", page, flags=re.DOTALL).lower()
