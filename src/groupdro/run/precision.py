"""When a run switches from single precision to float64."""

from groupdro.certificate import Certificate
from groupdro.certificate.rounding import gradient_error, rounding_slack
from groupdro.oracle import Oracle
from groupdro.run.solver import State

__all__ = ["raise_precision"]

_ACTUAL = 0.1  # share of the proven rounding error to expect; errors of random signs in sums of 256 are a sixteenth


def raise_precision(oracle: Oracle, certificate: Certificate, state: State, wanted: float) -> bool:
    """Switch to float64 once its allowance is all that keeps the run from ending, or rounding may misdirect steps.

    Parameters
    ----------
    oracle : Oracle
        The oracle of the problem, whose precision changes at most once in a run.
    certificate : Certificate
        The best bounds so far.
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
    if at.single is None:
        oracle.use_double()  # passes in different precisions must not be compared
        return False
    expected = certificate.expected_gap(at)
    reach = certificate.domain.reach(oracle.problem.coef(at.gradient))
    allowed = float(at.single.allowance.max()) + rounding_slack(gradient_error(oracle.problem, at.mass), reach, 0.0)
    enough = expected + allowed <= wanted
    if not state.stalled and (enough or expected > max(wanted, _ACTUAL * allowed)):
        return False
    oracle.use_double()
    return state.stalled or expected <= wanted
