"""The quadratic model of a step of SQP: groups' slopes, and a common curvature that includes a ball's multiplier."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from groupdro.oracle.first_curvature import CurvatureProducts, FirstCurvature
from groupdro.solvers.weight_program import Program
from groupdro.utils.types import Floats

__all__ = ["LEAST_RIDGE", "ExactModel", "LearnedModel", "ProductModel", "StepModel"]

_LEAST_CURVATURE = 1e-28  # smallest curvature of a parameter, relative to its largest
LEAST_RIDGE = 1e-10  # ridge relative to the curvature of each parameter
_CG_ACCURACY = 1e-9  # relative accuracy of conjugate gradients
_CG_STEPS = 200


class StepModel(ABC):
    """A program in the multipliers of rows, with inner products in the inverse of a curvature."""

    @abstractmethod
    def solve(self, multiplier: float) -> tuple[Floats, Floats]:
        """Return the step, flattened, and the program's multipliers, with the ball's multiplier in the curvature."""


@dataclass(frozen=True, eq=False)
class ExactModel(StepModel):
    """The model with a known Hessian.

    Attributes
    ----------
    program : Program
        The program.
    pull : ndarray of shape (w.size,)
        Contribution of a multiplier of one to the gradient.
    hessian : ndarray of shape (w.size, w.size)
        The Hessian of the losses.
    l2 : ndarray of shape (w.size,)
        L2 penalties, which its diagonal is increased by.
    bound : ndarray of shape (w.size,)
        Contribution of a multiplier of one to its diagonal.
    largest : ndarray of shape (w.size,)
        Upper bounds on the losses' curvature along each parameter.
    damping : float
        Additional damping, relative to the largest curvature.
    """

    program: Program
    pull: Floats
    hessian: Floats
    l2: Floats
    bound: Floats
    largest: Floats
    damping: float

    def solve(self, multiplier: float) -> tuple[Floats, Floats]:
        """Factor the curvature again for the multiplier."""
        program = self.program
        factor, unit = self._factor(multiplier)
        pulled = program.rows + multiplier * program.share * self.pull
        solved = cho_solve(factor, (pulled / unit).T, check_finite=False).T / unit
        x = program.solve(pulled @ solved.T, program.values)
        return -(x @ solved), x

    def _factor(self, multiplier: float) -> tuple[tuple[Floats, bool], Floats]:
        """Return the factored curvature in units of each parameter's own, and these units.

        In these units no column's scale swamps another's. Directions along which no row varies are flat, and a ridge
        keeps the step from drifting along them. The ridge is relative to the parameter's largest curvature, and
        smallest if that is due to a single outlier whose loss is flat by now. If everything is flat (all residuals on
        the linear part of a loss), it is that of a plain gradient step.
        """
        curvature = self.hessian.copy()
        added = self.l2 + multiplier * self.bound
        diagonal = np.diag_indices_from(curvature)
        curvature[diagonal] += added
        largest = self.largest + added
        own = np.diag(curvature)
        mean = float((own / largest).mean())
        unit = np.sqrt(np.maximum(own, _LEAST_CURVATURE * largest))
        curvature /= np.outer(unit, unit)
        damping = self.damping * mean if mean > 1e-14 else max(self.damping, 1e-2)
        ridge = LEAST_RIDGE + damping * largest / unit**2
        while True:
            try:
                regular = curvature.copy()
                regular[diagonal] += ridge
                return cho_factor(regular, check_finite=False), unit
            except np.linalg.LinAlgError:
                ridge *= 100.0


@dataclass(frozen=True, eq=False)
class ProductModel(StepModel):
    """The model with a curvature known only through products; systems are solved by conjugate gradients.

    Attributes
    ----------
    program : Program
        The program.
    times : callable
        Returns the products of the curvature with directions of shape (k, p).
    diagonal : ndarray of shape (p,)
        Its diagonal, used as a preconditioner.
    """

    program: Program
    times: Callable[[Floats], Floats]
    diagonal: Floats

    def solve(self, multiplier: float = 0.0) -> tuple[Floats, Floats]:
        """Solve for all rows at once."""
        assert multiplier == 0.0  # there is no ball
        program = self.program
        solved = self._conjugate_gradients(program.rows)
        M = program.rows @ solved.T
        x = program.solve(0.5 * (M + M.T), program.values)
        return -(x @ solved), x

    def _conjugate_gradients(self, rows: Floats) -> Floats:
        solved = np.zeros_like(rows)
        left = rows.copy()
        scaled = left / self.diagonal
        along = scaled
        size = (left * scaled).sum(axis=1)
        goal = _CG_ACCURACY**2 * size
        for _ in range(_CG_STEPS):
            going = size > goal
            if not going.any():
                break
            bent = np.zeros_like(along)
            bent[going] = self.times(along[going])
            curvature = (along * bent).sum(axis=1)
            length = np.divide(size, curvature, out=np.zeros_like(size), where=going & (curvature > 0))[:, None]
            solved += length * along
            left -= length * bent
            scaled = left / self.diagonal
            before = size
            size = np.where(going, (left * scaled).sum(axis=1), size)
            along = scaled + np.divide(size, before, out=np.zeros_like(size), where=before > 0)[:, None] * along
        return solved


class LearnedModel(StepModel):
    """The model with a curvature learned from the gradients seen: L-BFGS, starting from an initial curvature B.

    The inverse is scale * P + U' W U with P = (B + added I)^-1 and U = [S, scale * Y P], where Y are the changes of the
    gradient along the steps S, including those of penalty and multiplier. Trials of the multiplier only need products
    of rows, pairs and the pull, which are computed once.

    Parameters
    ----------
    program : Program
        The program.
    pull : ndarray of shape (w.size,)
        Contribution of a multiplier of one to the gradient.
    first : FirstCurvature
        The initial curvature B of the losses.
    steps, changes : ndarray of shape (k, w.size)
        Changes of w, and of the losses' gradient along them.
    penalty : float
        The penalty.
    bounded : bool
        Whether nonzero multipliers will be needed.
    """

    def __init__(
        self,
        program: Program,
        pull: Floats,
        first: FirstCurvature,
        steps: Floats,
        changes: Floats,
        penalty: float,
        *,
        bounded: bool,
    ):
        self.program = program
        self.pull = pull
        self.first = first
        self.penalty = penalty
        self.steps = steps
        self.changes = changes
        self.n = len(program.rows)
        self.k = len(steps)
        n_bound = first.model.n_features * first.model.n_outputs
        bound = steps.copy()  # contribution of a multiplier of one to the changes
        bound[:, n_bound:] = 0.0
        if penalty:
            self.changes = changes + penalty * bound
        # Besides the rows: changes, and contributions of a multiplier to rows and changes.
        more = np.concatenate([self.changes, program.share * pull[None], bound]) if bounded else self.changes
        self.bound = bound
        self.bounded = bounded
        self.products = CurvatureProducts(first, program.rows, more)
        self.on_steps = np.concatenate([program.rows @ steps.T, more @ steps.T])

    def solve(self, multiplier: float) -> tuple[Floats, Floats]:
        """Combine the products."""
        n = self.n
        k = self.k
        added = self.penalty + multiplier
        program = self.program
        K = self.products.at(added)
        B = self.on_steps
        if self.bounded:
            # Add to every row the pull, and to every change that of its step, times the multiplier.
            mix = np.eye(n + k, n + k + 1 + k)
            mix[:n, n + k] = multiplier
            mix[n:, n + k + 1 :] = multiplier * np.eye(k)
            K = mix @ K @ mix.T
            B = mix @ B
        M = K[:n, :n]
        scale = 1.0
        weigh = np.zeros((2 * k, 2 * k))
        on_pairs = np.empty((n, 2 * k))
        if k:
            SY = B[n:].T
            YPY = K[n:, n:]
            scale = float(SY[-1, -1] / YPY[-1, -1])
            R_inverse = np.linalg.inv(np.triu(SY))
            weigh[:k, :k] = R_inverse.T @ (np.diag(np.diag(SY)) + scale * YPY) @ R_inverse
            weigh[:k, k:] = -R_inverse.T
            weigh[k:, :k] = -R_inverse
            on_pairs = np.hstack([B[:n], scale * K[:n, n:]])
            M = scale * M + on_pairs @ weigh @ on_pairs.T
        x = program.solve(M, program.values)
        gradient = x @ program.rows + multiplier * program.share * float(x.sum()) * self.pull
        weights = weigh @ (x @ on_pairs) if k else np.empty(0)
        if k:
            gradient += weights[k:] @ self.changes
            if multiplier:
                gradient += multiplier * (weights[k:] @ self.bound)
        step = scale * self.first.solve(gradient, added)
        if k:
            step += weights[:k] @ self.steps
        return -step, x
