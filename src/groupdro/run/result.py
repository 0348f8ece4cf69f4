"""What a run reports: its status, its trace and its result."""

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from groupdro.certificate import Certificate
from groupdro.problem import Counters, References
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
    """How a run ended; the value is a sentence for the user."""

    CONVERGED = "The certified gap is within the tolerance."
    PASS_LIMIT = "The pass limit was reached before the certified gap was within the tolerance."
    TIME_LIMIT = "The time limit was reached before the certified gap was within the tolerance."
    INTERRUPTED = "The run was interrupted; the best certified pair so far is returned."
    NO_FINITE_MINIMISER = "No finite minimiser exists."
    STALLED = "Rounding leaves the solver no way to go on; the best certified pair is returned."
    NUMERICAL_FAILURE = "A risk or gradient was not finite, or rounding made the bounds contradict each other."


@dataclass(frozen=True)
class TraceRow:
    """Where a run stood after an epoch; both bounds are the best so far."""

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
    """What a callback sees after each epoch. It must not change any of it.

    The certificate and the state are those of the problem as it is solved, with offsets subtracted that a free
    intercept absorbs; `w` is the best point so far in the units of the problem that was given.
    """

    latest: TraceRow
    certificate: Certificate
    state: "State"
    centring: Centring

    @property
    def w(self) -> Floats:
        """The best parameters so far."""
        assert self.certificate.w is not None
        return self.centring.outward(self.certificate.w)


@dataclass(frozen=True, eq=False)
class OutputPair:
    """A pair (w, q) that an algorithm's theory speaks of, with bounds of its own."""

    w: Floats
    q: Floats
    upper: float
    lower: float

    @property
    def gap(self) -> float:
        """Upper minus lower bound of this very pair."""
        return self.upper - self.lower


@dataclass(frozen=True, eq=False)
class Result:
    """The best certified pair of a run.

    Attributes
    ----------
    w : ndarray
        Parameters with the smallest objective seen; the intercept, if any, is the last entry or row.
    q : ndarray of shape (n_groups,)
        Group weights that prove the lower bound.
    group_risks : ndarray of shape (n_groups,)
        Average loss of each group at w.
    group_values : ndarray of shape (n_groups,)
        What the worst is taken of: the risks with their offsets, less the references' lower bounds for regrets.
    upper_bound : float
        Objective at w: the worst group's risk (or regret), with the penalty.
    lower_bound : float
        No parameters in the domain have a smaller objective.
    gap : float
        Certified distance from the best possible: upper_bound - lower_bound, at least the rounding of either.
    status : Status
        How the run ended.
    message : str
        The same as a sentence, with particulars.
    counters : Counters
        What the run asked of the data.
    passes, seconds, epochs : float, float, int
        Passes over the data, time without evaluations for the trace, and epochs.
    trace : tuple of TraceRow
        One row per epoch.
    average : OutputPair or None
        The step-weighted average that the solver's theorem speaks of, where it has one.
    group_names : tuple
        Names of the groups.
    references : References
        Certified bounds of each group's own minimum where regrets were minimised; zeros otherwise.
    solver : str
        What ran, and why where it was chosen automatically.
    tol, atol : float
        The relative and the absolute tolerance in force.
    bound_radius : float
        Root mean square of a model's outputs up to which the lower bound holds, where neither a penalty nor a radius
        was set; infinite where it holds for the whole domain.
    interrupted : bool
        Whether Ctrl-C ended the run, which is still "converged" where the gap was within the tolerance by then.
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
    references: References
    solver: str
    tol: float
    atol: float
    bound_radius: float = np.inf
    interrupted: bool = False

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
