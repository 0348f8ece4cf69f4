"""The commands on public tables, run as a user does; numbers against the Python API."""

import html
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

from groupdro import (
    GroupDROClassifier,
    GroupDRORegressor,
    GroupedStore,
    cli,
    compare,
    group_report,
)
from tests.cli.tables import BIKE, left_over, public, run

pa = pytest.importorskip("pyarrow")
testing = pytest.importorskip("click.testing")
skops = pytest.importorskip("skops.io")
SavedModel = pytest.importorskip("groupdro.cli.model").SavedModel


def call(*arguments, code=0):
    """Run a command in this process, and return what it printed."""
    result = testing.CliRunner().invoke(cli._commands, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def encoded(train, table):
    """Encode a table as the documentation says, by pandas alone."""
    parts = []
    for name in table.columns:
        own, column = train[name], table[name]
        if pd.api.types.is_numeric_dtype(own):
            median = own.median()
            filled = own.fillna(median)
            parts.append((column.fillna(median) - filled.mean()) / (filled.std(ddof=0) or 1.0))
        else:
            parts += [(column == label) * 1.0 for label in sorted(own.dropna().unique())]
            parts += [column.isna() * 1.0] if own.isna().any() else []
    return np.column_stack(parts)


@pytest.fixture(scope="module")
def adult(tmp_path_factory):
    """A folder with two tables, a model that was fitted on the first, and what `fit` printed."""
    folder = tmp_path_factory.mktemp("adult")
    table = public("adult", 4000).drop(columns="split")
    table[:3000].to_csv(folder / "train.csv", index=False)
    table[3000:].to_csv(folder / "new.csv", index=False)
    given = ["--target", "income", "--group", "sex", "--group", "race", "-o", folder / "model.skops", "--json"]
    done = call("fit", folder / "train.csv", *given)
    return folder, json.loads(done.stdout), done.stderr


def test_fit_report_and_predict_agree_with_the_python_api(adult):
    folder, fitted, told = adult
    assert told == ""  # progress is for terminals
    train, new = (pd.read_csv(folder / name) for name in ("train.csv", "new.csv"))
    seen = ["income", "sex", "race"]
    X, X_new = (encoded(train.drop(columns=seen), table.drop(columns=seen)) for table in (train, new))
    model = GroupDROClassifier(random_state=0).fit(X, train["income"], groups=train[["sex", "race"]])
    assert (fitted["status"], fitted["features"], fitted["rows"]) == ("converged", X.shape[1], 3000)
    assert fitted["upper_bound"] == pytest.approx(model.upper_bound_, rel=1e-9)
    assert fitted["worst_group"] == list(model.worst_group_)

    # The values of new rows are in a table of another format, in another order, with columns that are not needed.
    new[["race", *[name for name in new if name not in seen]]].iloc[:, ::-1].to_parquet(folder / "new.parquet")
    done = call("predict", folder / "model.skops", folder / "new.parquet", "-o", folder / "predicted.csv")
    assert done.stdout.startswith("1000 predictions (<=50K: ")
    predicted = pd.read_csv(folder / "predicted.csv")
    frame = new.astype(dict.fromkeys(new.select_dtypes("number"), float))
    assert SavedModel.load(folder / "model.skops").pipeline.predict(frame).tolist() == model.predict(X_new).tolist()
    assert predicted["prediction"].tolist() == model.predict(X_new).tolist()
    np.testing.assert_allclose(predicted["probability_>50K"], model.predict_proba(X_new)[:, 1], rtol=1e-6)
    assert predicted["race"].tolist() == new["race"].tolist()

    done = call("report", folder / "model.skops", folder / "new.csv", "--json", "--html", folder / "page.html")
    reported = json.loads(done.stdout)
    expected = group_report(model, X_new, new["income"].to_numpy(), new[["sex", "race"]])
    assert [group["group"] for group in reported["groups"]] == [list(name) for name in expected.columns["group"]]
    for key in ("n", "risk", "risk_low", "accuracy", "weight"):
        found = [np.nan if group[key] is None else group[key] for group in reported["groups"]]
        np.testing.assert_allclose(found, expected.columns[key], rtol=1e-6, atol=1e-9)
    assert reported["worst_group"] == list(expected.worst_group)
    assert (folder / "page.html").read_text().startswith("<!doctype html>")
    assert not left_over(folder)


def test_a_regression_prints_the_table_and_the_certificate(tmp_path):
    table = public("bike_sharing", 3000)
    table.to_parquet(tmp_path / "bike.parquet")
    out = tmp_path / "bike.skops"
    told = call("fit", tmp_path / "bike.parquet", *BIKE, "--categorical", "weathersit", "--test-size", 0.3, "-o", out)
    assert f"regression of cnt: {table['cnt'].nunique()} distinct integer values" in told.output
    held = sum(round(0.3 * n) for n in table["hr"].value_counts())
    assert f"{3000 - held} training rows, {held} held-out rows, 11 columns, groups by hr" in told.output
    assert "\nconverged: relative gap " in told.output
    model = SavedModel.load(out)
    assert isinstance(model.model, GroupDRORegressor)
    assert {"labels__weathersit_1", "numbers__temp"} <= set(model.pipeline[0].get_feature_names_out())
    assert model.facts["held_out_rows"] == held
    assert "(all rows)" in call("report", out, tmp_path / "bike.parquet").output
    call("predict", out, tmp_path / "bike.parquet", "-o", tmp_path / "out.parquet")
    assert len(pd.read_parquet(tmp_path / "out.parquet")["prediction"]) == 3000


def test_held_out_rows_are_the_same_share_of_each_group_and_were_not_fitted_on(tmp_path):
    public("german_credit").to_csv(tmp_path / "credit.csv.gz", index=False)
    given = ["fit", tmp_path / "credit.csv.gz", "--target", "credit_risk", "--group", "sex", "--test-size", 0.25]
    told = json.loads(call(*given, "-o", tmp_path / "m", "--json").stdout)
    whole = public("german_credit")["sex"].value_counts()
    assert {group["group"]: group["n"] for group in told["groups"]} == {s: round(n / 4) for s, n in whole.items()}
    assert told["reported_rows"] == "held_out"
    again = json.loads(call(*given, "-o", tmp_path / "m", "--json", "--force").stdout)
    assert told["upper_bound"] == again["upper_bound"]
    other = json.loads(call(*given, "-o", tmp_path / "m", "--json", "--force", "--seed", 1).stdout)
    assert told["upper_bound"] != other["upper_bound"]


@pytest.mark.parametrize("seed", range(4))
def test_a_class_of_a_single_row_is_never_held_out(tmp_path, seed):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {"x": rng.normal(size=60), "site": rng.choice(["a", "b"], 60), "y": rng.choice(["n", "m"], 60)}
    )
    table.loc[0, "y"] = "rare"
    table.to_csv(tmp_path / "t.csv", index=False)
    given = ["fit", tmp_path / "t.csv", "--target", "y", "--group", "site", "--test-size", 0.6, "--seed", seed]
    call(*given, "-o", tmp_path / "m")
    assert "rare" in SavedModel.load(tmp_path / "m").model.classes_


