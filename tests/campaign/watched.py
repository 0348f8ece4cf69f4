"""Cases tried in a process that is watched: how they end, how long they take, what memory, and whether code is run."""

import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.campaign.file_kinds import RefusedError
from tests.campaign.file_mutations import CANARY
from tests.campaign.frame import Tally
from tests.timing import HUNG

__all__ = ["Case", "Limits", "run_watched"]

Case = Callable[[random.Random, Path], str]

#: What would tell that code from a file is run.
_CODE = ("pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.Popen")


@dataclass(frozen=True)
class Limits:
    """What a single file may cost.

    Attributes
    ----------
    seconds : float
        Of the processor.
    waiting : float
        Seconds by the clock after which a file counts as hung, on a machine that may be busy.
    memory : int
        Bytes beyond what the process had before.
    """

    seconds: float = 2.0
    waiting: float = HUNG
    memory: int = 300 * 2**20


_LIMITS = Limits()


class _HangError(BaseException):
    """A file has taken too long."""


def _raise_hang(number: int, frame: Any) -> None:
    raise _HangError


def _memory() -> int:
    """Return the most memory that this process ever had."""
    # Not by getrusage, which begins with what the process that started this one had.
    status = Path("/proc/self/status")
    if status.exists():
        return 1024 * int(status.read_text().split("VmHWM:")[1].split()[0])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _is_compiler(depth: int) -> bool:
    """Tell whether Numba reads its own compiled code, which it keeps as pickles."""
    frame: Any = sys._getframe(depth)
    while frame is not None:
        if f"{os.sep}numba{os.sep}" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def _try_batch(case: Case, seeds: list[int], warm_up: int, limits: Limits, folder: Path, results: Connection) -> None:
    """Try files in this process, and report before and after each."""
    events: list[str] = []

    def listen(event: str, arguments: Any) -> None:
        if event in _CODE and not _is_compiler(2):
            events.append(event)

    work = folder / "work"
    work.mkdir()
    os.chdir(work)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _raise_hang)
    for seed in range(-warm_up, 0):  # compile, and make the originals
        _outcome(case, seed, work)
    sys.addaudithook(listen)
    before = _memory()
    for seed in seeds:
        results.send((seed, None))
        events.clear()
        began, busy = time.perf_counter(), time.process_time()
        signal.setitimer(signal.ITIMER_REAL, limits.waiting)
        try:
            outcome = _outcome(case, seed, work)
        except _HangError:
            outcome = f"! no end after {time.perf_counter() - began:.0f} seconds"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        busy, grown = time.process_time() - busy, _memory() - before
        if busy > limits.seconds:
            outcome = f"! {busy:.1f} seconds of the processor"
        if grown > limits.memory:
            outcome, before = f"! {grown / 2**20:.0f} MB", _memory()
        if os.listdir(folder) != ["work"] or (work / CANARY).exists():
            outcome = "! it wrote where it should not"
        if events:
            outcome = f"! code was run: {sorted(set(events))}"
        results.send((seed, outcome))
    results.send((None, max(0.0, (_memory() - before) / 2**20)))


def _outcome(case: Case, seed: int, folder: Path) -> str:
    try:
        return case(random.Random(seed), folder)
    except RefusedError as refusal:
        return f"! it asked for memory: {refusal}" if "Unable to allocate" in str(refusal) else f"{refusal.kind}refused"
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"! {type(error).__name__}: {error} [{where.name}:{where.lineno}]"[:400]


def run_watched(
    case: Case, seeds: list[int], warm_up: int = 8, limits: Limits = _LIMITS
) -> tuple[Tally, Counter[str], float]:
    """Try a batch of files in a process of its own.

    Parameters
    ----------
    case : callable
        Takes random numbers and a folder, and returns what became of the file, or raises.
    seeds : list of int
        A file each.
    warm_up : int
        Files that are tried before and not counted, so that all is compiled.
    limits : Limits
        What a file may cost.

    Returns
    -------
    tally : Tally
        Files tried and what failed.
    outcomes : Counter
        What became of the others.
    growth : float
        Megabytes that the process grew.
    """
    tally, outcomes, growth = Tally(), Counter[str](), 0.0
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    folder = Path(tempfile.mkdtemp(prefix="groupdro-files-", dir=memory))  # removed here: the process may be killed
    process = context.Process(target=_try_batch, args=(case, seeds, warm_up, limits, folder, sender))
    process.start()
    sender.close()
    seed: int | None = seeds[0]
    try:
        while seed is not None:
            # The first report waits for all to be compiled.
            if not receiver.poll(limits.waiting + HUNG if tally.tried else 2 * HUNG):
                tally.failures.append(f"{case.__name__}({seed}): no end; the process was killed")
                process.kill()
                break
            seed, outcome = receiver.recv()
            if seed is None:
                growth = outcome
            elif outcome is not None:
                tally.tried += 1
                if outcome.startswith("!"):
                    tally.failures.append(f"{case.__name__}({seed}): {outcome[2:]}")
                else:
                    outcomes[outcome] += 1
    except EOFError:
        process.join()
        batch = f"{seeds[0]} to {seeds[-1]}"
        tally.failures.append(f"{case.__name__}({seed}): the process ended with {process.exitcode}, in batch {batch}")
    process.join()
    shutil.rmtree(folder, ignore_errors=True)
    return tally, outcomes, growth
