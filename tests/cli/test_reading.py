"""Tables as they come: other separators, missing values, odd types, indices of pandas."""

import datetime
import decimal
import json

import numpy as np
import pandas as pd
import pytest

from groupdro import cli
from groupdro.cli.model import SavedModel

testing = pytest.importorskip("click.testing")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

N = 120
FIT = ["--target", "y", "--group", "g", "--json"]


def call(*arguments, code=0):
    """Run a command in this process, and return what it printed."""
    result = testing.CliRunner().invoke(cli._commands, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def fit(path, *options):
    """Fit a model beside a table, and return what was printed and the model."""
    out = path.with_name("m.skops")
    told = json.loads(call("fit", path, *(options or FIT), "--json", "--force", "-o", out).stdout)
    return told, SavedModel.load(out)


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    x = rng.normal(size=N)
    labels = {"colour": rng.choice(["rot, hell", "grün"], N), "g": rng.choice(["a", "b"], N)}
    return pd.DataFrame(
        {"x": x, "k": rng.integers(0, 4, N), **labels, "y": np.where(x + rng.normal(size=N) > 0, "s", "t")}
    )


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("t.csv", {}),
        ("t.csv.gz", {}),
        ("t.CSV", {"sep": ";"}),
        ("t.csv", {"sep": "\t"}),
        ("t.tsv", {"sep": "\t"}),
        ("t.tsv.gz", {"sep": "|"}),
        ("t.csv", {"encoding": "utf-8-sig", "sep": ";"}),
    ],
    ids=str,
)
def test_a_csv_file_is_read_whatever_separates_its_columns(tmp_path, frame, name, write):
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_csv(tmp_path / name, index=False, **write)
    told, other = (fit(tmp_path / path)[0] for path in (name, "t.parquet"))
    assert (told["rows"], told["features"]) == (N, 4)
    assert told["upper_bound"] == pytest.approx(other["upper_bound"], rel=1e-12)