def test_missing_values_and_unknown_categories_are_taken(tmp_path):
    table = public("heart_disease")
    assert table["ca"].isna().any()
    table["smokes"] = np.where(np.arange(len(table)) % 7, np.where(table["age"] > 50, "yes", "no"), None)
    table["num"] = table["num"] > 0
    table.to_csv(tmp_path / "heart.csv", index=False)
    out = tmp_path / "heart.skops"
    told = json.loads(
        call("fit", tmp_path / "heart.csv", "--target", "num", "--group", "site", "-o", out, "--json").stdout
    )
    assert (told["task"], told["task_reason"]) == ("classification", "2 distinct boolean values")
    model = SavedModel.load(out)
    assert model.pipeline[0].get_feature_names_out()[-3:].tolist() == [
        "labels__smokes_no", "labels__smokes_yes", "labels__smokes_nan",
    ]  # fmt: skip
    X = encoded(table.drop(columns=["num", "site"]), table.drop(columns=["num", "site"]))
    expected = GroupDROClassifier(random_state=0).fit(X, table["num"], groups=table["site"])
    table.loc[0, "smokes"] = "pipe"
    X[0, -3:] = 0.0
    table.drop(columns="num").to_csv(tmp_path / "new.csv", index=False)
    told = call("predict", out, tmp_path / "new.csv", "-o", tmp_path / "new.parquet", "--json")
    warning = f"labels not seen in fit are encoded as zeros: column 'smokes' in 1 of {len(table)} rows."
    assert json.loads(told.stdout)["warnings"] == [warning]
    assert told.stderr == f"Warning: {warning}\n"
    found = pd.read_parquet(tmp_path / "new.parquet")
    np.testing.assert_allclose(found["probability_True"], expected.predict_proba(X)[:, 1], rtol=1e-8)
    assert found["prediction"].tolist() == expected.predict(X).tolist()


