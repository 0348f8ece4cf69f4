"""What a solver may do before its epochs: find references, or a better start."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from groupdro.problem import GroupRisk, References
from groupdro.utils.types import Floats

__all__ = ["Budget", "Preparation", "Prepared"]


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
    start: tuple[Floats, Floats] | None = None
    best: tuple[Floats, Floats] | None = None
    interrupted: bool = False
    rough: bool = False


class Preparation(ABC):
    """A stage before the epochs."""

    @abstractmethod
    def run(self, problem: GroupRisk, budget: Budget, seed: int) -> Prepared:
        """Solve what later stages depend on."""
