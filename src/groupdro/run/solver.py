"""The contract of a solver."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from inspect import Signature, signature
from typing import Any, ClassVar, Self

from groupdro.problem import Domain, Evaluation, GroupRisk, L2Domain, References, SimplexDomain
from groupdro.run.packing import Arrays, restore
from groupdro.utils.arguments import short_repr
from groupdro.utils.bundle import check, is_finite_array
from groupdro.utils.types import Floats

__all__ = ["BOUNDED", "ONE_MACHINE", "SOLVERS", "Requirement", "Run", "Solver", "State", "make_solver"]


#: Every solver class by its name; a class enters when it is defined.
SOLVERS: dict[str, type["Solver"]] = {}


@dataclass(frozen=True)
class Requirement:
    """Something that a solver needs of a problem."""

    what: str
    holds: Callable[[GroupRisk], bool]
    remedy: str


BOUNDED = Requirement(
    what="a bounded domain",
    holds=lambda problem: not problem.fit_intercept,
    remedy="the intercept is free; append a column of ones to X instead, which puts it under the radius or penalty",
)

ONE_MACHINE = Requirement(
    what="all rows in one process",
    holds=lambda problem: problem.data.n_workers == 1,
    remedy="over several workers use 'auto', 'aleg', 'sqp', 'smd' or 'alem'",
)


@dataclass
class State:
    """What every solver's state holds; a solver adds its own fields.

    Attributes
    ----------
    evaluation : Evaluation
        The latest pass over the data. The driver takes its certificate from it.
    epoch : int
        Epochs done. Random numbers are a function of the seed and the epoch.
    stalled : bool
        Whether the solver sees no way to go on, as at the end of floating-point accuracy.
    """

    grows: ClassVar[tuple[str, ...]] = ()  # fields that may be of other shapes than at the start: `revive` checks them

    evaluation: Evaluation
    epoch: int = field(default=0, kw_only=True)
    stalled: bool = field(default=False, kw_only=True)


@dataclass
class Run:
    """What is left of a run's budget, for solvers that need other solutions first.

    Attributes
    ----------
    tol, atol : float
        Tolerances of the run.
    passes_left, seconds_left : callable
        What is left of the budget.
    interrupted : bool
        Set by a preparation that Ctrl-C ended: the run then returns what there is.
    rough : bool
        Set by a preparation that an interrupt or the budget cut short. Its bounds are valid, but a checkpoint of them
        would hold back every run that goes on from it.
    best : pair of ndarray or None
        Set by a preparation to the best w and q that it knows, which an interrupted run returns.
    """

    tol: float
    atol: float
    passes_left: Callable[[], float]
    seconds_left: Callable[[], float]
    interrupted: bool = False
    rough: bool = False
    best: tuple[Floats, Floats] | None = None


@cache
def _signature(solver: type) -> Signature:
    return signature(solver)  # slow, and a solver is made for every group


class Solver(ABC):
    """An algorithm that advances a state by epochs.

    A subclass sets `name`, and implements `init` and `epoch`. It never loops until convergence, never looks at a
    clock and never computes a certificate: the driver does, from the evaluation that each epoch leaves in the state.
    Defining the class registers it under its name.
    """

    name: ClassVar[str]
    #: Whether `prepare` finds every group's own minimum, and so minimises regrets where risks were given.
    minimises_regrets: ClassVar[bool] = False
    #: Kinds of domain whose steps the solver can make. A kind that extends one of them is another kind.
    domains: ClassVar[tuple[type[Domain], ...]] = (L2Domain, SimplexDomain)
    #: Arguments of the constructor by name, defaults included.
    made_with: dict[str, Any]

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            SOLVERS[cls.name] = cls

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Remember what the solver is made with, for its name and for the checkpoints of its runs."""
        made = super().__new__(cls)
        with contextlib.suppress(TypeError):  # which the constructor raises too, unless this is a copy
            given = _signature(cls).bind(*args, **kwargs)
            given.apply_defaults()
            made.made_with = dict(given.arguments)
        return made

    @property
    def requires(self) -> tuple[Requirement, ...]:
        """What the solver needs of a problem, checked before the first pass."""
        return ()

    def prepare(self, problem: GroupRisk, run: Run, seed: int) -> GroupRisk:
        """Return the problem that the epochs work on, after solving what it depends on."""
        del run, seed
        return problem

    @abstractmethod
    def init(self, problem: GroupRisk, seed: int) -> Any:
        """Evaluate the starting point and return the state."""

    @abstractmethod
    def epoch(self, problem: GroupRisk, state: Any) -> None:
        """Advance the state by one epoch and evaluate where it stands."""

    def prepared(self) -> dict[str, Any]:
        """Return what `prepare` left in the solver, for a checkpoint: numbers, arrays, and mappings of them."""
        return {}

    def resume(self, problem: GroupRisk, run: Run, prepared: dict[str, Any]) -> GroupRisk:
        """Return what `prepare` returned in the run that a checkpoint is of, after a look at what was prepared."""
        del run
        found = prepared.get("references")
        if found is None:
            return problem
        check(isinstance(found, dict) and set(found) == {"upper", "lower"}, "its references are no pair")
        check(all(is_finite_array(part, (problem.n_groups,)) for part in found.values()), "its references do not fit")
        return problem.with_references(References(**found))

    def load(self, problem: GroupRisk, seed: int, packed: Any, arrays: Arrays) -> Any:
        """Return the state that a checkpoint is of."""
        state = restore(self.init(problem, seed), packed, arrays)
        self.revive(problem, state)
        return state

    def revive(self, problem: GroupRisk, state: Any) -> None:
        """Check what `State.grows` names, and pass over the data for what a checkpoint leaves out of a state."""
        state.evaluation = problem.evaluate(state.evaluation.w, state.evaluation.q)

    def describe(self) -> str:
        """Say what ran, and why where that was chosen."""
        return getattr(self, "name", type(self).__name__)

    def average(self, state: Any) -> tuple[Floats, Floats] | None:
        """Return the pair (w, q) that the solver's theorem speaks of, where it is not the state's own."""
        del state
        return None

    def point(self, state: Any) -> tuple[Floats, Floats] | None:
        """Return the pair (w, q) to evaluate for the trace, where an epoch leaves no evaluation of its own.

        Such an evaluation is no part of the algorithm: it is not counted, and off the clock.
        """
        del state
        return None

    def __repr__(self) -> str:
        defaults = {name: parameter.default for name, parameter in _signature(type(self)).parameters.items()}
        changed = [f"{name}={value!r}" for name, value in self.made_with.items() if value is not defaults.get(name)]
        return f"{type(self).__name__}({', '.join(changed)})"

    def check(self, problem: GroupRisk) -> None:
        """Refuse a problem that lacks something the solver needs, naming it."""
        if type(problem.domain) not in self.domains:
            known = " or ".join(kind.__name__ for kind in self.domains)
            raise ValueError(
                f"solver {self.name!r} does not support the domain {type(problem.domain).__name__}, only {known}."
            )
        for requirement in self.requires:
            if not requirement.holds(problem):
                raise ValueError(f"solver {self.name!r} requires {requirement.what}: {requirement.remedy}.")


def make_solver(solver: str | Solver) -> Solver:
    """Return a solver from its name, or the one given."""
    if isinstance(solver, Solver):
        return solver
    if not isinstance(solver, str) or solver not in SOLVERS:
        raise ValueError(f"solver must be one of {sorted(SOLVERS)} or a Solver, got {short_repr(solver)}.")
    return SOLVERS[solver]()
