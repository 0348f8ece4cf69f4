"""Kernels give the same bits wherever their arrays lie in memory, and whichever of their callers was compiled first."""

import ast
import inspect
import pkgutil
import textwrap
from importlib import import_module

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher

import groupdro.kernels
from groupdro.kernels import mirror


def kernels():
    for module in pkgutil.iter_modules(groupdro.kernels.__path__):
        name = f"groupdro.kernels.{module.name}"
        for kernel in vars(import_module(name)).values():
            if isinstance(kernel, Dispatcher) and kernel.py_func.__module__ == name:
                yield pytest.param(kernel, id=f"{module.name}.{kernel.py_func.__name__}")


def adds_up_and_stores(loop):
    adds = any(isinstance(part, ast.AugAssign) and isinstance(part.target, ast.Name) for part in ast.walk(loop))
    targets = [
        target
        for part in ast.walk(loop)
        for target in (getattr(part, "targets", None) or [getattr(part, "target", None)])
    ]
    return adds and any(isinstance(target, ast.Subscript) for target in targets)


@pytest.mark.parametrize("kernel", list(kernels()))
def test_no_loop_both_stores_and_adds_up_in_an_order_of_its_own(kernel):
    assert "fastmath" in kernel.targetoptions  # else it is that of the caller that is compiled first
    if not kernel.targetoptions["fastmath"]:
        return
    tree = ast.parse(textwrap.dedent(inspect.getsource(kernel.py_func)))
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While)]
    innermost = [loop for loop in loops if sum(isinstance(n, ast.For | ast.While) for n in ast.walk(loop)) == 1]
    assert not [loop.lineno for loop in innermost if adds_up_and_stores(loop)]


def softmax(logits, weights, caps, steps):
    del caps, steps
    mirror.softmax_into(logits, weights)


def capped(logits, weights, caps, steps):
    del steps
    mirror.capped_softmax(logits, caps, weights)


def descend(logits, weights, caps, steps):
    mirror.descend(logits, caps, steps, 0.1, 0.05, logits.size, weights)


@pytest.mark.parametrize("run", [softmax, capped, descend])
@pytest.mark.parametrize("size", [4, 7, 33])
def test_the_place_of_arrays_changes_no_bit(run, size):
    rng = np.random.default_rng(size)
    values, steps = rng.normal(size=size), rng.random(size)
    caps = 1.5 * rng.random(size) / (0.4 * size)
    seen = set()
    for between in range(20):
        memory = np.empty(4 * size + 3 * between)
        places = [memory[k * (size + between) : k * (size + between) + size] for k in range(4)]
        places[0][:], places[2][:], places[3][:] = values, caps, steps
        for order in ((0, 1), (1, 0)):  # what is set before or behind what is read
            first, second = places[order[0]], places[order[1]]
            first[:] = values
            run(first, second, places[2], places[3])
            seen.add(second.tobytes())
    assert len(seen) == 1
