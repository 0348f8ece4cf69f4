"""When a run that began in single precision goes on in float64."""

from groupdro.certificate import Certificate
from groupdro.certificate.fenchel import rounding_slack
from groupdro.problem import GroupRisk
from groupdro.run.solver import State

__all__ = ["raise_precision"]


def raise_precision(problem: GroupRisk, certificate: Certificate, state: State, wanted: float) -> bool:
    """Go on in float64 once what bounds allow for rounding is most of the gap, or all that keeps a run from its end.

    Parameters
    ----------
    problem : GroupRisk
        The problem, whose precision changes at most once in a run.
    certificate : Certificate
        The best bounds so far, that of the last pass included.
    state : State
        Where the solver stands.
    wanted : float
        The gap at which the run may end.

    Returns
    -------
    bool
        Whether the last pass is worth being made again, because the run may end with it.
    """
    at, gap = state.evaluation, certificate.gap
    if at.single is None:
        problem.single_precision = False  # one kind of pass must not be compared with another
        return False
    reach = certificate.domain.reach(problem.coef(at.gradient))
    allowed = float(at.single.allowance.max()) + rounding_slack(problem, at.mass, reach, 0.0)
    if not state.stalled and (gap <= wanted or gap - allowed > max(wanted, allowed)):
        return False
    problem.single_precision = False
    return state.stalled or gap - allowed <= wanted
