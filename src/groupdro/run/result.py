"""What a run reports: its status, its trace and its result."""

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from groupdro.certificate import Certificate
from groupdro.oracle import Counters
from groupdro.problem import GroupMinima
from groupdro.problem.centring import Centring
from groupdro.utils.types import Floats

if TYPE_CHECKING:
    from groupdro.run.solver import State

__all__ = ["OutputPair", "Progress", "Result", "Status", "TraceRow", "met_tolerance", "relative_gap"]


def relative_gap(gap: float, upper: float) -> float:
    """Return gap / abs(upper bound); infinite if that is zero."""
    return gap / abs(upper) if upper else np.inf


def met_tolerance(gap: float, upper: float, tol: float, atol: float) -> str | None:
    """Return which tolerance a gap meets: "tol", relative to the upper bound, or else "atol"; None for neither."""
    if gap <= tol * abs(upper):
        return "tol"
    return "atol" if gap <= atol else None


class Status(Enum):
    """How a run ended; the value is a message for the user."""

    CONVERGED = "The certified gap is within the tolerance."
    PASS_LIMIT = "The pass limit was reached before the certified gap was within the tolerance."
    TIME_LIMIT = "The time limit was reached before the certified gap was within the tolerance."
    INTERRUPTED = "The run was interrupted; the best certified pair so far is returned."
    NO_FINITE_MINIMISER = "No finite minimiser exists."
    STALLED = "The solver cannot improve further because of rounding; the best certified pair is returned."
    NUMERICAL_FAILURE = "A risk or gradient was not finite, or rounding made the bounds contradict each other."


@dataclass(frozen=True)
class TraceRow:
    """State of a run after an epoch. Both bounds are the best so far."""

    epoch: int
    passes: float
    grad_evals: int
    grad_evals_paper: int
    seconds: float
    upper: float
    lower: float

    @property
    def gap(self) -> float:
        """Upper minus lower bound."""
        return self.upper - self.lower


@dataclass(frozen=True)
class Progress:
    """What a callback receives after each epoch. It must not be modified.

    The certificate and the state belong to the problem as solved, from which offsets that a free intercept absorbs have
    been subtracted. `w` is what the run would return now, in the units of the original problem: the best point so far,
    or the answer of a stage within the tolerance.
    """

    latest: TraceRow
    certificate: Certificate
    state: "State"
    centring: Centring

    @property
    def w(self) -> Floats:
        """The parameters that the run would return now."""
        w = self.certificate.w if self.state.answer is None else self.state.answer.w
        assert w is not None
        return self.centring.outward(w)


@dataclass(frozen=True, eq=False)
class OutputPair:
    """The pair (w, q) to which an algorithm's theory applies, with its own bounds."""

    w: Floats
    q: Floats
    upper: float
    lower: float

    @property
    def gap(self) -> float:
        """Upper minus lower bound of this pair."""
        return self.upper - self.lower


@dataclass(frozen=True, eq=False)
class Result:
    """The best certified pair of a run.

    Attributes
    ----------
    w : ndarray
        Parameters with the smallest objective seen, or those that a stage within the tolerance has chosen; the
        intercept, if any, is the last entry or row.
    q : ndarray of shape (n_groups,)
        Group weights that prove the lower bound.
    group_risks : ndarray of shape (n_groups,)
        Average loss of each group at w.
    group_values : ndarray of shape (n_groups,)
        The values whose maximum is minimised: the risks plus offsets or, for excess risks, minus the lower bounds on
        the group minima.
    upper_bound : float
        Objective at w: the worst group's risk (or excess risk) plus the penalty.
    lower_bound : float
        Proven lower bound: no parameters in the domain have a smaller objective.
    gap : float
        Upper bound on the suboptimality of w: upper_bound - lower_bound, at least the rounding error of either.
    status : Status
        How the run ended.
    message : str
        The status as a sentence, with details.
    counters : Counters
        Operations on the data during the run.
    passes, seconds, epochs : float, float, int
        Passes over the data, seconds excluding evaluations for the trace, and epochs.
    trace : tuple of TraceRow
        One row per epoch.
    average : OutputPair or None
        The step-weighted average to which the solver's theory applies, if any.
    group_names : tuple
        Names of the groups.
    group_minima : GroupMinima or None
        Certified bounds on each group's own minimum, if excess risks were minimised.
    solver : str
        The solver that ran, and why if it was chosen automatically.
    tol, atol : float
        The relative and the absolute tolerance in force.
    bound_radius : float
        If neither a penalty nor a radius was set, the root mean square of a model's outputs up to which the lower bound
        holds. Infinite if the bound holds for the whole domain.
    interrupted : bool
        Whether Ctrl-C ended the run. The status is still "converged" if the gap was within the tolerance by then.
    mean_lower : float
        If the slack of the tolerance was spent on an average, a proven lower bound on that of every model within the
        tolerance; minus infinity otherwise.
    """

    w: Floats
    q: Floats
    group_risks: Floats
    group_values: Floats
    upper_bound: float
    lower_bound: float
    gap: float
    status: Status
    message: str
    counters: Counters
    passes: float
    seconds: float
    epochs: int
    trace: tuple[TraceRow, ...]
    average: OutputPair | None
    group_names: tuple[Any, ...]
    group_minima: GroupMinima | None
    solver: str
    tol: float
    atol: float
    bound_radius: float = np.inf
    interrupted: bool = False
    mean_lower: float = -np.inf

    @property
    def converged(self) -> bool:
        """Whether the gap is within the tolerance."""
        return self.status is Status.CONVERGED

    @property
    def criterion(self) -> str | None:
        """Which tolerance the gap meets: "tol", relative to the upper bound, or else "atol"; None for neither."""
        return met_tolerance(self.gap, self.upper_bound, self.tol, self.atol) if self.converged else None

    @property
    def worst_group(self) -> Any:
        """Name of the group that sets the upper bound: the largest value at w."""
        return self.group_names[int(np.argmax(self.group_values))]

    def __repr__(self) -> str:
        return (
            f"Result({self.status.name.lower()}: worst group {self.worst_group!r}, "
            f"{self.lower_bound:.6g} <= optimum <= {self.upper_bound:.6g}, "
            f"gap {self.gap:.2g} in {self.passes:.1f} passes, {self.seconds:.2g} s)"
        )
