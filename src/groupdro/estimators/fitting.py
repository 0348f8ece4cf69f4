"""Conversion of an estimator's parameters and data to a problem, and of its solution to the user's units."""

import inspect
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from groupdro.data import GroupedData
from groupdro.data.given import GivenRows, read_given
from groupdro.data.grouping import MERGED, merge_small_groups
from groupdro.estimators.blend import ALL_ROWS, Blend
from groupdro.losses import Loss
from groupdro.problem import Domain, GroupMinima, L2Domain, Problem
from groupdro.problem.centring import size_of_targets, typical_sizes
from groupdro.run.solver import make_solver
from groupdro.solvers import ALEM, Solver
from groupdro.utils.types import Floats, Indices

__all__ = [
    "MissingGroupsWarning",
    "SmallGroupWarning",
    "Task",
    "UselessModelWarning",
    "choose_solver",
    "merge_groups",
    "read_training_rows",
    "refuse_small_groups",
    "warn_caller",
]


# Norm of coefficients that no sensible model has, in units of the columns' typical entries and, for a regression, of
# y's. Bounds hold for outputs up to 1e3 in the same units.
_STAND_IN_RADIUS = 1e8
_SMALLEST_SIZE = 2.0**-1000  # of a column's typical entries; a coefficient 1e8 times its inverse is not finite


class MissingGroupsWarning(UserWarning):
    """A fit without groups is plain empirical risk minimisation."""


class SmallGroupWarning(UserWarning):
    """Groups smaller than `min_group_size` were merged, or very small groups have most of the weight."""


class UselessModelWarning(UserWarning):
    """A fitted model is no better than a constant on the rows that determine it."""


