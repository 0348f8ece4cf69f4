"""Faults in running jobs: start one, wait for a moment, break something, and judge what becomes of it.

    python -m tests.distributed.faults 100 [SEED] [sparse]

draws that many faults of all kinds at random moments, prints a line for each and a table at the end. With `sparse`, the
rows are hashed into a store of ones.
"""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

import groupdro as gd
from groupdro.distributed.launch import launch_command, launch_environment
from groupdro.utils.bundle import BundleError, read_bundle
from tests.timing import HUNG

__all__ = ["KINDS", "Bench", "Fault", "Verdict", "campaign", "can_mount", "can_network", "run"]

SCRIPT = str(Path(__file__).with_name("training.py"))
MARKER, NODE = "GROUPDRO_FAULT_RUN", "GROUPDRO_FAULT_NODE"
FOREIGN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
PENALTY = 1e-3
# So that each takes ten epochs or more, and reaches it.
TOLERANCES = {"dense": {"aleg": 1e-5, "sqp": 1e-9}, "sparse": {"aleg": 4e-3, "sqp": 1e-9, "sketched-sqp": 1e-6}}
TIMEOUT = 5.0  # of the communicator
FILE_LIMIT = 6000  # bytes, less than a checkpoint has and more than the events of a process
CLEAR = ("StoreError", "CheckpointError", "CommunicationError", "OSError", "RendezvousConnectionError")
SHRINKS = 50.0  # seconds after which torchrun goes on without a lost node, if it may: 15 to notice, 30 of waiting

PHASES = ("step", "pass", "between", "fsync", "rename", "renamed", "start")
LOCAL = ("kill in a step", "kill in a pass", "kill in a write", "kill elsewhere", "stop", "kill the launcher",
         "disk full", "corrupt checkpoint")  # fmt: skip
NETWORK = ("node lost", "node cut off")
ALONE = ("corrupt shard", "corrupt checkpoints, all")
KINDS = (*LOCAL, *NETWORK, *ALONE)
SMALL_FILES = ("y.npy", "manifest.json")
LARGE_FILES = {"dense": ("X.npy", "source.npy"), "sparse": ("indices.npy", "indptr.npy", "source.npy")}
SOLVERS = {"dense": ("aleg", "aleg", "sqp"), "sparse": ("aleg", "sqp", "sketched-sqp")}


@dataclass(frozen=True)
class Fault:
    """What is broken, and when: when a worker is in the phase, at this epoch or later."""

    kind: str
    phase: str = "step"
    epoch: int = 2
    rank: int | None = None  # of the worker that is in the phase; None is the first that comes there
    victim: str = "held"  # or "other"
    detail: str = ""
    seconds: float = 0.0

    @property
    def deadly(self):
        """Tell whether all workers are started anew because of it."""
        return self.kind != "disk full" and (self.kind != "node cut off" or self.seconds > TIMEOUT)


@dataclass
class Verdict:
    """What became of one fault, and of the run in which it was."""

    fault: Fault
    outcome: str = ""  # right answer, clear error, unclear error, wrong answer, wrong status, hang
    note: str = ""
    orphans: int = 0
    lost: bool = False  # a checkpoint
    to_step: float | None = None  # seconds from the death
    to_epoch: float | None = None
    repeated: int | None = None  # epochs that were completed before the death, and again after it

    @property
    def good(self):
        return self.outcome in ("right answer", "clear error") and not (self.orphans or self.lost)


# ---------------------------------------------------------------------- what the machine allows


def _works(*commands):
    for command in commands:
        try:
            if subprocess.run(command, capture_output=True, timeout=HUNG).returncode:
                return False
        except (OSError, subprocess.TimeoutExpired):
            return False
    return True


def can_network():
    """Tell whether network namespaces can be made here."""
    name = f"gd-try-{uuid.uuid4().hex[:6]}"
    link = f"gd{uuid.uuid4().hex[:6]}"
    made = _works(["ip", "netns", "add", name]) and _works(
        ["ip", "link", "add", f"{link}a", "type", "veth", "peer", "name", f"{link}b", "netns", name],
        ["ip", "link", "del", f"{link}a"],
    )
    _works(["ip", "netns", "del", name])
    return made


def can_mount():
    """Tell whether a small file system can be mounted here."""
    with tempfile.TemporaryDirectory() as folder:
        made = _works(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder])
        return made and _works(["umount", folder])


