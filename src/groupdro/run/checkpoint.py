"""Checkpoints: the state a run needs to resume, saved after every epoch and protected from older runs.

A directory belongs to one problem, solver, seed and version of the package. Each run that opens it takes the next
generation number. Files are named by generation and epoch. The newest generation is read first, and a run of an older
one, such as a process that was thought dead, may no longer write.
"""

import contextlib
import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cached_property
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from groupdro.problem import Domain, GroupRisk, Loss, WeightSet
from groupdro.run.codec import Arrays
from groupdro.run.solver import Solver
from groupdro.utils.arguments import short_repr
from groupdro.utils.bundle import BundleError, check, check_version, read_bundle, write_bundle
from groupdro.version import __version__

__all__ = [
    "BOUNDS_VERSION",
    "CheckpointError",
    "CheckpointWarning",
    "Checkpoints",
    "checkpoint_errors",
    "fingerprint",
]

# Increase this whenever the meaning or the proof of a bound changes, also between releases: the lower bound of a
# checkpoint cannot be recomputed, and a wrong one must not outlive the code that proved it.
BOUNDS_VERSION = 3

_FORMAT, _VERSION = "groupdro-checkpoint", 5
_MADE_BY = [__version__, BOUNDS_VERSION]
_KEPT = 2  # files to keep, in case the newest one is damaged
_NAME = re.compile(r"checkpoint-([0-9]{6})-([0-9]{8})\.zip")
_GENERATION = re.compile(r"generation-([0-9]{6})")
_UNFINISHED = re.compile(r"\.checkpoint-([0-9]{6})-.*\.tmp")
_LAST_GENERATION = 999_999


class CheckpointError(RuntimeError):
    """A directory's checkpoints cannot be used."""


class CheckpointWarning(UserWarning):
    """A checkpoint could not be written or read; the run continues."""


def fingerprint(problem: GroupRisk, solver: Solver, seed: int) -> str:
    """Return a digest of everything a run depends on: the data, the problem, the solver, the seed and the package.

    A store is identified by the checksums in its manifest, which are verified here. All workers must call this
    together.
    """
    data, digest = problem.data, hashlib.sha256()
    if data.key_check is not None:
        data.key_check()
    about = [_MADE_BY, _options(solver), seed, problem.shape, _options(problem.loss), _options(problem.domain)]
    about += [_options(problem.weight_set), problem.fit_intercept, problem.regret, problem.n_rows]
    digest.update(json.dumps(about).encode())
    for array in (data.all_sizes, problem.baseline.upper, problem.baseline.lower, problem.start()):
        digest.update(np.ascontiguousarray(array).tobytes())
    digest.update(data.digest)
    return digest.hexdigest()


def _options(value: Any) -> Any:
    """Return the options of a solver, loss or set. Two objects that may differ must not look alike."""
    if isinstance(value, Solver | Loss | Domain | WeightSet):
        made: dict[str, Any] = {f.name: getattr(value, f.name) for f in fields(value)} if is_dataclass(value) else {}
        kind = type(value)
        # Skip cached values, which may or may not have been computed yet.
        made |= {name: part for name, part in vars(value).items() if not _is_cached(kind, name)}
        return [kind.__qualname__, {name: _options(part) for name, part in sorted(made.items())}]
    if isinstance(value, tuple | list):
        return [_options(part) for part in value]
    if isinstance(value, dict):
        return [[_options(key), _options(part)] for key, part in value.items()]
    if isinstance(value, np.ndarray):
        return [str(value.dtype), value.shape, hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()]
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return [value.__qualname__, _options(value.__code__), _options(value.__defaults__), _options(cells)]
    if isinstance(value, CodeType):
        return [value.co_code.hex(), list(value.co_names), _options(value.co_consts)]
    return value.__qualname__ if isinstance(value, type) else repr(value)


def _is_cached(kind: type, name: str) -> bool:
    return isinstance(getattr(kind, name, None), cached_property)


@contextlib.contextmanager
def checkpoint_errors() -> Iterator[None]:
    """Turn errors in a checkpoint's content into a CheckpointError."""
    try:
        yield
    except (BundleError, RecursionError) as error:
        raise CheckpointError(
            f"The newest checkpoint is intact but belongs to another run: {error}. Use another directory, or delete "
            "this one to start over."
        ) from None


# ---------------------------------------------------------------------- files


