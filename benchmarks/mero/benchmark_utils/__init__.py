"""Lets the files of this benchmark find what both benchmarks share."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
