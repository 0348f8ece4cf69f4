"""Kill running fits at random moments, and check that each still ends with a certified answer.

    python -m tests.distributed.faults --kills 100 [--seed 0] [--solver aleg] [--workers 2] [--lanes 2] [--write FILE]

prints a line per kill and a table, which is also written to a file. One worker is a program run by Python, which is run
again if it was killed or interrupted. Two workers are run by torchrun, which restarts them by itself, unless it was
killed or interrupted too.
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

from tests.distributed.processes import own_environment, torchrun
from tests.distributed.training import PENALTIES, SOLVERS, TIMEOUT, make_data
from tests.timing import HUNG

__all__ = ["Bench", "Kill", "Outcome"]

PROGRAM = str(Path(__file__).with_name("training.py"))
MARKER = "GROUPDRO_FAULT_JOB"  # environment variable that all processes of a job inherit
LEAST_EPOCHS = 30
KINDS = {
    1: (("KILL", "worker 0"), ("STOP", "worker 0"), ("INT", "worker 0")),
    2: (
        ("KILL", "worker 0"),
        ("KILL", "worker 1"),
        ("KILL", "launcher"),
        ("STOP", "worker 0"),
        ("STOP", "worker 1"),
        ("INT", "launcher"),
    ),
}


@dataclass(frozen=True)
class Kill:
    """A signal to a process of a fit, at a moment given as a number of epochs done and a part of the next one.

    No epoch done is the time before the first evaluation, in which workers connect and ALEM finds minima of groups. A
    single worker that is stopped continues after a second; with two, the other one waits for it in vain.
    """

    solver: str
    workers: int
    signal: str
    victim: str
    epochs: float

    def __str__(self):
        workers = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        return f"{self.solver}, {workers}, -{self.signal} to {self.victim}"


@dataclass
class Outcome:
    """What became of a fit after a kill.

    Attributes
    ----------
    done : int
        Epochs done at the kill.
    starts : int
        How often the fit was started, by us or by torchrun.
    repeated : int
        Epochs of all starts, counting one in which a start was ended as a whole one, minus those of the undisturbed
        fit. Includes what a resumed solver loses by starting without its state.
    orphans : int
        Processes that outlived the launcher.
    faults : list of str
        What is wrong with the answer; empty for a certified one that agrees with that of the undisturbed fit.
    seconds : float
        Duration of the whole.
    """

    kill: Kill
    done: int = 0
    starts: int = 1
    repeated: int = 0
    orphans: int = 0
    overlaps: bool = False
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def good(self):
        return self.overlaps and not self.faults and not self.orphans

    def __str__(self):
        answer = "; ".join(self.faults) or "certified"
        return (
            f"{self.kill}: {self.done} epochs done, {self.starts} starts, {self.repeated} repeated, {answer}, interval "
            f"{'overlaps' if self.overlaps else 'DOES NOT OVERLAP'}, {self.orphans} orphans, {self.seconds:.0f} s"
        )


class Job:
    """A fit in a folder of its own, and its processes."""

    def __init__(self, folder, solver, workers):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True)
        self.marker = uuid.uuid4().hex
        self.command = [sys.executable, PROGRAM]
        if workers > 1:
            self.command = torchrun(workers, PROGRAM, max_restarts=3)
        self.command += [str(self.folder), solver]
        self.launcher = None

    def start(self):
        environment = own_environment(**{MARKER: self.marker})
        with (self.folder / "log.txt").open("ab") as log:
            self.launcher = subprocess.Popen(
                self.command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def ended(self):
        return self.launcher.poll() is not None

    def rows(self, rank=0):
        """Return what each process with this rank wrote, the oldest process first."""
        lives = []
        for path in self.folder.glob(f"worker-{rank}-*.jsonl"):
            lines = path.read_text().splitlines(keepends=True)
            rows = [json.loads(line) for line in lines if line.endswith("\n")]  # others are just being written
            if rows:
                lives.append((rows[0]["at"], int(path.stem.rpartition("-")[2]), rows))
        return [(pid, rows) for _, pid, rows in sorted(lives)]

    def epochs(self):
        """Return the number of epochs that each process did, counting the first evaluation as one."""
        return [sum("epoch" in row for row in rows) for _, rows in self.rows()]

    def result(self):
        try:
            return json.loads((self.folder / "result.json").read_text())
        except FileNotFoundError:
            return None

    def processes(self):
        """Return all processes of the job, whoever their parent is now."""
        found = []
        for process in psutil.process_iter():
            try:
                own = process.environ().get(MARKER) == self.marker and process.status() != psutil.STATUS_ZOMBIE
            except psutil.Error:
                continue
            if own:
                found.append(process)
        return found

    def wait(self, condition, what):
        """Return when a condition holds."""
        end = time.monotonic() + HUNG
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError(f"{what} took more than {HUNG:.0f} s:\n{self.log()}")
            time.sleep(0.005)

    def send(self, name, victim):
        """Send a signal to the launcher or to a worker, if it is still there."""
        if victim == "launcher":
            self.launcher.send_signal(getattr(signal, f"SIG{name}"))
            return
        lives = self.rows(int(victim.rpartition(" ")[2]))
        for process in self.processes():
            if lives and process.pid == lives[-1][0]:
                process.send_signal(getattr(signal, f"SIG{name}"))

    def end(self):
        """Wait for the launcher, then for its workers, and return how many of those had to be killed."""
        self.wait(self.ended, "the end")
        # A worker that had not yet connected when the launcher died learns of it from the connection.
        end = time.monotonic() + TIMEOUT + 20.0
        while (left := self.processes()) and time.monotonic() < end:
            time.sleep(0.05)
        self.kill(left)
        return len(left)

    def kill(self, processes):
        for process in processes:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue

    def log(self):
        return (self.folder / "log.txt").read_text(errors="replace")[-3000:]


class Bench:
    """Undisturbed fits, and fits to be killed."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.undisturbed = {}

    def reference(self, solver, workers):
        """Return the undisturbed fit."""
        if (solver, workers) not in self.undisturbed:
            job = Job(self.folder / f"{solver}-{workers}", solver, workers)
            try:
                job.start()
                assert job.end() == 0, job.log()
            finally:
                job.kill(job.processes())
            assert job.launcher.returncode == 0, job.log()
            faults = check(solver, job.result())
            assert not faults, faults
            assert len(job.epochs()) == 1, job.log()
            assert job.epochs()[0] > LEAST_EPOCHS, job.epochs()
            self.undisturbed[solver, workers] = job
        return self.undisturbed[solver, workers]

    def run_at_random(self, solver, workers, name, victim, rng):
        """Return the outcome of a kill at a random moment of a fit."""
        last = self.reference(solver, workers).epochs()[0] - 1.0
        for _ in range(5):
            if outcome := self.run(Kill(solver, workers, name, victim, rng.uniform(0.0, last))):
                return outcome
        raise AssertionError(f"The fit always ended before the kill: {solver}, {workers} workers.")

    def run(self, kill):
        """Return the outcome of a kill; None if the fit had ended before it came."""
        begun = time.monotonic()
        reference = self.reference(kill.solver, kill.workers)
        outcome = Outcome(kill)
        folder = self.folder / uuid.uuid4().hex
        job = Job(folder, kill.solver, kill.workers)
        try:
            job.start()
            self._wait_for_moment(job, kill, reference)
            outcome.done = sum(job.epochs())
            if job.result() is not None or job.ended():
                return None
            self._strike(job, kill, outcome)
            outcome.orphans += job.end()
        finally:
            job.kill(job.processes())
        result = job.result()
        if result is None:
            outcome.faults.append(f"no answer: {job.log()}")
        else:
            outcome.faults += check(kill.solver, result)
            expected = reference.result()
            outcome.overlaps = max(result["lower"], expected["lower"]) <= min(result["upper"], expected["upper"])
        lives = job.epochs()
        outcome.starts = len(lives)
        outcome.repeated = sum(lives) + outcome.starts - 1 - reference.epochs()[0]
        outcome.seconds = time.monotonic() - begun
        shutil.rmtree(folder)
        return outcome

    def _wait_for_moment(self, job, kill, reference):
        whole = int(kill.epochs)

        def reached():
            rows = [row for _, life in job.rows() for row in life]
            return len(rows) > whole or job.ended()  # the first row says that the process has begun

        job.wait(reached, "the moment of the kill")
        [(_, rows)] = reference.rows()
        time.sleep((kill.epochs - whole) * (rows[whole + 1]["at"] - rows[whole]["at"]))

    def _strike(self, job, kill, outcome):
        job.send(kill.signal, kill.victim)
        if kill.workers == 1 and kill.signal == "STOP":
            time.sleep(1.0)
            job.send("CONT", kill.victim)
        elif kill.workers == 1 or kill.victim == "launcher":
            outcome.orphans += job.end()
            if job.result() is None:
                job.start()