# ---------------------------------------------------------------------- what all runs share


class Bench:
    """A store, its true optimum, and undisturbed runs to compare with."""

    def __init__(self, folder, rows="dense"):
        self.folder, self.rows = Path(folder), rows
        rng = np.random.default_rng(0)
        n, d, m = 3000, 20, 5
        X, groups = rng.normal(size=(n, d)), rng.integers(0, m, n)
        slopes = rng.normal(size=d) + 0.5 * rng.normal(size=(m, d))
        y = np.where((X * slopes[groups]).sum(axis=1) + rng.logistic(size=n) > 0, 1, -1)
        self.store = self.folder / "store"
        if rows == "dense":
            self.data = gd.GroupedStore.write_arrays(self.store, X, y, groups)
        else:
            columns = {f"c{k}": np.digitize(X[:, k], [-1.0, 0.0, 1.0]) for k in range(8)}
            self.data = gd.GroupedStore.write(
                self.store, pa.table({"y": y, "group": groups} | columns), target="y", groups="group", hashed=True,
                dtype="bool", n_features=64, sparse=True,
            )  # fmt: skip
        problem = gd.GroupRisk(
            self.data.data(labels=(-1.0, 1.0)), gd.Logistic(), gd.L2Domain(penalty=PENALTY), fit_intercept=True
        )
        self.best = gd.solve(problem, gd.GroupSQP("newton"), tol=1e-9)
        assert self.best.converged
        self._references = {}
        self._lock = threading.Lock()

    def reference(self, solver):
        """Return the folder of a run of two workers that nothing disturbed."""
        with self._lock:
            if solver not in self._references:
                job = Job(self, self.folder / f"reference-{solver}", solver=solver, holds=(), pause=0.0)
                try:
                    job.start()
                    job.wait(lambda: job.nodes["a"].poll() is not None, "the undisturbed run")
                    assert job.nodes["a"].returncode == 0, job.log()
                    assert job.result()["status"] == "CONVERGED"  # or every disturbed run would be called wrong
                finally:
                    job.end()
                self._references[solver] = job
            return self._references[solver]

    def judge(self, job):
        """Return an outcome for a run that came to an end, and why."""
        result, reference = job.result(), self.reference(job.solver)
        w, q = job.solution()
        digests = {event["digest"] for event in job.events("solved")}
        if len(digests) != 1:
            return "wrong answer", "the workers ended with different models"
        tol = TOLERANCES[self.rows][job.solver]
        if result["status"] != "CONVERGED":
            return "wrong answer", f"status {result['status']}"
        # Computed anew by other means than those of the run.
        X = self.data.X.toarray() if self.rows == "sparse" else self.data.X
        X, y = np.asarray(X, np.float64), np.asarray(self.data.y, np.float64)
        losses = np.logaddexp(0.0, -y * (X @ w[:-1] + w[-1]))
        means = np.add.reduceat(losses, np.cumsum(self.data.group_sizes) - self.data.group_sizes)
        upper = (means / self.data.group_sizes).max() + 0.5 * PENALTY * (w[:-1] @ w[:-1])
        if abs(upper - result["upper"]) > 1e-9 or upper < self.best.lower_bound - 1e-9:
            return "wrong status", f"the upper bound is {upper}, not {result['upper']}"
        if result["lower"] > self.best.upper_bound + 1e-9:
            return "wrong status", f"the lower bound {result['lower']} is above the optimum {self.best.upper_bound}"
        if upper - result["lower"] > tol * abs(upper) * (1 + 1e-9):
            return "wrong status", f"converged, but the gap is {upper - result['lower']:.3g}"
        if {event["size"] for event in job.events("connected")} != {2}:
            return "right answer", "within the tolerance; the number of workers changed"
        expected = reference.solution()
        if not all(np.array_equal(a, b) for a, b in zip((w, q), expected, strict=True)):
            return "wrong answer", f"not the same bits as undisturbed: {abs(w - expected[0]).max():.3g}"
        if result["epochs"] != reference.result()["epochs"]:
            return "wrong answer", "not the same number of epochs as undisturbed"
        return "right answer", "the same bits"


# ---------------------------------------------------------------------- one job


class HungError(Exception):
    """A job did not come to where it should in time."""


