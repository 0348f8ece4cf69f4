"""The solvers that runs are drawn from, and the problems that each takes."""

import groupdro as gd

__all__ = ["SOLVERS", "solvers_for"]

SOLVERS = {
    "auto": lambda: gd.solvers.Auto(),
    "aleg": lambda: gd.solvers.ALEG(),
    "aleg without scaling": lambda: gd.solvers.ALEG(scale_columns=False, rows_per_step=1),
    "sqp": lambda: gd.solvers.GroupSQP(),
    "sqp lbfgs": lambda: gd.solvers.GroupSQP("lbfgs"),
    "theory": lambda: gd.solvers.ALEGTheory(guarantee=False),
    "alem": lambda: gd.solvers.ALEM(),
    "alem of theory": lambda: gd.solvers.ALEM(
        gd.solvers.ALEGTheory(guarantee=False), gd.solvers.ALEGTheory(guarantee=False)
    ),
    "alem with aleg": lambda: gd.solvers.ALEM(stage_two=gd.solvers.ALEG()),
    "alem with sqp": lambda: gd.solvers.ALEM(stage_two=gd.solvers.GroupSQP()),
    "alem in haste": lambda: gd.solvers.ALEM(stage_one_passes=2.0),
}
_EUCLIDEAN = ("sqp", "sqp lbfgs", "alem with sqp")
_REGRET = ("alem", "alem of theory", "alem with aleg", "alem with sqp", "alem in haste")


def solvers_for(loss: str, domain: str, objective: str, storage: str, *, intercept: bool) -> list[str]:
    """Return the names of the solvers that take such a problem."""
    names = [name for name in SOLVERS if (name in _REGRET) == (objective == "regret")]
    return [name for name in names if not (domain == "simplex" and name in _EUCLIDEAN)]
