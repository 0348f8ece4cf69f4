import os
import tempfile

# Numba's cache does not notice an edited helper in another file, so every run of the tests starts from an empty one.
# Set before anything imports the package; the workers of pytest-xdist inherit it.
os.environ.setdefault("NUMBA_CACHE_DIR", tempfile.mkdtemp(prefix="groupdro-numba-"))
