"""Fits, files and stores in a process that has only what Windows has.

    python -m tests.packaging.without_posix

removes functions that only POSIX has before groupdro is imported, and makes files behave as on Windows: a directory
cannot be opened, and a file that is open or mapped cannot be removed, renamed or replaced, nor can a
directory that holds one. It cannot imitate the rest of Windows: its paths, consoles, processes and signals.
"""

import contextlib
import mmap
import os
import shutil
import signal
import sys
import tempfile
import warnings

import numba  # noqa: F401
import numpy as np
import pytest
import sklearn.ensemble  # noqa: F401  # what other libraries do with POSIX is their own matter
from scipy import sparse

MODULES = ("fcntl", "resource", "termios", "pwd", "grp", "pty", "syslog", "posix")
OF_OS = ("sysconf", "sched_getaffinity", "sched_setaffinity", "O_NONBLOCK", "fork", "forkpty", "getsid", "setsid",
         "killpg", "getuid", "geteuid", "getgid", "mkfifo", "mknod", "chown", "statvfs", "fstatvfs", "pread", "pwrite",
         "preadv", "pwritev", "posix_fadvise", "posix_fallocate", "posix_spawn", "sendfile", "uname", "wait3", "wait4",
         "nice", "getloadavg", "O_TMPFILE", "fchown", "lockf", "openpty", "register_at_fork")  # fmt: skip
OF_SIGNAL = ("SIGKILL", "SIGSTOP", "SIGCONT", "SIGALRM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCHLD", "setitimer",
             "alarm", "pthread_kill", "pthread_sigmask")  # fmt: skip


def remove_posix() -> None:
    """Take away what Windows lacks."""
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]  # importing it fails
    for module, names in ((os, OF_OS), (signal, OF_SIGNAL), (mmap, [n for n in dir(mmap) if n.startswith("MADV_")])):
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    tempfile.TemporaryFile = tempfile.NamedTemporaryFile  # as on Windows: Numba tries its cache with one
    shutil._use_fd_functions = False  # type: ignore[attr-defined]
    for name in ("unlink", "remove", "rmdir", "rename", "replace"):
        setattr(os, name, _refusing(getattr(os, name)))
    os.open = _refusing_directories(os.open)


refusals = []


def _held() -> set[str]:
    """Return the files that this process has open or mapped."""
    with open("/proc/self/maps") as file:
        held = {line.split(maxsplit=5)[5].rstrip("\n") for line in file if line.count("/")}
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            held.add(os.readlink(f"/proc/self/fd/{entry}"))
    return held


def _refusing(function):
    def refuse(source, *others, **options):
        for path in (source, *others):
            place = os.path.realpath(path)
            # A link or directory of this name would be the file's own on Windows.
            if any(name == place or name.startswith(place + "/") for name in _held()):
                refusals.append(place)
                raise PermissionError(13, "The process cannot access the file because it is being used", str(path))
        if function.__name__ == "rename" and os.path.lexists(others[0]):
            raise FileExistsError(17, "Cannot create a file when that file already exists", str(others[0]))
        return function(source, *others, **options)

    return refuse


def _refusing_directories(function):
    def refuse(path, *others, **options):
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", str(path))
        return function(path, *others, **options)

    return refuse


def main() -> None:
    remove_posix()
    import groupdro as gd
    from tests.packaging import smoke

    warnings.simplefilter("error")
    smoke.main()
    X, y, groups = gd.datasets.make_mero(4, 100, 6)
    with smoke.new_folder() as folder:
        for rows, place in ((X, "dense"), (sparse.csr_array(X), "sparse")):
            first = gd.GroupedStore.write_arrays(
                folder / place, rows, y, groups, sample_weight=np.ones(len(y)), memory=2**15
            )
            with pytest.raises(PermissionError):  # its files are mapped
                gd.GroupedStore.write_arrays(folder / place, rows, y + 1, groups, overwrite=True)
            assert gd.GroupedStore.open(folder / place).y.min() == first.y.min() == -1.0
            del first
            gd.GroupedStore.write_arrays(folder / place, rows, y + 1, groups, overwrite=True).verify()
            assert gd.GroupedStore.open(folder / place).y.min() == 0.0
        options = {
            "alpha": 1e-3,
            "solver": "aleg",
            "tol": 1e-4,
            "random_state": 0,
            "checkpoint_dir": folder / "checkpoints",
        }
        whole = gd.GroupDROClassifier(**{**options, "checkpoint_dir": None}).fit(X, y, groups=groups)
        with contextlib.suppress(_StopError):
            gd.GroupDROClassifier(**options, callbacks=[_stop]).fit(X, y, groups=groups)
        assert list((folder / "checkpoints").rglob("*.npz"))
        resumed = gd.GroupDROClassifier(**options).fit(X, y, groups=groups)
        assert resumed.lower_bound_ <= whole.upper_bound_
        assert whole.lower_bound_ <= resumed.upper_bound_
    assert refusals
    print("all without POSIX")


class _StopError(Exception): ...


def _stop(progress) -> None:
    if progress.latest.epoch == 2:
        raise _StopError


if __name__ == "__main__":
    main()
