"""The checks of bad input notice a product that is broken on purpose."""

import time

import numpy as np
import pytest

pytest.importorskip("torch")  # whose networks are given bad input too

from tests.campaign import part_bad_input
from tests.campaign.bad_values import CASES, FOLDER, Case
from tests.campaign.part_bad_input import judge
from tests.estimators import test_bad_input as estimators
from tests.timing import spin


def refusing(error):
    def call(tol):
        raise error

    return call


def accepting(tol):
    return tol


def slow(tol):
    spin(1.1)
    raise ValueError("tol must be a number.")


def untidy(tol):
    (FOLDER / "half a file").write_text("")
    raise ValueError("tol must be a number.")


def test_an_error_that_names_the_argument_will_do():
    judge(Case("solve", "tol", "text", refusing(ValueError("tol must be a number.")), "much", "tol"))


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        (accepting, "no error"),
        (refusing(AttributeError("tol has no attribute")), "AttributeError"),
        (refusing(ValueError("could not convert string to float")), "does not name"),
        (refusing(ValueError("atol must be a number.")), "does not name"),
        (slow, "the answer took"),
        (untidy, "left behind"),
    ],
    ids=["accepted", "another class", "no name", "another name", "slow", "untidy"],
)
def test_every_other_answer_is_a_fault(call, fault):
    with pytest.raises(AssertionError, match=fault):
        judge(Case("solve", "tol", "text", call, "much", "tol"))
    assert not (FOLDER / "half a file").exists()


def test_a_call_that_hangs_is_broken_off(monkeypatch):
    monkeypatch.setattr(part_bad_input, "_HANG", 1)
    with pytest.raises(AssertionError, match="it hangs"):
        judge(Case("solve", "tol", "text", lambda tol: time.sleep(30), "much", "tol"))


def test_a_check_that_the_product_lost_is_noticed(monkeypatch):
    of_solve = [number for number, case in enumerate(CASES) if (case.entry, case.argument) == ("solve", "seed")]
    monkeypatch.setattr("groupdro.run.driver.check_whole", lambda *_, **__: None)
    for number in of_solve:
        with pytest.raises(AssertionError):
            judge(CASES[number])


@pytest.mark.long
def test_an_estimator_that_takes_what_it_should_refuse_is_noticed(monkeypatch):
    negative = [kind for kind in estimators.KINDS if kind[0] == "sample_weight" and "negative" in kind[1]]
    assert negative
    monkeypatch.setattr(estimators, "KINDS", negative)
    monkeypatch.setattr("groupdro.data.grouped_data.relative_weights", lambda weight, offsets, names: np.abs(weight))
    for number in range(len(negative)):
        with pytest.raises(AssertionError):
            part_bad_input._bad_fit(number)
