"""Processes that are interrupted, killed, or have no room to write."""

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial

import numpy as np

from tests.campaign.frame import Check, Tally
from tests.campaign.interrupted_fits import FITS
from tests.campaign.poor_places import CASES
from tests.timing import cpu_seconds_of

__all__ = ["CHECKS"]

_ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
_PATIENCE = 1.0  # seconds of work within which a fit must have come back, but for one in a hundred


def _solver(name):
    return name.split()[0]


_KINDS = Counter(map(_solver, FITS))


def interrupt(name, times, seed):
    """Interrupt a fit at random moments, and return the seconds that each took to come back, and what was wrong.

    While other processes hold the cores, the seconds are those of the CPU that the fit had.
    """
    rng = np.random.default_rng([seed, len(name)])
    child = subprocess.Popen(
        [sys.executable, "-c", "from tests.campaign.interrupted_fits import main; main()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        env=_ONE_THREAD,
    )
    seconds, wrong = [], []
    with child:
        for _ in range(times):
            print(name, file=child.stdin, flush=True)
            length = json.loads(child.stdout.readline())
            delay = rng.uniform(0.0, length)
            time.sleep(delay)
            sent, spent = time.monotonic(), cpu_seconds_of(child.pid)
            child.send_signal(signal.SIGINT)
            told = json.loads(child.stdout.readline())
            seconds.append(max(0.0, min(told["ended"] - sent, told["spent"] - spent)))
            wrong += [f"{name}, interrupted after {delay:.2f} s: {fault}" for fault in told["wrong"]]
        child.stdin.close()
    return seconds, wrong


def ctrl_c(count, seed, jobs):
    """Interrupt every solver equally often, in all its kinds of fits, of which a small count takes the first ones."""
    names = list(FITS)[: math.ceil(count / 2)]
    times = [max(2, math.ceil(count / len(_KINDS) / _KINDS[_solver(name)])) for name in names]
    tally, all_seconds = Tally(), {}
    with ThreadPoolExecutor(jobs) as pool:
        made = pool.map(lambda name, often: interrupt(name, often, seed), names, times)
        for name, (seconds, wrong) in zip(names, made, strict=True):
            tally.tried += len(seconds)
            tally.failures += wrong
            all_seconds[name] = seconds
            late = float(np.percentile(seconds, 99))
            if late > _PATIENCE:
                tally.failures.append(
                    f"{name}: p99 of the time to come back is {late:.2f} s, the longest {max(seconds):.2f} s"
                )
    together = np.concatenate(list(all_seconds.values()))
    slowest = max(all_seconds, key=lambda name: np.percentile(all_seconds[name], 99))
    tally.figures.append(
        f"{len({_solver(name) for name in names})} solvers and estimators in {len(names)} kinds of fit"
    )
    tally.figures.append(f"median {np.median(together):.3f} s, p99 {np.percentile(together, 99):.2f} s")
    tally.figures.append(f"largest p99 of a kind {np.percentile(all_seconds[slowest], 99):.2f} s ({slowest})")
    return tally


def killed(kind, count, seed, jobs, before=""):
    """Kill runs or writers of checkpoints, in a process each that forks them; ``before`` is code that it runs first."""
    script = f"{before}\nimport sys\nfrom tests.campaign.killed_runs import main\nmain(*sys.argv[1:])"
    parts = [count // jobs + (k < count % jobs) for k in range(min(jobs, count))]
    children = [
        subprocess.Popen(
            [sys.executable, "-c", script, kind, str(part), str(1000 * seed + k)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=_ONE_THREAD,
        )
        for k, part in enumerate(parts)
    ]
    tally, unfinished, runs = Tally(), 0, 0
    for child in children:
        out, errors = child.communicate()
        if child.returncode:
            tally.failures.append(f"the process that kills ended with {child.returncode}: {errors[-2000:]}")
            continue
        found = json.loads(out)
        tally.add(Tally(found["tried"], found["failures"]))
        unfinished, runs = unfinished + found["unfinished"], runs + found["runs"]
    tally.figures.append(f"{unfinished} kills left a half-written file")
    if runs:
        tally.figures.append(f"{runs} runs, each to its end")
    return tally


def poor_places(count, seed, jobs):
    """Try as many cases as the count allows; those that need a namespace of mounts are left out where there is none."""
    names = [name for name, case in CASES.items() if _may_mount() or not case.mounts][:count]
    tally = Tally()
    with ThreadPoolExecutor(jobs) as pool:
        for name, fault in zip(names, pool.map(_poor_place, names), strict=True):
            tally.add(Tally(1, [f"{name}: {fault}"] if fault else []))
    refused = sum(not CASES[name].done for name in names)
    tally.figures.append(f"{len(names) - refused} work, {refused} are refused by an error that names the path")
    return tally


def _poor_place(name):
    with tempfile.TemporaryDirectory(prefix="groupdro-poor-") as folder:
        place = os.path.join(folder, "place")
        os.mkdir(place)
        command, env = CASES[name].command(name, place)
        done = subprocess.run(command, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.stderr[-1000:] if done.returncode else ""


@cache
def _may_mount():
    try:
        return subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


CHECKS = [
    Check(
        "Ctrl-C",
        "an interrupted fit is back within a second with the best certified pair, and says so",
        ctrl_c,
        full=100 * len(_KINDS),
        ci=4,
    ),
    Check(
        "killed while writing",
        "after SIGKILL the newest whole checkpoint is found, and none that was written is lost",
        partial(killed, "writes"),
        full=500,
        ci=4,
    ),
    Check(
        "killed runs",
        "a run that is killed again and again goes on to the same last bit",
        partial(killed, "runs"),
        full=500,
        ci=2,
    ),
    Check(
        "poor places",
        "with no room, no rights or no home the work is done or an error names the path, and nothing is left behind",
        poor_places,
        full=len(CASES),
        ci=3,
    ),
]
