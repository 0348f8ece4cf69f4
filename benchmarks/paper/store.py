"""Where runs are kept: every finished one in a folder outside git, what the page needs in small files within."""

import os
from pathlib import Path

__all__ = ["CACHE", "RESULTS"]

RESULTS = Path(__file__).parents[1] / "results"
CACHE = Path(os.environ.get("GROUPDRO_RUNS", Path(__file__).parents[1] / ".cache" / "paper"))