def test_a_table_becomes_a_store_and_the_store_a_model(tmp_path):
    table = public("bike_sharing", 2000).drop(columns=["instant", "dteday", "casual", "registered"])
    table["cnt"] = table["cnt"].astype(float)
    table[:900].to_csv(tmp_path / "one.csv", index=False)
    table[900:].to_csv(tmp_path / "two.csv", index=False)
    given = ["--target", "cnt", "--group", "season", "--drop", "yr", "--verify", "--json"]
    done = call("convert", *(tmp_path / name for name in ("one.csv", "two.csv", "bike.store")), *given)
    told = json.loads(done.stdout)
    assert (told["rows"], told["features"], told["task"], told["verified"]) == (2000, 10, "regression", True)
    store = GroupedStore.open(tmp_path / "bike.store")
    assert sorted(store.y) == sorted(table["cnt"])

    done = call("fit", tmp_path / "bike.store", "--tol", "1e-3", "-o", tmp_path / "bike.skops")
    assert "regression of cnt: the store was written for it" in done.stdout
    expected = GroupDRORegressor(tol=1e-3, random_state=0).fit(store)
    found = SavedModel.load(tmp_path / "bike.skops")
    np.testing.assert_allclose(found.model.coef_, expected.coef_, rtol=1e-6)
    assert (found.target, found.groups) == ("cnt", ("season",))
    # Of the same rows, as a table and as a store.
    table.to_parquet(tmp_path / "bike.parquet")
    reports = [
        json.loads(call("report", tmp_path / "bike.skops", tmp_path / name, "--json").stdout)["groups"]
        for name in ("bike.parquet", "bike.store")
    ]
    for one, other in zip(*reports, strict=True):
        assert one["risk"] == pytest.approx(other["risk"], rel=1e-4)  # the store has float32


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


def test_a_fit_that_does_not_converge_says_so_and_is_written(adult, tmp_path):
    folder = adult[0]
    given = ["--target", "income", "--group", "sex", "--max-passes", "1", "-o", tmp_path / "m.skops"]
    done = call("fit", folder / "train.csv", *given, code=3)
    assert done.stderr.startswith("Not converged: The pass limit was reached")
    assert "--tol is 0.0001. Increase --max-passes or --tol. The model was written to" in done.stderr
    assert SavedModel.load(tmp_path / "m.skops").model.status_ == "pass_limit"
    told = json.loads(call("fit", folder / "train.csv", *given, "--json", "--force", code=3).stdout)
    assert told["status"] == "pass_limit"
    assert told["relative_gap"] > told["tol"]


def test_checkpoints_let_a_fit_go_on(adult, tmp_path):
    given = ["fit", adult[0] / "train.csv", "--target", "income", "--group", "sex", "--checkpoint-dir", tmp_path / "c"]
    one = json.loads(call(*given, "-o", tmp_path / "one", "--json").stdout)
    assert any((tmp_path / "c").rglob("*"))
    again = json.loads(call(*given, "-o", tmp_path / "two", "--json").stdout)
    assert again["status"] == "converged"
    assert again["upper_bound"] <= one["upper_bound"] * (1 + 1e-12)  # a pass of another kind rounds differently
    assert again["lower_bound"] >= one["lower_bound"] * (1 - 1e-12)


