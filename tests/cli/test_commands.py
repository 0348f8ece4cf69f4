"""The commands, run as a user does; numbers against the Python API."""

import json
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import groupdro
from groupdro import GroupedStore, Predictions, cli, find_groups, group_report
from groupdro.losses import Poisson, Quantile
from tests.cli.tables import call, left_over, predictions, run

pa = pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("predictions")
    predictions().to_csv(folder / "p.csv", index=False)
    predictions().to_parquet(folder / "p.parquet")
    return folder


def close(found, expected):
    """Compare two tables of groups, to 1e-12."""
    assert len(found) == len(expected["group"])
    for k, row in enumerate(found):
        for key, values in expected.items():
            value = list(values[k]) if isinstance(values[k], tuple) else values[k]
            if isinstance(value, float):
                assert np.float64(np.nan if row[key] is None else row[key]) == pytest.approx(
                    value, rel=1e-12, abs=1e-12, nan_ok=True
                ), key
            else:
                assert row[key] == value, key


#: The options of a report, and what they mean in Python.
KINDS = {
    "probability": (
        ["--target", "y", "--probability", "p", "--metric", "log_loss", "--metric", "roc_auc"],
        lambda t: (Predictions(probability=t["p"]), t["y"], {"metrics": ["log_loss", "roc_auc"]}),
    ),
    "words": (
        ["--target", "word", "--probability", "p", "--metric", "brier", "--metric", "actual_over_expected"],
        lambda t: (Predictions(probability=t["p"]), t["word"], {"metrics": ["brier", "actual_over_expected"]}),
    ),
    "other class": (
        ["--target", "word", "--probability", "p", "--class", "good", "--class", "bad", "--metric", "recall"],
        lambda t: (Predictions(probability=t["p"], classes=["good", "bad"]), t["word"], {"metrics": "recall"}),
    ),
    "three classes": (
        ["--target", "level", *(part for name in ("high", "low", "mid") for part in ("--probability", f"p_{name}"))],
        lambda t: (Predictions(probability=t[["p_high", "p_low", "p_mid"]].to_numpy()), t["level"], {}),
    ),
    "score": (
        ["--target", "y", "--score", "logit", "--metric", "roc_auc"],
        lambda t: (Predictions(score=t["logit"]), t["y"], {"metrics": "roc_auc"}),
    ),
    "classes": (
        ["--target", "y", "--prediction", "class", "--metric", "recall", "--metric", "false_positive_rate"],
        lambda t: (Predictions(t["class"]), t["y"], {"metrics": ["recall", "false_positive_rate"]}),
    ),
    "classes and probabilities": (
        ["--target", "y", "--prediction", "class", "--probability", "p", "--metric", "recall"],
        lambda t: (Predictions(t["class"], probability=t["p"]), t["y"], {"metrics": "recall"}),
    ),
    "numbers": (
        ["--target", "amount", "--prediction", "logit", "--metric", "rmse"],
        lambda t: (Predictions(t["logit"]), t["amount"], {"metrics": "rmse"}),
    ),
    "quantiles": (
        [
            "--target",
            "amount",
            "--prediction",
            "upper",
            "--quantile",
            0.9,
            "--metric",
            "risk",
            "--metric",
            "share_below",
        ],
        lambda t: (Predictions(t["upper"]), t["amount"], {"metrics": ["risk", "share_below"], "loss": Quantile(0.9)}),
    ),
    "counts": (
        [
            *("--target", "claims", "--prediction", "rate", "--exposure", "exposure"),
            *("--metric", "risk", "--metric", "actual_over_expected"),
        ],
        lambda t: (
            Predictions(t["rate"] * t["exposure"], task="regression"),
            t["claims"],
            {"metrics": ["risk", "actual_over_expected"], "loss": Poisson()},
        ),
    ),
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_report_has_the_numbers_of_the_python_function(folder, kind, weighted):
    options, in_python = KINDS[kind]
    name = "p.csv" if weighted else "p.parquet"
    table = pd.read_csv(folder / "p.csv")
    given, y, more = in_python(table)
    groups, labels = ["--group", "site"], table["site"]
    if weighted:
        options = [*options, "--weight", "weight", "--cluster", "patient"]
        more = {**more, "sample_weight": table["weight"], "cluster": table["patient"]}
        groups, labels = [*groups, "--group", "sex"], table[["site", "sex"]]
    told = json.loads(call("report", folder / name, *options, *groups, "--json").stdout)
    expected = group_report(given, y=y, groups=labels, **more)
    close(told["groups"], expected.columns)
    worst = [np.nan if value is None else value for value in told["worst_value"]]
    np.testing.assert_allclose(worst, expected.worst_value, rtol=1e-12)
    assert told["rows"] == expected.overall["n"]
    printed = call("report", folder / name, *options, *groups).stdout
    # Only the line with the name of the predictions differs.
    own, others = printed.splitlines(), repr(expected).splitlines()
    assert [line for line in own if f" in {name}" not in line] == [
        line for line in others if not line.startswith("Predictions")
    ]


@pytest.mark.parametrize("metric", [None, "accuracy", "miscalibration"])
@pytest.mark.parametrize("weighted", [False, True])
def test_found_groups_are_those_of_the_python_function(folder, metric, weighted):
    table = pd.read_csv(folder / "p.csv")
    options = ["--target", "y", "--probability", "p", *(["--metric", metric] if metric else [])]
    options += ["--columns", "site,age", "--columns", "sex", "--confidence", 0.9, "--seed", 4]
    more = {}
    if weighted:
        options += ["--weight", "weight", "--cluster", "patient"]
        more = {"sample_weight": table["weight"], "cluster": table["patient"]}
    told = json.loads(call("find", folder / "p.csv", *options, "--json").stdout)
    expected = find_groups(
        Predictions(probability=table["p"]),
        y=table["y"],
        columns=table[["site", "age", "sex"]],
        metrics=metric,
        level=0.9,
        random_state=4,
        **more,
    )
    if metric == "miscalibration":
        assert "site = west" in expected.message
    close(told["groups"], expected.columns)
    assert told["message"] == expected.message
    assert call("find", folder / "p.csv", *options).stdout == f"{expected!r}\n"


def test_find_searches_all_columns_that_have_no_other_role(folder):
    told = json.loads(call("find", folder / "p.csv", "--target", "y", "--probability", "p", "--json").stdout)
    assert told["searched"] == [name for name in predictions() if name not in ("y", "p")]


def test_find_leaves_out_columns_of_lists_and_says_so(tmp_path):
    table = predictions()[["y", "p", "site", "age"]]
    table.to_parquet(tmp_path / "plain.parquet")
    table["visits"], table["form"] = [[1, 2]] * len(table), [{"a": 1}] * len(table)
    table.to_parquet(tmp_path / "t.parquet")
    found = call("find", tmp_path / "t.parquet", "--target", "y", "--probability", "p", "--json")
    told = json.loads(found.stdout)
    assert told["searched"] == ["site", "age"]
    assert told["warnings"] == ["columns of lists or other nested values are not searched: ['visits', 'form']."]
    plain = json.loads(call("find", tmp_path / "plain.parquet", "--target", "y", "--probability", "p", "--json").stdout)
    assert told["groups"] == plain["groups"]


def test_a_group_column_that_is_named_twice_counts_once(folder):
    given = [folder / "p.parquet", "--target", "y", "--probability", "p", "--group", "site"]
    assert call("report", *given, "--group", "site").stdout == call("report", *given).stdout


def test_infinite_values_and_ends_are_shown_on_pages(tmp_path):
    table = predictions()
    table["p"] = np.where(table["site"] == "west", 0.0, table["p"])  # nothing is expected there
    table.to_csv(tmp_path / "t.csv", index=False)
    given = ["--target", "y", "--probability", "p", "--group", "site"]
    given += ["--metric", "accuracy", "--metric", "actual_over_expected", "--html", tmp_path / "page.html"]
    call("report", tmp_path / "t.csv", *given, "--json")
    assert (tmp_path / "page.html").stat().st_size > 0


def test_a_group_without_a_label_is_a_group_as_in_python(tmp_path):
    table = predictions()
    table.loc[table["site"] == "west", "site"] = None
    table.to_csv(tmp_path / "t.csv", index=False)
    told = json.loads(
        call("report", tmp_path / "t.csv", "--target", "y", "--probability", "p", "--group", "site", "--json").stdout
    )
    expected = group_report(Predictions(probability=table["p"]), y=table["y"], groups=table["site"])
    close(told["groups"], expected.columns)
    assert len(told["groups"]) == 3


def test_details_have_intervals_and_how_much_groups_differ(folder):
    given = [folder / "p.csv", "--target", "y", "--probability", "p", "--group", "site", "--metric", "roc_auc"]
    short, long = call("report", *given).stdout, call("report", *given, "--details").stdout
    assert "roc_auc_low" not in short
    assert "roc_auc_low" in long
    table = predictions()
    report = group_report(Predictions(probability=table["p"]), y=table["y"], groups=table["site"], metrics="roc_auc")
    assert long.endswith(f"\nroc_auc: {report.heterogeneity()}\n")


def test_the_page_is_that_of_the_report(folder, tmp_path):
    given = ["--target", "y", "--probability", "p", "--group", "site", "--title", "Sites <1>", "--about", "A test."]
    told = call("report", folder / "p.csv", *given, "--html", tmp_path / "page.html")
    assert told.stdout.endswith("page.html\n")
    page = (tmp_path / "page.html").read_text()
    table = predictions()
    report = group_report(
        Predictions(probability=table["p"], name="p in p.csv (positive: 1)"), y=table["y"], groups=table["site"]
    )
    report.to_html(tmp_path / "python.html", title="Sites <1>", about="A test.")
    assert page == (tmp_path / "python.html").read_text()
    assert "Sites &lt;1&gt;" in page
    assert (
        "exists: pass --force"
        in call("report", folder / "p.csv", *given, "--html", tmp_path / "page.html", code=1).stderr
    )
    call("report", folder / "p.csv", *given, "--html", tmp_path / "page.html", "--force")
    assert not left_over(tmp_path)


def test_found_groups_have_a_page_too(folder, tmp_path):
    given = [*("--target", "y", "--probability", "p", "--columns", "site,age", "--metric", "miscalibration")]
    given += ["--html", tmp_path / "page.html", "--title", "Where"]
    assert call("find", folder / "p.csv", *given).stdout.endswith("page.html\n")
    assert "<h1>Where</h1>" in (tmp_path / "page.html").read_text()
    assert "exists: pass --force" in call("find", folder / "p.csv", *given, code=1).stderr


def test_a_table_becomes_a_store(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(2000, 3)), columns=["a", "b", "c"])
    table["cnt"], table["season"], table["yr"] = rng.normal(size=2000), rng.integers(1, 5, 2000), 1
    table[:900].to_csv(tmp_path / "one.csv", index=False)
    table[900:].to_csv(tmp_path / "two.csv", index=False)
    given = ["--target", "cnt", "--group", "season", "--drop", "yr", "--verify", "--json"]
    done = call("convert", *(tmp_path / name for name in ("one.csv", "two.csv", "bike.store")), *given)
    told = json.loads(done.stdout)
    assert (told["rows"], told["features"], told["task"], told["verified"]) == (2000, 3, "regression", True)
    store = GroupedStore.open(tmp_path / "bike.store")
    assert sorted(store.y) == sorted(table["cnt"])


