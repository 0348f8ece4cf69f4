"""Tables as they come: other separators, types of Arrow, indices of pandas, labels of any type."""

import datetime
import decimal
import json

import numpy as np
import pandas as pd
import pytest

from groupdro import Predictions, group_report
from tests.cli.tables import call, predictions

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

N = 300
GIVEN = ["--target", "y", "--probability", "p", "--group", "site"]


@pytest.fixture
def frame():
    return predictions(N)


def report(path, *options):
    """Return the document of a report."""
    return json.loads(call("report", path, *(options or GIVEN), "--json").stdout)


def same(one, other):
    """Compare reports, whatever file they are of."""
    return {**one, "table": None} == {**other, "table": None}


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
    assert same(report(tmp_path / name), report(tmp_path / "t.parquet"))


def test_a_file_that_r_wrote_is_read(tmp_path, frame):
    # write.csv quotes text, writes truth values in capitals and NA for what is missing.
    frame["site"] = frame["site"].where(frame["site"] != "west")
    rows = frame.assign(y=np.where(frame["y"] == 1, "TRUE", "FALSE"))[["y", "p", "site"]]
    lines = [f"{y},{p!r},{'NA' if site != site else f'{chr(34)}{site}{chr(34)}'}" for y, p, site in rows.to_numpy()]
    (tmp_path / "r.csv").write_text("\n".join(['"y","p","site"', *lines, ""]))
    frame.to_parquet(tmp_path / "t.parquet")
    found, expected = report(tmp_path / "r.csv"), report(tmp_path / "t.parquet")
    assert found["groups"] == expected["groups"]
    assert found["worst_value"] == expected["worst_value"]


