"""The methods, what is tuned of each, and the outputs by which it is judged.

A method of one's own is a Python file that adds a `Method` to `METHODS`. Files named in the environment variable
`GROUPDRO_METHODS`, separated as in `PATH`, are run when this module is imported, so that every command knows them.
"""

import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import groupdro as gd
from benchmarks.paper.balanced import AlegOfOneGroup, ALEGOfThePaper, AlSvre, Ermeg, Mpvr, Sagawa, Smd, Tsa
from benchmarks.paper.setups import Setup
from benchmarks.paper.smoothed import SmoothedLBFGS
from groupdro.solvers.aleg_theory import mean_size

__all__ = ["BUDGET", "METHODS", "OURS", "Method", "Setting", "own_methods", "register"]

#: Exponents of the tuned parameters, in the order of `Method.tuned`: a factor of `STEP[name]` each. The last step of
#: the search tries halves, such as 3.5.
Setting = tuple[float, ...]
STEP = {"multiplier": np.sqrt(10.0), "first": np.sqrt(10.0), "passes": 2.0, "length": 2.0, "balance": np.sqrt(10.0),
        "tilt": np.sqrt(10.0)}  # fmt: skip

OTHER = np.sqrt(10.0)  # of a parameter of a method of one's own

OURS = ("ALEG", "ALEM", "auto", "group SQP")
BUDGET = 40.0  # multiples of the rows, in gradient evaluations as the paper counts them
TOL = 1e-8  # relative certified gap at which our own solvers end before the budget


@dataclass(frozen=True)
class Method:
    """One method.

    Whatever its solver returns is judged as its `outputs`. "best" is the best certified pair so far, and "snapshot"
    the point of `state.evaluation` with the lowest value so far: every solver has both. For the two others the solver
    has a method of that name, which takes its state and returns a pair (w, q): "average" may return None as long as
    there is none, and "last" may not.

    Attributes
    ----------
    kind : {"gdro", "mero"}
        The problems that it solves.
    make : callable
        Returns the solver from the factors of its tuned parameters and the shape of the problem.
    tuned : tuple of str
        Parameters that are tuned, all by the same rule.
    start : tuple of int
        Exponents at which the search starts.
    outputs : tuple of str
        "average", "snapshot", "last" or "best", in the order of the tables.
    random : bool
        Whether it depends on a seed.
    like : str
        The method without the last parameter, at whose settings the search starts.
    """

    kind: str
    make: Callable[..., gd.solvers.Solver]
    tuned: tuple[str, ...] = ()
    start: Setting = ()
    outputs: tuple[str, ...] = ("best",)
    random: bool = True
    like: str = ""

    def solver(self, setting: Setting, problem: gd.Problem) -> gd.solvers.Solver:
        """Return the solver at a setting."""
        factors = {name: float(STEP.get(name, OTHER) ** e) for name, e in zip(self.tuned, setting, strict=True)}
        return self.make(problem, **factors)

    def shown(self, setting: Setting) -> str:
        """Return a setting in words."""
        factors = {name: float(STEP.get(name, OTHER) ** e) for name, e in zip(self.tuned, setting, strict=True)}
        return ", ".join(f"{name} {f:,.0f}" if f >= 100 else f"{name} {f:.3g}" for name, f in factors.items())

    def fits(self, setup: Setup) -> bool:
        """Return whether the method is run on a set-up."""
        return self.kind == setup.kind


def _paper(
    problem: gd.Problem, multiplier: float, length: float, balance: float, tilt: float = 1.0
) -> gd.solvers.Solver:
    K = max(1, round(length * float(problem.data.all_sizes.mean())))
    epochs = BUDGET / (1.0 + 2.0 * length)  # a pass and two gradients per step
    return ALEGOfThePaper(K, multiplier=multiplier, guarantee=False, balance=balance, tilt=tilt, epochs=epochs)


def _mpvr(problem: gd.Problem, multiplier: float, length: float, balance: float) -> gd.solvers.Solver:
    return Mpvr(multiplier, epoch_length=max(1, round(length * problem.n_rows / 2)), balance=balance)


def _svre(form: Any) -> Callable[..., gd.solvers.Solver]:
    def make(problem: gd.Problem, multiplier: float, length: float, balance: float = 1.0) -> gd.solvers.Solver:
        del problem
        return AlSvre(multiplier, geometry=form, inner_passes=2.0 * length, balance=balance)

    return make