class Job:
    """A training program on one node or two, each with a launcher of its own, and its files."""

    def __init__(self, bench, folder, *, solver, holds, pause=0.0, verify="small", store=None, checkpoints=None):
        self.folder, self.solver, self.marker = Path(folder), solver, uuid.uuid4().hex
        self.folder.mkdir(parents=True)
        self.checkpoints = Path(checkpoints) if checkpoints else self.folder / "checkpoints"
        self.settings = self.folder / "settings.json"
        settings = {
            "folder": str(self.folder), "store": str(store or bench.store), "checkpoints": str(self.checkpoints),
            "solver": solver, "tol": TOLERANCES[bench.rows][solver], "penalty": PENALTY, "timeout": TIMEOUT,
            "pause": pause, "verify": verify, "patience": HUNG, "holds": [dict(hold) for hold in holds],
        }  # fmt: skip
        self.settings.write_text(json.dumps(settings))
        self.nodes, self.started = {}, 0

    def start(self, node="a", *, workers=2, max_restarts=3, by_command_line=False, within=(), **options):
        """Start the launcher of a node."""
        self.started += 1
        environment = {name: value for name, value in os.environ.items() if name not in FOREIGN}
        environment |= {MARKER: self.marker, NODE: node, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}
        environment |= {"PYTHONUNBUFFERED": "1", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "3"}
        interface = options.pop("interface", None)
        if by_command_line:
            command = [sys.executable, "-c", "from groupdro.cli import main; main()", "launch"]
            command += [f"--workers={workers}", f"--max-restarts={max_restarts}", SCRIPT, str(self.settings)]
        else:
            command = launch_command(
                SCRIPT, [str(self.settings)], workers=workers, max_restarts=max_restarts, **options
            )
            rendezvous = {"rendezvous": options["rendezvous"]} if "rendezvous" in options else {}
            environment = launch_environment(environment, workers=workers, interface=interface, **rendezvous)
        with (self.folder / f"log-{self.started}-{node}.txt").open("wb") as log:
            self.nodes[node] = subprocess.Popen(
                [*within, *command], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def events(self, what=None):
        """Return what the workers wrote down, in the order of time."""
        found = []
        for path in self.folder.glob("events-*.jsonl"):
            for line in path.read_text().splitlines():
                try:
                    event = json.loads(line)
                except ValueError:
                    continue  # its process was killed while it wrote
                found.append(event)
        return sorted((e for e in found if what is None or e["what"] == what), key=lambda event: event["at"])

    def processes(self, node=None):
        """Return all processes of the job, wherever they are, by what they inherited."""
        found, marker = [], f"{MARKER}={self.marker}".encode()
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                variables = path.read_bytes().split(b"\0")
            except OSError:
                continue
            if marker in variables and (node is None or f"{NODE}={node}".encode() in variables):
                found.append(int(path.parent.name))
        return found

    def workers(self):
        """Return the processes that run the script, by rank."""
        alive = set(self.processes())
        return {event["rank"]: event["pid"] for event in self.events("begun") if event["pid"] in alive}

    def wait(self, condition, what):
        """Return the first true value of a condition."""
        end = time.monotonic() + HUNG
        while not (value := condition()):
            if time.monotonic() > end:
                raise HungError(f"{what} took more than {HUNG:.0f} s")
            time.sleep(0.02)
        return value

    def held(self, name):
        try:
            return json.loads((self.folder / f"held-{name}").read_text())
        except (OSError, ValueError):
            return None

    def release(self, name):
        (self.folder / f"release-{name}").touch()

    def result(self):
        try:
            return json.loads((self.folder / "result.json").read_text())
        except OSError:
            return None

    def solution(self):
        with np.load(self.folder / "solution.npz") as found:
            return found["w"], found["q"]

    def readable(self):
        """Return the checkpoints that can be read, while files come and go."""
        for _ in range(20):
            found = []
            for path in sorted(self.checkpoints.glob("checkpoint-*.zip")):
                try:
                    read_bundle(path)
                except (BundleError, FileNotFoundError):
                    continue
                found.append(path)
            if found:
                return found
            time.sleep(0.02)
        return []

    def log(self):
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("log-*.txt")))

    def finished(self):
        """Tell whether the answer is there and every launcher has ended."""
        return self.result() is not None and all(node.poll() is not None for node in self.nodes.values())

    def kill_all(self, pids):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end(self):
        """Kill what is left, and return how many processes that were."""
        for node in self.nodes.values():
            if node.poll() is None:
                node.kill()
            node.wait(HUNG)
        left = self.processes()
        end = time.monotonic() + HUNG
        while (left := self.processes()) and time.monotonic() < end:
            time.sleep(0.05)
        self.kill_all(left)
        return len(left)