@pytest.mark.parametrize("kind", ["pattern", "URI", "pattern in a URI"])
def test_tables_to_convert_may_be_patterns_and_uris(tmp_path, kind):
    table = pd.DataFrame({"x": np.arange(200) / 7, "g": np.arange(200) % 2, "y": np.arange(200) / 3})
    for k, suffix in enumerate(("csv.gz", "csv.gz") if kind == "pattern" else ("parquet", "parquet")):
        part = table[100 * k : 100 * (k + 1)]
        path = tmp_path / f"part-{k}.{suffix}"
        part.to_csv(path, index=False) if kind == "pattern" else part.to_parquet(path)
    source = {
        "pattern": tmp_path / "part-*",
        "URI": (tmp_path / "part-1.parquet").as_uri(),
        "pattern in a URI": f"{tmp_path.as_uri()}/*.parquet",
    }
    call("convert", source[kind], tmp_path / "s", "--target", "y", "--group", "g")
    store = GroupedStore.open(tmp_path / "s")
    assert store.n_rows == (100 if kind == "URI" else 200)
    assert store.feature_names == ("x",)
    assert store.y.max() == table["y"].max()


def test_a_table_is_converted_to_two_stores(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.normal(size=200), "g": np.arange(200) % 2, "y": rng.normal(size=200)})
    table.to_csv(tmp_path / "t.csv", index=False)
    given = [tmp_path / "t.csv", tmp_path / "s", "--target", "y", "--group", "g", "--test-size", 0.25]
    told = json.loads(call("convert", *given, "--json").stdout)
    assert (told["rows"], told["held_out_rows"]) == (150, 50)
    assert GroupedStore.open(tmp_path / "s-test").n_rows == 50