def test_several_group_columns_of_truth_values_mean_their_combinations(tmp_path):
    table = public("german_credit", 400)
    table["young"], table["rich"] = table["age"] < 30, table["amount"] > 4000
    table.to_csv(tmp_path / "t.csv", index=False)
    given = ["fit", tmp_path / "t.csv", "--target", "credit_risk", "--group", "young", "--group", "rich"]
    told = json.loads(call(*given, "--json", "-o", tmp_path / "m").stdout)
    assert sorted(group["group"] for group in told["groups"]) == [
        [young, rich] for young in (False, True) for rich in (False, True)
    ]
    seen = json.loads(call(*given, "--json", "-o", tmp_path / "m", "--force", "--group-as-feature").stdout)
    assert seen["features"] == told["features"] + 2


def test_the_help_of_every_command_says_how_to_call_it():
    text = call("--help").output
    assert "130  interrupted by Ctrl-C" in text
    for name in cli._commands.commands:
        assert name in text
        assert f"{name} [OPTIONS]" in call(name, "--help").output


def test_the_documentation_names_only_options_that_there_are():
    told = (Path(__file__).parents[2] / "docs" / "command_line.md").read_text(encoding="utf-8")
    known = {name for command in cli._commands.commands.values() for p in command.params for name in p.opts}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", told)) <= {*known, "--help"}


def test_the_version_is_told():
    assert "0.1" in call("--version").output


def test_a_model_of_the_command_line_is_loaded_by_skops(adult):
    path = adult[0] / "model.skops"
    untrusted = {name for name in skops.get_untrusted_types(file=path) if not name.startswith("sklearn.")}
    assert untrusted == {
        "groupdro.estimators.classifier.GroupDROClassifier",
        "groupdro.run.result.TraceRow",
        "numpy.dtype",
    }
    found = skops.load(path, trusted=skops.get_untrusted_types(file=path))
    assert set(found) == {"pipeline", "target", "groups", "facts"}
    assert found["pipeline"][-1].coef_.tolist() == SavedModel.load(path).model.coef_.tolist()


class Foreign:
    """A class that no model of the command line contains."""


