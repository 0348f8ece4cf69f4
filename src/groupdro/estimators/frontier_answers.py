"""Answers of a frontier: a model on it, or whether targets can be met."""

from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Attainable", "FrontierModel"]


@dataclass(frozen=True, eq=False)
class FrontierModel:
    """A model on the frontier, with proven bounds. Values include the penalty.

    Attributes
    ----------
    model : GroupDROClassifier or GroupDRORegressor
        The fitted model. A mixture of two fits has the tolerance of the frontier as its `tol`. Refitting a clone of it
        gives the minimiser of its blend, which may lie elsewhere on the frontier.
    mean, worst : float
        Its average and worst value on the training data.
    mean_lower : float
        No model whose worst value is at most `worst` has a smaller average.
    worst_lower : float
        No model whose average is at most `mean` has a smaller worst value.
    robustness : float
        Robustness of the blend that it nearly minimises.
    """

    model: Any
    mean: float
    worst: float
    mean_lower: float
    worst_lower: float
    robustness: float

    def __repr__(self) -> str:
        return (
            f"FrontierModel(robustness {self.robustness:.4g}: mean {self.mean:.6g}, at this worst value no less than "
            f"{self.mean_lower:.6g}; worst {self.worst:.6g}, at this mean no less than {self.worst_lower:.6g})"
        )


@dataclass(frozen=True, eq=False)
class Attainable:
    """Whether a pair of targets can be met.

    Attributes
    ----------
    verdict : {"yes", "no", "open"}
        The answer; "open" if the targets lie within the enclosure of the frontier.
    model : FrontierModel or None
        A model that meets the targets, if the answer is "yes".
    robustness, least : float
        If the answer is "no": every model has ``(1 - robustness) * mean + robustness * worst >= least``, which the
        targets violate. NaN otherwise.
    message : str
        The answer as a sentence.
    """

    verdict: Literal["yes", "no", "open"]
    model: FrontierModel | None
    robustness: float
    least: float
    message: str

    def __bool__(self) -> bool:
        return self.verdict == "yes"

    def __repr__(self) -> str:
        return f"Attainable({self.message})"
