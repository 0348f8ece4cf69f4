"""Mirror prox among the methods of the paper: a file for GROUPDRO_METHODS."""

from benchmarks.paper.contenders import METHODS, Method
from mirror_prox import MirrorProx


def make(_, balance=1.0):
    """Return the solver for a problem, with a tuned step of the group weights."""
    return MirrorProx(balance=10.0 * balance)


METHODS["mirror prox"] = Method("gdro", make, tuned=("balance",), start=(0,))
