"""What users get wrong: one sentence that names it, the right exit code, no traceback, no file."""

import gzip

import numpy as np
import pytest

from groupdro import cli
from tests.cli.tables import left_over, predictions, testing

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

GIVEN = "--target y --probability p --group site"
N = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Tables with faults, and things that are none."""
    folder = tmp_path_factory.mktemp("mistakes")
    frame = predictions(N)
    table = pa.table({name: frame[name].to_numpy() for name in frame})

    def write(file, **changed):
        pq.write_table(pa.table({**{name: table[name] for name in table.column_names}, **changed}), folder / file)

    pq.write_table(table, folder / "t.parquet")
    write("no_label.parquet", y=pa.array([None, *frame["y"].tolist()[1:]]))
    write("no_probability.parquet", p=pa.array([*frame["p"].tolist()[:-2], None, None]))
    write("no_weight.parquet", weight=pa.array([None] * N, pa.float64()))
    write("percent.parquet", p=100.0 * frame["p"].to_numpy())
    write("infinite.parquet", p=[*frame["p"].tolist()[:-1], np.inf])
    write("text_p.parquet", p=["much"] * N)
    write("negative.parquet", weight=-frame["weight"].to_numpy())
    write("zero.parquet", weight=np.zeros(N))
    write("one_class.parquet", y=["no"] * N)
    write("coded.parquet", **{"class": np.array(["bad", "good"])[frame["class"].to_numpy()]})
    write("lists.parquet", y=[[1.0, 2.0]] * N)
    frame.to_csv(folder / "commas.csv", index=False, sep=";", decimal=",")
    write("nested.parquet", age=[[1.0, 2.0]] * N)
    pq.write_table(table.slice(0, 0), folder / "no_rows.parquet")
    pq.write_table(table.select(["y", "p"]), folder / "bare.parquet")
    (folder / "empty.csv").write_text("")
    (folder / "header.csv").write_text("y,p,site\n")
    (folder / "ragged.csv").write_text("y,p,site\n1,0.5,a\n0,0.5\n")
    (folder / "twice.csv").write_text("p,p,y,site\n1,2,1,a\n")
    (folder / "latin.csv").write_bytes("y,p,site\n1,0.5,caf\u00e9\n0,0.5,b\n".encode("latin-1"))
    (folder / "latin_header.csv").write_bytes("y,p,s\u00efte\n1,0.5,a\n0,0.5,b\n".encode("latin-1"))
    late = "y,p,site\n" + "1,0.5,cafe\n0,0.5,b\n" * 1000 + "1,0.5,caf\u00e9\n"
    (folder / "latin_late.csv").write_bytes(late.encode("latin-1"))
    (folder / "utf16.csv").write_text("y,p,site\n1,0.5,a\n", encoding="utf-16")
    (folder / "broken.csv.gz").write_bytes(gzip.compress(b"y,p,site\n1,0.5,a\n")[:-9])
    (folder / "not.parquet").write_text("y,p,site\n1,0.5,a\n")
    (folder / "table.xlsx").write_text("")
    (folder / "page.html").write_text("")
    (folder / "directory").mkdir()
    (folder / "parts").mkdir()
    numbers = table.select(["p", "age", "y", "site"])
    pq.write_table(numbers, folder / "parts" / "a.parquet")
    pq.write_table(numbers, folder / "numbers.parquet")
    (folder / "parts" / "b.parquet").write_text("not Parquet")
    pq.write_table(
        numbers.set_column(0, "p", pa.array([None, *frame["p"].tolist()[1:]])), folder / "with_missing.parquet"
    )
    return folder


MISTAKES = [
    # files
    ("report missing.csv {given}", "No such file or directory (missing.csv)."),
    ("report table.xlsx {given}", "'table.xlsx' must end in one of .csv, .csv.gz,"),
    ("report directory {given}", "'directory' must end in one of .csv, .csv.gz,"),
    ("report not.parquet {given}", "'not.parquet' cannot be read as Parquet: "),
    ("report empty.csv {given}", "'empty.csv' is empty."),
    ("report header.csv {given}", "'header.csv' has no rows."),
    ("find header.csv --target y --probability p", "'header.csv' has no rows."),
    ("report no_rows.parquet {given}", "'no_rows.parquet' has no rows."),
    ("report ragged.csv {given}", "'ragged.csv' cannot be read as CSV: CSV parse error: "),
    ("report twice.csv {given}", "'twice.csv' cannot be read as CSV: it has more than one column 'p'."),
    ("report broken.csv.gz {given}", "'broken.csv.gz' cannot be read as CSV: "),
    ("report latin.csv {given}", "column 'site' is not in UTF-8, but perhaps in Latin-1: save the table in UTF-8."),
    ("report latin_late.csv {given}", "column 'site' is not in UTF-8, but perhaps in Latin-1: save the table in UTF-8"),
    ("report latin_header.csv {given}", "the first line is not in UTF-8, but perhaps in Latin-1: save the table in"),
    ("report utf16.csv {given}", "'utf16.csv' cannot be read as CSV: the first line is not in UTF-8"),
    # columns
    (
        "report t.parquet --target z --probability p --group site",
        "--target: there is no column 'z' among the table's 19, such as 'y', 'p', 'logit',",
    ),
    ("report t.parquet --target y --probability q --group site", "--probability: there is no column 'q'"),
    ("report t.parquet --target y --score q --group site", "--score: there is no column 'q'"),
    (
        "report t.parquet --target y --prediction clas --group site",
        "no column 'clas' among the table's 19, such as 'class'",
    ),
    ("report t.parquet --target y --probability p --group sit", "--group: there is no column 'sit'"),
    ("report t.parquet {given} --weight w", "--weight: there is no column 'w'"),
    ("report t.parquet {given} --cluster w", "--cluster: there is no column 'w'"),
    (
        "report t.parquet --target claims --prediction rate --group site --exposure e",
        "--exposure: there is no column 'e'",
    ),
    ("find t.parquet --target y --probability p --columns age,aeg", "--columns: there is no column 'aeg'"),
    ("find bare.parquet --target y --probability p", "no column is left to search: name some by --columns."),
    # values
    ("report no_label.parquet {given}", "--target: column 'y' has 1 missing values, the first in data row 1: fill"),
    ("find no_label.parquet --target y --probability p", "--target: column 'y' has 1 missing values, the first in"),
    (
        "report no_probability.parquet {given}",
        "--probability: column 'p' has 2 missing values, the first in data row 59",
    ),
    ("report no_weight.parquet {given} --weight weight", "--weight: column 'weight' has 60 missing values"),
    ("report negative.parquet {given} --weight weight", "--weight: column 'weight' has negative values."),
    ("report zero.parquet {given} --weight weight", "--weight: column 'weight' is zero in all rows."),
    ("report percent.parquet {given}", "--probability: column 'p' has "),
    ("report infinite.parquet {given}", "column 'p' has an infinite value, first in data row 60."),
    ("report text_p.parquet {given}", "column 'p' must be numbers, but has 'much'."),
    ("report lists.parquet {given}", "--target: column 'y' holds mixed values, not numbers or text."),
    ("report one_class.parquet {given}", "--target: column 'y' has 1 different labels, ['no'], but one column of"),
    (
        "report t.parquet --target level --probability p --group site",
        "has 3 different labels, ['high', 'low', 'mid'], but",
    ),
    (
        "report t.parquet --target level --probability p_high --probability p_low --group site",
        "has 3 different labels, ['high', 'low', 'mid'], but 2 columns are of 2 classes: name all classes by --class",
    ),
    (
        "report t.parquet --target level --probability p_high --group site --class high --class mid --class low",
        "--probability: there are 3 classes, ['high', 'mid', 'low'], so give one column per class.",
    ),
    ("report t.parquet {given} --class a --class b", "--class 'a' is not a label like 0."),
    ("report t.parquet {given} --class 1 --class 2", "--target: 'y' has labels that --class does not name: [0]."),
    ("report t.parquet {given} --class 1 --class 1", "--class names a class twice."),
    (
        "report coded.parquet --target y --prediction class --group site",
        "--prediction: column 'class' has ['bad', 'good'], but --target 'y' has [0, 1]: code both alike.",
    ),
    (
        "report t.parquet --target claims --prediction rate --group site --exposure logit",
        "values that are not positive.",
    ),
    (
        "report t.parquet --target y --probability p --group site --metric no-such",
        "metrics has 'no-such', which is not a function",
    ),
    ("report t.parquet {given} --quantile 0.9", "--quantile is for predicted numbers, and --probability for classes"),
    (
        "report t.parquet --target amount --prediction upper --group site --quantile 0.9 --loss squared",
        "leave out --loss.",
    ),
    ("report t.parquet {given} --confidence 1", "confidence must be"),
    ("find t.parquet --target y --probability p --metric roc_auc", "metric 'roc_auc' is not an average over rows"),
    # metrics that need more than there is
    (
        "report t.parquet --target y --score logit --group site --metric log_loss",
        "--metric log_loss requires --probability: with --score alone, there are only metrics of ranks (roc_auc, "
        "average_precision) and of classes (accuracy, balanced_accuracy, recall,",
    ),
    (
        "report t.parquet --target y --score logit --group site --metric recall --metric calibration_slope",
        "--metric calibration_slope requires --probability: with --score alone,",
    ),
    ("report t.parquet --target y --score logit --group site --metric neg_log_loss", "neg_log_loss requires --prob"),
    ("report t.parquet --target y --score logit --group site --loss log", "--loss log requires --probability: with"),
    ("find t.parquet --target y --score logit --metric brier", "--metric brier requires --probability: with --score"),
    (
        "find t.parquet --target y --score logit --metric miscalibration",
        "--metric miscalibration requires --probability: with --score alone, there are only",
    ),
    (
        "report t.parquet --target y --prediction class --group site --metric roc_auc",
        "--metric roc_auc requires --score or --probability: with --prediction alone, there are only metrics of",
    ),
    # decimal commas
    ("report commas.csv {given}", ": a decimal comma. Write the table with decimal points, as in '0.53"),
    (
        "report commas.csv --target amount --prediction upper --group site",
        "column 'amount' must be numbers, but has '",
    ),
    (
        "find commas.csv --target y --prediction y --weight weight",
        "a decimal comma. Write the table with decimal points",
    ),
    # columns to search
    (
        "find nested.parquet --target y --probability p --columns age",
        "--columns: column 'age' holds lists or other nested values, not one value per row.",
    ),
    # outputs
    ("report t.parquet {given} --html page.html", "--html 'page.html' exists: pass --force to replace it."),
    (
        "report t.parquet {given} --html nowhere/p.html",
        "--html 'nowhere/p.html' is not a file in an existing directory.",
    ),
    # stores
    ("convert missing.csv s {store}", "source 'missing.csv' does not exist."),
    ("convert missing*.csv s {store}", "source 'missing*.csv' matches no file."),
    ("convert nope://bucket/t.csv s {store}", "source 'nope://bucket/t.csv' is a URI that pyarrow cannot open"),
    ("convert missing.parquet s {store}", "source 'missing.parquet' does not exist."),
    ("convert numbers.parquet directory {store}", "STORE 'directory' exists: pass --force to replace it."),
    ("convert numbers.parquet parts {store} --force", "path is not a store, or contains other files"),
    ("convert t.parquet s {store}", "features has columns that are not numeric: ['word', 'level', 'sex']."),
    ("convert numbers.parquet s --target z --group site", "target names the column 'z', which is not in source"),
    ("convert numbers.parquet s {store} --drop z", "--drop: there is no column 'z'"),
    ("convert with_missing.parquet s {store}", "features column 'p' has a missing value, first in row 0."),
    ("convert parts s {store}", "parts/b.parquet': "),
    ("convert parts/a.parquet parts/b.parquet s {store}", "parts/b.parquet': "),
    ("convert numbers.parquet latin.csv s {store}", "source must be files of one format"),
]


def invoke(line):
    given = line.format(given=GIVEN, store="--target y --group site").split()
    return testing.CliRunner().invoke(cli._commands, given)


@pytest.mark.parametrize(("line", "sentence"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_a_mistake_is_told_in_one_sentence(folder, monkeypatch, line, sentence):
    monkeypatch.chdir(folder)
    before = sorted(path.name for path in folder.iterdir())
    result = invoke(line)
    assert result.exit_code == 1, result.output
    assert sentence in result.stderr
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert result.stderr.endswith(".\n")
    assert result.stdout == ""
    assert sorted(path.name for path in folder.iterdir()) == before
    assert not left_over(folder)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("report t.parquet --probability p --group site", "Missing option '--target'"),
        ("report t.parquet --target y --probability p", "Missing option '--group'"),
        ("report t.parquet --target y --group site", "Missing option '--prediction', '--probability' or '--score'."),
        ("find t.parquet --target y", "Missing option '--prediction', '--probability' or '--score'."),
        ("report t.parquet {given} --confidence x", "Invalid value for '--confidence'"),
        ("report t.parquet {given} --quantile 1", "Invalid value for '--quantile'"),
        ("report t.parquet {given} --min-rows 0", "Invalid value for '--min-rows'"),
        ("report t.parquet {given} --nothing", "No such option"),
        ("find t.parquet {given}", "No such option"),
        ("convert numbers.parquet {store}", "Missing argument"),
        ("fit t.parquet {store}", "No such command 'fit'"),
    ],
)
def test_a_wrong_call_is_told_with_the_usage(folder, monkeypatch, line, sentence):
    monkeypatch.chdir(folder)
    result = invoke(line)
    assert result.exit_code == 2, result.output
    assert sentence in result.stderr
    assert "Usage: " in result.stderr


def test_an_unexpected_error_is_one_line_and_a_traceback_only_on_request(folder, monkeypatch):
    from groupdro.cli import report

    def fails(*_):
        raise RuntimeError("the lamp is broken")

    monkeypatch.chdir(folder)
    monkeypatch.setattr(report, "read_predictions", fails)
    result = invoke("report t.parquet {given}")
    assert result.exit_code == 70
    assert result.stderr.startswith("Error: unexpected RuntimeError: the lamp is broken. Run again with --debug")
    assert "Traceback" not in result.output
    result = invoke("report t.parquet {given} --debug")
    assert (result.exit_code, "Traceback" in result.stderr) == (70, True)


def test_a_failed_write_leaves_nothing(folder, monkeypatch):
    def fails(_):
        raise OSError(28, "No space left on device")

    monkeypatch.chdir(folder)
    monkeypatch.setattr("os.fsync", fails)
    result = invoke("report t.parquet {given} --html o.html")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: No space left on device (")
    assert result.stderr.endswith("o.html).\n")
    assert not (folder / "o.html").exists()
    assert not left_over(folder)
