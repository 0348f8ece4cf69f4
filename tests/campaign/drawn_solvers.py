"""The solvers that runs are drawn from, and the problems that each takes."""

import groupdro as gd

__all__ = ["SOLVERS", "solvers_for"]

SOLVERS = {
    "auto": lambda: gd.Auto(),
    "aleg": lambda: gd.ALEG(),
    "aleg without scaling": lambda: gd.ALEG(scale_columns=False, rows_per_step=1),
    "sqp": lambda: gd.GroupSQP(),
    "sqp lbfgs": lambda: gd.GroupSQP("lbfgs"),
    "quadratic": lambda: gd.Quadratic(),
    "theory": lambda: gd.ALEGTheory(guarantee=False),
    "alem": lambda: gd.ALEM(),
    "alem of theory": lambda: gd.ALEM(gd.ALEGTheory(guarantee=False), gd.ALEGTheory(guarantee=False)),
    "alem with aleg": lambda: gd.ALEM(stage_two=gd.ALEG()),
    "alem with sqp": lambda: gd.ALEM(stage_two=gd.GroupSQP()),
    "alem in haste": lambda: gd.ALEM(stage_one_passes=2.0),
}
_EUCLIDEAN = ("sqp", "sqp lbfgs", "alem with sqp")
_REGRET = ("alem", "alem of theory", "alem with aleg", "alem with sqp", "alem in haste")


def solvers_for(loss: str, domain: str, objective: str, storage: str, *, intercept: bool) -> list[str]:
    """Return the names of the solvers that take such a problem."""
    names = [name for name in SOLVERS if (name in _REGRET) == (objective == "regret") and name != "quadratic"]
    if loss == "squared" and "csr" not in storage and not intercept and objective != "regret" and domain != "simplex":
        names.append("quadratic")
    return [name for name in names if not (domain == "simplex" and name in _EUCLIDEAN)]
