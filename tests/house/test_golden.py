"""Fits end as they did when the record was made, up to what other versions of the libraries round differently."""

import math

import pytest

from tests.house.golden import FITS, RECORD, compare, differences, dump, load, main, reason_for

LOOSE = 1e-6
RECORDED = load()


def unexplained(names):
    return {name: found for name, found in compare(names, RECORDED, LOOSE).items() if reason_for(name) is None}


def test_every_fit_is_recorded_once():
    assert set(RECORDED) == set(FITS)
    assert len(FITS) >= 100


def test_fits_end_as_recorded():
    fast = [name for name, fit in FITS.items() if fit.fast]
    assert len(fast) >= 40
    assert not unexplained(fast)


@pytest.mark.long
def test_all_fits_end_as_recorded():
    assert not unexplained(FITS)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("status", "stalled"),
        ("criterion", "atol"),
        ("upper", 0.5 + 1e-8),
        ("lower", 0.4 - 1e-8),
        ("lower", -math.inf),
        ("upper", math.nan),
        ("passes", 12.5),
        ("epochs", 8),
        ("solver", "sqp"),
        ("w_dot", 1.1),
    ],
)
def test_a_difference_is_found(field, value):
    recorded = dict(
        zip(
            [
                "status",
                "criterion",
                "upper",
                "lower",
                "passes",
                "epochs",
                "passes_per_epoch",
                "solver",
                "w_norm",
                "w_dot",
            ],
            ["converged", "tol", 0.5, 0.4, 12.0, 6, 2.0, "aleg", 2.0, 1.0],
            strict=True,
        )
    )
    assert [found[0] for found in differences(recorded, {**recorded, field: value})] == [field]


def test_rounding_and_one_epoch_are_no_difference():
    recorded = RECORDED["aleg; logistic, ball, float64; stopped"]
    near = {**recorded, "upper": recorded["upper"] * (1 + 1e-10), "epochs": recorded["epochs"] + 1}
    near["passes"] += recorded["passes_per_epoch"]
    assert differences(recorded, near) == []
    assert [found[0] for found in differences(recorded, {**near, "passes": near["passes"] + 0.1})] == ["passes"]
    nothing = {**recorded, "upper": math.nan, "lower": -math.inf}
    assert differences(nothing, dict(nothing)) == []


def test_fits_that_are_new_gone_or_raise_are_differences(monkeypatch):
    name = "sqp newton; logistic, ball, float64, intercept"
    monkeypatch.setitem(FITS, "new", FITS[name])
    assert compare(["new", "gone"], {"gone": RECORDED[name]}).keys() == {"new", "gone"}
    monkeypatch.setattr(type(FITS[name]), "outcome", lambda *_: 1 / 0)
    assert compare([name], RECORDED)[name][0][0] == "error"


def test_a_record_is_read_as_it_was_written(tmp_path):
    (tmp_path / "record.json").write_text(dump(RECORDED))
    assert load(tmp_path / "record.json") == load(RECORD)


def test_the_command_exits_with_one_where_a_fit_differs(tmp_path, capfd):
    name = "sqp newton; squared hinge, both, float64, intercept"
    record = tmp_path / "record.json"
    for changed, code, told in (({}, 0, "1 fits compared: 0 differ"), ({"upper": 1.0}, 1, "NOT EXPLAINED")):
        record.write_text(dump({name: {**RECORDED[name], **changed}}))
        assert main(["--here", "compare", str(record), "--only", name, "--tolerance", "1e-6"]) == code
        assert told in capfd.readouterr().out


def test_fits_whose_table_is_missing_are_said_to_be_left_out(monkeypatch, capfd):
    monkeypatch.delenv("GROUPDRO_DATA", raising=False)
    assert main(["--here", "compare", "--only", "bike_sharing"]) == 0
    told = capfd.readouterr().out
    assert "4 fits left out" in told
    assert "0 fits compared" in told


def test_the_command_starts_a_process_on_the_source_it_is_given(tmp_path, capfd):
    (tmp_path / "groupdro").mkdir()
    (tmp_path / "groupdro" / "__init__.py").write_text("raise SystemExit('another groupdro')")
    assert main(["compare", "--src", str(tmp_path), "--only", "no such fit"]) == 1
    assert "another groupdro" in capfd.readouterr().err
