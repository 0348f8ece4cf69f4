"""The checkpoint format of a run, written after each epoch and read when resuming."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from groupdro.certificate import Certificate
from groupdro.data import GroupedData
from groupdro.problem import GroupRisk, References
from groupdro.run.checkpoint import Checkpoints, checkpoint_errors
from groupdro.run.clock import Clock
from groupdro.run.codec import Arrays, pack, restore
from groupdro.run.result import TraceRow
from groupdro.run.solver import Solver, State
from groupdro.run.stages import Refinement
from groupdro.utils.bundle import check, dump_bundle, is_finite_array, parse_bundle

__all__ = ["SavedRun", "save_run", "whole_state"]

_PARTS = {"references", "refinement", "stages", "stage", "state", "certificate", "trace", "counters", "seconds",
          "tolerances", "single_precision"}  # fmt: skip


def save_run(
    checkpoints: Checkpoints, problem: GroupRisk, solvers: Sequence[Solver], stage: int, state: State,
    certificate: Certificate, trace: Sequence[TraceRow], clock: Clock, *, tolerances: tuple[float, float],
    found_references: bool, refinement: Refinement | None,
) -> None:  # fmt: skip
    """Write a checkpoint of a run, off the clock."""
    with clock.stopped():
        arrays: Arrays = {}
        run = {
            "references": pack(vars(problem.references) if found_references else None, arrays),
            "refinement": pack(None if refinement is None else refinement.saved(), arrays),
            "stages": _names(solvers),
            "stage": stage,
            "state": pack(state, arrays),
            "certificate": pack(certificate.saved(), arrays),
            "trace": [list(vars(row).values()) for row in trace],
            "counters": [int(count) for count in clock.counts.counts],
            "seconds": max(clock.seconds, 0.0),
            "tolerances": list(tolerances),
            "single_precision": problem.single_precision,
        }
        checkpoints.write(state.epoch, run, arrays)


def whole_state(state: State, data: GroupedData) -> State:
    """Return a state with the numbers of all workers' members; they must call this together."""
    whole: dict[str, Any] = {name: data.of_all_members(getattr(state, name)) for name in state.by_member}
    return replace(state, **whole) if whole else state


