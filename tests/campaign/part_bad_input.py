"""Nonsense given to every public entry point is refused by name, at once, and leaves nothing behind."""

import atexit
import functools
import os
import shutil
import signal
import warnings
from pathlib import Path

import numpy as np

from groupdro import UselessModelWarning
from tests.campaign.bad_values import CASES, FOLDER, warm_up
from tests.campaign.frame import Check, tally_cases
from tests.estimators import test_bad_input as estimators
from tests.timing import HUNG, cpu_seconds

__all__ = ["CHECKS", "judge"]

_PATIENCE = 1.0  # CPU seconds for an answer
_HANG = int(HUNG)  # seconds by the clock after which a call is broken off


def judge(case):
    """Make a bad call, and raise unless it is refused as promised."""
    warm_up()
    before = _listing()
    outcome, seconds = _answer(case.run)
    left = _listing() - before
    for path in left:  # so that the next case begins as this one did
        shutil.rmtree(path, ignore_errors=True)
        Path(path).unlink(missing_ok=True)
    assert isinstance(outcome, (ValueError, TypeError, OSError)), f"{case}: {_told(outcome)}"
    assert case.is_named_by(str(outcome)), f"{case}: the error does not name it: {_told(outcome)}"
    assert seconds < _PATIENCE, f"{case}: the answer took {seconds:.1f} CPU seconds"
    assert not left, f"{case}: left behind {sorted(left)}"


def _told(outcome):
    if isinstance(outcome, BaseException):
        return f"{type(outcome).__name__}: {outcome}"
    return f"no error, but {type(outcome).__name__}"


def _listing():
    return {os.path.join(folder, name) for folder, folders, files in os.walk(FOLDER) for name in (*folders, *files)}


def _answer(call, filter_of_warnings="ignore"):
    """Return what a call returned or raised, and the CPU seconds; one that hangs is broken off."""
    before = signal.signal(signal.SIGALRM, _hang)
    signal.alarm(_HANG)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(filter_of_warnings)
            warnings.simplefilter("ignore", UselessModelWarning)
            return cpu_seconds(lambda: _outcome(call))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _outcome(call):
    try:
        return call()
    except Exception as error:
        return error


def _hang(*_):
    raise RuntimeError("it hangs")


def _bad_value(number):
    judge(CASES[number])


@functools.cache
def _prepare_estimators():
    """Compile what the estimators' table needs, and clear its folder away in the end."""
    estimators.compile_kernels()
    atexit.register(shutil.rmtree, estimators.FOLDER, ignore_errors=True)


def _bad_fit(number):
    """Try a case of the estimators' own table, where warnings are errors."""
    _prepare_estimators()
    estimators.FOLDER.mkdir(exist_ok=True)
    argument, what, fit, call, expected = estimators.KINDS[number]
    outcome, seconds = _answer(call, "error")
    try:
        expected(outcome)
    except Exception as error:
        raise AssertionError(f"{fit.__name__}({argument}: {what}): {error}") from error
    assert seconds < _PATIENCE, f"{fit.__name__}({argument}: {what}): the answer took {seconds:.1f} CPU seconds"


def _some(cases, case, figure):
    """Return a check's run: as many of the cases as are asked for, chosen at random, or all."""

    def run(count, seed, jobs):
        chosen = np.random.default_rng(seed).permutation(len(cases))[:count].tolist()
        tally = tally_cases(case, chosen, jobs)
        tally.figures.append(figure([cases[number] for number in chosen]))
        return tally

    return run


def _entry_points(cases):
    entries, arguments = {case.entry for case in cases}, {(case.entry, case.argument) for case in cases}
    return f"{len(entries)} entry points, {len(arguments)} arguments"


CHECKS = [
    Check(
        "bad arguments",
        "nonsense is refused within a second by an error that names the argument, and nothing is left behind",
        _some(CASES, _bad_value, _entry_points),
        full=len(CASES),
        ci=len(CASES),
    ),
    Check(
        "bad fits",
        "what an estimator is given is refused by name or answered right, within a second",
        _some(estimators.KINDS, _bad_fit, lambda kinds: f"{len({kind[:2] for kind in kinds})} kinds"),
        full=len(estimators.KINDS),
        ci=20,
    ),
]
