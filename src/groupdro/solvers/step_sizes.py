"""Constants of the theorems, and the step-size schedules that they allow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from groupdro.geometry import Geometry
from groupdro.problem import Problem
from groupdro.utils.arguments import check_number, error_prefix, short_repr
from groupdro.utils.types import Floats

__all__ = ["EpochParameters", "Schedule", "Schedules", "check_multiplier", "saddle_constant"]


#: A constant; one entry per epoch (a number, or one per step), the last repeating; or a function of the epoch.
Schedule = float | Sequence[ArrayLike] | Callable[[int], ArrayLike]

_ROUNDING = 1e-12


def check_multiplier(multiplier: float) -> None:
    """Raise unless the factor of a theoretical step size is a positive number."""
    check_number(multiplier, "multiplier", positive=True)


def saddle_constant(problem: Problem, geometry: Geometry, form: Literal["tight", "paper"]) -> float:
    """Return L_z, the Lipschitz constant of the saddle operator in the scaled norm of (w, q).

    With D^2 the range of the potential of w, G and L the rows' Lipschitz and smoothness constants:

        paper   2 D max( sqrt(2 D^2 L^2 + G^2 ln m), G sqrt(2 ln m) )                         (Lemma 4.3)
        tight   ( l + sqrt(l^2 + 4 c^2) ) / 2,   l = 2 D^2 L,  c = 2 D G sqrt(ln m)

    The tight form is the norm of the 2 x 2 matrix of block bounds, which is at most the paper's and equally rigorous.
    For L it uses the largest group's root mean square, which suffices for a guarantee in expectation.
    """
    constants = problem.constants(geometry.dual_order, geometry.radius)
    D2 = geometry.squared_diameter
    log_m = problem.weight_geometry().squared_diameter
    G = constants.lipschitz
    if form == "paper":
        L = constants.smoothness
        first = np.sqrt(2.0 * D2 * L**2 + G**2 * log_m)
        return float(2.0 * np.sqrt(D2) * max(first, G * np.sqrt(2.0 * log_m)))
    if form == "tight":
        l_block = 2.0 * D2 * constants.mean_square_smoothness
        c_block = 2.0 * np.sqrt(D2 * log_m) * G
        return float((l_block + np.hypot(l_block, 2.0 * c_block)) / 2.0)
    raise ValueError(f"constant must be 'tight' or 'paper', got {short_repr(form)}.")


@dataclass(frozen=True)
class EpochParameters:
    """One epoch's snapshot weights alpha_k^s and base steps eta_k^s, both of shape (K_s,)."""

    alpha: Floats
    eta: Floats


