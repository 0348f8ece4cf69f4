import os
import sys
import tempfile

import hypothesis

# Numba's cache does not notice an edited helper in another file, so every run of the tests starts from an empty one.
# Set before anything imports the package; the workers of pytest-xdist inherit it.
os.environ.setdefault("NUMBA_CACHE_DIR", tempfile.mkdtemp(prefix="groupdro-numba-"))

# The clock of a busy machine must not decide whether an example passes or is drawn fast enough. The gate draws the same
# examples for the same code, so that a change is refused for what it does; `pytest --hypothesis-profile explore` looks
# for new ones.
_quiet = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("explore", _quiet)
hypothesis.settings.register_profile("gate", _quiet, derandomize=True)
hypothesis.settings.load_profile("gate")


def pytest_runtest_teardown():
    """Close what a test has drawn, for the tests after it in the same process."""
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")
