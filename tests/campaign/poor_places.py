"""Work in poor places: no room, no rights, no home. Each case is a process of its own, in a mount namespace if need be.

It ends with status 0 if the promise holds: the work is done, or an error names the path and nothing is left behind.
"""

import os
import resource
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import groupdro as gd
from groupdro.run.checkpoint import CheckpointWarning

__all__ = ["CASES", "Case", "main"]

WIDE = 4000  # features: a model or a checkpoint is larger than the places with little room


# ---------------------------------------------------------------------- places


def little_room(folder):
    """A disk of 16 KiB."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", folder], check=True)


def no_room(folder):
    """A disk on which not even an empty file can be made."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "nr_inodes=1", "tmpfs", folder], check=True)


def read_only(folder):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", folder], check=True)


def short_files(folder):
    """A limit of 8 KiB on the size of files, which stands for a quota and needs no rights."""
    del folder
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))


def forbidden(folder):
    """A directory without the right to write, for anyone but the administrator."""
    os.chmod(folder, 0o555)


def anywhere(folder):
    del folder


# ---------------------------------------------------------------------- work


def rows(d=WIDE):
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(120, d)), np.arange(120) % 3
    return X, (X[:, 0] + rng.normal(size=120) > 0).astype(int), groups


def fitted(d=WIDE, **options):
    X, y, groups = rows(d)
    return gd.GroupDROClassifier(alpha=1.0, tol=1e-2, random_state=0, **options).fit(X, y, groups=groups)


def write_store(folder):
    X, y, groups = rows()
    store = gd.GroupedStore.write_arrays(Path(folder) / "store", X, y, groups)
    assert store.n_rows == len(y)


def write_store_sorting(folder):
    """The same with so little memory that rows are sorted in files."""
    X, y, groups = rows()
    gd.GroupedStore.write_arrays(Path(folder) / "store", X, y, groups, memory=200_000)


def write_store_from_table(folder):
    import pyarrow as pa

    X, y, groups = rows(50)
    table = pa.table({**{f"x{j}": X[:, j] for j in range(50)}, "y": y, "g": groups})
    gd.GroupedStore.write(Path(folder) / "store", table, target="y", groups="g")


