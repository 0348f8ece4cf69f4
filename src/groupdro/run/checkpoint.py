"""Checkpoints: what a run has proved, in one .npz file from which a later run starts.

A checkpoint holds no state of a solver: it may be resumed with another solver, seed or number of workers. Its lower
bound cannot be recomputed, so it belongs to the exact data and problem that it was proved for, and to the version of
the proofs.
"""

import hashlib
import io
import json
import warnings
import zipfile
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from groupdro.certificate import Cut
from groupdro.losses import Loss
from groupdro.oracle import Counters
from groupdro.problem import Domain, GroupMinima, Problem, WeightSet
from groupdro.run.result import TraceRow
from groupdro.utils.files import reading_header, write_content
from groupdro.utils.types import Array, Floats
from groupdro.version import __version__

__all__ = ["BOUNDS_VERSION", "Checkpoint", "CheckpointFile", "CheckpointWarning", "bounds_are_ours", "problem_digest"]

# Increase this whenever the meaning or the proof of a bound changes, also between releases: a wrong bound must not
# outlive the code that proved it.
BOUNDS_VERSION = 4

_PLAYERS = Loss | Domain | WeightSet


class CheckpointWarning(UserWarning):
    """A checkpoint could not be written or read; the run continues."""


# ---------------------------------------------------------------------- what a bound belongs to


def problem_digest(problem: Problem, *, excess: bool) -> str:
    """Return a digest of everything that a bound depends on: the data, the problem and the version of the proofs.

    A store is identified by the checksums in its manifest, which are verified here. All workers must call this
    together.

    Parameters
    ----------
    problem : Problem
        The problem.
    excess : bool
        Whether excess risks are minimised, of given or of found minima.
    """
    data = problem.data
    if data.key_check is not None:
        data.key_check()
    players = [_described(player) for player in (problem.loss, problem.domain, problem.weight_set)]
    about = [__version__, BOUNDS_VERSION, problem.shape, players, problem.fit_intercept, excess]
    digest = hashlib.sha256(json.dumps(about).encode())
    for array in (data.all_sizes, problem.baseline.upper, problem.baseline.lower):
        digest.update(np.ascontiguousarray(array).tobytes())
    digest.update(data.digest)
    return digest.hexdigest()


def bounds_are_ours(problem: Problem) -> bool:
    """Return whether loss, domain and weight set are of this package, so that a digest identifies what they do."""
    return all(_is_ours(player) for player in (problem.loss, problem.domain, problem.weight_set))


def _is_ours(player: _PLAYERS) -> bool:
    inner = [value for value in vars(player).values() if isinstance(value, _PLAYERS)]
    return type(player).__module__.split(".")[0] == "groupdro" and all(_is_ours(part) for part in inner)


def _described(value: Any) -> Any:
    """Return the class and the parameters of a loss or set, in a form that JSON can represent."""
    if isinstance(value, _PLAYERS):
        kind = type(value)
        if not _is_ours(value):
            return [kind.__module__, kind.__qualname__]
        made: dict[str, Any] = {f.name: getattr(value, f.name) for f in fields(value)} if is_dataclass(value) else {}
        # Cached values may or may not have been computed yet.
        made |= {k: v for k, v in vars(value).items() if not isinstance(getattr(kind, k, None), cached_property)}
        return [kind.__module__, kind.__qualname__, {name: _described(part) for name, part in sorted(made.items())}]
    if isinstance(value, np.ndarray):
        return [str(value.dtype), value.shape, hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()]
    if isinstance(value, tuple | list):
        return [_described(part) for part in value]
    return repr(value)


