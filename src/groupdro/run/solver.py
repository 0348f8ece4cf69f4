"""The interface of a solver."""

from abc import ABC
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from inspect import signature
from typing import Any, ClassVar

import numpy as np

from groupdro.oracle import Evaluation, Oracle
from groupdro.problem import Problem
from groupdro.run.stages import Preparation, Stage
from groupdro.utils.arguments import short_repr
from groupdro.utils.types import Floats

__all__ = [
    "BALL_OR_SEPARABLE",
    "BOUNDED",
    "BOUNDED_CURVATURE",
    "KNOWN_WEIGHTS",
    "SIMPLEX",
    "SOLVERS",
    "Answer",
    "Requirement",
    "Solver",
    "State",
    "make_solver",
]

#: Solver classes by name. A class is registered when it is defined.
SOLVERS: dict[str, type["Solver"]] = {}


@dataclass(frozen=True)
class Requirement:
    """A property that a solver requires of a problem."""

    what: str
    holds: Callable[[Problem], bool]
    remedy: str = ""


BOUNDED = Requirement(
    what="a bounded domain",
    holds=lambda problem: not problem.fit_intercept,
    remedy="append a column of ones to X instead of the free intercept, which puts it under the radius or penalty",
)

BALL_OR_SEPARABLE = Requirement(
    what="a ball, or penalties and bounds of each coefficient (L2Domain, ElasticNetDomain)",
    holds=lambda problem: problem.domain.ball is not None or problem.domain.separable is not None,
)

BOUNDED_CURVATURE = Requirement(
    what="a loss of bounded curvature",
    holds=lambda problem: bool(np.isfinite(problem.loss.smoothness)),
)

SIMPLEX = Requirement(
    what="all group weights to be allowed (Simplex)",
    holds=lambda problem: problem.weight_set.is_simplex,
)

KNOWN_WEIGHTS = Requirement(
    what="a set of group weights of this package (Simplex, Floor, Cap, Box)",
    holds=lambda problem: problem.weights_known,
)


@dataclass(frozen=True, eq=False)
class Answer:
    """A model to return in place of the one with the smallest upper bound, because it is better in another respect.

    Attributes
    ----------
    w : ndarray
        The model. If it does not meet the tolerance when it is evaluated at the end, it is not returned.
    mean_lower : float
        Proven lower bound on the average of all models within the tolerance; minus infinity without one.
    """

    w: Floats
    mean_lower: float = -np.inf


@dataclass
class State:
    """Fields common to the states of all solvers. A solver adds its own.

    Attributes
    ----------
    evaluation : Evaluation
        The latest pass over the data. The driver computes the certificate from it, so no solver may modify its arrays.
    epoch : int
        Epochs done. Random numbers are a function of the seed and the epoch.
    begun : int
        Epochs completed by earlier stages.
    stalled : bool
        Whether the solver cannot improve further, for example at the limit of floating-point accuracy.
    bounds : tuple of float
        Best lower and upper bound so far, set by the driver.
    allowed : float
        Largest upper bound that would meet the tolerance with this lower bound, set by the driver.
    answer : Answer or None
        The model to return, chosen by a stage within the tolerance.
    """

    evaluation: Evaluation
    epoch: int = field(default=0, kw_only=True)
    begun: int = field(default=0, kw_only=True)
    stalled: bool = field(default=False, kw_only=True)
    bounds: tuple[float, float] = field(default=(-np.inf, np.inf), kw_only=True)
    allowed: float = field(default=np.inf, kw_only=True)
    answer: Answer | None = field(default=None, kw_only=True)