# ---------------------------------------------------------------------- a job under faults


@dataclass
class Run:
    """A job, the faults that it gets one after another, and what is seen of each."""

    bench: Bench
    folder: Path
    faults: tuple
    solver: str = "aleg"
    nodes: str = "1"
    job: Job | None = None
    verdicts: list = field(default_factory=list)
    undo: list = field(default_factory=list)
    orphans: int = 0

    def __call__(self):
        self.verdicts = [Verdict(fault) for fault in self.faults]
        begun = time.monotonic()
        try:
            outcome, note = self._run()
        except HungError as error:
            outcome, note = "hang", str(error)
        except Exception:
            outcome, note = "unclear error", traceback.format_exc()
        finally:
            left = self.job.end() if self.job else 0
            for step in reversed(self.undo):
                step()
        if outcome not in ("hang",):
            self.orphans += left
        for verdict in self.verdicts:
            verdict.outcome = verdict.outcome or outcome
            verdict.note = f"{verdict.note} {note}".strip()
            verdict.orphans += self.orphans
        self.seconds = time.monotonic() - begun
        return self.verdicts

    # ------------------------------------------------------------------ preparing

    def _run(self):
        holds = [
            {"name": f"{k}", "phase": f.phase, "epoch": f.epoch, "rank": f.rank, "deadly": f.deadly}
            for k, f in enumerate(self.faults)
            if f.kind != "corrupt shard"
        ]
        for k, fault in reversed(list(enumerate(self.faults))):
            if fault.kind == "disk full":  # then a worker is killed while it is still full
                then = {"name": f"{k}-full", "phase": "step", "epoch": fault.epoch + 2, "rank": None, "deadly": True}
                holds.insert(k + 1, then)
        # Slow enough for a node that comes late to find the others still at work.
        late = self.nodes == "1:2" and any(fault.seconds > SHRINKS for fault in self.faults)
        options = {"solver": self.solver, "holds": holds, "pause": 2.0 if late else 0.05}
        if self.solver != "aleg":
            for hold in holds:
                hold["phase"] = "pass" if hold["phase"] == "step" else hold["phase"]
        kinds = {fault.kind for fault in self.faults}
        if any(fault.kind == "disk full" and fault.detail == "tmpfs" for fault in self.faults):
            options["checkpoints"] = self._small_disk()
        if "corrupt shard" in kinds:
            return self._corrupt_shard(self.faults[0])
        self.job = Job(self.bench, self.folder / "job", **options)
        if kinds & set(NETWORK):
            self._network()
        self._start("a")
        if self.nodes != "1":
            self._start("b")
        for k in range(len(self.faults)):
            self._inject(k)
        return self._finish()

    def _small_disk(self):
        place = self.folder / "disk"
        place.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], check=True, timeout=HUNG)
        self.undo.append(lambda: subprocess.run(["umount", "-l", str(place)], timeout=HUNG, check=False))
        return place / "checkpoints"

    def _network(self):
        """Make two network namespaces with a cable between them."""
        self.name = uuid.uuid4().hex[:6]
        spaces = {node: f"gd-{self.name}-{node}" for node in "ab"}

        def ip(*arguments):
            subprocess.run(["ip", *arguments], check=True, timeout=HUNG, capture_output=True)

        for space in spaces.values():
            ip("netns", "add", space)
            self.undo.append(
                lambda space=space: subprocess.run(["ip", "netns", "del", space], timeout=HUNG, check=False)
            )
        ip("-n", spaces["a"], "link", "add", "gd-a", "type", "veth", "peer", "name", "gd-b", "netns", spaces["b"])
        for place, (node, space) in enumerate(spaces.items(), start=1):
            ip("-n", space, "address", "add", f"10.99.0.{place}/24", "dev", f"gd-{node}")
            for link in ("lo", f"gd-{node}"):
                ip("-n", space, "link", "set", link, "up")
        self.spaces = spaces

    def _start(self, node):
        restarts = len(self.faults) + 3
        if any(fault.kind == "corrupt checkpoints, all" for fault in self.faults):
            restarts = 1
        if self.nodes == "1":
            # The command line tells the workers which process is their launcher; it takes longer to start.
            by_command_line = any((f.kind, f.phase) == ("kill the launcher", "start") for f in self.faults)
            self.job.start(max_restarts=restarts, by_command_line=by_command_line)
            return
        self.job.start(
            node, workers=1, max_restarts=restarts, nodes=self.nodes, rendezvous="10.99.0.1:29500", job="faults",
            address=f"10.99.0.{'ab'.index(node) + 1}", interface=f"gd-{node}",
            within=("ip", "netns", "exec", self.spaces[node]),
        )  # fmt: skip

    # ------------------------------------------------------------------ breaking things

    def _inject(self, k):
        fault, job = self.faults[k], self.job
        held = self._wait_for(f"{k}")
        if held is None:
            self.verdicts[k].outcome = "not tried"  # the run was over before the moment came
            return
        if fault.kind == "disk full":
            self._fill(fault, held)
            job.release(f"{k}")
            if held := self._wait_for(f"{k}-full"):
                self._kill_worker(k, f"{k}-full", held)
            return
        if fault.kind in ("kill the launcher",):
            self._kill_launcher(k)
        elif fault.kind == "node lost":
            self._lose_node(k)
        elif fault.kind == "node cut off":
            self._cut_off(k)
        else:
            if fault.kind.startswith("corrupt"):
                self._corrupt_checkpoints(fault)
            self._kill_worker(k, f"{k}", held, signal.SIGSTOP if fault.kind == "stop" else signal.SIGKILL)

    def _wait_for(self, name):
        """Return the worker that stands where it should; None if the run came to its end before."""
        job = self.job

        def there():
            self._care()
            return job.held(name) or job.finished() or self._failed()

        job.wait(there, f"the moment {name}")
        return job.held(name)

    def _failed(self):
        """Tell whether a launcher gave up although nobody killed it, on one node."""
        return self.nodes == "1" and self.job.nodes["a"].poll() not in (None, 0)

    def _care(self):
        """Do what a scheduler does: replace launchers of nodes that ended in failure."""
        if self.nodes == "1":
            return
        job = self.job
        if job.nodes["a"].poll() not in (None, 0) and job.started < 12:  # the rendezvous is gone: begin anew
            job.nodes["b"].kill()
            job.nodes["b"].wait(HUNG)
            job.wait(lambda: not job.processes(), "the end of the old processes")
            self._start("a")
            self._start("b")
        elif job.nodes["b"].poll() not in (None, 0) and job.nodes["a"].poll() is None and job.started < 12:
            self._start("b")

    def _victim(self, fault, held):
        others = [pid for rank, pid in self.job.workers().items() if rank != held["rank"]]
        return others[0] if fault.victim == "other" and others else held["pid"]

    def _kill_worker(self, k, name, held, how=signal.SIGKILL):
        fault, job = self.faults[k], self.job
        before = job.events()
        died = time.monotonic()
        with contextlib.suppress(ProcessLookupError):  # the launcher may just be ending it
            os.kill(self._victim(fault, held), how)
        job.release(name)
        self._check_kept(k)
        self._see_restart(k, before, died)
        (job.checkpoints.parent / "other").unlink(missing_ok=True)  # what filled a disk

    def _kill_launcher(self, k):
        job = self.job
        before = job.events()
        died = time.monotonic()
        job.nodes["a"].kill()
        job.nodes["a"].wait(HUNG)
        gone = time.monotonic()
        job.release(f"{k}")
        self._no_orphans(k, gone)
        self._check_kept(k)
        self._start("a")
        self._see_restart(k, before, died)

    def _lose_node(self, k):
        fault, job = self.faults[k], self.job
        before = job.events()
        lost = fault.detail or "b"
        died = time.monotonic()
        job.kill_all(job.processes(lost))
        job.nodes[lost].wait(HUNG)
        job.release(f"{k}")
        self._check_kept(k)
        time.sleep(fault.seconds)
        if lost == "b":
            self._start("b")  # a lost rendezvous ends both, and `_care` begins anew
        self._see_restart(k, before, died)

    def _cut_off(self, k):
        fault, job = self.faults[k], self.job
        before = job.events()
        link = ["ip", "-n", self.spaces["b"], "link", "set", "gd-b"]
        died = time.monotonic()
        subprocess.run([*link, "down"], check=True, timeout=HUNG)
        job.release(f"{k}")
        time.sleep(fault.seconds)
        subprocess.run([*link, "up"], check=True, timeout=HUNG)
        self._check_kept(k)
        if fault.deadly:
            self._see_restart(k, before, died)

    def _fill(self, fault, held):
        if fault.detail == "tmpfs":
            full = self.job.checkpoints.parent / "other"
            with full.open("wb", buffering=0) as file:
                for size in (4096, 1):
                    try:
                        while True:
                            file.write(b"x" * size)
                    except OSError:
                        pass
            return
        import resource

        for pid in self.job.workers().values():  # whichever writes
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (FILE_LIMIT, FILE_LIMIT))

    def _corrupt_checkpoints(self, fault):
        newest_first = sorted(self.job.checkpoints.glob("checkpoint-*.zip"), reverse=True)
        for path in newest_first if fault.kind.endswith("all") else newest_first[:1]:
            _damage(path, fault.detail)

    # ------------------------------------------------------------------ what is seen

    def _no_orphans(self, k, gone):
        """Count processes that outlived their launcher, and those that joined forces before they ended."""
        end = time.monotonic() + HUNG
        while (left := self.job.processes()) and time.monotonic() < end:
            time.sleep(0.05)
        self.job.kill_all(left)
        working = ("connected", "step", "epoch", "saved", "solved")
        active = {e["pid"] for e in self.job.events() if e["what"] in working and e["at"] > gone + 1.0}
        self.verdicts[k].orphans += len(active | set(left))

    def _check_kept(self, k):
        """Check that there is a checkpoint to go on from, if ever there was one."""
        fault, job = self.faults[k], self.job
        if fault.kind != "corrupt checkpoints, all" and job.events("saved") and not job.readable():
            self.verdicts[k].lost = True
            self.verdicts[k].note += "no checkpoint can be read;"

    def _see_restart(self, k, before, died):
        """Wait until the job has done an epoch again, and note how long it took and what it repeated."""
        fault, job, verdict = self.faults[k], self.job, self.verdicts[k]
        old = {event["pid"] for event in before}

        def fresh(what):
            return [event for event in job.events(what) if event["pid"] not in old and event["at"] > died]

        def again():
            self._care()
            # The next fault may come in the restart itself.
            return fresh("epoch") or fresh("solved") or job.held(f"{k + 1}") or job.finished() or self._failed()

        job.wait(again, f"the restart after {fault.kind}")
        saved = max((event["epoch"] for event in before if event["what"] == "saved"), default=None)
        done = max((event["epoch"] for event in before if event["what"] == "epoch"), default=-1)
        resumed = fresh("resumed")
        if not resumed:
            return
        epoch = resumed[0]["epoch"]
        if epoch is not None:
            verdict.repeated = done - epoch
        elif done >= 0:
            verdict.repeated = done + 1
        allowed = 1 if fault.kind == "corrupt checkpoint" else 0
        if saved is not None and (epoch is None or epoch < saved - allowed):
            verdict.lost = True
            verdict.note += f"saved epoch {saved}, went on from {epoch};"
        if (restarts := len({event["pid"] for event in fresh("begun") if event["rank"] == 0})) > 1:
            verdict.note += f"{restarts} restarts;"
        if steps := [event for event in fresh("step") if event["at"] >= resumed[0]["at"]]:
            verdict.to_step = steps[0]["at"] - died
        if epochs := fresh("epoch"):
            verdict.to_epoch = epochs[0]["at"] - died

    def _finish(self):
        job = self.job

        def over():
            self._care()
            # A node that came when all was done waits for others that never come.
            if job.result() is not None and job.nodes["a"].poll() == 0 and self.nodes != "1":
                self._dismiss("b")
            return job.finished() or self._failed()

        job.wait(over, "the end")
        if job.result() is None:
            return self._error()
        if (job.events("saved") and not job.readable()) or self._went_back():
            self.verdicts[-1].lost = True
        return self.bench.judge(job)

    def _went_back(self):
        """Tell whether any start, those included that no fault of ours called for, began before what was saved."""
        allowed, saved = int(any(fault.kind == "corrupt checkpoint" for fault in self.faults)), None
        for event in self.job.events():
            if event["what"] == "saved":
                saved = event["epoch"]
            began = -1 if event.get("epoch") is None else event["epoch"]
            if event["what"] == "resumed" and saved is not None and began < saved - allowed:
                return True
        return False

    def _dismiss(self, node):
        try:
            self.job.nodes[node].wait(5)
        except subprocess.TimeoutExpired:
            self.job.nodes[node].terminate()
            self.job.nodes[node].wait(HUNG)

    def _error(self):
        """Look for the reason that a run which gave up told its user."""
        log = self.job.log()
        for name in CLEAR:
            if found := re.findall(rf"^.*\b{name}: .*$", log, re.MULTILINE):
                return "clear error", found[-1][:300]
        return "unclear error", log[-2000:]

    def _corrupt_shard(self, fault):
        store = self.folder / "store"
        shutil.copytree(self.bench.store, store)
        name, how = fault.detail.split(":")
        _damage(store / name, how)
        verify = "small" if name in SMALL_FILES else "full"
        self.job = Job(self.bench, self.folder / "job", solver=self.solver, holds=(), verify=verify, store=store)
        self.job.start(max_restarts=0)
        self.job.wait(lambda: self.job.nodes["a"].poll() is not None, "the refusal")
        if self.job.result() is not None:
            return "wrong answer", f"a damaged {name} was not noticed"
        outcome, note = self._error()
        return (outcome, note) if "StoreError" in note else ("unclear error", note)


