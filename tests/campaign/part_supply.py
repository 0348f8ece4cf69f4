"""What the package is made of and what it may run: no code from files, and six requirements.

`python -m tests.campaign.supply` asks for known vulnerabilities, and writes a bill of materials.
"""

import ast
import functools
import importlib.metadata
import io
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import groupdro
from tests.campaign import file_kinds as kinds
from tests.campaign.frame import Check, Tally
from tests.timing import HUNG

__all__ = ["CHECKS", "REQUIREMENTS", "code_in", "core_requirements", "heard_while_loading"]

ROOT = Path(groupdro.__file__).parent
REQUIREMENTS = {"numpy", "scipy", "scikit-learn", "numba", "narwhals", "threadpoolctl"}


# ---------------------------------------------------------------------- the source

#: Modules that read code, or objects of any class, from bytes.
_MODULES = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle", "yaml"}
#: Functions that do, by the name they are called by: whole, or after the dot.
_CALLS = {"eval", "exec", "compile", "__import__", "execfile", "literal_eval", "unpickle", "loadtxt", "genfromtxt"}
_METHODS = {
    ("np", "load"), ("numpy", "load"), ("torch", "load"), ("joblib", "load"), ("np", "fromregex"),
    ("npy", "read_array"), ("np.lib.format", "read_array"), ("torch", "compile"),
}  # fmt: skip
#: Places where one of them is right, and why.
ALLOWED: dict[tuple[str, str], str] = {
    ("utils/optional.py", "import_module"): "imports torch, mpi4py or pyarrow by a name that stands in the package",
    ("run/checkpoint.py", "np.load"): "reads plain arrays, with allow_pickle=False",
    (
        "datasets/pickles.py",
        "import pickle",
    ): "reads the official CIFAR-100, which is a pickle, as arrays and text only",
}