class Checkpoints:
    """The checkpoints of a directory, for one run.

    Parameters
    ----------
    directory : str or path-like
        The directory, created if it does not exist.
    key : str
        Digest of what the run depends on. Checkpoints with another key are refused.
    """

    def __init__(self, directory: str | os.PathLike[str], key: str):
        self.directory, self.key = Path(directory), key
        self.directory.mkdir(parents=True, exist_ok=True)
        self.generation = self._take_generation()
        self._told = False
        self._damaged: set[Path] = set()

    def _take_generation(self) -> int:
        """Take the next generation number. Two runs that start at the same time get different ones."""
        while True:
            mine = 1 + max(self._generations(), default=0)
            if mine > _LAST_GENERATION:
                raise CheckpointError(f"{str(self.directory)!r} has no generation number left. Use another directory.")
            try:
                os.close(os.open(self.directory / f"generation-{mine:06d}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            except FileExistsError:
                continue
            for old in self._generations():
                if old < mine - 1:
                    _remove(self.directory / f"generation-{old:06d}")
            return mine

    def _generations(self) -> list[int]:
        names = [_GENERATION.fullmatch(path.name) for path in self.directory.iterdir()]
        return [int(name[1]) for name in names if name]

    def _files(self) -> list[Path]:
        """Return the checkpoints, newest first."""
        return sorted((path for path in self.directory.iterdir() if _NAME.fullmatch(path.name)), reverse=True)

    def latest(self) -> tuple[dict[str, Any], Arrays] | None:
        """Return the newest intact checkpoint, or None if there are no checkpoints."""
        files, faults = self._files(), []
        for path in files:
            try:
                manifest, arrays = read_bundle(path)
                check(manifest.get("format") == _FORMAT, f"its format is {short_repr(manifest.get('format'))}")
                check_version(manifest.get("version"), _VERSION)
                check(isinstance(manifest.get("run"), dict) and {"key", "made_by"} <= set(manifest), "no run in it")
            except (BundleError, OSError) as error:
                faults.append(f"{path.name}: {error}")
                self._damaged.add(path)
                continue
            if manifest["key"] != self.key:
                raise CheckpointError(
                    f"{str(self.directory)!r} has checkpoints {_origin(manifest['made_by'])}. Use another directory, "
                    "or delete this one to start over."
                )
            if faults:
                warnings.warn(f"Damaged checkpoints were skipped: {'; '.join(faults)}", CheckpointWarning, 2)
            return manifest["run"], arrays
        if files:
            raise CheckpointError(f"No checkpoint in {str(self.directory)!r} can be read: {'; '.join(faults)}")
        return None

    def write(self, epoch: int, run: dict[str, Any], arrays: Arrays) -> None:
        """Write a checkpoint, and remove superseded ones.

        A full disk or a deleted directory does not end the run; the previous checkpoint is kept.
        """
        manifest = {"format": _FORMAT, "version": _VERSION, "made_by": _MADE_BY, "key": self.key, "run": run}
        try:
            if max(self._generations(), default=0) > self.generation:
                raise CheckpointError(
                    f"A newer run has taken over {str(self.directory)!r}; this one may no longer write to it."
                )
            write_bundle(self.directory / f"checkpoint-{self.generation:06d}-{epoch:08d}.zip", manifest, arrays)
            self._clear()
        except OSError as error:
            if not self._told:
                warnings.warn(f"A checkpoint could not be written; the run continues: {error}", CheckpointWarning, 2)
            self._told = True

    def _clear(self) -> None:
        """Remove superseded checkpoints and temporary files."""
        whole = [path for path in self._files() if path not in self._damaged]  # a damaged file is not a backup
        for old in (*self._damaged, *whole[_KEPT:]):
            _remove(old)
        for left in self.directory.glob(".checkpoint-*.tmp"):  # left by runs that were killed while writing
            name = _UNFINISHED.fullmatch(left.name)
            if name and int(name[1]) <= self.generation:  # a newer run may be writing now
                _remove(left)


def _origin(made_by: Any) -> str:
    """Describe checkpoints whose key does not match."""
    if made_by == _MADE_BY:
        return "of another problem, solver or seed"
    others = made_by if isinstance(made_by, list) and len(made_by) == 2 else [None, None]
    return (
        f"that were made by groupdro {short_repr(others[0])} with bounds of version {short_repr(others[1])}; this is "
        f"groupdro {__version__!r} with bounds of version {BOUNDS_VERSION}, which does not reuse bounds that another "
        "version proved"
    )


def _remove(path: Path) -> None:
    """Remove a file. Leave what cannot be removed, such as a folder of the same name."""
    with contextlib.suppress(OSError):
        path.unlink()
