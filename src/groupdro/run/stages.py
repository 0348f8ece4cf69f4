"""What a run is made of: preparations, stages that follow one another, and refinements of group minima in between."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from groupdro.certificate import Certificate
from groupdro.oracle import Evaluation, Oracle
from groupdro.problem import GroupMinima
from groupdro.utils.types import Floats

if TYPE_CHECKING:
    from groupdro.run.result import TraceRow
    from groupdro.run.solver import Solver, State

__all__ = ["Budget", "Preparation", "Prepared", "Refinement", "Stage"]


def _stalled(state: "State", _: "Sequence[TraceRow]") -> str:
    """Return that the solver stalled, if it did."""
    return "it stalled" if state.stalled else ""


@dataclass(frozen=True, eq=False)
class Stage:
    """A solver that runs before or after others.

    Attributes
    ----------
    solver : Solver
        The solver.
    until : callable
        Given the state and the trace of this stage, returns why the next stage should take over, or an empty string to
        continue; by default when the solver has stalled.
    begin : callable or None
        Makes the first state from the oracle, the last state of the stage before, the best w so far, group weights and
        the seed. By default `Solver.init` begins at these w and weights.
    within_tolerance : bool
        Whether the stage begins only once the tolerance is met, to choose among the models within it. Such stages
        follow all others.
    """

    solver: "Solver"
    until: "Callable[[State, Sequence[TraceRow]], str]" = _stalled
    begin: "Callable[[Oracle, State, Floats, Floats, int], Any] | None" = None
    within_tolerance: bool = False


@dataclass(frozen=True)
class Budget:
    """The remaining budget of a run.

    Attributes
    ----------
    tol, atol : float
        Tolerances of the run.
    passes_left, seconds_left : callable
        Functions that return the passes and seconds left.
    """

    tol: float
    atol: float
    passes_left: Callable[[], float]
    seconds_left: Callable[[], float]


@dataclass(frozen=True, eq=False)
class Prepared:
    """Result of a preparation.

    Attributes
    ----------
    group_minima : GroupMinima or None
        Bounds on every group's own minimum, which turn risks into excess risks.
    refinement : Refinement or None
        Tightens these bounds during the run.
    start : pair of ndarray or None
        The w and q at which the next stage begins.
    evaluation : Evaluation or None
        A pass at the start, if it may meet the tolerance, before those of the next stage.
    best : pair of ndarray or None
        The best known w and q, returned if the run is interrupted here.
    interrupted : bool
        Whether Ctrl-C ended the preparation: the run then returns the best pair so far.
    rough : bool
        Whether an interrupt or the budget cut the preparation short and nothing refines its bounds later. They are
        valid, but checkpointing them would hold back every run that resumes from them.
    """

    group_minima: GroupMinima | None = None
    refinement: "Refinement | None" = None
    start: tuple[Floats, Floats] | None = None
    evaluation: Evaluation | None = None
    best: tuple[Floats, Floats] | None = None
    interrupted: bool = False
    rough: bool = False


class Refinement(ABC):
    """Tightens rough bounds on the group minima while a run minimises excess risks."""

    @abstractmethod
    def after_epoch(self, certificate: Certificate, state: "State", budget: Budget) -> GroupMinima | None:
        """Return tighter bounds than the certificate's problem has, or None to keep those."""

    @abstractmethod
    def models(self) -> dict[int, Floats]:
        """Return the best known models of single groups, from which a resumed refinement starts."""


class Preparation(ABC):
    """A stage before the epochs."""

    @abstractmethod
    def run(self, oracle: Oracle, w: Floats, q: Floats, budget: Budget, seed: int) -> Prepared:
        """Compute what later stages depend on; without it, the next one would start at w and q."""

    def resume(
        self, oracle: Oracle, group_minima: GroupMinima, models: dict[int, Floats], seed: int
    ) -> Refinement | None:
        """Return a refinement that continues from a checkpoint; None by default, for a preparation without one."""
        return None
