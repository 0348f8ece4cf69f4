"""What only POSIX has is guarded, so that the package works without it."""

import ast
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import groupdro
from groupdro.utils import threads
from tests.packaging.first_time import ROOT
from tests.packaging.without_posix import MODULES, OF_OS, OF_SIGNAL

SOURCE = Path(groupdro.__file__).parent
#: Every use of what Windows lacks or does differently, with the reason why it is harmless there.
GUARDED = {
    ("data/dense_rows.py", "mmap.MADV_WILLNEED"): "behind hasattr",
    ("data/mapping.py", "mmap.MADV_DONTNEED"): "behind hasattr",
    ("data/mapping.py", "os.sysconf"): "behind hasattr",
    ("data/mapping.py", ".madvise"): "only with advice that the system has",
    ("distributed/torch_comm.py", "signal.SIGKILL"): "after a return where the system is not Linux",
    ("store/folders.py", "fcntl"): "behind ImportError",
    ("utils/threads.py", "os.sched_getaffinity"): "behind hasattr",
}
ODD = {"execve", "execv", "execvp", "execvpe", "kill", "symlink", "link"}  # which Windows has, in another way


def uses(source):
    """Yield every use of POSIX in a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            yield from (name for name in names if name.split(".")[0] in MODULES)
        elif isinstance(node, ast.Attribute):
            module = node.value.id if isinstance(node.value, ast.Name) else None
            odd = (
                (module == "os" and node.attr in {*OF_OS, *ODD})
                or (module == "signal" and node.attr in OF_SIGNAL)
                or (module == "mmap" and node.attr.startswith("MADV_"))
            )
            if odd:
                yield f"{module}.{node.attr}"
            elif node.attr == "madvise":
                yield ".madvise"


def test_every_use_of_posix_is_guarded():
    found = {
        (path.relative_to(SOURCE).as_posix(), name)
        for path in SOURCE.rglob("*.py")
        for name in uses(path.read_text(encoding="utf-8"))
    }
    assert found == set(GUARDED), "guard what is new and say how in GUARDED"


def test_the_check_finds_uses():
    source = (
        "import fcntl, os\nfrom resource import getrusage\nos.fork()\nos.kill(1, signal.SIGKILL)\nmmap.MADV_RANDOM\n"
    )
    assert sorted(uses(source)) == ["fcntl", "mmap.MADV_RANDOM", "os.fork", "os.kill", "resource", "signal.SIGKILL"]


@pytest.mark.skipif(sys.platform != "linux", reason="Windows needs no imitation, and open files are found by /proc")
def test_fits_files_and_stores_work_with_what_windows_has():
    command = [sys.executable, "-m", "tests.packaging.without_posix"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("all without POSIX\n")


def test_text_is_read_and_written_as_utf_8():
    # The encoding of the system is not UTF-8 on Windows before Python 3.15.
    faults = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
            if name in ("read_text", "write_text") and not any(word.arg == "encoding" for word in node.keywords):
                faults.append(f"{path.relative_to(SOURCE).as_posix()}: {ast.unparse(node)}")
    assert all("/proc" in fault or "folder / name" in fault for fault in faults), faults  # Linux only


def test_waiting_on_windows_returns_what_the_call_does(monkeypatch):
    monkeypatch.setattr(threads, "os", SimpleNamespace(name="nt", environ=os.environ))
    assert threads.interruptibly(lambda: 3) == 3
    with pytest.raises(TimeoutError, match="of its own"):
        threads.interruptibly(_raise)


def _raise():
    raise TimeoutError("of its own")
