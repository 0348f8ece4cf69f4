"""What a solver may do besides its epochs: find references or a better start before, and refine references between."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from groupdro.certificate import Certificate
from groupdro.problem import GroupRisk, References
from groupdro.utils.types import Floats

if TYPE_CHECKING:
    from groupdro.run.solver import State

__all__ = ["Budget", "Preparation", "Prepared", "Refinement"]


@dataclass(frozen=True)
class Budget:
    """What is left of a run.

    Attributes
    ----------
    tol, atol : float
        Tolerances of the run.
    passes_left, seconds_left : callable
        What is left of passes and time.
    """

    tol: float
    atol: float
    passes_left: Callable[[], float]
    seconds_left: Callable[[], float]


@dataclass(frozen=True, eq=False)
class Prepared:
    """What a preparation found.

    Attributes
    ----------
    references : References or None
        Bounds of every group's own minimum, which turn risks into regrets.
    refinement : Refinement or None
        What tightens them while the run goes on.
    start : pair of ndarray or None
        The w and q at which the next stage begins.
    best : pair of ndarray or None
        The best w and q known, which a run returns that is interrupted here.
    interrupted : bool
        Whether Ctrl-C ended the preparation: the run then returns what there is.
    rough : bool
        Whether an interrupt or the budget cut it short. Its bounds are valid, but a checkpoint of them would hold back
        every run that resumes from it.
    """

    references: References | None = None
    refinement: "Refinement | None" = None
    start: tuple[Floats, Floats] | None = None
    best: tuple[Floats, Floats] | None = None
    interrupted: bool = False
    rough: bool = False


class Refinement(ABC):
    """What tightens rough references while a run minimises the regrets."""

    @abstractmethod
    def after_epoch(self, certificate: Certificate, state: "State", budget: Budget) -> References | None:
        """Return tighter references than those of the certificate's problem, or None to leave them as they are."""

    @property
    @abstractmethod
    def rough(self) -> bool:
        """Whether the budget cut it short, so that a run which resumes from here would not be the same."""

    @abstractmethod
    def saved(self) -> Any:
        """Return what a checkpoint keeps, besides the references."""


class Preparation(ABC):
    """A stage before the epochs."""

    @abstractmethod
    def run(self, problem: GroupRisk, budget: Budget, seed: int) -> Prepared:
        """Solve what later stages depend on."""

    def restore(self, problem: GroupRisk, references: References, saved: Any, seed: int) -> Refinement | None:
        """Return the refinement as a checkpoint kept it; None by default, for a preparation that is done at once."""
        del problem, references, saved, seed
        return None