def test_types_of_arrow_are_numbers_or_text(tmp_path, frame):
    columns = {
        "decimal": [decimal.Decimal(f"{x:.3f}") for x in frame["x"]],
        "single": frame["x"].to_numpy().astype(np.float32),
        "nan": np.where(frame["k"] == 0, np.nan, frame["k"]),
        "large": pa.array([2**63 + int(k) for k in frame["k"]], pa.uint64()),
        "view": pa.array(frame["colour"].tolist(), getattr(pa, "string_view", pa.string)()),
        "dictionary": pa.array(frame["colour"].tolist()).dictionary_encode(),
        "y": frame["y"].tolist(),
        "g": pa.array(frame["g"].tolist(), pa.large_string()).dictionary_encode(),
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    _, model = fit(tmp_path / "t.parquet")
    assert model.pipeline[0].get_feature_names_out().tolist() == [
        *(f"numbers__{name}" for name in ("decimal", "single", "nan", "large")),
        *(f"labels__{name}_{label}" for name in ("view", "dictionary") for label in ("grün", "rot, hell")),
    ]
    call("predict", tmp_path / "m.skops", tmp_path / "t.parquet", "-o", tmp_path / "p.csv")
    assert len(pd.read_csv(tmp_path / "p.csv")) == N


def test_numbers_as_labels_are_the_same_with_missing_values_and_without(tmp_path, frame):
    frame.to_csv(tmp_path / "t.csv", index=False)
    fit(tmp_path / "t.csv", *FIT, "--categorical", "k")
    frame["k"] = frame["k"].astype(float)  # as pandas has integers of which some are missing
    frame.loc[0, "k"] = np.nan
    frame.to_parquet(tmp_path / "new.parquet")
    told = call("predict", tmp_path / "m.skops", tmp_path / "new.parquet", "-o", tmp_path / "p.csv").stderr
    assert told == f"Warning: labels not seen in fit are encoded as zeros: column 'k' in 1 of {N} rows.\n"


def test_missing_values_are_those_of_pandas(tmp_path, frame):
    frame["colour"] = np.resize(["None", "NA", "", "red"], N)
    frame["x"] = frame["x"].astype(str).where(frame.index % 5 > 0, "n/a")
    frame.to_csv(tmp_path / "t.csv", index=False)
    _, model = fit(tmp_path / "t.csv")
    names = ["numbers__x", "numbers__k", "labels__colour_red", "labels__colour_nan"]
    assert model.pipeline[0].get_feature_names_out().tolist() == names


@pytest.mark.parametrize("how", ["csv", "parquet"])
def test_a_column_without_a_value_and_mixed_columns(tmp_path, frame, how):
    frame["nothing"], frame["mixed"] = None, np.resize(["7", "eight", "9"], N)
    write = frame.to_parquet if how == "parquet" else lambda path: frame.to_csv(path, index=False)
    write(tmp_path / f"t.{how}")
    told = call("fit", tmp_path / f"t.{how}", *FIT, code=1).stderr
    assert told == "Error: column 'nothing' has no value in the training rows: pass --drop nothing.\n"
    _, model = fit(tmp_path / f"t.{how}", *FIT, "--drop", "nothing")
    assert {"labels__mixed_7", "labels__mixed_eight"} <= set(model.pipeline[0].get_feature_names_out())


def test_a_named_index_of_pandas_is_a_column_and_a_count_of_rows_is_none(tmp_path, frame):
    frame[frame["k"] > 0].to_parquet(tmp_path / "filtered.parquet")
    frame.set_index("g").to_parquet(tmp_path / "named.parquet")
    for name in ("filtered", "named"):
        assert fit(tmp_path / f"{name}.parquet")[1].pipeline[0].feature_names_in_.tolist() == ["x", "k", "colour"]
    frame.drop(columns="colour")[frame["k"] > 0].to_parquet(tmp_path / "filtered.parquet")
    told = call("convert", tmp_path / "filtered.parquet", tmp_path / "s", "--target", "y", "--group", "g", "--json")
    assert json.loads(told.stdout)["features"] == 2


def test_names_that_are_numbers_are_text(tmp_path, frame):
    frame.set_axis(range(5), axis=1).to_parquet(tmp_path / "t.parquet")
    _, model = fit(tmp_path / "t.parquet", "--target", "4", "--group", "3")
    assert model.pipeline[0].feature_names_in_.tolist() == ["0", "1", "2"]


def test_duplicate_columns_are_refused(tmp_path):
    (tmp_path / "t.csv").write_text("x;x;y;g\n1;2;yes;a\n")
    pq.write_table(pa.Table.from_arrays([pa.array([1])] * 4, names=["x", "x", "y", "g"]), tmp_path / "t.parquet")
    told = [call("fit", tmp_path / name, *FIT, code=1).stderr for name in ("t.csv", "t.parquet")]
    assert told[0].endswith("cannot be read as CSV: it has more than one column 'x'.\n")
    assert "cannot be read as Parquet: " in told[1]


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ([datetime.date(2020, 1, 1), datetime.date(2021, 5, 1)], ["2020-01-01", "2021-05-01"]),
        (pd.to_datetime(["2020-01-01", "2021-05-01"]), ["2020-01-01", "2021-05-01"]),
        ([decimal.Decimal("1.5"), decimal.Decimal("2.5")], ["1.5", "2.5"]),
        ([1.0, 2.0], [1.0, 2.0]),
        ([2**62, 2**62 + 1], [2**62, 2**62 + 1]),
        ([False, True], [False, True]),
    ],
    ids=str,
)
@pytest.mark.parametrize("combined", [False, True])
def test_groups_of_any_type_can_be_fitted_saved_and_reported(tmp_path, frame, labels, names, combined):
    frame["when"] = pd.Series(labels).take(np.resize([0, 1], N)).to_numpy()
    frame.to_parquet(tmp_path / "t.parquet")
    options = ["--target", "y", "--group", "when", *(["--group", "g"] if combined else [])]
    told, _ = fit(tmp_path / "t.parquet", *options)
    expected = [[name, g] for name in names for g in "ab"] if combined else names
    assert sorted(group["group"] for group in told["groups"]) == expected
    report = json.loads(call("report", tmp_path / "m.skops", tmp_path / "t.parquet", "--json").stdout)
    assert report["in_sample"] == "yes"
    assert not any(group["note"] in ("unseen", "absent") for group in report["groups"])


def test_combinations_of_zeros_and_ones_are_no_membership(tmp_path, frame):
    frame["even"], frame["odd"] = 1 - frame["k"] % 2, frame["k"] % 2
    frame.to_csv(tmp_path / "t.csv", index=False)
    told, _ = fit(tmp_path / "t.csv", "--target", "y", "--group", "even", "--group", "odd")
    assert sorted(group["group"] for group in told["groups"]) == [[0, 1], [1, 0]]