@dataclass(frozen=True)
class SavedRun:
    """The content of the newest checkpoint of a directory."""

    run: dict[str, Any]
    arrays: Arrays

    @classmethod
    def latest(
        cls, checkpoints: Checkpoints | None, problem: GroupRisk, tolerances: tuple[float, float]
    ) -> "SavedRun | None":
        """Return the newest checkpoint, which the first worker reads and sends to all others."""
        content = b""
        if checkpoints is not None:
            found = checkpoints.latest()
            with checkpoint_errors():
                content = b"" if found is None else dump_bundle(*found)
        content = problem.data.share(content)
        if not content:
            return None
        with checkpoint_errors():
            run, arrays = parse_bundle(content)
            _check_run(run)
            saved = cls(run, arrays)
            rougher = any(now < before for now, before in zip(tolerances, run["tolerances"], strict=True))
            # References found for a looser tolerance, and never refined, would keep the gap above a tighter one.
            fixed = saved.references(problem) is not None and saved.refinement() is None
            return None if rougher and fixed else saved

    @classmethod
    def of(cls, run: dict[str, Any]) -> "SavedRun":
        """Return a run nested in another run's checkpoint, such as the run for a single group."""
        arrays: Arrays = {}
        check(
            set(run) == {"state", "certificate", "counters", "seconds", "single_precision"},
            "a nested run has unexpected fields",
        )
        packed = {name: pack(run[name], arrays) for name in ("state", "certificate")}
        whole = dict.fromkeys(_PARTS) | run | packed | {"stage": 0, "trace": [], "tolerances": [0.0, 0.0]}
        _check_run(whole)
        return cls(whole, arrays)

    def has_stages(self, solvers: Sequence[Solver]) -> bool:
        """Return whether the run had these solvers. With another number of workers, the choice may be another one."""
        return self.run.get("stages") in (None, _names(solvers))  # older files do not say

    def references(self, problem: GroupRisk) -> References | None:
        """Return the references found by the run, after checking them."""
        found = restore(None, self.run["references"], self.arrays)
        if found is None:
            return None
        m = problem.n_groups
        shapes = {"upper": (m,), "lower": (m,), "models": (m, *problem.shape), "centre": (m,)}
        check(isinstance(found, dict) and set(found) == set(shapes), "its references lack fields")
        for name, shape in shapes.items():
            fits = is_finite_array(found[name], shape) or (name in ("models", "centre") and found[name] is None)
            check(fits, "its references do not fit")
        return References(**found)

    def refinement(self) -> Any:
        """Return the saved state of the references' refinement. The preparation that made it must check it."""
        return restore(None, self.run["refinement"], self.arrays)

    def resume(
        self, solver: Solver, problem: GroupRisk, seed: int, certificate: Certificate, clock: Clock, *, same: bool
    ) -> tuple[State, list[TraceRow]]:
        """Return the state and the trace, and restore certificate and clock.

        If it is not the same solver, its state starts at the saved point.
        """
        problem.single_precision &= self.run["single_precision"]
        with problem.uncounted():
            state = self._state(solver, problem, seed) if same else self._moved_state(solver, problem, seed)
            certificate.load(restore(None, self.run["certificate"], self.arrays))
        clock.set(self.run["seconds"], self.run["counters"])
        return state, [TraceRow(*row) for row in self.run["trace"]]

    def _state(self, solver: Solver, problem: GroupRisk, seed: int) -> State:
        """Return the saved state."""
        begun = whole_state(solver.init(problem, seed), problem.data)
        state: State = restore(begun, self.run["state"], self.arrays)
        for name in state.by_member:
            setattr(state, name, problem.data.of_own_members(getattr(state, name)))
        solver.restore_state(problem, state)
        return state

    def _moved_state(self, solver: Solver, problem: GroupRisk, seed: int) -> State:
        """Return a first state of another solver, at the saved point."""
        old = restore(None, self.run["state"], self.arrays)
        check(isinstance(old, dict) and isinstance(old.get("evaluation"), dict), "its state has no point")
        w, q = (old["evaluation"].get(name) for name in ("w", "q"))
        fits = is_finite_array(w, problem.shape) and is_finite_array(q, (problem.n_groups,))
        check(fits and _is_count(old.get("epoch")), "its point does not fit")
        state: State = solver.init(problem.starting_at(w, q), seed)
        state.epoch = state.begun = old["epoch"]
        state.handed_over = f"{old.get('handed_over', '')}; resumed with another number of workers"
        return state


def _names(solvers: Sequence[Solver]) -> list[str]:
    return [type(solver).__qualname__ for solver in solvers]


def _check_run(run: dict[str, Any]) -> None:
    """Refuse content of the wrong form. Solver and certificate check their own parts."""
    check(set(run) | {"stages"} == _PARTS, "its run has unexpected fields")
    check(_is_count(run["stage"]), "its stage is not a count")
    lists = all(isinstance(run[name], list) for name in ("trace", "counters", "tolerances"))
    check(lists and len(run["counters"]) == 3 and len(run["tolerances"]) == 2, "its counters or tolerances do not fit")
    check(all(_is_count(count) for count in run["counters"]), "a counter is not a count")
    check(isinstance(run["single_precision"], bool), "single_precision is not a boolean")
    numbers = [run["seconds"], *run["tolerances"]]
    check(all(_is_number(one) and 0 <= one < np.inf for one in numbers), "its seconds or tolerances are not numbers")
    for row in run["trace"]:
        whole = isinstance(row, list) and len(row) == 7 and all(_is_count(row[place]) for place in (0, 2, 3))
        check(whole and all(_is_number(row[place]) for place in (1, 4, 5, 6)), "its trace is malformed")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_number(value: Any) -> bool:
    return type(value) is float or _is_count(value)
