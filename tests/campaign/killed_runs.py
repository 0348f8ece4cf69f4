"""Runs and writers that are killed again and again: a process that forks them, kills them and looks at what they left.

It prints a JSON object with the number of kills, the failures, and how many kills left a file half written. What is
needed is compiled before a fork, and there is one thread, so that forks are cheap and safe.
"""

import json
import os
import shutil
import signal
import struct
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import numpy as np

import groupdro as gd
from groupdro.utils.files import write_content
from tests.run.test_checkpoint import SOLVERS, make_problem
from tests.timing import HUNG

__all__ = ["kill_runs", "kill_writers", "main"]

_MOST_KILLS = 12  # of one run, which is then left to end


# ---------------------------------------------------------------------- what is killed


def _solve(name, loss, folder):
    result = gd.solve(make_problem(loss), SOLVERS[name](), tol=1e-12, max_passes=60.0, seed=3, checkpoint_dir=folder)
    return result.lower_bound, result.upper_bound


def _fit(options, folder):
    about = make_problem()
    X, groups = about.data.rows.X, np.repeat([0, 1, 2], about.data.group_sizes)
    model = gd.GroupDROClassifier(tol=1e-12, max_passes=60.0, checkpoint_dir=folder, random_state=3, **options)
    model.fit(X, about.data.y, groups=groups)
    return model.lower_bound_, model.upper_bound_


RUNS = {
    **{
        f"{name}, {loss}": (_solve, name, loss)
        for name in SOLVERS
        for loss in ("logistic", "softmax")
        if (name, loss) != ("sketched-sqp", "softmax")
    },
    "classifier": (_fit, {}),
    "classifier, regrets": (_fit, {"objective": "excess_risk"}),
    "classifier, aleg": (_fit, {"solver": "aleg"}),
}


def start(name, folder):
    """Make a run, and return its interval."""
    function, *arguments = RUNS[name]
    return function(*arguments, folder)


def agrees(told, expected):
    """Return whether the interval that a run told overlaps with that of an undisturbed one, and is not much wider."""
    (lower, upper), (least, most) = struct.unpack("dd", told), expected
    rounding = 1e-9 * max(abs(most), abs(upper))
    inside = lower <= most + rounding and least <= upper + rounding
    return inside and upper - lower <= 4.0 * (most - least) + 1e-3 * abs(most)


def write_for_ever(path, told):
    """Write a file that holds its own number, and tell each number that is safely written."""
    number = read_number(path) + 1
    while True:
        write_content(path, np.full(20_000, float(number)).tobytes())
        os.write(told, struct.pack("q", number))
        number += 1


def read_number(path):
    """Return the number of a file that is written whole; -1 if there is none."""
    if not path.exists():
        return -1
    values = np.frombuffer(path.read_bytes())
    assert values.shape == (20_000,), "the file is not whole"
    assert (values == values[0]).all(), "the file has parts of two"
    return int(values[0])


# ---------------------------------------------------------------------- killing


def fork(function, *arguments):
    """Call a function in a child; return the child's number and a pipe of what it tells."""
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        return child, reader
    os.close(reader)
    try:
        function(*arguments, writer)
        os._exit(0)
    except BaseException:
        os.write(writer, traceback.format_exc().encode()[-4000:])
        os._exit(1)


def kill_after(seconds, child, reader):
    """Kill a child after a while, unless it has ended; return whether, its exit status, and what it told."""
    deadline = time.monotonic() + seconds
    content = []
    os.set_blocking(reader, False)
    ended, status = 0, 0
    while not ended and time.monotonic() < deadline:
        time.sleep(min(0.001, max(0.0, deadline - time.monotonic())))
        ended, status = os.waitpid(child, os.WNOHANG)
        content.append(_read(reader))
    if not ended:
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    content.append(_read(reader))
    os.close(reader)
    return os.WIFSIGNALED(status), os.waitstatus_to_exitcode(status), b"".join(content)


def _read(reader):
    parts = []
    try:
        while part := os.read(reader, 1 << 16):
            parts.append(part)
    except BlockingIOError:
        pass
    return b"".join(parts)


def _tell_run(name, folder, told):
    os.write(told, struct.pack("dd", *start(name, folder)))


def kill_runs(kills, seed):
    """Kill runs until there were so many kills, letting each run go on until it ends."""
    rng, tally = np.random.default_rng(seed), {"tried": 0, "failures": [], "unfinished": 0, "runs": 0}
    names = rng.permutation(list(RUNS)).tolist()
    while tally["tried"] < kills:
        name = names[tally["runs"] % len(names)]
        tally["runs"] += 1
        with tempfile.TemporaryDirectory(prefix="groupdro-killed-") as folder:
            expected = start(name, None)  # which compiles what is needed
            begun = time.monotonic()
            start(name, folder)
            length = time.monotonic() - begun
            shutil.rmtree(folder)
            own = 0
            while True:
                patience = rng.uniform(0.0, length) if own < _MOST_KILLS and tally["tried"] < kills else HUNG
                killed, code, told = kill_after(patience, *fork(_tell_run, name, folder))
                if killed:
                    own, tally["tried"] = own + 1, tally["tried"] + 1
                    tally["unfinished"] += any(Path(folder).rglob("*.tmp")) if os.path.isdir(folder) else 0
                    if own <= _MOST_KILLS:
                        continue
                if killed or code or not agrees(told, expected):
                    what = told.decode(errors="replace") if code > 0 else "another answer"
                    what = "did not end" if killed else what
                    tally["failures"].append(f"{name}, after {own} kills: {what}")
                break
            left = [path.name for path in Path(folder).rglob("*") if path.is_file()]
            if len([name for name in left if name.endswith(".npz")]) != 1:
                tally["failures"].append(f"{name}: {sorted(left)} are left")
    return tally


def kill_writers(kills, seed):
    """Kill a process that writes a file as fast as it can, and read it each time."""
    rng, tally = np.random.default_rng(seed), {"tried": 0, "failures": [], "unfinished": 0, "runs": 0}
    with tempfile.TemporaryDirectory(prefix="groupdro-killed-") as folder:
        last, path = -1, Path(folder, "file")
        while tally["tried"] < kills:
            killed, _, told = kill_after(rng.uniform(0.0, 0.06), *fork(write_for_ever, path))
            tally["tried"] += 1
            tally["unfinished"] += any(Path(folder).glob(".*.tmp"))
            try:
                assert killed, told.decode(errors="replace")
                last = max([last, *(number for (number,) in struct.iter_unpack("q", told))])
                number = read_number(path)
                assert last <= number <= last + 1, f"number {number} is found, {last} was the last"
                last = number
            except Exception as error:
                tally["failures"].append(f"kill {tally['tried']}: {type(error).__name__}: {error}")
    return tally


def main(kind, kills, seed):
    """Kill so many times and print what was found."""
    warnings.simplefilter("ignore")
    tally = (kill_runs if kind == "runs" else kill_writers)(int(kills), int(seed))
    print(json.dumps(tally))
