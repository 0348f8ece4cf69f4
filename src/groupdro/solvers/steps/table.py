"""The implementations of steps, fastest first, and the loop over an epoch."""

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from groupdro.data import BatchPlan, GroupedData
from groupdro.solvers.steps.fused import FusedSteps
from groupdro.solvers.steps.inner_loop import InnerLoop, Steps
from groupdro.solvers.steps.lazy import LazySteps
from groupdro.solvers.steps.proximal import ProximalSteps
from groupdro.solvers.steps.readable import ReadableSteps
from groupdro.solvers.steps.spectral import SpectralSteps
from groupdro.utils.threads import one_blas_thread
from groupdro.utils.types import Indices

__all__ = ["BATCHES", "make_steps", "steps_of"]

#: Steps that draw several members each.
BATCHES: tuple[type[Steps], ...] = (FusedSteps, LazySteps, ProximalSteps, SpectralSteps, ReadableSteps)

_SECONDS_PER_PIECE = 0.05  # an interrupt can arrive only between pieces
_SECONDS_PER_VALUE = 5e-10
_STEPS_PER_STRETCH = 64


def steps_of(loop: InnerLoop, table: Sequence[type[Steps]]) -> Steps:
    """Return the first implementation in a table that fits a loop."""
    return next(form for form in table if form.fits(loop))(loop)


def make_steps(
    loop: InnerLoop, plan: BatchPlan, n_steps: int, rng: np.random.Generator, *, replacement: bool = True
) -> None:
    """Make steps on fresh draws, in pieces short enough for an interrupt to arrive."""
    with one_blas_thread():
        _make_steps(loop, plan, n_steps, rng, replacement=replacement)


def _make_steps(loop: InnerLoop, plan: BatchPlan, n_steps: int, rng: np.random.Generator, *, replacement: bool) -> None:
    data = loop.problem.data
    steps = steps_of(loop, BATCHES)
    seconds = (len(plan.groups) * (steps.entries + 50.0) + 10.0 * loop.problem.n_groups) * _SECONDS_PER_VALUE
    piece = max(1, int(_SECONDS_PER_PIECE / seconds))
    if not data.in_memory:
        piece = max(piece, _STEPS_PER_STRETCH)  # so that rows read together are used together
    whole = None if replacement else plan.permute(data, n_steps, rng)
    pieces = (
        whole[start:stop] if whole is not None else plan.draw(data, stop - start, rng)
        for start, stop in itertools.pairwise([*range(0, n_steps, piece), n_steps])
    )
    # Steps that are too long may overflow. The ratio is then not finite, which tells the solver.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for members in pieces if data.in_memory else _reading_ahead(data, pieces):
            steps.run(plan, members)
        steps.flush()


def _reading_ahead(data: GroupedData, pieces: Iterator[Indices]) -> Iterator[Indices]:
    """Yield pieces while the system reads the next one's rows. The request itself may take as long as reading."""
    with ThreadPoolExecutor(1) as reader:
        members = None
        for ahead in pieces:
            reading = reader.submit(data.read_ahead, ahead)
            if members is not None:
                yield members
            reading.result()
            members = ahead
        if members is not None:
            yield members
