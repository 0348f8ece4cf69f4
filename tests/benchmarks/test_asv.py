"""The fits that asv times reach their tolerance; the quick ones stand for all."""

import pytest

fits = pytest.importorskip("benchmarks.asv.fits", reason="needs the folders of the repository")


@pytest.mark.parametrize("name", ["4,000 x 5", "blend", "excess risk", "Huber loss"])
def test_a_timed_fit_converges(name):
    timed = fits.Fits()
    timed.setup(name)
    assert 0 < timed.track_passes(name) < 100