def test_a_file_with_anything_else_is_refused(adult, tmp_path):
    content = skops.load(adult[0] / "model.skops", trusted=skops.get_untrusted_types(file=adult[0] / "model.skops"))
    skops.dump({**content, "facts": {"rows": Foreign()}}, tmp_path / "foreign.skops")
    skops.dump({"pipeline": content["pipeline"]}, tmp_path / "other.skops")
    whole = (adult[0] / "model.skops").read_bytes()
    (tmp_path / "cut.skops").write_bytes(whole[: len(whole) // 2])
    for name, why in (
        ("foreign", "Untrusted"),
        ("other", "missing 3 required positional arguments"),
        ("cut", "cannot be read"),
    ):
        result = call("report", tmp_path / f"{name}.skops", adult[0] / "new.csv", code=1)
        assert why in result.output


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
    for name in [name for name in sys.modules if name.startswith("groupdro.cli")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "click", None)  # what makes an import fail
    with pytest.raises(SystemExit) as ended:
        import_module("groupdro.cli").main()
    assert ended.value.code == 'The command line requires click: pip install "groupdro[cli]".'


@pytest.mark.long
def test_a_process_of_its_own_does_what_a_call_does(adult, tmp_path):
    given = ["fit", adult[0] / "train.csv", "--target", "income", "--group", "sex", "--group", "race", "--json"]
    done = run(*given, "-o", "model.skops", cwd=tmp_path)
    assert done.stderr == ""
    assert json.loads(done.stdout)["upper_bound"] == adult[1]["upper_bound"]
    assert run(*given, "-o", "model.skops", cwd=tmp_path, code=1).stderr.startswith("Error: --output")


@pytest.mark.long
def test_a_reader_that_leaves_early_is_no_error(adult):
    if shutil.which("head") is None:
        pytest.skip("there is no head")
    line = f"{sys.executable} -c 'from groupdro.cli import main; main()' report model.skops new.csv | head -1"
    done = subprocess.run(line, shell=True, cwd=adult[0], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("Worst group: ")
    assert done.stdout.count("\n") == 1
    assert "Traceback" not in done.stderr


# ---------------------------------------------------------------------- labels that were not there at fit


def test_a_column_of_which_no_label_is_known_is_taken_only_on_request(adult, tmp_path):
    folder, *_ = adult
    new = pd.read_csv(folder / "new.csv")
    coded = new.assign(workclass=np.where(new["workclass"] == "Private", "0", "1"))
    coded.to_parquet(tmp_path / "coded.parquet")
    model, out = folder / "model.skops", tmp_path / "out.csv"
    assert (
        "column 'workclass' has no label that was seen in fit, such as"
        in call("predict", model, tmp_path / "coded.parquet", "-o", out, code=1).stderr
    )
    with pytest.raises(ValueError, match="column 'workclass' has no label that was seen in fit"):
        SavedModel.load(model).features(coded)
    assert not out.exists()
    told = call("predict", model, tmp_path / "coded.parquet", "-o", out, "--allow-unknown")
    assert "column 'workclass' in 1000 of 1000 rows" in told.stderr
    saved = SavedModel.load(model)
    with pytest.warns(UserWarning, match="column 'workclass' in 1000 of 1000 rows"):
        frame = saved.features(coded, allow_unknown=True)
    with pytest.warns(UserWarning, match="Found unknown categories"):
        found = saved.pipeline.predict(frame)
    assert pd.read_csv(out)["prediction"].tolist() == found.tolist()
    told = call("report", model, tmp_path / "coded.parquet", "--allow-unknown", "--json")
    assert json.loads(told.stdout)["warnings"][0] in told.stderr


# ---------------------------------------------------------------------- in-sample or not


def test_a_report_says_whether_the_rows_were_fitted_on(adult, tmp_path):
    folder, *_ = adult
    fit = ["fit", folder / "train.csv", "--target", "income", "--group", "sex", "-o", tmp_path / "m", "--force"]
    unknown = "\nIt is unknown whether some of these rows were used for training.\n"
    for more, sentence, short in (
        ([], "\nIn-sample: these are the rows the model was fitted on.\n", "yes"),
        (["--test-size", 0.5], "\nPartly in-sample: the model was fitted on 1500 of these rows.\n", "partly"),
    ):
        call(*fit, *more)
        page = tmp_path / f"{short}.html"
        assert sentence in call("report", tmp_path / "m", folder / "train.csv", "--html", page).stdout
        assert sentence.strip() in page.read_text()
        assert json.loads(call("report", tmp_path / "m", folder / "train.csv", "--json").stdout)["in_sample"] == short
        assert unknown in call("report", tmp_path / "m", folder / "new.csv").stdout
        assert json.loads(call("report", tmp_path / "m", folder / "new.csv", "--json").stdout)["in_sample"] == "unknown"


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_a_report_on_the_store_of_the_fit_is_in_sample(tmp_path, task):
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(300, 2)), rng.choice(["a", "b"], 300)
    y = np.where(X[:, 0] > 0, "yes", "no") if task == "classification" else X[:, 0] + rng.normal(size=300)
    for name in ("one", "other"):
        GroupedStore.write_arrays(tmp_path / name, X * (1.0 if name == "one" else 2.0), y, groups)
    call("fit", tmp_path / "one", "-o", tmp_path / "m", "--alpha", 0.1)
    assert "In-sample: these are the rows" in call("report", tmp_path / "m", tmp_path / "one").stdout
    assert "It is unknown whether" in call("report", tmp_path / "m", tmp_path / "other").stdout


def test_a_report_on_a_store_uses_its_weights_and_offsets(tmp_path):
    rng = np.random.default_rng(0)
    X, groups, offset = rng.normal(size=(300, 2)), np.repeat(["a", "b"], 150), rng.normal(size=300)
    y = np.where(X[:, 0] + offset > 0, "yes", "no")
    store = GroupedStore.write_arrays(
        tmp_path / "s", X, y, groups, sample_weight=rng.uniform(0.1, 2.0, 300), offset=offset
    )
    call("fit", tmp_path / "s", "-o", tmp_path / "m", "--alpha", 0.1)
    told = json.loads(call("report", tmp_path / "m", tmp_path / "s", "--json").stdout)
    expected = GroupDROClassifier(alpha=0.1, random_state=0).fit(store)
    assert {row["group"]: row["risk"] for row in told["groups"]} == pytest.approx(
        dict(zip(expected.groups_.tolist(), expected.group_risks_.tolist(), strict=True)), rel=1e-6
    )


# ---------------------------------------------------------------------- small groups


def test_small_groups_are_merged_with_a_warning(adult, tmp_path):
    folder, *_ = adult
    given = ["--target", "income", "--group", "race", "--min-group-size", 60]
    told = call("fit", folder / "train.csv", *given, "-o", tmp_path / "m", "--json")
    race = pd.read_csv(folder / "train.csv")["race"].value_counts()
    few = set(race[race < 60].index)
    assert few
    model = SavedModel.load(tmp_path / "m").model
    assert model.min_group_size == 60
    assert set(model.merged_groups_) == few
    assert "min_group_size=60" in told.stderr


# ---------------------------------------------------------------------- compare


def test_compare_agrees_with_the_python_api(adult, tmp_path):
    folder, *_ = adult
    given = ["--target", "income", "--group", "sex", "--alpha", 0.01, "--test-size", 0.3, "--seed", 3]
    done = run("compare", "train.csv", *given, "--json", "--html", tmp_path / "c.html", cwd=folder)
    told = json.loads(done.stdout)
    assert done.stderr == ""

    table = pd.read_csv(folder / "train.csv")
    held = table.index.isin(table.groupby("sex").sample(frac=0.3, random_state=3).index)
    features = table.drop(columns=["income", "sex"])
    X = encoded(features[~held], features)
    parts = [(X[part], table["income"].to_numpy()[part], table["sex"].to_numpy()[part]) for part in (~held, held)]
    estimator = GroupDROClassifier(alpha=0.01)
    expected = compare(*parts[0], held_out=parts[1], estimator=estimator, random_state=3)
    assert (told["rows"], told["held_out_rows"]) == ((~held).sum(), held.sum())
    assert [row["model"] for row in told["models"]] == ["ERM", "balanced ERM", "blend 0.5", "GDRO", "MERO", "CV choice"]
    for key in ("mean_risk", "worst_risk", "worst_regret", "mean_accuracy", "worst_accuracy"):
        assert [row[key] for row in told["models"]] == pytest.approx(expected.columns[key], rel=1e-5)
    assert told["verdict"] == expected.verdict
    assert told["worth_it"] == expected.worth_it
    assert told["changes"]["GDRO"]["gain"] == pytest.approx(expected.changes["GDRO"].gain, rel=1e-4)
    assert [row["group"] for row in told["groups"]["GDRO"]] == expected.reports["GDRO"].columns["group"]
    page = (tmp_path / "c.html").read_text()
    assert page.startswith("<!doctype html>")
    assert html.escape(expected.verdict) in page
    assert "<script" not in page

    text = run("compare", "train.csv", *given, cwd=folder).stdout
    assert f"{held.sum()} held-out rows" in text
    assert "\nHeld-out rows\nmodel " in text
    assert expected.verdict in text


def test_compare_says_which_fits_have_not_converged(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.normal(size=400), "g": rng.choice(["<b>", "c"], 400)})
    table["y"] = table["x"] + rng.normal(size=400)
    table.to_csv(tmp_path / "t.csv", index=False)
    given = ["--target", "y", "--group", "g", "--tol", 1e-16, "--html", tmp_path / "c.html"]
    told = call("compare", tmp_path / "t.csv", *given, code=3)
    assert told.stderr.endswith("see the column gap. --tol is 1e-16.\n")
    assert "regression of y" in told.stdout
    page = (tmp_path / "c.html").read_text()
    assert "<td>&lt;b&gt;</td>" in page
    assert "<b>" not in page


def test_an_l1_penalty_leaves_few_coefficients(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(200, 6)), columns=list("abcdef"))
    frame["y"] = frame["a"] + 0.1 * rng.normal(size=200)
    frame["site"] = rng.choice(["north", "south"], 200)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    fit = ["fit", tmp_path / "rows.csv", "--target", "y", "--group", "site", "--alpha", "0.1", "--json"]
    found = json.loads(call(*fit, "--l1-ratio", "1", "-o", tmp_path / "few.skops").stdout)
    own = SavedModel.load(tmp_path / "few.skops").model
    X = encoded(frame[list("abcdef")], frame[list("abcdef")])
    model = GroupDRORegressor(alpha=0.1, l1_ratio=1.0, random_state=0).fit(X, frame["y"], groups=frame["site"])
    assert found["l1_ratio"] == 1.0
    assert np.count_nonzero(own.coef_) < 6
    np.testing.assert_allclose(own.coef_, model.coef_, rtol=1e-6, atol=1e-9)
    all_of_them = call(*fit, "-o", tmp_path / "all.skops")
    assert json.loads(all_of_them.stdout)["l1_ratio"] == 0.0
    assert np.count_nonzero(SavedModel.load(tmp_path / "all.skops").model.coef_) == 6