def code_in(source: str) -> Iterator[str]:
    """Yield what in a source could run code from a file, or read objects of any class from one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (f"import {name.name}" for name in node.names if name.name.split(".")[0] in _MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in _MODULES:
            yield f"from {node.module} import"
        elif isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id in _CALLS | {"import_module"}:
                yield called.id
            if isinstance(called, ast.Attribute):
                owner = ast.unparse(called.value)
                if (owner, called.attr) in _METHODS:
                    yield f"{owner}.{called.attr}"
                elif called.attr in _CALLS - {"compile"} | {"import_module"}:  # regular expressions are compiled too
                    yield called.attr
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            if not (isinstance(node.value, ast.Constant) and node.value.value is False):
                yield "allow_pickle"
        elif isinstance(node, ast.keyword) and node.arg == "weights_only":
            yield "weights_only"


def no_code_in_source(count: int, seed: int, jobs: int) -> Tally:
    """Look at every module of the package."""
    tally, used = Tally(), set()
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        tally.tried += 1
        for found in code_in(path.read_text()):
            if (name, found) in ALLOWED:
                used.add((name, found))
            else:
                tally.failures.append(f"{name}: {found}")
    tally.failures += [f"{name}: {found} is allowed and no longer there" for name, found in set(ALLOWED) - used]
    tally.figures = [f"{len(used)} allowed"]
    return tally


# ---------------------------------------------------------------------- at run time

_RUNS_CODE = (
    "pickle.find_class", "marshal.loads", "marshal.load", "exec", "code.__new__", "function.__new__", "import",
    "ctypes.dlopen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.Popen",
)  # fmt: skip
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _load_store(folder: Path) -> None:
    for name in kinds.STORES:
        kinds.write_folder(folder / "store", kinds.store_files(name))
        with _listening():
            kinds.read_store(groupdro.GroupedStore.open(folder / "store", verify="full"))


def _load_checkpoint(folder: Path) -> None:
    for name in kinds.RUNS:
        kinds.write_folder(folder / "run", dict([kinds.run_file(name)]))
        with _listening(writes=True):  # a run that goes on saves its epochs
            kinds.resume(name, folder / "run")


LOADERS: dict[str, Callable[[Path], None]] = {
    "store": _load_store,
    "checkpoint": _load_checkpoint,
}


class _Ear:
    """Hears what the interpreter tells its auditors, between two moments."""

    def __init__(self) -> None:
        self.on, self.writes, self.heard, self.hooked = False, False, list[str](), False

    def hear(self, event: str, arguments: Any) -> None:
        if not self.on:
            return
        if event in _RUNS_CODE:
            self.heard.append(f"{event} {str(arguments[:2])[:80]}")
        if event == "open" and not self.writes and isinstance(arguments[2], int) and arguments[2] & _WRITES:
            self.heard.append(f"write to {arguments[0]}")


_EAR = _Ear()


class _listening:  # noqa: N801  # reads as a verb
    def __init__(self, *, writes: bool = False):
        self.writes = writes

    def __enter__(self) -> None:
        if not _EAR.hooked:
            sys.addaudithook(_EAR.hear)
            _EAR.hooked = True
        _EAR.on, _EAR.writes = True, self.writes

    def __exit__(self, *error: object) -> None:
        _EAR.on = False


def heard_while_loading() -> dict[str, list[str]]:
    """Load files of each kind, once to have all imported and compiled and once to listen."""
    heard = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, load in LOADERS.items():
            load(Path(folder))
            _EAR.heard.clear()
            load(Path(folder))
            heard[name] = sorted(set(_EAR.heard))
    return heard


def no_code_at_run_time(count: int, seed: int, jobs: int) -> Tally:
    """Listen to the interpreter while each loader reads, in a process of its own: hooks cannot be taken off."""
    script = "import json; from tests.campaign.part_supply import *; print(json.dumps(heard_while_loading()))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HUNG)
    if done.returncode:
        return Tally(len(LOADERS), [done.stderr[-1000:]])
    heard = json.loads(done.stdout.splitlines()[-1])
    return Tally(len(heard), [f"{name}: {event}" for name, events in heard.items() for event in events])


# ---------------------------------------------------------------------- the one pickle that is read

# The official files of CIFAR are pickles. The package reads them with an unpickler that accepts arrays, lists and text
# only, and the benchmarks use the same one.


class _Call:
    def __init__(self, function: Any, *arguments: Any):
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, self.arguments


def _hostile_pickles(path: str) -> Iterator[tuple[str, bytes]]:
    calls = {
        "open": _Call(open, path, "w"),
        "system": _Call(os.system, f"touch {path}"),
        "eval": _Call(eval, f"open({path!r}, 'w')"),
        "in an array": np.array([_Call(open, path, "w")], dtype=object),
        "in a dictionary": {b"data": _Call(open, path, "w"), b"fine_labels": []},
        "getattr": _Call(getattr, np.ndarray, "tofile"),
        "numpy": _Call(np.save, path, 0),
        "partial": _Call(functools.partial, open, path, "w"),
        "class": pickle.Pickler,
    }
    for name, value in calls.items():
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            yield f"{name}, protocol {protocol}", pickle.dumps(value, protocol)
    yield "by hand", b"cos\nsystem\n(S'touch " + path.encode() + b"'\ntR."
    yield "codec", b"c_codecs\nencode\n(S'x'\nS'rot13'\ntR."
    yield "persistent", b"P0\n."
    yield "empty", b""


def image_pickles(count: int, seed: int, jobs: int) -> Tally:
    """Give the reader of CIFAR what it must refuse, and what it must read."""
    from benchmarks.real_data import _ArraysOnly

    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        canary = Path(folder, "canary")
        for name, content in _hostile_pickles(str(canary)):
            tally.tried += 1
            try:
                _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
                tally.failures.append(f"{name}: it was read")
            except (pickle.UnpicklingError, EOFError):
                pass
            except Exception as error:
                tally.failures.append(f"{name}: {type(error).__name__}: {error}")
            if canary.exists():
                tally.failures.append(f"{name}: it was run")
                canary.unlink()
    images = {b"data": np.arange(12, dtype=np.uint8).reshape(2, 6), b"fine_labels": [3, 7], b"batch_label": b"x"}
    for protocol in range(5):  # the official files have 2; NumPy's own way of 5 is not let in
        tally.tried += 1
        stored = _ArraysOnly(io.BytesIO(pickle.dumps(images, protocol)), encoding="bytes").load()
        if not np.array_equal(stored[b"data"], images[b"data"]) or stored[b"fine_labels"] != [3, 7]:
            tally.failures.append(f"images, protocol {protocol}: they are other images")
    return tally


# ---------------------------------------------------------------------- requirements


def core_requirements(lines: list[str]) -> set[str]:
    """Return the names of what is required without any extra."""
    core = [line for line in lines if "extra" not in line.partition(";")[2]]
    return {re.split(r"[\s\[<>=!~;(]", line.strip(), maxsplit=1)[0].lower() for line in core}


#: Imports the package where nothing but its requirements can be imported, and names all that is public.
_ALONE = """
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {absent}:
            raise ModuleNotFoundError(f"no {{name}}", name=name)
sys.meta_path.insert(0, Nothing())
import groupdro
assert all(hasattr(groupdro, name) for name in groupdro.__all__)
"""
_OTHERS = {
    "pandas", "polars", "pyarrow", "torch", "matplotlib", "click", "rich", "ray", "pyspark", "mpi4py", "cvxpy", "yaml",
}  # fmt: skip


def six_requirements(count: int, seed: int, jobs: int) -> Tally:
    """Compare the requirements of the installed package with the six, and import it where there is nothing else."""
    tally = Tally(tried=2)
    stated = core_requirements(importlib.metadata.requires("groupdro") or [])
    if stated != REQUIREMENTS:
        tally.failures.append(f"it requires {sorted(stated)}")
    script = _ALONE.format(absent=_OTHERS)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HUNG)
    if done.returncode:
        tally.failures.append(f"it cannot be imported alone: {done.stderr[-300:]}")
    return tally


CHECKS = [
    Check("source without code loaders", "no module can read code or pickles from a file", no_code_in_source, 1, 1),
    Check(
        "loaders run no code",
        "no import, pickle, exec, process or write while a file is read",
        no_code_at_run_time,
        2,
        2,
    ),
    Check("pickled images", "hostile pickles are refused, official ones are read", image_pickles, 50, 50),
    Check("six requirements", "the core needs no more than its six packages", six_requirements, 2, 2),
]