def fit_with_checkpoints(folder):
    """A disk that is full costs the checkpoints, not the fit."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = fitted(checkpoint_dir=Path(folder) / "runs")
    told = [str(one.message) for one in caught if issubclass(one.category, CheckpointWarning)]
    assert model.status_ == "converged"
    assert told, "no warning says that nothing was saved"
    assert len(told) == 1, f"{len(told)} warnings"
    assert str(folder) in told[0], f"a warning without the path: {told[0]}"


def fit_while_it_vanishes(folder):
    place = Path(folder) / "runs"

    def remove(progress):
        if progress.latest.epoch == 1:
            shutil.rmtree(place)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        problem = gd.Problem(
            gd.GroupedData.from_arrays(*rows(20)), gd.losses.Logistic(), gd.domains.L2Domain(penalty=0.1)
        )
        result = gd.solve(problem, "aleg", tol=1e-6, callbacks=[remove], checkpoint_dir=place)
    told = [str(one.message) for one in caught if issubclass(one.category, CheckpointWarning)]
    assert result.converged
    assert [str(place) in one for one in told] == [True], told


def fit_and_go_on(folder):
    """Fit twice with the same checkpoints, where all is well but the name."""
    X, y, groups = rows(20)
    place = Path(folder) / "räume mit leeren\tund 名前\n-x"
    place.mkdir()
    options = {"checkpoint_dir": place / "runs", "random_state": 0, "alpha": 0.1}
    first = gd.GroupDROClassifier(**options).fit(X, y, groups=groups)
    again = gd.GroupDROClassifier(**options).fit(X, y, groups=groups)
    np.testing.assert_allclose(first.coef_, again.coef_, rtol=1e-9)
    store = gd.GroupedStore.write_arrays(place / "störe", X, y, groups)
    assert gd.GroupDROClassifier(alpha=0.1).fit(gd.GroupedStore.open(store.path)).status_ == "converged"
    shutil.rmtree(place)


def read_all(folder):
    """Read a store, and fit it, where nothing can be written."""
    X, y, groups = rows(20)
    gd.GroupedStore.write_arrays(Path(folder) / "store", X, y, groups)
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
    model = gd.GroupDROClassifier(alpha=0.1).fit(gd.GroupedStore.open(Path(folder) / "store"))
    assert model.status_ == "converged"
    subprocess.run(["umount", folder], check=True)
    shutil.rmtree(Path(folder) / "store")


def fit_here(folder):
    """Fit, report and draw with the folder as the present directory."""
    os.chdir(folder)
    import matplotlib

    matplotlib.use("agg")
    X, y, groups = rows(20)
    model = gd.GroupDROClassifier(alpha=0.1).fit(X, y, groups=groups)
    assert "group" in str(model.report(X, y, groups))
    gd.plots.ConvergenceDisplay.from_estimator(model)


def fit_nowhere(folder):
    """Fit in a directory that was removed."""
    place = Path(folder) / "gone"
    place.mkdir()
    os.chdir(place)
    place.rmdir()
    assert fitted(20).status_ == "converged"


def write_under_a_file(folder):
    place = Path(folder) / "file"
    place.write_text("")
    try:
        gd.GroupedStore.write_arrays(place / "store", *rows(20))
    finally:
        place.unlink()


def write_to_a_missing_directory(folder):
    gd.GroupedStore.write_arrays(Path(folder) / "missing" / "store", *rows(20))


def write_with_a_long_name(folder):
    gd.GroupedStore.write_arrays(Path(folder) / ("s" * 300), *rows(20))


def checkpoints_with_a_long_name(folder):
    fitted(20, checkpoint_dir=Path(folder) / ("c" * 300))


# ---------------------------------------------------------------------- cases


@dataclass(frozen=True)
class Case:
    """A place, the work there, and whether it is done or refused.

    A process that ``mounts`` needs a namespace of its own. One that is ``homeless`` has no HOME, and with a namespace
    sees the package itself read-only.
    """

    place: Callable[[str], None]
    work: Callable[[str], None]
    done: bool
    mounts: bool = False
    homeless: bool = False

    def command(self, name, folder):
        """Return the command and the environment of the process."""
        script = "import sys\nfrom tests.campaign.poor_places import main\nmain(*sys.argv[1:])"
        command = [sys.executable, "-W", "ignore", "-c", script, name, folder]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        if self.homeless:
            nowhere = {"HOME": "/nonexistent", "NUMBA_CACHE_DIR": "/proc/nowhere", "PYTHONDONTWRITEBYTECODE": "1"}
            env = {key: env[key] for key in ("PATH", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")} | nowhere
        if self.mounts:
            package = os.path.dirname(gd.__file__)
            hide = f'mount --bind "{package}" "{package}" && mount -o remount,ro,bind "{package}" && '
            command = ["unshare", "-rm", "sh", "-c", f'{hide if self.homeless else ""}exec "$@"', "sh", *command]
        return command, env


CASES = {
    "short files: checkpoints": Case(short_files, fit_with_checkpoints, True),
    "checkpoints vanish": Case(anywhere, fit_while_it_vanishes, True),
    "no home": Case(anywhere, fit_here, True, homeless=True),
    "short files: store": Case(short_files, write_store, False),
    "short files: store, sorted in files": Case(short_files, write_store_sorting, False),
    "full disk: store": Case(little_room, write_store, False, mounts=True),
    "full disk: store, sorted in files": Case(little_room, write_store_sorting, False, mounts=True),
    "full disk: store from a table": Case(little_room, write_store_from_table, False, mounts=True),
    "full disk: checkpoints": Case(little_room, fit_with_checkpoints, True, mounts=True),
    "no files left: store": Case(no_room, write_store, False, mounts=True),
    "no files left: checkpoints": Case(no_room, fit_with_checkpoints, False, mounts=True),
    "read-only: store": Case(read_only, write_store, False, mounts=True),
    "read-only: checkpoints": Case(read_only, fit_with_checkpoints, False, mounts=True),
    "no home, no place for compiled code": Case(anywhere, fit_here, True, mounts=True, homeless=True),
    "read-only: read": Case(anywhere, read_all, True, mounts=True),
    "read-only present directory: fit": Case(read_only, fit_here, True, mounts=True),
    "removed present directory: fit": Case(anywhere, fit_nowhere, True),
    "odd names": Case(anywhere, fit_and_go_on, True),
    "file in the way: store": Case(anywhere, write_under_a_file, False),
    "missing directory: store": Case(anywhere, write_to_a_missing_directory, False),
    "long name: store": Case(anywhere, write_with_a_long_name, False),
    "long name: checkpoints": Case(anywhere, checkpoints_with_a_long_name, False),
}
if os.geteuid():  # the administrator writes where nobody may
    CASES["forbidden: store"] = Case(forbidden, write_store, False)
    CASES["forbidden: checkpoints"] = Case(forbidden, fit_with_checkpoints, False)


def main(name, folder):
    """Try a case, and raise if its promise is broken."""
    case, parent = CASES[name], Path(folder).parent
    fitted(3)  # compiles what is needed
    beside = set(os.listdir(parent))
    case.place(folder)
    told = None
    try:
        case.work(folder)
    except OSError as error:
        told = f"{type(error).__name__}: {error}"
    assert case.done == (told is None), told or "it was to be refused"
    assert told is None or str(folder) in told, f"an error without the path: {told}"
    os.chdir("/")
    left = [path for path in Path(folder).rglob("*") if path.is_file()]
    assert not left, f"left behind: {[str(path) for path in left]}"
    assert set(os.listdir(parent)) <= beside, f"left beside: {set(os.listdir(parent)) - beside}"