def test_convert_reads_compressed_tables_and_whole_numbers_that_go_on_as_others(tmp_path):
    n = 100_000  # enough that the types of the first block are not those of all
    x = np.arange(n, dtype=float)
    x[-1] += 0.5
    table = pd.DataFrame({"x": [f"{v:g}" if v == int(v) else str(v) for v in x], "y": x % 2 == 0, "g": x % 3})
    table["g"] = "g" + table["g"].astype(int).astype(str)
    table.to_csv(tmp_path / "t.csv.gz", index=False)
    told = call("convert", tmp_path / "t.csv.gz", tmp_path / "t.store", "--target", "y", "--group", "g")
    assert "100000 rows in 3 groups" in told.output
    store = GroupedStore.open(tmp_path / "t.store")
    assert store.X.max() == np.float32(x[-1])
    assert store.classes.tolist() == [False, True]


def test_warnings_are_printed_and_strict_says_so_by_the_exit_code(tmp_path):
    table = predictions()
    table["large"] = 1e6 + np.random.default_rng(0).normal(size=len(table))
    table[["y", "site", "large"]].to_csv(tmp_path / "t.csv", index=False)
    given = [tmp_path / "t.csv", tmp_path / "s", "--target", "y", "--group", "site"]
    assert "Warning: float32 rounds away" in call("convert", *given).stderr
    assert "float32 rounds away" in call("convert", *given, "--force", "--strict", code=4).stderr