class Solver(ABC):
    """An algorithm that advances a state by epochs, or a sequence of such algorithms.

    A subclass is a frozen dataclass of its parameters. It keeps no state between runs and can be compared, hashed and
    shared by threads. It sets `name` and implements `init` and `epoch`. It never loops until convergence, looks at a
    clock or computes a certificate: the driver does so, from the evaluation that each epoch leaves in the state. A
    solver composed of others implements `stages` instead. Defining the class registers it under its name.
    """

    name: ClassVar[str]
    #: Whether its stages find every group's own minimum, and so turn risks into excess risks.
    finds_minima: ClassVar[bool] = False
    #: Whether an epoch costs about one pass, so that lower bounds that cost half a pass are computed only where needed.
    has_short_epochs: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            SOLVERS[cls.name] = cls
        if "__repr__" not in cls.__dict__:
            cls.__repr__ = Solver.__repr__  # type: ignore[method-assign]  # that of a dataclass would include defaults

    @property
    def requires(self) -> tuple[Requirement, ...]:
        """Requirements on the problem, checked before the first pass."""
        return ()

    def stages(self, problem: Problem, tol: float) -> "Sequence[Preparation | Stage | Solver]":
        """Return what to run in order: preparations first, then stages; a solver is short for a stage of it."""
        return (self,)

    def warm_up(self, oracle: Oracle) -> None:
        """Compile what epochs need beyond a pass. Compilation does not count towards a budget."""

    def init(self, oracle: Oracle, w: Floats, q: Floats, seed: int) -> Any:
        """Evaluate the starting point, which lies in its sets, and return the state."""
        raise NotImplementedError(f"{type(self).__name__} has no init: implement it, or implement stages instead.")

    def epoch(self, oracle: Oracle, state: Any) -> None:
        """Advance the state by one epoch and evaluate it there."""
        raise NotImplementedError(f"{type(self).__name__} has no epoch.")

    def refresh(self, oracle: Oracle, state: Any) -> None:
        """Repeat the last pass of a state, after the precision of passes has changed."""
        state.evaluation = oracle.evaluate(state.evaluation.w, state.evaluation.q)

    def describe(self, problem: Problem, tol: float) -> str:
        """Describe the solver that runs on a problem, and why if it was chosen automatically."""
        return getattr(self, "name", type(self).__name__)

    def average(self, state: Any) -> tuple[Floats, Floats] | None:
        """Return the pair (w, q) to which the solver's theory applies, if it is not the state's own."""
        return None

    def point(self, state: Any) -> tuple[Floats, Floats] | None:
        """Return the pair (w, q) to evaluate for the trace, if an epoch leaves no evaluation of its own.

        Such an evaluation is not part of the algorithm; it is neither counted nor timed.
        """
        return None

    def __repr__(self) -> str:
        made: dict[str, Any] = {f.name: f.default for f in fields(self)} if is_dataclass(self) else {}
        changed = [f"{name}={getattr(self, name)!r}" for name in made if getattr(self, name) is not made[name]]
        return f"{type(self).__name__}({', '.join(changed)})"

    def check(self, problem: Problem) -> None:
        """Raise if a problem lacks something that the solver requires."""
        for requirement in self.requires:
            if not requirement.holds(problem):
                given = f"{type(problem.domain).__name__} with {type(problem.weight_set).__name__}"
                remedy = requirement.remedy or f"use one of {_solvers_for(problem)}"
                raise ValueError(
                    f"solver {self.name!r} requires {requirement.what}: {remedy} (the problem has {given})."
                )

    def fits(self, problem: Problem) -> bool:
        """Return whether a problem meets all of the solver's requirements."""
        return all(requirement.holds(problem) for requirement in self.requires)


def _solvers_for(problem: Problem) -> list[str]:
    """Return the names of the solvers that, with their default parameters, support a problem."""
    found = []
    for name, kind in SOLVERS.items():
        required = [p for p in signature(kind).parameters.values() if p.default is p.empty]
        if not required and not kind.finds_minima and kind().fits(problem):
            found.append(name)
    return sorted(found)


def make_solver(solver: str | Solver) -> Solver:
    """Return a solver from its name, or the one given."""
    if isinstance(solver, Solver):
        return solver
    if not isinstance(solver, str) or solver not in SOLVERS:
        raise ValueError(f"solver must be one of {sorted(SOLVERS)} or a Solver, got {short_repr(solver)}.")
    return SOLVERS[solver]()
