import contextlib
import hashlib
import multiprocessing
import os
import subprocess
import sys
import threading

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

import groupdro as gd
from groupdro.oracle import Oracle
from groupdro.oracle.groups import evaluate_groups
from groupdro.utils.threads import map_threads, n_threads, one_blas_thread


def make_problem(n=20_000, d=40):
    rng = np.random.default_rng(0)
    data = gd.GroupedData.from_arrays(rng.normal(size=(n, d)), np.sign(rng.normal(size=n)), np.arange(n) % 5)
    return gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(radius=1.0))


def gradient_bytes(_=None):
    return Oracle(make_problem()).evaluate(np.linspace(-1, 1, 40), np.full(5, 0.2)).gradient.tobytes()


def class_bytes():
    rng = np.random.default_rng(0)
    n = 50_000
    data = gd.GroupedData.from_arrays(rng.normal(size=(n, 60)), rng.integers(0, 3, n), np.arange(n) % 5)
    problem = gd.Problem(data, gd.losses.Softmax(), gd.domains.L2Domain(radius=1.0))
    oracle = Oracle(problem)
    w, q = rng.normal(size=problem.shape), np.full(5, 0.2)
    with threadpool_limits(1, user_api="blas"):  # the blocks are what is compared
        at, groups = oracle.evaluate(w, q), evaluate_groups(oracle, w, q)
    parts = at.gradient, at.group_risks, at.margins, groups.gradients, groups.hessian, groups.group_risks
    return b"".join(np.ascontiguousarray(part).tobytes() for part in parts)


def test_results_come_in_order():
    assert map_threads(lambda k: k * k, 20) == [k * k for k in range(20)]


def digest():
    return hashlib.sha256(gradient_bytes() + class_bytes()).hexdigest()


def test_the_number_of_threads_changes_no_bit_of_passes_and_their_blocks():
    others = [threads for threads in (4, 1) if threads != n_threads()]
    for threads in others[:1]:
        done = subprocess.run(
            [sys.executable, "-c", "from tests.utils.test_threads import digest; print(digest())"],
            env={**os.environ, "OMP_NUM_THREADS": str(threads)}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.strip() == digest()


def test_an_interrupt_does_not_wait_for_compiled_code():
    script = """
import os, signal, threading
from groupdro.utils.threads import interruptibly
signal.signal(signal.SIGINT, signal.default_int_handler)
assert interruptibly(lambda: 7) == 7
out, ended = threading.Event(), []

def work():
    os.kill(os.getpid(), signal.SIGINT)
    out.wait(120.0)
    ended.append(True)

try:
    interruptibly(work)
except KeyboardInterrupt:
    print("interrupted", ended)
out.set()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "interrupted []\n"


def test_many_python_threads_may_pass_at_once():
    problem, expected = make_problem(), gradient_bytes()
    out = [None] * 16

    def work(k):
        out[k] = Oracle(problem).evaluate(np.linspace(-1, 1, 40), np.full(5, 0.2)).gradient.tobytes()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(out) == {expected}


def test_a_forked_child_makes_threads_of_its_own(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    expected = gradient_bytes()  # the parent's pool exists now
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(gradient_bytes, range(4), chunksize=1) == [expected] * 4


def test_the_environment_limits_the_threads(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert n_threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert n_threads() >= 1


def blas_threads():
    """Threads of every BLAS that is loaded; some are built without."""
    return [entry["num_threads"] for entry in threadpool_info() if entry["user_api"] == "blas"]


def test_blas_has_one_thread_until_the_last_who_asked_is_done():
    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        assert max(before) == 2
        first, second = one_blas_thread(), one_blas_thread()
        first.__enter__()
        second.__enter__()
        assert max(blas_threads()) == 1
        first.__exit__(None, None, None)
        assert max(blas_threads()) == 1
        second.__exit__(None, None, None)
        assert blas_threads() == before
        with contextlib.suppress(KeyError), one_blas_thread():
            raise KeyError
        assert blas_threads() == before


def test_a_run_works_with_one_thread_of_blas_and_gives_the_others_back():
    seen = []
    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        gd.solve(make_problem(), "sqp", tol=1e-2, callbacks=[lambda _: seen.append(max(blas_threads()))])
        assert blas_threads() == before
    assert seen
    assert set(seen) == {1}