def test_the_help_of_every_command_says_how_to_call_it():
    text = call("--help").output
    assert "130  interrupted by Ctrl-C" in text
    assert set(cli._commands.commands) == {"report", "find", "convert"}
    for name in cli._commands.commands:
        assert name in text
        assert f"{name} [OPTIONS]" in call(name, "--help").output


def test_the_documentation_names_only_options_that_there_are():
    told = (Path(__file__).parents[2] / "docs" / "command_line.md").read_text(encoding="utf-8")
    known = {name for command in cli._commands.commands.values() for p in command.params for name in p.opts}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", told)) <= {*known, "--help"}


def test_the_version_is_told():
    assert "0.1" in call("--version").output


def test_nothing_of_the_command_line_is_imported_by_the_package():
    names = ["click", "pandas", "matplotlib", "pyarrow", "groupdro.cli"]
    script = f"""
import sys
import sklearn.linear_model, sklearn.model_selection, sklearn.pipeline  # which may import some of these themselves
before = set(sys.modules)
import groupdro
print([name for name in {names} if name in set(sys.modules) - before])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_without_click_the_command_names_the_extra(monkeypatch):
    monkeypatch.setattr(groupdro, "cli", cli)  # which the import below replaces until the end of this test
    for name in [name for name in sys.modules if name.startswith("groupdro.cli")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "click", None)  # what makes an import fail
    with pytest.raises(SystemExit) as ended:
        import_module("groupdro.cli").main()
    assert ended.value.code == 'The command line requires click: pip install "groupdro[cli]".'


@pytest.mark.long
def test_a_process_of_its_own_does_what_a_call_does(folder):
    given = ["report", "p.csv", "--target", "y", "--probability", "p", "--group", "site"]
    done = run(*given, cwd=folder)
    assert done.stderr == ""
    assert done.stdout == call("report", folder / "p.csv", *given[2:]).stdout


@pytest.mark.long
def test_a_reader_that_leaves_early_is_no_error(folder):
    if shutil.which("head") is None:
        pytest.skip("there is no head")
    line = (
        f"{sys.executable} -c 'from groupdro.cli import main; main()' report p.csv --target y --probability p "
        "--group site | head -1"
    )
    done = subprocess.run(line, shell=True, cwd=folder, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("Worst group: ")
    assert done.stdout.count("\n") == 1
    assert "Traceback" not in done.stderr
