"""What only methods of the paper require of a problem."""

from groupdro.solvers import Requirement

__all__ = ["BALL", "ONE_MACHINE", "OWN_REFERENCES"]

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

OWN_REFERENCES = Requirement(
    what="a problem without references",
    holds=lambda problem: not problem.regret,
    remedy="it finds every group's own minimum itself; with your own references use 'alem'",
)