def test_metrics_and_details_are_those_of_the_report(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.normal(size=900), "g": rng.choice(["a", "b"], 900)})
    table["y"] = np.where(table["x"] + rng.logistic(size=900) > 0, "yes", "no")
    table.to_csv(tmp_path / "t.csv", index=False)
    given = [tmp_path / "t.csv", "--target", "y", "--group", "g"]
    call("fit", *given, "--metric", "recall", "-o", tmp_path / "m.skops")
    metrics = ["--metric", "recall", "--metric", "roc_auc"]
    told = json.loads(call("report", tmp_path / "m.skops", tmp_path / "t.csv", *metrics, "--json").stdout)
    assert told["metrics"] == ["recall", "roc_auc"]
    for row in told["groups"]:
        assert row["recall_low"] < row["recall"] < row["recall_high"]
    short, long = (call("report", tmp_path / "m.skops", tmp_path / "t.csv", *metrics, *more).stdout
                   for more in ([], ["--details"]))  # fmt: skip
    assert "recall_low" not in short
    assert "recall_low" in long
    compared = json.loads(call("compare", *given, "--folds", 0, *metrics, "--floor", 0.99, "--json").stdout)
    assert compared["metrics"] == ["recall", "roc_auc"]
    assert "0.99" in compared["verdict"]
    call("report", tmp_path / "m.skops", tmp_path / "t.csv", "--metric", "no-such", code=1)


def test_a_useless_fit_is_warned_of_and_strict_says_so_by_the_exit_code(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.normal(size=300), "id": np.arange(300)})
    table["y"] = np.where(table["x"] + rng.logistic(size=300) > 0, "yes", "no")
    table.to_csv(tmp_path / "t.csv", index=False)
    given = [tmp_path / "t.csv", "--target", "y", "--group", "id", "-o", tmp_path / "m.skops", "--force"]
    assert "no better than a constant" in call("fit", *given).stderr
    assert "no better than a constant" in call("fit", *given, "--strict", code=4).stderr


def test_a_table_is_converted_to_two_stores(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.normal(size=200), "g": np.arange(200) % 2, "y": rng.normal(size=200)})
    table.to_csv(tmp_path / "t.csv", index=False)
    given = [tmp_path / "t.csv", tmp_path / "s", "--target", "y", "--group", "g", "--test-size", 0.25]
    told = json.loads(call("convert", *given, "--json").stdout)
    assert (told["rows"], told["held_out_rows"]) == (150, 50)
    call("fit", tmp_path / "s", "-o", tmp_path / "m.skops")
    assert "50 rows of s-test" in call("report", tmp_path / "m.skops", tmp_path / "s-test").stdout
