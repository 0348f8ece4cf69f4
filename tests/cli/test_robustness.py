"""The options between average and worst, on a table of one's own; numbers against the Python API."""

import json

import numpy as np
import pandas as pd
import pytest

from groupdro import GroupDROClassifier, cli
from groupdro.cli.model import SavedModel
from tests.estimators.test_robustness import make_data

testing = pytest.importorskip("click.testing")
GIVEN = ["--target", "label", "--group", "place"]


def call(*arguments, code=0):
    """Run a command in this process, and return what it printed."""
    result = testing.CliRunner().invoke(cli._commands, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


@pytest.fixture
def table(tmp_path):
    X, y, groups = make_data(n=240)
    columns = {f"x{j}": X[:, j] for j in range(3)}
    names = {"label": np.array(["no", "yes"])[y], "place": np.array(list("abcd"))[groups]}
    pd.DataFrame(columns | names).to_csv(tmp_path / "table.csv", index=False)
    return tmp_path / "table.csv"


def expected(path, **params):
    """Fit the same model by the Python API: columns are scaled, as the commands have it."""
    frame = pd.read_csv(path)
    X = frame[["x0", "x1", "x2"]].to_numpy()
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    return GroupDROClassifier(random_state=0, **params).fit(X, frame["label"], groups=frame["place"])


@pytest.mark.parametrize(
    ("options", "params", "named"),
    [
        (["--robustness", 0], {"robustness": 0.0}, "best possible average risk <="),
        (["--robustness", 0.3], {"robustness": 0.3}, "best possible 0.7 average + 0.3 worst risk <="),
        (
            ["--robustness", 0.5, "--average", "groups", "--worst-share", 0.5],
            {"robustness": 0.5, "average": "groups", "worst_share": 0.5},
            "best possible 0.5 average + 0.5 average of the worst 0.5 of all groups' risks <=",
        ),
        (
            ["--worst-share", 0.4],
            {"worst_share": 0.4},
            "best possible average of the worst 0.4 of all rows' risks <=",
        ),
        (
            ["--robustness", 0.5, "--objective", "excess_risk"],
            {"robustness": 0.5, "objective": "excess_risk"},
            "best possible 0.5 average + 0.5 worst excess risk <=",
        ),
        ([], {}, "best possible worst risk <="),
    ],
    ids=str,
)
def test_fit_takes_the_options_and_names_what_it_minimises(table, options, params, named):
    out, model = table.with_name("model"), expected(table, **params)
    assert named in call("fit", table, *GIVEN, *options, "-o", out).output
    told = json.loads(call("fit", table, *GIVEN, *options, "-o", out, "--force", "--json").stdout)
    assert told["robustness"] == params.get("robustness", 1.0)
    for name in ("mean_risk", "worst_risk", "upper_bound", "worst_lower_bound"):
        assert told[name] == pytest.approx(getattr(model, f"{name}_"), rel=1e-6, abs=1e-8)
    if np.isfinite(model.mean_lower_bound_):
        assert told["mean_lower_bound"] == pytest.approx(model.mean_lower_bound_, rel=1e-6, abs=1e-8)
    else:
        assert told["mean_lower_bound"] is None
    kept = SavedModel.load(out).model
    for name, value in params.items():
        assert getattr(kept, name) == value
    assert kept.mean_risk_ == told["mean_risk"]


def test_compare_takes_the_options(table):
    blended = ["--robustness", 0.5, "--average", "groups"]
    told = json.loads(call("compare", table, *GIVEN, *blended, "--json").stdout)
    other = json.loads(call("compare", table, *GIVEN, "--json").stdout)
    assert told != other


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--robustness", 1.1], "--robustness"),
        (["--robustness", "a"], "--robustness"),
        (["--average", "x"], "--average"),
        (["--worst-share", 0], "--worst-share"),
        (["--worst-share", 1.5], "--worst-share"),
    ],
    ids=str,
)
def test_values_that_make_no_sense_are_refused_by_name(table, options, named):
    result = testing.CliRunner().invoke(
        cli._commands, ["fit", str(table), *GIVEN, *map(str, options), "-o", str(table.with_name("model"))]
    )
    assert result.exit_code in (1, 2)
    assert named in result.output
    assert "Traceback" not in result.output
    assert not table.with_name("model").exists()
