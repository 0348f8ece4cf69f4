"""The sizes that the layers are laid for: many groups, and rows that stay on disk."""

import subprocess
import sys

import numpy as np
import pytest

import groupdro as gd
from groupdro.oracle import Oracle
from tests.timing import cpu_seconds


def test_a_hundred_thousand_groups_build_and_evaluate_without_a_loop_over_groups():
    m, n_i, d = 100_000, 10, 4
    rng = np.random.default_rng(0)
    X = rng.normal(size=(m * n_i, d))
    y = np.sign(rng.normal(size=len(X)))
    groups = rng.permutation(np.repeat(np.arange(m), n_i))
    data, built = cpu_seconds(lambda: gd.GroupedData.from_arrays(X, y, groups))
    problem = gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(radius=1.0))
    oracle = Oracle(problem)
    w, q = rng.normal(size=d), rng.dirichlet(np.ones(m))
    oracle.evaluate(w, q)  # compiles
    at, evaluated = cpu_seconds(lambda: oracle.evaluate(w, q))
    _, products = cpu_seconds(lambda: (X @ w) @ X)
    losses = np.logaddexp(0, -y * (X @ w))
    expected = np.bincount(groups, losses, minlength=m) / n_i
    np.testing.assert_allclose(at.group_risks, expected, rtol=1e-12)
    print(f"{m} groups: built in {built:.2f} s, evaluated in {evaluated:.3f} s, two products {products:.3f} s")
    assert evaluated < 1.0  # a Python loop over 10^5 groups would take several seconds


MAPPED = """
import sys
import numpy as np, psutil
import groupdro as gd
from groupdro.oracle import Oracle
n, d, path, fits = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4] == "fits"
if not fits:
    import groupdro.data.dense_rows
    groupdro.data.dense_rows.memory_limit = lambda: 1e9
def used():   # where the file fits in memory, its pages stay mapped, and the system takes them back when it needs them
    info = process.memory_info()
    return info.rss - (info.shared if fits else 0)
X = np.memmap(path, np.float32, "r", shape=(n, d))
rng = np.random.default_rng(0)
y, groups = np.sign(rng.normal(size=n)), rng.integers(0, 50, n)   # not in the file's order
small = gd.GroupedData.from_arrays(np.eye(2, dtype=np.float32), [1.0, -1.0], [0, 1])
ball = gd.domains.L2Domain(radius=1.0)
Oracle(gd.Problem(small, gd.losses.Logistic(), ball)).evaluate(np.zeros(2), np.ones(2) / 2)   # compiles
process = psutil.Process()
before, peak = used(), 0
import threading
done = threading.Event()
def watch():
    global peak
    while not done.wait(0.002):
        peak = max(peak, used())
watcher = threading.Thread(target=watch); watcher.start()
data = gd.GroupedData.from_arrays(X, y, groups)
problem = gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(radius=1.0))
at = Oracle(problem).evaluate(np.full(d, 0.01), np.full(50, 0.02))
done.set(); watcher.join()
assert data.members.size == n and np.isfinite(at.group_risks).all()
print((peak - before) / 1e6)
"""


@pytest.mark.parametrize(
    "size", [pytest.param(size, marks=pytest.mark.long) for size in ("fits", "larger than memory")]
)
def test_a_mapped_file_of_two_gigabytes_evaluates_in_little_memory(tmp_path, size):
    n, d = 500_000, 1024
    path = tmp_path / "rows.f32"
    block = np.random.default_rng(0).standard_normal((10_000, d)).astype(np.float32)
    with path.open("wb") as file:
        for _ in range(n // len(block)):
            block.tofile(file)
    assert path.stat().st_size > 2e9
    command = [sys.executable, "-W", "error", "-c", MAPPED, str(n), str(d), str(path), size]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    added = float(done.stdout)
    print(
        f"mapped file of {path.stat().st_size / 1e9:.2f} GB: {added:.0f} MB of additional resident memory at the peak"
    )
    assert added < 300
