"""Epochs of several workers over a network of known rate and delay, against the time that a simple model predicts.

    python -m benchmarks.network          needs root, ip and tc; writes results/network.json

Each worker runs in a network namespace of its own. Its messages pass a token bucket (tc, tbf) of 1 or 10 Gbit/s.
Without a delay, namespaces are joined by veth pairs and a bridge; with one, by tap devices and a relay that holds every
packet back. Two problems: steps of ALEG on dense rows, with many short messages, and epochs of sketched SQP on hashed
rows, with few long ones. All workers share the cores of this machine, which the model accounts for.
"""

import contextlib
import ctypes
import fcntl
import heapq
import itertools
import json
import os
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import groupdro as gd
from groupdro.distributed.torch_comm import TorchCommunicator

RESULTS = Path(__file__).parent / "results" / "network.json"
RATES, DELAYS, WORKERS = (1.0, 10.0), (0.0, 1e-4, 1e-3), (2, 4, 8)  # Gbit/s, seconds
EPOCHS = 6  # about; the first is not timed
MTU = 65_000
PORT = 29_600
PROBLEMS = {"aleg, dense": "aleg", "sketched SQP, hashed": "sketched-sqp"}
LIMIT = 600.0  # seconds for one job
CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000


# ---------------------------------------------------------------------- the network