def check(solver, result):
    """Return what is wrong with a result, whose risks are computed anew by other means than those of the run."""
    faults = []
    if result["status"] != "CONVERGED":
        faults.append(f"status {result['status']}")
    if not 0.0 <= result["upper"] - result["lower"] <= result["gap"] <= result["allowed"]:
        faults.append(f"gap {result['gap']} of [{result['lower']}, {result['upper']}]")
    X, y, groups = make_data(solver)
    w = np.array(result["w"])
    losses = np.logaddexp(0.0, -y * (X @ w[:-1] + w[-1]))
    risks = np.bincount(groups, losses) / np.bincount(groups)
    if not np.allclose(risks, result["group_risks"], rtol=1e-9):
        faults.append(f"group risks are off by {abs(risks - result['group_risks']).max()}")
    objective = risks.max() + 0.5 * PENALTIES[solver] * (w[:-1] @ w[:-1])
    if solver != "alem" and not np.isclose(objective, result["upper"], rtol=1e-9):  # its objective has the minima in it
        faults.append(f"the upper bound is {objective}, not {result['upper']}")
    return faults


def campaign(n_kills, seed, solvers, workers, lanes):
    """Kill fits, solvers and kinds of kills in turn, print what became of each, and return it."""
    folder = Path(tempfile.mkdtemp(prefix="groupdro-faults-"))
    os.environ.setdefault("NUMBA_CACHE_DIR", str(folder / "numba"))
    bench = Bench(folder)
    kinds = [(solver, n, *kind) for n in workers for kind in KINDS[n] for solver in solvers]
    random.Random(seed).shuffle(kinds)
    outcomes = []

    def one(number):
        return bench.run_at_random(*kinds[number % len(kinds)], random.Random(f"{seed} {number}"))

    try:
        for solver, n in sorted({kind[:2] for kind in kinds[:n_kills]}):
            bench.reference(solver, n)
        with ThreadPoolExecutor(lanes) as pool:
            for outcome in pool.map(one, range(n_kills)):
                outcomes.append(outcome)
                print(f"{len(outcomes):3d} {outcome}{'' if outcome.good else '  <<<<'}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return outcomes


def table_of(outcomes):
    """Return a table with a line for each solver, number of workers and signal."""
    by_kind = defaultdict(list)
    for outcome in outcomes:
        kill = outcome.kill
        for kind in (kill.solver, f"{kill.workers} worker{'s' * (kill.workers > 1)}", f"-{kill.signal}", "all"):
            by_kind[kind].append(outcome)
    lines = ["| fits | kills | certified | overlap | orphans | epochs repeated, median | most |", "|---" * 7 + "|"]
    for kind in sorted(by_kind, key=lambda kind: (kind == "all", kind)):
        mine = by_kind[kind]
        repeated = [outcome.repeated for outcome in mine]
        cells = [kind, len(mine), sum(not outcome.faults for outcome in mine)]
        cells += [sum(outcome.overlaps for outcome in mine), sum(outcome.orphans for outcome in mine)]
        cells += [f"{statistics.median(repeated):g}", max(repeated)]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--solver", choices=SOLVERS, help="only this one")
    parser.add_argument("--workers", type=int, choices=KINDS, help="only this many")
    parser.add_argument("--lanes", type=int, default=2, help="fits at the same time")
    parser.add_argument("--write", type=Path, help="file for the table, such as benchmarks/results/kills.md")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    solvers = [options.solver] if options.solver else list(SOLVERS)
    workers = [options.workers] if options.workers else list(KINDS)
    outcomes = campaign(options.kills, options.seed, solvers, workers, options.lanes)
    table = table_of(outcomes)
    print(table)
    if options.write:
        options.write.write_text(f"{table}\n")
    sys.exit(not all(outcome.good for outcome in outcomes))


if __name__ == "__main__":
    main()