def warn_caller(message: str, category: type[Warning]) -> None:
    """Warn at the line that called into this package."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith("groupdro."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def read_training_rows(
    X: Any, y: Any, groups: Any, sample_weight: Any, cluster: Any, offset: Any, *, numeric: bool
) -> GivenRows:
    """Read the arguments of a fit. Warn if there are no groups.

    Parameters
    ----------
    X, y, groups, sample_weight, cluster, offset : object
        The arguments as the user gave them.
    numeric : bool
        Whether y must be numbers.

    Returns
    -------
    GivenRows
        The rows.
    """
    if groups is None:
        warn_caller(
            "groups is missing, so all rows form one group and the fit is plain empirical risk minimisation. "
            "Pass fit(X, y, groups=...). Inside GridSearchCV, cross_validate and other meta-estimators, groups reach "
            "this fit only with sklearn.set_config(enable_metadata_routing=True); without it their groups= goes to "
            "the splitter only. GroupBy takes the groups from a column of X instead and needs no routing.",
            MissingGroupsWarning,
        )
    return read_given(X, y, groups, sample_weight=sample_weight, cluster=cluster, offset=offset, numeric=numeric)


def merge_groups(given: GivenRows, *, least: int) -> tuple[GivenRows, tuple[Any, ...]]:
    """Merge groups with fewer than `least` rows, warn about it, and return the names of those that were merged."""
    given.check_weight_of_groups()
    names = given.groups.names
    few = np.flatnonzero(given.group_sizes < least)
    if not len(few):
        return given, ()
    groups = merge_small_groups(given.groups, few)
    warn_caller(f"{_small_groups(names, few, least)}. They are merged into the group {MERGED!r}.", SmallGroupWarning)
    return replace(given, groups=groups), tuple(names[i] for i in few)


def refuse_small_groups(names: tuple[Any, ...], sizes: Any, *, least: int) -> None:
    """Refuse groups of a store with fewer than `least` rows, because the order of its rows is fixed."""
    few = np.flatnonzero(sizes < least)
    if len(few):
        raise ValueError(
            f"{_small_groups(names, few, least)}, and groups of a store cannot be merged: merge them before writing it."
        )


def _small_groups(names: tuple[Any, ...], few: Indices, least: int) -> str:
    some = [names[i] for i in few[:5]]
    return f"groups has {len(few)} groups of fewer than min_group_size={least} rows, such as {some}"


def choose_solver(solver: str | Solver, *, objective: str, minima_given: bool) -> Solver:
    """Return the solver for an estimator's fit.

    Parameters
    ----------
    solver : str or Solver
        The user's choice.
    objective : {"risk", "excess_risk"}
        The objective.
    minima_given : bool
        Whether the user gave the groups' minimal risks, so that they do not have to be found.

    Returns
    -------
    Solver
        A solver that starts from the problem of risks.
    """
    found = ALEM(every_group=True) if solver == "alem" else make_solver(solver)
    if found.finds_minima:
        if objective == "risk":
            raise ValueError(f"solver {found.name!r} minimises excess risks and requires objective='excess_risk'.")
        return found
    return found if objective == "risk" or minima_given else ALEM(stage_two=found, every_group=True)


@dataclass(frozen=True, eq=False)
class Task:
    """Validated data of a fit, from which problems with any penalty can be made.

    Attributes
    ----------
    data : GroupedData
        Rows, encoded labels, groups, weights.
    row_weights : ndarray of shape (n_rows,) or None
        Weights of the stored rows, if they differ.
    blend : Blend
        Definition of the average and the worst.
    loss : Loss
        The loss.
    fit_intercept : bool
        Whether the model has an intercept.
    offsets : ndarray of shape (n_groups,)
        Bonus of each group by `small_group_bonus`.
    group_minima : GroupMinima or None
        The user's minimal risks of the groups, for excess risks.
    """

    data: GroupedData
    row_weights: Floats | None
    blend: Blend
    loss: Loss
    fit_intercept: bool
    offsets: Floats
    group_minima: GroupMinima | None

    def problem(self, domain: Domain | None, robustness: float = 1.0) -> "PosedProblem":
        """Return the problem, in units of its own.

        Without a domain the choice of units is free: the problem is then posed in units of the columns' typical
        entries, in a ball that is a proxy for the whole space.
        """
        data = self.data
        weight_set = self.blend.weight_set(robustness)
        if self.blend.over_all and robustness < 1.0:
            if self.group_minima is not None:
                raise ValueError(
                    "group_minima has no value for all rows, which are averaged if groups overlap: use "
                    "average='groups'."
                )
            data = data.with_group_of_all(ALL_ROWS, self.row_weights)
        scales = np.ones(data.n_features)
        if domain is None:
            if not data.rows.copyable:
                raise ValueError("alpha or radius must be positive if X is memory-mapped, because it is never copied.")
            scales = typical_sizes(data, centred=self.fit_intercept)
            if scales.min() < _SMALLEST_SIZE:
                raise ValueError(
                    f"X has entries of about {scales.min():.0e} in column {int(scales.argmin())}, whose coefficient "
                    "would not be finite: scale the column, drop it, or set alpha or radius."
                )
            data = data.with_scaled_columns(1.0 / scales)
            size = size_of_targets(data, centred=self.fit_intercept) if self.loss.of_residual else 1.0
            domain = L2Domain(radius=_STAND_IN_RADIUS * size, proxy_for_unbounded=True)
        problem = Problem(
            data,
            self.loss,
            domain,
            weight_set,
            fit_intercept=self.fit_intercept,
            group_minima=self.group_minima,
            offsets=np.append(self.offsets, np.zeros(data.n_groups - len(self.offsets))),
        )
        return PosedProblem(problem, scales)


@dataclass(frozen=True, eq=False)
class PosedProblem:
    """A problem in units of its own, and the way to and from the user's.

    Attributes
    ----------
    problem : Problem
        The problem.
    scales : ndarray of shape (n_features,)
        Factors of the coefficients.
    """

    problem: Problem
    scales: Floats

    def inward(self, w: Floats) -> Floats:
        """Return the problem's w from one in the user's units."""
        return self._scaled(w, self.scales)

    def outward(self, w: Floats) -> Floats:
        """Return w in the user's units."""
        return self._scaled(w, 1.0 / self.scales)

    @staticmethod
    def _scaled(w: Floats, factors: Floats) -> Floats:
        out = w.copy()
        out[: len(factors)] *= factors if w.ndim == 1 else factors[:, None]
        return out

    def weights(self, q: Floats) -> Floats:
        """Return group weights in their set, as close to the given ones as the set allows."""
        q = np.append(q, np.zeros(self.problem.n_groups - len(q)))
        return q if self.problem.weight_set.contains(q) else self.problem.moving.nearest(q)