@dataclass(frozen=True)
class Schedules:
    """The parameters of every epoch, and whether the convergence proof covers them.

    Attributes
    ----------
    length : int, sequence of int, or callable
        K_s.
    alpha : Schedule or None
        alpha_k^s; None is 1 / K_s.
    eta : Schedule or None
        eta_k^s; None is the largest that the theorem allows, sqrt(alpha / 5) / L_z.
    lipschitz : float
        L_z.
    multiplier : float
        Factor of the default eta.
    """

    length: Schedule
    alpha: Schedule | None
    eta: Schedule | None
    lipschitz: float
    multiplier: float = 1.0

    def __post_init__(self) -> None:
        check_multiplier(self.multiplier)

    def epoch(self, s: int) -> EpochParameters:
        """Return the parameters of epoch s."""
        with error_prefix("epoch_length"):
            raw = np.asarray(_entry(self.length, s), dtype=np.float64)
        if raw.ndim or not np.isfinite(raw) or raw < 1 or raw != np.floor(raw):
            raise ValueError(f"epoch_length must be a whole number from 1, got {raw.tolist()!r} in epoch {s}.")
        K = int(raw)
        alpha = np.full(K, 1.0 / K) if self.alpha is None else _steps(self.alpha, s, K, "alpha")
        if (alpha > 1.0).any():
            raise ValueError(f"alpha must be at most 1, got {float(alpha.max())!r} in epoch {s}.")
        if self.eta is None:
            # If every constant is zero (all rows zero, or a single model), nothing depends on the step.
            eta = np.sqrt(alpha / 5.0) / self.lipschitz if self.lipschitz > 0 else np.ones(K)
            eta *= self.multiplier
        else:
            eta = _steps(self.eta, s, K, "step")
        return EpochParameters(alpha, eta)

    def check(self, s: int) -> None:
        """Raise, with the reason, if the convergence proof does not cover epoch s.

        The proof telescopes Bregman distances over steps and epochs. The distance to z_{k+1} that a step leaves over
        must cover its weight alpha_k in the next snapshot. So alpha may not decrease within an epoch nor from its end
        to the next epoch's start, and its sum over an epoch may not grow. With alpha = 1 / K_s, epochs may not grow.
        The step must lie between sqrt(alpha) / (10 L_z) and sqrt(alpha / 5) / L_z.
        """
        now = self.epoch(s)
        if (np.diff(now.alpha) < -_ROUNDING).any():
            raise ValueError(f"alpha decreases within epoch {s}; the proof requires alpha_k <= alpha_(k+1).")
        if s:
            before = self.epoch(s - 1)
            if before.alpha[-1] > now.alpha[0] + _ROUNDING:
                raise ValueError(
                    f"the schedule is not periodically decaying: alpha ends epoch {s - 1} at {before.alpha[-1]:.6g} "
                    f"and starts epoch {s} at {now.alpha[0]:.6g}; it may not decrease"
                    + (" (with alpha = 1 / K_s, epoch_length may not grow)." if self.alpha is None else ".")
                )
            if now.alpha.sum() > before.alpha.sum() * (1.0 + _ROUNDING):
                raise ValueError(
                    f"the schedule is not periodically decaying: alpha sums to {before.alpha.sum():.6g} over epoch "
                    f"{s - 1} and to {now.alpha.sum():.6g} over epoch {s}; the sum may not grow."
                )
        if self.eta is not None or self.multiplier != 1.0:
            low = np.sqrt(now.alpha) / (10.0 * self.lipschitz)
            high = np.sqrt(now.alpha / 5.0) / self.lipschitz
            if (now.eta < low * (1.0 - _ROUNDING)).any() or (now.eta > high * (1.0 + _ROUNDING)).any():
                raise ValueError(
                    f"step must lie in [{low.max():.6g}, {high.min():.6g}] for the theorem to hold in epoch {s}, got "
                    f"{now.eta.min():.6g} to {now.eta.max():.6g}. Pass guarantee=False to run it anyway."
                )

    @property
    def n_listed(self) -> int:
        """Number of epochs listed explicitly."""
        return max(len(v) if isinstance(v, Sequence) else 1 for v in (self.length, self.alpha, self.eta))


def _entry(schedule: Schedule, s: int) -> ArrayLike:
    if callable(schedule):
        return schedule(s)
    if isinstance(schedule, str | bytes) or (isinstance(schedule, Sequence) and not len(schedule)):
        raise TypeError(
            f"must be a number, a sequence of numbers or a function of the epoch, got {short_repr(schedule)}."
        )
    if isinstance(schedule, Sequence):
        return schedule[min(s, len(schedule) - 1)]
    return schedule


def _steps(schedule: Schedule, s: int, K: int, name: str) -> Floats:
    with error_prefix(name):
        values = np.asarray(_entry(schedule, s), dtype=np.float64)
    if values.ndim == 0:
        values = np.full(K, float(values))
    if values.shape != (K,):
        raise ValueError(f"{name} must give one number or {K} numbers for epoch {s}, got shape {values.shape}.")
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise ValueError(f"{name} must be positive and finite, got {values.min()!r} in epoch {s}.")
    return values