def test_types_of_arrow_are_numbers_or_text(tmp_path, frame):
    columns = {
        "y": pa.array(frame["word"].tolist()).dictionary_encode(),
        "p": pa.array([decimal.Decimal(f"{p:.6f}") for p in frame["p"]]),
        "site": pa.array(frame["site"].tolist(), getattr(pa, "string_view", pa.string)()),
        "weight": frame["weight"].to_numpy().astype(np.float32),
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    plain = frame.assign(y=frame["word"], p=frame["p"].round(6), weight=frame["weight"].astype(np.float32))
    plain.to_parquet(tmp_path / "plain.parquet")
    given = [*GIVEN, "--weight", "weight"]
    one, other = report(tmp_path / "t.parquet", *given), report(tmp_path / "plain.parquet", *given)
    assert one["worst_value"] == pytest.approx(other["worst_value"], rel=1e-9)


def test_a_named_index_of_pandas_is_a_column_and_a_count_of_rows_is_none(tmp_path, frame):
    frame.to_parquet(tmp_path / "plain.parquet")
    frame.set_index("site").to_parquet(tmp_path / "named.parquet")
    assert same(report(tmp_path / "plain.parquet"), report(tmp_path / "named.parquet"))
    frame[frame["sex"] == "f"].to_parquet(tmp_path / "filtered.parquet")
    told = json.loads(call("find", tmp_path / "filtered.parquet", *GIVEN[:4], "--json").stdout)
    assert told["searched"] == [name for name in frame if name not in ("y", "p")]


def test_names_that_are_numbers_are_text(tmp_path, frame):
    frame[["y", "p", "site"]].set_axis(range(3), axis=1).to_parquet(tmp_path / "t.parquet")
    frame.to_parquet(tmp_path / "plain.parquet")
    own = report(tmp_path / "t.parquet", "--target", "0", "--probability", "1", "--group", "2")
    assert own["groups"] == report(tmp_path / "plain.parquet")["groups"]


def test_a_column_whose_name_has_a_comma_is_found_by_it(tmp_path, frame):
    frame.rename(columns={"age": "age, years"}).to_csv(tmp_path / "t.csv", index=False)
    told = call("find", tmp_path / "t.csv", *GIVEN[:4], "--columns", "age, years", "--columns", "site,sex", "--json")
    assert json.loads(told.stdout)["searched"] == ["age, years", "site", "sex"]


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
def test_groups_of_any_type_are_reported(tmp_path, frame, labels, names, combined):
    frame["when"] = pd.Series(labels).take(np.resize([0, 1], N)).to_numpy()
    frame.to_parquet(tmp_path / "t.parquet")
    options = [*GIVEN[:4], "--group", "when", *(["--group", "sex"] if combined else [])]
    expected = [[name, sex] for name in names for sex in "fm"] if combined else names
    assert sorted(row["group"] for row in report(tmp_path / "t.parquet", *options)["groups"]) == expected


def test_combinations_of_zeros_and_ones_are_no_membership(tmp_path, frame):
    frame["even"], frame["odd"] = 1 - frame["age"] % 2, frame["age"] % 2
    frame.to_csv(tmp_path / "t.csv", index=False)
    told = report(tmp_path / "t.csv", *GIVEN[:4], "--group", "even", "--group", "odd")
    assert sorted(row["group"] for row in told["groups"]) == [[0, 1], [1, 0]]


@pytest.mark.parametrize(
    ("column", "classes"),
    [("y", ["1", "0"]), ("word", ["good", "bad"]), ("truth", ["TRUE", "false"]), ("half", ["1.5", "0.5"])],
)
def test_classes_are_named_in_the_type_of_the_target(tmp_path, frame, column, classes):
    frame["truth"], frame["half"] = frame["y"] == 1, frame["y"] + 0.5
    frame.to_csv(tmp_path / "t.csv", index=False)
    given = [*(part for name in classes for part in ("--class", name)), "--probability", "p", "--group", "site"]
    told = report(tmp_path / "t.csv", "--target", column, *given, "--metric", "accuracy")
    other = report(tmp_path / "t.csv", *GIVEN, "--metric", "accuracy")
    assert told["overall"]["accuracy"] == pytest.approx(1.0 - other["overall"]["accuracy"])


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        (["007", "07", "7"], ["007", "07", "7"]),
        (["1", "1.0", "1e0"], ["1", "1.0", "1e0"]),
        (["01234", "98765"], ["01234", "98765"]),
        (["TRUE", "true", "false"], ["TRUE", "true", "false"]),
        (
            ["12345678901234567890123", "12345678901234567890124"],
            ["12345678901234567890123", "12345678901234567890124"],
        ),
        (["2020-01-01", "2021-05-01"], ["2020-01-01", "2021-05-01"]),
        (["08:30", "12:00"], ["08:30", "12:00"]),
        (["2", "10"], [2, 10]),
        ([" 2", "10"], [2, 10]),
        (["2", "10.5"], [2.0, 10.5]),
        (["TRUE", "FALSE"], [False, True]),
    ],
    ids=str,
)
@pytest.mark.parametrize("ending", [".csv", ".CSV.GZ"])
def test_groups_of_a_csv_file_are_those_that_are_written_differently(tmp_path, frame, texts, names, ending):
    frame["code"] = np.resize([*texts, ""], N)  # and a missing one
    frame.to_csv(tmp_path / f"t{ending}", index=False, sep=";", compression="gzip" if "GZ" in ending else None)
    told = report(tmp_path / f"t{ending}", *GIVEN[:4], "--group", "code")
    found = sorted((row["group"] for row in told["groups"]), key=str)
    assert found == sorted([*names, "(missing)"], key=str)
    expected = group_report(
        Predictions(probability=frame["p"]), y=frame["y"], groups=frame["code"].replace("", np.nan), min_rows=30
    )
    numbers = sorted(row["risk"] for row in told["groups"])
    np.testing.assert_allclose(numbers, np.sort(expected.columns["risk"]), rtol=1e-12)


def test_clusters_of_a_csv_file_are_those_that_are_written_differently(tmp_path, frame):
    frame["patient"] = [f"{k % 50:0{1 + k % 3}d}" for k in range(N)]
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    given = [*GIVEN, "--cluster", "patient"]
    assert same(report(tmp_path / "t.csv", *given), report(tmp_path / "t.parquet", *given))


def test_find_compares_numbers_of_a_csv_file_however_they_are_written(tmp_path):
    frame = predictions()
    frame["y"] = np.where(frame["age"] > 70, 1 - frame["y"], frame["y"])
    given = [*GIVEN[:4], "--columns", "age", "--json"]
    frame.to_csv(tmp_path / "plain.csv", index=False)
    frame.assign(age=[f"{age:04d}" for age in frame["age"]]).to_csv(tmp_path / "padded.csv", index=False)
    plain, padded = (json.loads(call("find", tmp_path / f"{name}.csv", *given).stdout) for name in ("plain", "padded"))
    assert "age > " in plain["message"]
    assert same(plain, padded)