# ---------------------------------------------------------------------- content


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What a run has proved by the end of an epoch. Parameters are those of the problem as solved, after centring.

    Attributes
    ----------
    digest : ndarray of str, of shape ()
        `problem_digest` of the run.
    stage : ndarray of str, of shape ()
        Number and solver of the stage whose epoch it was.
    tolerances : ndarray of shape (2,)
        Relative and absolute tolerance of the run.
    epoch, seconds, counters : ndarray of shape (), (), (4,)
        Work so far.
    trace : ndarray of shape (n_epochs, 7)
        The rows of the trace.
    w, q : ndarray
        The last point.
    best_w : ndarray
        The best w; its risks are recomputed when resuming.
    lower, lower_q : ndarray of shape (), (n_groups,)
        The lower bound, and the group weights that prove it.
    cut_constant, cut_gradient, cut_q, cut_error : ndarray or None
        The cut that further cuts are mixed with.
    minima_upper, minima_lower, minima_centre : ndarray of shape (n_groups,) or None
        Bounds on every group's own minimum, if the run found them.
    model_groups, models : ndarray of shape (k,), (k, *w.shape) or None
        Groups whose own models are stored, in increasing order, and these.
    """

    digest: Array
    stage: Array
    tolerances: Floats
    epoch: Floats
    seconds: Floats
    counters: Floats
    trace: Floats
    w: Floats
    q: Floats
    best_w: Floats
    lower: Floats
    lower_q: Floats
    cut_constant: Floats | None = None
    cut_gradient: Floats | None = None
    cut_q: Floats | None = None
    cut_error: Floats | None = None
    minima_upper: Floats | None = None
    minima_lower: Floats | None = None
    minima_centre: Floats | None = None
    model_groups: Floats | None = None
    models: Floats | None = None

    @property
    def cut(self) -> Cut | None:
        """The stored cut."""
        if self.cut_constant is None or self.cut_gradient is None or self.cut_q is None or self.cut_error is None:
            return None
        return Cut(float(self.cut_constant), self.cut_gradient, self.cut_q, float(self.cut_error))

    @property
    def group_minima(self) -> GroupMinima | None:
        """The stored bounds on the groups' own minima."""
        if self.minima_upper is None or self.minima_lower is None or self.minima_centre is None:
            return None
        models = self.models if len(self.group_models) == len(self.minima_upper) else None
        return GroupMinima(self.minima_upper, self.minima_lower, self.minima_centre, models)

    @property
    def group_models(self) -> dict[int, Floats]:
        """The stored models of single groups."""
        if self.model_groups is None or self.models is None:
            return {}
        return dict(zip(self.model_groups.astype(int).tolist(), self.models, strict=True))

    @property
    def trace_rows(self) -> list[TraceRow]:
        """The trace."""
        return [
            TraceRow(int(epoch), passes, int(evaluated), int(paper), seconds, upper, lower)
            for epoch, passes, evaluated, paper, seconds, upper, lower in self.trace.tolist()
        ]

    def to_bytes(self) -> bytes:
        """Return the content of a file."""
        buffer = io.BytesIO()
        parts = {name: part for name, part in vars(self).items() if part is not None}
        np.savez(buffer, **parts)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes, problem: Problem) -> "Checkpoint":
        """Read the content of a file, and check that its values fit the problem."""
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(member.file_size for member in archive.infolist()) > len(content):
                raise ValueError("its members are larger than the file")
        with reading_header, np.load(io.BytesIO(content), allow_pickle=False) as file:
            made = cls(**{name: file[name] for name in file.files})
        m = problem.n_groups
        k = len(made.group_models)
        coef = (problem.data.n_features, *problem.shape[1:])
        shapes: dict[str, tuple[int, ...]] = {
            "tolerances": (2,),
            "epoch": (),
            "seconds": (),
            "counters": (len(Counters.NAMES),),
            "trace": (len(made.trace), 7),
            "w": problem.shape,
            "q": (m,),
            "best_w": problem.shape,
            "lower": (),
            "lower_q": (m,),
            "cut_constant": (),
            "cut_gradient": coef,
            "cut_q": (m,),
            "cut_error": (),
            "minima_upper": (m,),
            "minima_lower": (m,),
            "minima_centre": (m,),
            "model_groups": (k,),
            "models": (k, *problem.shape),
        }
        for name, shape in shapes.items():
            part = getattr(made, name)
            if part is None and name.startswith(("cut", "minima", "model")):
                continue
            if part.dtype != np.float64 or part.shape != shape:
                raise ValueError(f"its {name} does not fit the problem")
            # Before the first certificate, the bounds in the last two columns of the trace are infinite.
            if not np.isfinite(part[:, :-2] if name == "trace" else part).all():
                raise ValueError(f"its {name} is not finite")
        return made


# ---------------------------------------------------------------------- files


class CheckpointFile:
    """The file of one problem's checkpoint in a directory that may hold those of many.

    Parameters
    ----------
    directory : Path
        The directory, created if it does not exist.
    digest : str
        `problem_digest` of the run.
    """

    def __init__(self, directory: Path, digest: str):
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / f"{digest[:16]}.npz"
        self.digest = digest
        self._warned = False
        for left in directory.glob(f".{self.path.name}.*.tmp"):  # by runs that were killed while writing
            left.unlink(missing_ok=True)

    def read(self, problem: Problem) -> bytes:
        """Return the content of the checkpoint; nothing if there is none, or if it is damaged, with a warning."""
        if not self.path.exists():
            return b""
        try:
            if not self.path.is_file():
                raise ValueError("it is not a regular file")
            content = self.path.read_bytes()
            if str(Checkpoint.from_bytes(content, problem).digest) != self.digest:
                raise ValueError("it belongs to another problem")
        except Exception as error:  # a damaged file can make zipfile or NumPy raise anything
            self.warn_of_damage(f"{type(error).__name__}: {error}")
            return b""
        return content

    def warn_of_damage(self, why: str) -> None:
        """Warn that the checkpoint is not used."""
        warnings.warn(f"{str(self.path)!r} cannot be resumed, so the run starts over: {why}", CheckpointWarning, 3)

    def write(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint. A full disk or a deleted directory does not end the run."""
        try:
            write_content(self.path, checkpoint.to_bytes())
        except OSError as error:
            if not self._warned:
                warnings.warn(f"A checkpoint could not be written; the run continues: {error}", CheckpointWarning, 2)
            self._warned = True
