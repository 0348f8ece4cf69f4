"""Names that a terminal would obey: what is hidden in data is shown, not done."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import groupdro as gd
from groupdro import cli
from groupdro.utils.arguments import printable

testing = pytest.importorskip("click.testing")
pytest.importorskip("pyarrow")

HOSTILE = "\x1b]0;owned\x07\r\x9b2J\nError: forged\u202eline"
CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def table(n=240):
    rng = np.random.default_rng(0)
    x, groups = rng.normal(size=n), np.array([f"{k}{HOSTILE}" for k in "abc"])[np.arange(n) % 3]
    y = np.where(x + rng.logistic(size=n) > 0, f"y{HOSTILE}", "no")
    p = 1 / (1 + np.exp(-x))
    return pd.DataFrame({f"x{HOSTILE}": x, f"target{HOSTILE}": y, f"group{HOSTILE}": groups, f"p{HOSTILE}": p})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    table().to_parquet(folder / "t.parquet")
    table().assign(z=2.0**40).to_parquet(folder / f"t{HOSTILE}.parquet".replace("/", "-"))
    return folder


def printed(*arguments, code=0):
    result = testing.CliRunner().invoke(cli._commands, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    assert not CONTROLS.search(result.output), ascii(result.output)
    assert not re.search("^Error: forged", result.output, re.MULTILINE)
    return result.output


@pytest.mark.parametrize("as_json", [False, True])
def test_no_command_prints_what_a_terminal_would_obey(folder, tmp_path, as_json):
    target, group = f"target{HOSTILE}", f"group{HOSTILE}"
    (odd,) = folder.glob("t*owned*")
    more = ["--json"] if as_json else []
    given = ["--target", target, "--probability", f"p{HOSTILE}", *more]
    reported = printed("report", odd, *given, "--group", group, "--html", tmp_path / f"{HOSTILE}.html")
    columns = ["--columns", f"x{HOSTILE}", "--columns", group]
    printed("find", odd, *given, *columns, "--min-rows", 20)
    convert = ["--target", target, "--group", group, *more]
    printed("convert", folder / "t.parquet", tmp_path / f"s{HOSTILE}", *convert)
    if as_json:
        names = {row["group"] for row in json.loads(reported)["groups"]}
        assert names == {f"{k}{HOSTILE}" for k in "abc"}  # programs get what is there
        assert json.loads(reported)["target"] == target
    else:
        assert printable(f"a{HOSTILE}") in reported


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "{table}", "--target", "nowhere", "--prediction", "p", "--group", "group"],
        ["report", "{table}", "--target", f"target{HOSTILE}", "--score", f"group{HOSTILE}", "--group", "g"],
        ["report", "{table}", "--target", f"group{HOSTILE}", "--probability", f"p{HOSTILE}", "--group", "g"],
        ["find", f"nowhere{HOSTILE}.csv", "--target", "y", "--prediction", "p"],
        ["convert", "{table}", "{folder}/s", "--target", "x", "--group", f"group{HOSTILE}"],
    ],
    ids=lambda arguments: " ".join(arguments)[:24],
)
def test_no_error_prints_what_a_terminal_would_obey(folder, arguments):
    (odd,) = folder.glob("t*owned*")
    printed(*(argument.format(table=odd, folder=folder) for argument in arguments), code=1)


def test_reports_and_progress_lines_of_the_api_are_escaped(capsys):
    frame = table()
    X, y, groups = (frame.iloc[:, [0]], *(frame.iloc[:, k] for k in (1, 2)))
    model = gd.GroupDROClassifier(verbose=2, tol=1e-8).fit(X, y, groups=groups)
    shown = [capsys.readouterr().out, repr(model.report(X, y, groups)), repr(gd.compare(X, y, groups, n_bootstrap=20))]
    for text in shown:
        assert "\\x1b]0;owned\\x07" in text
        assert not CONTROLS.search(text), ascii(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain ünï 日本 \u00a0", "plain ünï 日本 \u00a0"),
        ("\x1b[31m", "\\x1b[31m"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\x9b", "\\x9b"),
        ("\u202e", "\\u202e"),
        ("\ud800", "\\ud800"),
        (Path("a\rb"), "a\\rb"),
        (3, "3"),
    ],
)
def test_control_characters_are_written_as_python_writes_them(text, expected):
    assert printable(text) == expected
    assert printable("a\n\x1b", keep="\n") == "a\n\\x1b"
