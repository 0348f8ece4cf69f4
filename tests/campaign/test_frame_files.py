"""The checks of files notice what they are there to notice."""

import os
import pickle
import random
import signal
import time

import numpy as np
import pytest

from groupdro.certificate import Certificate
from groupdro.run.checkpoint import CheckpointFile
from tests.campaign import part_files
from tests.campaign.file_kinds import RefusedError
from tests.campaign.watched import Limits, run_watched
from tests.timing import HUNG, spin

# The frame changes seldom, and these start many processes.
pytestmark = pytest.mark.long

DEEDS = ("unharmed", "unexpected", "code", "outside", "memory", "busy", "asked", "refused")


def misbehave(rng, folder):
    """Do what a loader must not do; the seed says what."""
    deed = DEEDS[misbehave.turn]
    misbehave.turn += 1
    if deed == "unexpected":
        raise KeyError("x")
    if deed == "code":
        pickle.loads(pickle.dumps(np.ones(1)))
    if deed == "outside":
        (folder.parent / "x").mkdir()
    if deed == "memory":
        (folder.parent / "x").rmdir()
        bytearray(os.urandom(1) * (60 * 2**20))
    if deed == "busy":
        spin(1.5)
    if deed == "asked":
        raise RefusedError("MemoryError: Unable to allocate 1 TiB")
    if deed == "refused":
        raise RefusedError("damaged")
    return "fine"


misbehave.turn = 0


def die(rng, folder):
    if die.turn == 2:
        os.kill(os.getpid(), signal.SIGSEGV)
    die.turn += 1
    return "fine"


die.turn = 0


def test_the_watch_sees_what_must_not_happen():
    limits = Limits(seconds=1.0, memory=30 * 2**20)
    tally, outcomes, _ = run_watched(misbehave, list(range(len(DEEDS))), warm_up=0, limits=limits)
    assert tally.tried == len(DEEDS)
    assert outcomes == {"fine": 1, "refused": 1}
    expected = ("KeyError", "code was run", "wrote where", "MB", "of the processor", "asked for memory")
    assert len(tally.failures) == len(expected)
    for failure, word in zip(tally.failures, expected, strict=True):
        assert word in failure


def sleep(rng, folder):
    time.sleep(HUNG)


def test_the_watch_breaks_off_what_hangs():
    tally, outcomes, _ = run_watched(sleep, [7], warm_up=0, limits=Limits(waiting=1.0))
    assert not outcomes
    (failure,) = tally.failures
    assert "no end after 1 seconds" in failure


def test_the_watch_names_the_file_at_which_the_process_died():
    tally, outcomes, _ = run_watched(die, [10, 11, 12, 13], warm_up=0)
    assert outcomes == {"fine": 2}
    (failure,) = tally.failures
    assert "die(12)" in failure
    assert f"ended with {-signal.SIGSEGV}" in failure
    assert "10 to 13" in failure


def failures(case, folder, count):
    """Try files in this process until one fails."""
    os.chdir(folder)
    for seed in range(count):
        try:
            case(random.Random(seed), folder)
        except RefusedError:
            continue
        except Exception as error:
            yield error
            return


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_checkpoint_whose_bound_changes_unnoticed_is_a_failure(folder, monkeypatch):
    whole = Certificate.take_over
    monkeypatch.setattr(Certificate, "take_over", lambda self, lower, q, cut: whole(self, 1.5 * lower, q, cut))
    (error,) = failures(part_files.damaged_checkpoint, folder, 30)
    assert "too high" in str(error)


def test_an_error_from_a_forged_checkpoint_is_a_failure(folder, monkeypatch):
    monkeypatch.setattr(CheckpointFile, "read", lambda self, problem: self.path.read_bytes())
    assert len(list(failures(part_files.forged_checkpoint, folder, 100))) == 1


def test_a_store_that_is_read_although_it_is_damaged_is_a_failure(folder, monkeypatch):
    monkeypatch.setattr("groupdro.store.reader.check_blocks", lambda path, record: None)
    (error,) = failures(part_files.damaged_store, folder, 300)
    assert "another store" in str(error)


@pytest.mark.parametrize("part", ["_check_entries", "_check_columns"])
def test_a_forged_store_that_is_not_checked_is_a_failure(folder, monkeypatch, part):
    monkeypatch.setattr(f"groupdro.store.reader.{part}", lambda *arguments: None)
    assert list(failures(part_files.forged_store, folder, 2000))
