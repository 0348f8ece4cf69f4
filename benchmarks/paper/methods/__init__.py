"""The methods that the paper compares with, as solvers of one's own: objects for `groupdro.solve` and `solver=`."""

from benchmarks.paper.methods.al_svre import ALSVRE
from benchmarks.paper.methods.ermeg import ERMEG
from benchmarks.paper.methods.mpvr import MPVR
from benchmarks.paper.methods.smd import SMD
from benchmarks.paper.methods.tsa import TSA

__all__ = ["ALSVRE", "ERMEG", "MPVR", "SMD", "TSA"]
