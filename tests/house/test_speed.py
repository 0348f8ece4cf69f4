"""Times of two trees are taken in turns, and compared."""

import pytest

from tests.house.speed import main, summary, time_import, time_item

FAKE = """
import time
class GroupDROClassifier:
    upper_bound_ = {value}
    def __init__(self, **options): pass
    def fit(self, X, y, groups):
        end = time.process_time() + {seconds}
        while time.process_time() < end: pass
        return self
"""


@pytest.fixture
def trees(tmp_path):
    """Two source directories of which the second takes three times as long."""
    for name, seconds in (("before", 0.5e-3), ("after", 1.5e-3)):
        (tmp_path / name / "groupdro").mkdir(parents=True)
        (tmp_path / name / "groupdro" / "__init__.py").write_text(FAKE.format(value=1.0, seconds=seconds))
    return tmp_path / "before", tmp_path / "after"


@pytest.mark.long
def test_a_slower_tree_has_a_larger_ratio(trees):
    found = summary(time_item("small", trees, pairs=1, rounds=2))
    assert 2.0 < found["cpu"] < 4.5
    assert found["same"]
    assert 0.5e-3 <= found["before"] < 1e-3


def test_the_best_of_each_counts_and_other_results_are_noted():
    times = [(2.0, 3.0, 1.0), (1.0, 4.0, 1.0)], [(3.0, 6.0, 1.1), (2.0, 9.0, 1.1)]
    assert summary(times) == {"before": 1.0, "after": 2.0, "cpu": 2.0, "wall": 2.0, "same": False}


def test_imports_are_timed(trees):
    (trees[1] / "groupdro" / "__init__.py").write_text(
        "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
    )
    before, after = time_import(trees, rounds=2)
    assert len(before) == len(after) == 2
    assert min(time[0] for time in after) >= 0.45
    assert summary((before, after))["cpu"] > 1.0


@pytest.mark.long
def test_a_process_that_breaks_down_ends_the_measurement(trees):
    (trees[1] / "groupdro" / "__init__.py").write_text("raise SystemExit(3)")
    with pytest.raises(RuntimeError, match="the process ended with 3"):
        time_item("small", trees, pairs=1, rounds=1)


@pytest.mark.parametrize(("item", "told"), [("import", "holds no groupdro"), ("none", "there is no item 'none'")])
def test_what_cannot_be_timed_is_refused(tmp_path, capsys, item, told):
    with pytest.raises(SystemExit):
        main([str(tmp_path), str(tmp_path), item])
    assert told in capsys.readouterr().err
