"""What only methods of the paper require of a problem."""

from groupdro.solvers import Requirement

__all__ = ["BALL", "ONE_MACHINE", "OWN_MINIMA"]

BALL = Requirement(
    what="a ball or an L2 penalty (L2Domain)",
    holds=lambda problem: problem.domain.ball is not None,
    remedy="other domains are solved by 'auto', 'sqp', 'aleg' and 'aleg-theory'",
)

ONE_MACHINE = Requirement(
    what="all rows in one process",
    holds=lambda problem: problem.data.is_whole,
    remedy="over several workers use 'auto', 'aleg', 'sqp' or 'alem'",
)

OWN_MINIMA = Requirement(
    what="a problem without group minima",
    holds=lambda problem: problem.group_minima is None,
    remedy="it finds every group's own minimum itself; with minima of your own use 'alem'",
)
