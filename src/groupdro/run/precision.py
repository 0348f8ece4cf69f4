"""When a run switches from single precision to float64."""

from groupdro.certificate import Certificate
from groupdro.certificate.rounding import gradient_error, rounding_slack
from groupdro.oracle import Oracle
from groupdro.run.solver import State

__all__ = ["raise_precision"]


def raise_precision(oracle: Oracle, certificate: Certificate, state: State, wanted: float) -> bool:
    """Switch to float64 once the allowance for rounding is most of the gap, or is all that keeps the run from ending.

    Parameters
    ----------
    oracle : Oracle
        The oracle of the problem, whose precision changes at most once in a run.
    certificate : Certificate
        The best bounds so far, including those of the last pass.
    state : State
        State of the solver.
    wanted : float
        The gap at which the run may end.

    Returns
    -------
    bool
        Whether to repeat the last pass, because the run may end with it.
    """
    at = state.evaluation
    gap = certificate.gap
    if at.single is None:
        oracle.use_double()  # passes in different precisions must not be compared
        return False
    reach = certificate.domain.reach(oracle.problem.coef(at.gradient))
    allowed = float(at.single.allowance.max()) + rounding_slack(gradient_error(oracle.problem, at.mass), reach, 0.0)
    if not state.stalled and (gap <= wanted or gap - allowed > max(wanted, allowed)):
        return False
    oracle.use_double()
    return state.stalled or gap - allowed <= wanted