def ip(*arguments: str) -> None:
    """Run ip."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=60)


def space(k: int | str) -> str:
    """Return the name of a namespace."""
    return f"gd-net-{os.getpid()}-{k}"


@contextlib.contextmanager
def network(n_workers: int, gigabits: float, delay: float) -> Iterator[None]:
    """Join namespaces of so many workers, with addresses 10.98.0.1 and up on a device named gd0."""
    spaces = [space("hub"), *(space(k) for k in range(n_workers))]
    relay = None
    try:
        for name in spaces:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        if delay:
            relay = subprocess.Popen(
                [sys.executable, __file__, "relay", str(delay), *spaces[1:]], stdout=subprocess.PIPE
            )
            relay.stdout.readline()  # the devices are there
        else:
            ip("-n", spaces[0], "link", "add", "hub", "type", "bridge")
            ip("-n", spaces[0], "link", "set", "hub", "mtu", str(MTU), "up")
        for k, name in enumerate(spaces[1:]):
            if not delay:
                ip("-n", name, "link", "add", "gd0", "type", "veth", "peer", "name", f"p{k}", "netns", spaces[0])
                ip("-n", spaces[0], "link", "set", f"p{k}", "mtu", str(MTU), "master", "hub", "up")
            ip("-n", name, "link", "set", "gd0", "mtu", str(MTU), "up")
            ip("-n", name, "address", "add", f"10.98.0.{k + 1}/24", "dev", "gd0")
            if np.isfinite(gigabits):
                bucket = f"tc qdisc add dev gd0 root tbf rate {gigabits}gbit burst 512kb latency 100ms"
                subprocess.run(["ip", "netns", "exec", name, *bucket.split()], check=True, timeout=60)
        yield
    finally:
        if relay is not None:
            relay.send_signal(signal.SIGTERM)
            relay.wait(60)
        for name in spaces:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=60, check=False)


def run_relay(delay: float, names: list[str]) -> None:
    """Make a tap device in each namespace, and pass on every packet after a delay."""
    libc, taps = ctypes.CDLL(None, use_errno=True), []
    for name in names:
        with open(f"/run/netns/{name}") as handle:
            if libc.setns(handle.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH", b"gd0", IFF_TAP | IFF_NO_PI))
        taps.append(tap)
    print("ready", flush=True)
    port_of: dict[bytes, int] = {}  # of a hardware address
    waiting: list[tuple[float, int, int, bytes]] = []
    order = itertools.count()
    while True:
        left = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 1.0
        for tap in select.select(taps, [], [], left)[0]:
            with contextlib.suppress(BlockingIOError):
                packet = os.read(tap, MTU + 100)
                port_of[packet[6:12]] = tap
                heapq.heappush(waiting, (time.monotonic() + delay, next(order), tap, packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, source, packet = heapq.heappop(waiting)
            known = port_of.get(packet[:6])
            for tap in [known] if known is not None else [t for t in taps if t != source]:
                with contextlib.suppress(BlockingIOError, OSError):  # a full queue drops packets, as networks do
                    os.write(tap, packet)


# ---------------------------------------------------------------------- the jobs


def make_stores(folder: Path) -> None:
    """Write both problems."""
    rng = np.random.default_rng(0)
    n = 100_000
    groups = rng.integers(0, 20, n)
    X = rng.normal(size=(n, 64)).astype(np.float32)
    y = (X[:, 0] + 0.3 * (groups % 3) + rng.logistic(size=n) > 0).astype(int)
    gd.GroupedStore.write_arrays(folder / "aleg, dense", X, y, groups)
    columns = {f"c{c}": (2**18 ** rng.random(n)).astype(np.int32) for c in range(30)}
    gd.GroupedStore.write(
        folder / "sketched SQP, hashed", pa.table({"y": y, "group": groups} | columns), target="y", groups="group",
        hashed=True, sparse=True, dtype="bool", n_features=2**18,
    )  # fmt: skip


def work(folder: Path, problem_name: str) -> None:
    """Run epochs as one worker, and print what the first of them saw."""
    comm = TorchCommunicator.from_environment(timeout=300.0) if "RANK" in os.environ else gd.distributed.communicator()
    rounds, ends = [0], []
    if comm.size > 1:
        exchange = comm._exchange

        def counted(*arguments: Any) -> None:
            rounds[0] += 1
            exchange(*arguments)

        comm._exchange = counted

    def after_epoch(_: Any) -> None:
        ends.append((time.perf_counter(), rounds[0], comm.bytes_sent, comm.seconds))

    data = gd.GroupedStore.open(folder / problem_name).shard(comm).data()
    problem = gd.GroupRisk(data, gd.Logistic(), gd.L2Domain(penalty=1e-4), fit_intercept=problem_name != "aleg, dense")
    gd.solve(problem, PROBLEMS[problem_name], tol=0.0, max_passes=3.0 * EPOCHS, callbacks=[after_epoch])
    if comm.rank == 0:
        steps = np.diff(np.array(ends[1:]), axis=0)
        names = ("seconds", "rounds", "bytes", "seconds_of_messages")
        print(json.dumps(dict(zip(names, np.median(steps, axis=0).tolist(), strict=True))), flush=True)
    comm.close()


def job(folder: Path, problem_name: str, n_workers: int, within: bool) -> dict[str, float]:
    """Run one job, in namespaces or over loopback, and return what the first worker saw per epoch."""
    processes = []
    for rank in range(n_workers):
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
        if n_workers > 1:
            environment |= {"RANK": str(rank), "WORLD_SIZE": str(n_workers), "LOCAL_RANK": str(rank)}
            environment |= {"MASTER_ADDR": "10.98.0.1" if within else "127.0.0.1", "MASTER_PORT": str(PORT)}
            environment |= {"GLOO_SOCKET_IFNAME": "gd0" if within else "lo"}
        command = [sys.executable, __file__, "worker", str(folder), problem_name]
        before = ["ip", "netns", "exec", space(rank)] if within else []
        processes.append(subprocess.Popen([*before, *command], env=environment, stdout=subprocess.PIPE, text=True))
    try:
        printed = processes[0].communicate(timeout=LIMIT)[0]
        for process in processes:
            process.wait(60)
    finally:
        for process in processes:
            process.kill()
    return json.loads(next(line for line in printed.splitlines() if line.startswith("{")))


# ---------------------------------------------------------------------- the model


def calibrate(one: dict[str, float], two: dict[str, float], four: dict[str, float]) -> dict[str, float]:
    """Return the model's constants of a problem from one worker, and from two and four without limits.

    An epoch computes for divided / p + repeated seconds per worker. A round costs a fixed time and a time per byte. All
    of it takes p / cores times as long if there are more workers than cores.
    """
    cores = os.cpu_count()
    alone = two["seconds"] - two["seconds_of_messages"]
    divided = max(0.0, 2.0 * (one["seconds"] - alone))
    slow = max(1.0, 4 / cores)
    A = np.array([[two["rounds"], two["bytes"]], [slow * four["rounds"], slow * four["bytes"]]])
    per_round, per_byte = np.linalg.lstsq(A, [two["seconds_of_messages"], four["seconds_of_messages"]], rcond=None)[0]
    return {"divided": divided, "repeated": one["seconds"] - divided, "per_round": max(per_round, 0.0),
            "per_byte": max(per_byte, 0.0)}  # fmt: skip


def predicted(known: dict[str, float], seen: dict[str, float], n_workers: int, gigabits: float, delay: float) -> float:
    """Return the seconds of an epoch."""
    slow = max(1.0, n_workers / os.cpu_count())
    compute = slow * (known["divided"] / n_workers + known["repeated"])
    wire = max(slow * known["per_byte"], 8e-9 / gigabits) * seen["bytes"]
    return compute + seen["rounds"] * (slow * known["per_round"] + delay) + wire


def measure() -> None:
    """Run all jobs, and write what they took and what the model says."""
    found: dict[str, Any] = {"cores": os.cpu_count(), "constants": {}, "epochs": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_stores(folder)
        for problem_name in PROBLEMS:
            one = job(folder, problem_name, 1, False)
            with network(2, np.inf, 0.0):
                two = job(folder, problem_name, 2, True)
            with network(4, np.inf, 0.0):
                four = job(folder, problem_name, 4, True)
            known = calibrate(one, two, four)
            found["constants"][problem_name] = known
            for n_workers, rate, delay in itertools.product(WORKERS, RATES, DELAYS):
                with network(n_workers, rate, delay):
                    seen = job(folder, problem_name, n_workers, True)
                model = predicted(known, seen, n_workers, rate, delay)
                row = {"problem": problem_name, "workers": n_workers, "gigabits": rate, "delay": delay,
                       "modelled": model, "ratio": seen["seconds"] / model} | seen  # fmt: skip
                found["epochs"].append(row)
                print(json.dumps(row), flush=True)
    found["load_average"] = os.getloadavg()[0]
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["relay"]:
        run_relay(float(sys.argv[2]), sys.argv[3:])
    elif sys.argv[1:2] == ["worker"]:
        work(Path(sys.argv[2]), sys.argv[3])
    else:
        measure()
