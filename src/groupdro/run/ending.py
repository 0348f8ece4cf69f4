"""The end of a run: the final check of the returned model, and its status and message."""

from dataclasses import dataclass

import numpy as np

from groupdro.certificate import Certificate
from groupdro.certificate.certificate import LEAST_GAP, is_inside
from groupdro.oracle import Oracle
from groupdro.problem import Problem
from groupdro.problem.centring import Centring
from groupdro.problem.separation import has_separating_direction
from groupdro.run.result import Status, met_tolerance
from groupdro.run.solver import Answer, State
from groupdro.utils.types import Floats

__all__ = ["SEPARABLE", "Ending", "message_of", "most_with_rounding", "runs_away"]

SEPARABLE = "the rows are separable, and without a penalty or a radius the coefficients grow forever"

_LARGE_OUTPUT = 12.0  # model outputs beyond this predict a class with probability 1 - 1e-5
_FAR_AWAY = (
    "The outputs of the best model found are so large that no useful bound can be proved. "
    "Scale the columns, drop nearly collinear ones, or set a penalty or a radius."
)
_OFFSETS = (
    "Large offsets in y or in the columns leave the intercept too few digits for the tolerance. Centre them first."
)
_DROWNED = "Outputs are rounded by more than the tolerance allows for residuals this small. Centre y and the columns."
_OUTPUT_ERROR = 2.0 * float(np.finfo(np.float64).eps)  # of a target plus an output, relative to their sizes


def runs_away(problem: Problem, certificate: Certificate, state: State, status: Status) -> bool:
    """Return whether the coefficients of an unbounded problem diverge.

    Checked only if a run did not converge, or ended with outputs larger than uncertain labels would require.
    """
    if not problem.unbounded or status in (Status.INTERRUPTED, Status.NO_FINITE_MINIMISER):
        return False
    suspicious = status is not Status.CONVERGED or float(np.abs(state.evaluation.margins).max()) > _LARGE_OUTPUT
    return suspicious and has_separating_direction(problem, certificate.q)


@dataclass(frozen=True, eq=False)
class Ending:
    """How a run ended.

    Attributes
    ----------
    w : ndarray
        The returned model, in the units of the original problem.
    certificate : Certificate
        Its certificate, with the upper bound recomputed at this model.
    status, message : Status, str
        The status, which refers to this model.
    """

    w: Floats
    certificate: Certificate
    status: Status
    message: str

    @classmethod
    def of(
        cls,
        oracle: Oracle,
        certificate: Certificate,
        answer: Answer | None,
        centring: Centring,
        status: Status,
        reason: str | None,
        tol: float,
        atol: float,
    ) -> "Ending":
        """Return the ending with the answer of a stage if it still meets the tolerance, or else with the best model."""
        if certificate.w is None or certificate.q is None or certificate.group_risks is None:
            raise FloatingPointError(
                "No pass over the data gave finite risks at a model in the domain: X or y is too large, or a custom "
                "solver left the domain."
            )
        if answer is not None and is_inside(oracle.problem, answer.w):
            ending = cls._with_model(answer.w, oracle, certificate, centring, status, reason, tol, atol)
            if ending.status is Status.CONVERGED:
                return ending
        return cls._with_model(certificate.w, oracle, certificate, centring, status, reason, tol, atol)

    @classmethod
    def _with_model(
        cls,
        model: Floats,
        oracle: Oracle,
        certificate: Certificate,
        centring: Centring,
        status: Status,
        reason: str | None,
        tol: float,
        atol: float,
    ) -> "Ending":
        """Recompute the upper bound of a model, and correct the status accordingly."""
        problem = oracle.problem
        w = centring.outward(model)
        with oracle.uncounted():
            # "Converged" refers to the returned model, which rounding in the user's units may have changed, not to the
            # intermediate values.
            again = centring.inward(w)
            risks = oracle.risks(again)
            upper = problem.objective(again, risks)
            most = most_with_rounding(problem, again, risks, upper)
        drowned = most > upper
        certificate = certificate.with_model(again, risks, most if drowned else upper)
        far_away = problem.unbounded and problem.output_ball.is_near(problem.coef(again))
        if far_away:
            certificate.withdraw()
            status = Status.STALLED if status is Status.CONVERGED else status
        within = met_tolerance(certificate.gap, certificate.upper, tol, atol) is not None
        contradicts = certificate.contradicts_itself
        moved = bool(centring.target or centring.columns.size)
        rounded_off = status is Status.CONVERGED and (moved or drowned) and not within and not contradicts
        if rounded_off:
            status = Status.STALLED
        if within and status in (Status.PASS_LIMIT, Status.TIME_LIMIT, Status.INTERRUPTED):
            status = Status.CONVERGED  # the average improved the pair
        elif contradicts or (status is Status.CONVERGED and not within):
            status = Status.NUMERICAL_FAILURE
        if status is Status.NO_FINITE_MINIMISER:
            return cls(w, certificate, status, f"No finite minimiser exists: {reason}.")
        rounding = _OFFSETS if moved else _DROWNED
        why = _FAR_AWAY if far_away else rounding if rounded_off else ""
        return cls(w, certificate, status, message_of(status, certificate.gap, certificate.upper, why))


def message_of(status: Status, gap: float, upper: float, why: str = "") -> str:
    """Return the message of a run that ended with these bounds, for a reason other than the usual one if given."""
    if status is Status.CONVERGED:
        return status.value
    return f"{why or status.value} Gap {gap:.3g} at an upper bound of {upper:.6g}."


def most_with_rounding(problem: Problem, w: Floats, risks: Floats, upper: float) -> float:
    """Return an upper bound on the objective at w, given computed risks: outputs of a regression may be all rounding.

    The slope of a nonnegative loss of smoothness b is at most sqrt(2 b loss), so an error e of the output raises the
    loss to at most (sqrt(loss) + sqrt(b / 2) e)^2; by Cauchy and Schwarz the same holds for averages and the root mean
    square of the errors. A loss with a kink rises by at most e times its steepest slope. Rounding that no gap can show
    is ignored.
    """
    if not problem.loss.of_residual:
        return upper

    def most(outputs: Floats) -> float:
        errors = _OUTPUT_ERROR * (outputs + np.abs(problem.data.y))
        if problem.loss.has_kink:
            rises = problem.data.partial_means(problem.loss.lipschitz(problem.data.y, errors) * errors)
            problem.data.add_up(rises)
            return problem.objective(w, risks + rises)
        squares = problem.data.partial_means(np.square(errors))
        problem.data.add_up(squares)
        return problem.objective(w, np.square(np.sqrt(risks) + np.sqrt(0.5 * problem.loss.smoothness * squares)))

    negligible = LEAST_GAP * max(abs(upper), float(risks.max()))
    with_norms = most(problem.row_norms * float(np.linalg.norm(w)))
    if with_norms - upper <= negligible or w.ndim > 1:
        return with_norms if with_norms - upper > negligible else upper
    # Norms exaggerate where large columns have small coefficients; the sum of all terms' sizes takes one more pass.
    sizes = np.empty(problem.data.n_rows)
    for place, block in problem.data.rows.blocks():
        sizes[place] = block.matvec_sizes(problem.coef(w))
    with_terms = most(sizes + (abs(float(w[-1])) if problem.fit_intercept else 0.0))
    return with_terms if with_terms - upper > negligible else upper