def _damage(path, how):
    """Flip a bit or cut off the end."""
    content = bytearray(path.read_bytes())
    if how.startswith("cut"):
        path.write_bytes(content[: len(content) * int(how[3:] or 50) // 100])
        return
    place = len(content) * 8 * int(how[4:] or 50) // 100
    content[place // 8] ^= 1 << place % 8
    path.write_bytes(content)


def run(bench, folder, *faults, solver="aleg", nodes="1"):
    """Run a job through faults, one after another, and return a verdict for each."""
    return Run(bench, Path(folder), faults, solver, nodes)()


# ---------------------------------------------------------------------- the campaign


def draw(kind, rng, epoch, rows="dense"):
    """Return a fault of a kind at a random moment."""
    phases = {
        "kill in a step": ["step"], "kill in a pass": ["pass"], "kill in a write": ["fsync", "rename", "renamed"],
        "kill elsewhere": ["between", "start"], "kill the launcher": list(PHASES), "stop": ["step", "pass", "fsync"],
    }  # fmt: skip
    phase = rng.choice(phases.get(kind, ["step"]))
    rank = None if phase in ("fsync", "rename", "renamed") else rng.choice([0, 1, None])
    fault = {"phase": phase, "rank": rank, "victim": rng.choice(["held", "other"]), "epoch": epoch}
    if phase == "start":
        fault["epoch"] = 0
    if kind == "disk full":
        fault["detail"] = rng.choice(["tmpfs", "limit"])
    elif kind.startswith("corrupt checkpoint"):
        fault["detail"] = rng.choice([f"flip{rng.randrange(100)}", f"cut{rng.randrange(100)}"])
        fault["epoch"] = max(epoch, 3)  # two files are there
    elif kind == "corrupt shard":
        name = rng.choice([*SMALL_FILES, *LARGE_FILES[rows]])
        fault["detail"] = f"{name}:{rng.choice(['flip', 'cut'])}{rng.randrange(100)}"
    elif kind == "node lost":
        fault["detail"], fault["seconds"] = rng.choice(["b", "b", "b", "a"]), rng.choice([0.0, 3.0])
    elif kind == "node cut off":
        fault["seconds"] = rng.choice([2.0, 8.0, 20.0])
    return Fault(kind, **fault)


def plan(n_faults, rng, kinds=KINDS, rows="dense"):
    """Return runs of several faults each, as (faults, solver, nodes)."""
    drawn = [kinds[k % len(kinds)] for k in range(n_faults)]
    rng.shuffle(drawn)
    runs = []
    for several, most in ((LOCAL, 4), (NETWORK, 2), (ALONE, 1)):
        mine = [kind for kind in drawn if kind in several]
        for start in range(0, len(mine), most):
            solver = rng.choice(SOLVERS[rows])
            part = mine[start : start + most]
            faults, epoch = [], rng.choice([0, 1, 2])
            for kind in part:
                faults.append(draw(kind, rng, epoch, rows))
                epoch = max(epoch, faults[-1].epoch) + (3 if kind == "disk full" else rng.choice([1, 1, 2]))
            nodes = rng.choice(["2", "2", "1:2"]) if several is NETWORK else "1"
            if nodes == "1:2" and faults[-1].kind == "node lost":
                faults[-1] = replace(faults[-1], detail="b", seconds=rng.choice([0.0, SHRINKS + 15.0]))
            runs.append((faults, solver, nodes))
    rng.shuffle(runs)
    return runs


def campaign(n_faults, seed, rows="dense", lanes=3):
    """Run faults at random, several runs at a time, and print what became of them."""
    rng = random.Random(seed)
    kinds = [kind for kind in KINDS if kind not in NETWORK or can_network()]
    keep = Path(tempfile.mkdtemp(prefix="groupdro-faults-"))
    begun, verdicts, lock = time.monotonic(), [], threading.Lock()
    os.environ.setdefault("NUMBA_CACHE_DIR", str(keep / "numba"))
    bench = Bench(keep, rows)
    mounts = can_mount()
    print(f"seed {seed}, files in {keep}", flush=True)
    for solver in dict.fromkeys(SOLVERS[rows]):
        bench.reference(solver)

    def one(number, faults, solver, nodes):
        if not mounts:
            faults = [replace(f, detail="limit") if f.detail == "tmpfs" else f for f in faults]
        folder = keep / f"run-{number:03d}"
        got = Run(bench, folder, tuple(faults), solver, nodes)
        found = [verdict for verdict in got() if verdict.outcome != "not tried"]
        with lock:
            verdicts.extend(found)
            for verdict in found:
                f, times = verdict.fault, [verdict.to_step, verdict.to_epoch]
                when = f"{f.phase} at {f.epoch}, rank {f.rank}, {f.victim} {f.detail} {f.seconds or ''}".strip()
                told = ", ".join("-" if t is None else f"{t:.1f}" for t in times)
                bad = "" if verdict.good else "  <<<<"
                print(
                    f"{len(verdicts):3d} run {number} ({solver}, {nodes}) {f.kind}: {when}: {verdict.outcome}; step, "
                    f"epoch after {told} s; repeated {verdict.repeated}; {verdict.note}{bad}", flush=True,
                )  # fmt: skip
        if all(verdict.good for verdict in found):
            shutil.rmtree(folder, ignore_errors=True)

    number = 0
    for _ in range(5):  # some moments never come, and are drawn anew
        if (lacking := n_faults - len(verdicts)) <= 0:
            break
        runs = plan(lacking, rng, kinds, rows)
        with ThreadPoolExecutor(lanes) as pool:
            for each in [pool.submit(one, number + k, *run) for k, run in enumerate(runs)]:
                each.result()
        number += len(runs)
    print_table(verdicts)
    print(f"{len(verdicts)} faults in {time.monotonic() - begun:.0f} s")
    if all(verdict.good for verdict in verdicts):
        shutil.rmtree(keep, ignore_errors=True)
    return verdicts


def print_table(verdicts):
    """Print one line for each kind."""
    columns = ("tried", "right answer", "clear error", "wrong", "wrong status", "hangs", "orphans", "lost")
    columns += ("step s", "epoch s", "repeated")
    print(f"{'kind':26}" + "".join(f"{name:>13}" for name in columns))
    for kind in [*(kind for kind in KINDS if any(v.fault.kind == kind for v in verdicts)), "all"]:
        mine = [v for v in verdicts if kind in (v.fault.kind, "all")]
        counts = [sum(v.outcome == name for v in mine) for name in ("right answer", "clear error")]
        counts.append(sum(v.outcome in ("wrong answer", "unclear error") for v in mine))
        counts += [sum(v.outcome == name for v in mine) for name in ("wrong status", "hang")]
        counts += [sum(v.orphans for v in mine), sum(v.lost for v in mine)]
        medians = [
            [getattr(v, name) for v in mine if getattr(v, name) is not None]
            for name in ("to_step", "to_epoch", "repeated")
        ]
        told = [f"{statistics.median(values):.1f}" if values else "-" for values in medians]
        print(f"{kind:26}" + "".join(f"{value!s:>13}" for value in (len(mine), *counts, *told)))


if __name__ == "__main__":
    given = [word for word in sys.argv[1:] if word != "sparse"]
    number = int(given[0]) if given else 100
    chosen = int(given[1]) if len(given) > 1 else random.SystemRandom().randrange(10**6)
    rows = "sparse" if "sparse" in sys.argv else "dense"
    sys.exit(not all(verdict.good for verdict in campaign(number, chosen, rows)))