def test_what_cannot_be_a_feature_is_refused_or_taken_as_labels(tmp_path, frame):
    kinds = {"day": [datetime.date(2020, 1, 1)], "time": [datetime.time(1)], "list": [[1.0]], "bytes": [b"\xe9"]}
    for name, value in kinds.items():
        frame.assign(**{name: value * N}).to_parquet(tmp_path / f"{name}.parquet")
        told = call("fit", tmp_path / f"{name}.parquet", *FIT, code=1).stderr
        assert told.endswith(f" values, not numbers or text: pass --drop {name}, or --categorical {name}.\n")
        if name != "bytes":
            assert fit(tmp_path / f"{name}.parquet", *FIT, "--categorical", name)[0]["features"] == 5


def test_predictions_are_added_to_the_table_as_it_is(tmp_path, frame):
    fit_on = tmp_path / "t.parquet"
    frame.to_parquet(fit_on)
    fit(fit_on)
    frame["id"] = pd.array([None, *range(2**60, 2**60 + N - 1)], dtype="Int64")
    frame["day"] = pd.date_range("2020-01-01", periods=N)
    frame["true"] = pd.array([None, *[True] * (N - 1)], dtype="boolean")
    frame.to_parquet(fit_on)
    for name in ("p.parquet", "p.csv.gz"):
        call("predict", tmp_path / "m.skops", fit_on, "-o", tmp_path / name)
    found = pd.read_parquet(tmp_path / "p.parquet")
    assert found.columns.tolist() == [*frame.columns, "prediction", "probability_s", "probability_t"]
    written = pd.read_csv(tmp_path / "p.csv.gz", dtype={"id": "Int64", "true": "boolean"}, parse_dates=["day"])
    for table in (found, written):
        assert table["id"].tolist() == frame["id"].tolist()
        assert (table["day"] == frame["day"]).all()
        assert table["true"].isna().tolist() == frame["true"].isna().tolist()
        assert table["colour"].tolist() == frame["colour"].tolist()
    np.testing.assert_allclose(found["probability_s"], written["probability_s"])


def test_the_target_may_be_truth_values_or_large_integers(tmp_path, frame):
    frame["t"] = frame["y"] == "s"
    frame.to_csv(tmp_path / "t.csv", index=False)
    told, model = fit(tmp_path / "t.csv", "--target", "t", "--group", "g", "--drop", "y")
    assert (told["task"], model.model.classes_.tolist()) == ("classification", [False, True])
    told, _ = fit(tmp_path / "t.csv", "--target", "t", "--group", "g", "--drop", "y", "--task", "regression")
    assert told["task"] == "regression"
    frame["t"] = 2**60 + np.arange(N)
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert fit(tmp_path / "t.csv", "--target", "t", "--group", "g")[0]["task"] == "regression"


def test_a_store_of_excess_risks_reports_them(tmp_path, frame):
    frame.drop(columns="colour").to_csv(tmp_path / "t.csv", index=False)
    call("convert", tmp_path / "t.csv", tmp_path / "s", "--target", "y", "--group", "g")
    told = json.loads(call("fit", tmp_path / "s", "--objective", "excess_risk", "-o", tmp_path / "m", "--json").stdout)
    model = SavedModel.load(tmp_path / "m").model
    regrets = dict(zip(model.groups_, model.group_risks_ - model.group_minima_, strict=True))
    for group in told["groups"]:
        assert group["regret"] == pytest.approx(regrets[group["group"]], rel=1e-12)
    assert [group["risk"] for group in told["groups"]] == sorted(model.group_risks_, reverse=True)


@pytest.mark.parametrize("target", ["y", "k", "true", "x"])
def test_a_report_on_the_table_of_the_fit_says_so_whatever_the_target(tmp_path, frame, target):
    frame["true"] = frame["x"] > 0.5
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame[::-1].to_parquet(tmp_path / "reversed.parquet")
    frame[1:].to_csv(tmp_path / "rest.csv", index=False)
    fit(tmp_path / "t.csv", "--target", target, "--group", "g", "--test-size", "0.3")
    for name, expected in (("t.csv", "partly"), ("reversed.parquet", "partly"), ("rest.csv", "unknown")):
        told = json.loads(call("report", tmp_path / "m.skops", tmp_path / name, "--json").stdout)
        assert told["in_sample"] == expected