def _alem(
    problem: gd.Problem, multiplier: float, first: float, passes: float, length: float, balance: float
) -> gd.solvers.Solver:
    alone = AlegOfOneGroup(multiplier * first, epoch_length=mean_size(problem))
    second = _paper(problem, multiplier, length, balance)
    return gd.solvers.ALEM(alone, second, stage_one_epochs=max(1, round(5.0 * passes)))


def _first_order_ermeg(
    problem: gd.Problem, multiplier: float, first: float, passes: float, length: float
) -> gd.solvers.Solver:
    del problem
    epochs = max(1, round(5.0 * passes))
    return Ermeg(multiplier, oracle=AlegOfOneGroup(first), oracle_tol=1e-2 * length, first_epochs=epochs)


def _tsa(problem: gd.Problem, multiplier: float, first: float, passes: float, balance: float) -> gd.solvers.Solver:
    del problem
    return Tsa(multiplier, stage_one_multiplier=multiplier * first, stage_one_passes=10.0 * passes, balance=balance)


_ALL = ("multiplier", "length", "balance")
_MERO = ("multiplier", "first", "passes", "length", "balance")
METHODS: dict[str, Method] = {
    "auto": Method("gdro", lambda _: gd.solvers.Auto()),
    "ALEG": Method("gdro", lambda _: gd.solvers.ALEG()),
    "group SQP": Method("gdro", lambda _: gd.solvers.GroupSQP("lbfgs"), random=False),
    "ALEG of the paper": Method("gdro", _paper, _ALL, (6, 0, 0), ("average", "snapshot")),
    "ALEG of the paper, alterable": Method("gdro", _paper, (*_ALL, "tilt"), (6, 0, 0, 0), ("average", "snapshot"),
                              like="ALEG of the paper"),
    "MPVR": Method("gdro", _mpvr, _ALL, (6, 0, 0), ("average", "snapshot")),
    "SMD": Method("gdro", lambda _, multiplier, balance: Smd(multiplier, balance=balance),
                  ("multiplier", "balance"), (3, 0), ("average", "last")),
    "AL-SVRE, KL": Method("gdro", _svre("kl"), _ALL, (4, 0, 0), ("snapshot",)),
    "AL-SVRE, Euclidean": Method("gdro", _svre("euclidean"), ("multiplier", "length"), (4, 0), ("snapshot",)),
    "Sagawa": Method("gdro", lambda _, multiplier, balance: Sagawa(multiplier, balance=balance),
                     ("multiplier", "balance"), (4, 0), ("average", "last")),
    "smoothed L-BFGS": Method("gdro", lambda _, multiplier, length: SmoothedLBFGS(multiplier, length=length),
                              ("multiplier", "length"), (0, 0), ("best",), random=False),
    "auto, excess risk": Method("mero", lambda _: gd.solvers.ALEM()),
    "ALEM": Method("mero", lambda _: gd.solvers.ALEM(stage_two=gd.solvers.ALEG())),
    "ALEM of the paper": Method("mero", _alem, _MERO, (6, 0, 0, 0, 0), ("average", "snapshot")),
    "TSA": Method("mero", _tsa, ("multiplier", "first", "passes", "balance"), (3, 0, 0, 0),
                  ("average", "last")),
    "ERMEG": Method("mero", lambda _, multiplier, length: Ermeg(multiplier, oracle_tol=1e-2 * length),
                    ("multiplier", "length"), (0, 0), ("average", "best"), random=False),
    "ERMEG, first-order": Method("mero", _first_order_ermeg, ("multiplier", "first", "passes", "length"),
                                 (2, 5, 0, 1), ("average", "best")),
}  # fmt: skip

_STOCK = frozenset(METHODS)


def own_methods() -> list[str]:
    """Return the names of registered methods, in the order of their registration."""
    return [name for name in METHODS if name not in _STOCK]


def register(file: str) -> None:
    """Run a file that adds methods to `METHODS`; other modules of its folder can be imported by it."""
    path, known = Path(file).resolve(), dict(METHODS)
    spec = importlib.util.spec_from_file_location(path.stem, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise SystemExit(f"GROUPDRO_METHODS names {file}, which is not a Python file.")
    sys.path.append(str(path.parent))
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if replaced := sorted(name for name in known if METHODS.get(name) is not known[name]):
        raise SystemExit(f"{file} replaces {', '.join(replaced)}; give methods of your own other names.")
    if METHODS.keys() == known.keys():
        raise SystemExit(f"{file} adds no method to METHODS of benchmarks.paper.contenders.")


for _path in filter(None, os.environ.get("GROUPDRO_METHODS", "").split(os.pathsep)):
    register(_path)
