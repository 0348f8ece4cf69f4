"""What users get wrong: one sentence that names it, the right exit code, no traceback, no file."""

import gzip

import numpy as np
import pytest

from groupdro import cli
from tests.cli.tables import left_over

testing = pytest.importorskip("click.testing")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

FIT = ["--target", "y", "--group", "g"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Tables with faults, a model, and things that are none."""
    folder = tmp_path_factory.mktemp("mistakes")
    rng = np.random.default_rng(0)
    n = 60
    columns = {
        "x": rng.normal(size=n),
        "colour": rng.choice(["red", "blue"], n),
        "y": rng.choice(["no", "yes"], n),
        "g": rng.choice(["a", "b"], n),
    }
    table = pa.table(columns)

    def write(file, **changed):
        pq.write_table(pa.table({**columns, **changed}), folder / file)

    pq.write_table(table, folder / "t.parquet")
    write("date.parquet", day=pa.array(np.arange(n).astype("datetime64[D]")))
    write("name.parquet", name=[f"row {k}" for k in range(n)])
    write("no_target.parquet", y=pa.array([None, *["no", "yes"] * 29, "no"]))
    write("no_group.parquet", g=pa.array([*["a", "b"] * 29, None, None]))
    write("one_class.parquet", y=["no"] * n)
    write("empty_column.parquet", x=pa.array([None] * n, pa.float64()))
    write("infinite.parquet", x=[*range(n - 1), np.inf])
    write("text_x.parquet", x=["much"] * n)
    write("fractions.parquet", y=rng.normal(size=n))
    write("more_classes.parquet", y=["maybe"] * n)
    write("coded.parquet", colour=rng.choice(["0", "1"], n))
    write("predicted.parquet", prediction=["no"] * n)
    write("lists.parquet", x=[[1.0, 2.0]] * n)
    write("with_missing.parquet", x=pa.array([None, *range(n - 1)]))
    pq.write_table(table.drop_columns(["x"]), folder / "no_x.parquet")
    pq.write_table(table.slice(0, 0), folder / "no_rows.parquet")
    pq.write_table(table.drop_columns(["x", "colour"]), folder / "no_features.parquet")
    (folder / "empty.csv").write_text("")
    (folder / "header.csv").write_text("x,y,g\n")
    (folder / "ragged.csv").write_text("x,y,g\n1,yes,a\n2,no\n")
    (folder / "twice.csv").write_text("x,x,y,g\n1,2,yes,a\n")
    (folder / "latin.csv").write_bytes("x,name,y,g\n1,caf\u00e9,yes,a\n2,t\u00e9,no,b\n".encode("latin-1"))
    (folder / "latin_header.csv").write_bytes("x,n\u00e4me,y,g\n1,a,yes,a\n2,b,no,b\n".encode("latin-1"))
    late = "x,name,y,g\n" + "1,cafe,yes,a\n2,te,no,b\n" * 1000 + "1,caf\u00e9,yes,a\n"
    (folder / "latin_late.csv").write_bytes(late.encode("latin-1"))
    (folder / "utf16.csv").write_text("x,y,g\n1,yes,a\n", encoding="utf-16")
    (folder / "parts").mkdir()
    numbers = table.drop_columns(["colour"])
    pq.write_table(numbers, folder / "parts" / "a.parquet")
    (folder / "parts" / "b.parquet").write_text("not Parquet")
    (folder / "broken.csv.gz").write_bytes(gzip.compress(b"x,y,g\n1,yes,a\n")[:-9])
    (folder / "not.parquet").write_text("x,y,g\n1,yes,a\n")
    (folder / "table.xlsx").write_text("")
    (folder / "not.skops").write_text("no model")
    (folder / "directory").mkdir()
    done = testing.CliRunner().invoke(cli._commands, ["fit", f"{folder}/t.parquet", *FIT, "-o", f"{folder}/m.skops"])
    assert done.exit_code == 0, done.output
    return folder


MISTAKES = [
    # files
    ("fit missing.csv {fit}", "No such file or directory (missing.csv)."),
    ("fit table.xlsx {fit}", "'table.xlsx' must end in one of .csv, .csv.gz,"),
    ("fit not.parquet {fit}", "'not.parquet' cannot be read as Parquet: "),
    ("fit empty.csv {fit}", "'empty.csv' cannot be read as CSV: "),
    ("fit header.csv {fit}", "'header.csv' has no rows."),
    ("fit no_rows.parquet {fit}", "'no_rows.parquet' has no rows."),
    ("fit ragged.csv {fit}", "'ragged.csv' cannot be read as CSV: CSV parse error: "),
    ("fit twice.csv {fit}", "'twice.csv' cannot be read as CSV: it has more than one column 'x'."),
    ("fit broken.csv.gz {fit}", "'broken.csv.gz' cannot be read as CSV: "),
    ("fit directory", "'directory' cannot be read as a store: "),
    ("predict not.skops t.parquet -o o.csv", "'not.skops' cannot be read as a model of `groupdro fit`: "),
    ("predict missing.skops t.parquet -o o.csv", "No such file or directory (missing.skops)."),
    # columns
    (
        "fit t.parquet --target z --group g",
        "--target: there is no column 'z' among the table's 4, such as 'x', 'colour', 'y', 'g'.",
    ),
    ("fit t.parquet --target color --group g", "no column 'color' among the table's 4, such as 'colour'."),
    ("fit t.parquet --target y --group h", "--group: there is no column 'h'"),
    ("fit t.parquet {fit} --drop h", "--drop: there is no column 'h'"),
    ("fit t.parquet {fit} --categorical h", "--categorical: there is no column 'h'"),
    ("fit t.parquet --target y --group y", "--group names the target column 'y'."),
    ("fit no_features.parquet {fit}", "no column is left for the features."),
    (
        "fit date.parquet {fit}",
        "column 'day' holds date values, not numbers or text: pass --drop day, or --categorical day.",
    ),
    ("fit lists.parquet {fit}", "column 'x' holds mixed values, not numbers or text"),
    ("fit latin.csv {fit}", "column 'name' is not in UTF-8, but perhaps in Latin-1: save the table in UTF-8."),
    ("fit latin_late.csv {fit}", "column 'name' is not in UTF-8, but perhaps in Latin-1: save the table in UTF-8."),
    ("fit latin_header.csv {fit}", "the first line is not in UTF-8, but perhaps in Latin-1: save the table in UTF-8."),
    ("fit utf16.csv {fit}", "'utf16.csv' cannot be read as CSV: the first line is not in UTF-8"),
    (
        "predict m.skops coded.parquet -o o.csv",
        "column 'colour' has no label that was seen in fit, such as 'blue', 'red': pass --allow-unknown",
    ),
    ("report m.skops coded.parquet", "column 'colour' has no label that was seen in fit"),
    ("fit name.parquet {fit}", "column 'name' has 60 distinct labels in 60 rows"),
    ("fit empty_column.parquet {fit}", "column 'x' has no value in the training rows: pass --drop x."),
    ("fit infinite.parquet {fit}", "column 'x' has an infinite value, first in data row 60."),
    ("predict m.skops no_x.parquet -o o.csv", "features of the model: there is no column 'x' among"),
    ("predict m.skops text_x.parquet -o o.csv", "column 'x' must be numbers, but has 'much'."),
    ("predict m.skops predicted.parquet -o o.csv", "TABLE already has a column 'prediction'"),
    # values
    ("fit no_target.parquet {fit}", "--target: column 'y' has 1 missing values, the first in data row 1: fill"),
    ("fit no_group.parquet {fit}", "--group: column 'g' has 2 missing values, the first in data row 59: fill"),
    ("fit t.parquet {fit} --task regression", "column 'y' must be numbers, but has '"),
    ("fit fractions.parquet {fit} --task classification", "column 'y' has numbers that are not integers."),
    ("fit t.parquet {fit} --test-size 0.001", "--test-size 0.001 holds out no row"),
    ("compare directory {fit}", "TABLE 'directory' is a store, but compare requires a table."),
    ("compare t.parquet {fit} --test-size 0.001", "--test-size 0.001 holds out no row"),
    ("compare t.parquet {fit} --html m.skops", "--html 'm.skops' exists: pass --force to replace it."),
    ("report m.skops more_classes.parquet", "y has the labels ['maybe'], and the model knows none of them"),
    ("report m.skops no_target.parquet", "--target: column 'y' has 1 missing values, the first in data row 1"),
    ("report m.skops t.parquet --group h", "--group: there is no column 'h'"),
    # outputs
    ("fit t.parquet {fit} -o m.skops", "--output 'm.skops' exists: pass --force to replace it."),
    ("fit t.parquet {fit} -o directory", "--output 'directory' is not a file in an existing directory."),
    ("fit t.parquet {fit} -o nowhere/m", "--output 'nowhere/m' is not a file in an existing directory."),
    ("predict m.skops t.parquet -o o.txt", "--output 'o.txt' must end in one of .csv, .csv.gz, .parquet."),
    ("predict m.skops t.parquet -o t.parquet", "--output 't.parquet' exists: pass --force to replace it."),
    ("report m.skops t.parquet --html m.skops", "--html 'm.skops' exists: pass --force to replace it."),
    # stores
    ("convert missing.csv s {fit}", "No such file or directory (missing.csv)."),
    ("convert missing.parquet s {fit}", "source 'missing.parquet' does not exist."),
    ("convert t.parquet directory {fit}", "STORE 'directory' exists: pass --force to replace it."),
    ("convert t.parquet directory {fit} --drop colour --force", "path is not a store, or contains other files"),
    ("convert t.parquet s {fit}", "features has columns that are not numeric: ['colour']."),
    ("convert t.parquet s --target z --group g", "target names the column 'z', which is not in source"),
    ("convert t.parquet s {fit} --drop z", "--drop: there is no column 'z'"),
    ("convert with_missing.parquet s {fit} --drop colour", "features column 'x' has a missing value, first in row 0."),
    ("convert parts s {fit}", "parts/b.parquet': "),
    ("convert parts/a.parquet parts/b.parquet s {fit}", "parts/b.parquet': "),
    ("convert t.parquet latin.csv s {fit}", "source must be files of one format"),
]


@pytest.mark.parametrize(("line", "sentence"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_a_mistake_is_told_in_one_sentence(folder, monkeypatch, line, sentence):
    monkeypatch.chdir(folder)
    before = sorted(path.name for path in folder.iterdir())
    result = testing.CliRunner().invoke(cli._commands, line.format(fit=" ".join(FIT)).split())
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
        ("fit one_class.parquet {fit}", "y has only one class, 'no': classifiers require at least two."),
        ("fit t.parquet {fit} --loss huber", "loss must be 'logistic' or 'squared_hinge', got 'huber'."),
    ],
)
def test_what_the_estimator_refuses_is_told_below_what_was_read(folder, monkeypatch, line, sentence):
    monkeypatch.chdir(folder)
    result = testing.CliRunner().invoke(cli._commands, line.format(fit=" ".join(FIT)).split())
    assert (result.exit_code, result.stderr) == (1, f"Error: {sentence}\n")
    assert "60 training rows" in result.stdout
    assert not (folder / "model.skops").exists()


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("fit t.parquet --group g", "Missing option '--target' or '--group'."),
        ("fit t.parquet --target y", "Missing option '--target' or '--group'."),
        ("fit t.parquet {fit} --alpha -1", "Invalid value for '--alpha'"),
        ("fit t.parquet {fit} --tol x", "Invalid value for '--tol'"),
        ("fit t.parquet {fit} --test-size 1", "Invalid value for '--test-size'"),
        ("fit t.parquet {fit} --objective worst", "Invalid value for '--objective'"),
        ("fit t.parquet {fit} --nothing", "No such option"),
        ("compare t.parquet {fit} --objective risk", "No such option"),
        ("compare t.parquet {fit} --test-size 0", "Invalid value for '--test-size'"),
        ("fit t.parquet {fit} --min-group-size 0", "Invalid value for '--min-group-size'"),
        ("predict m.skops t.parquet", "Missing option '-o' / '--output'"),
        ("convert t.parquet --target y --group g", "Missing argument"),
        ("nothing", "No such command 'nothing'"),
    ],
)
def test_a_wrong_call_is_told_with_the_usage(folder, monkeypatch, line, sentence):
    monkeypatch.chdir(folder)
    result = testing.CliRunner().invoke(cli._commands, line.format(fit=" ".join(FIT)).split())
    assert result.exit_code == 2, result.output
    assert sentence in result.stderr
    assert "Usage: " in result.stderr


def test_options_of_tables_are_refused_for_a_store(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(folder)
    store = str(tmp_path / "s")
    made = testing.CliRunner().invoke(cli._commands, ["convert", "t.parquet", store, *FIT, "--drop", "colour"])
    assert made.exit_code == 0, made.output
    for given, sentence in (
        (["fit", store, "--target", "y"], "--target is for tables"),
        (["fit", store, "--test-size", "0.5"], "--test-size is for tables"),
        (["fit", store, "--task", "regression"], "--task is for tables"),
        (["report", "m.skops", store], "is a store, but the model was fitted on the columns of a table"),
    ):
        result = testing.CliRunner().invoke(
            cli._commands, [*given, *(["-o", str(tmp_path / "m")] if given[0] == "fit" else [])]
        )
        assert result.exit_code == 1
        assert sentence in result.stderr
    damaged = next(path for path in (tmp_path / "s").iterdir() if path.name == "X.npy")
    damaged.write_bytes(damaged.read_bytes()[:-8])
    result = testing.CliRunner().invoke(cli._commands, ["fit", store])
    assert (result.exit_code, "cannot be read as a store" in result.stderr) == (1, True)


def test_an_unexpected_error_is_one_line_and_a_traceback_only_on_request(folder, monkeypatch):
    from groupdro.cli import predict

    def fails(*_):
        raise RuntimeError("the lamp is broken")

    monkeypatch.chdir(folder)
    monkeypatch.setattr(predict, "_predictions", fails)
    given = ["predict", "m.skops", "t.parquet", "-o", "o.csv"]
    result = testing.CliRunner().invoke(cli._commands, given)
    assert result.exit_code == 70
    assert result.stderr.startswith("Error: unexpected RuntimeError: the lamp is broken. Run again with --debug")
    assert "Traceback" not in result.output
    result = testing.CliRunner().invoke(cli._commands, [*given, "--debug"])
    assert (result.exit_code, "Traceback" in result.stderr) == (70, True)
    assert not (folder / "o.csv").exists()


def test_a_failed_write_leaves_nothing(folder, monkeypatch):
    def fails(_):
        raise OSError(28, "No space left on device")

    monkeypatch.chdir(folder)
    monkeypatch.setattr("os.fsync", fails)
    result = testing.CliRunner().invoke(cli._commands, ["predict", "m.skops", "t.parquet", "-o", "o.csv"])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: No space left on device (")
    assert result.stderr.endswith("o.csv).\n")
    assert not (folder / "o.csv").exists()
    assert not left_over(folder)
