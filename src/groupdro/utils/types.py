"""Array types used across the package."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Floats", "Indices", "KernelLoss", "Mask"]

Array = NDArray[Any]
Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]
#: Code and parameters of a loss in kernels.
KernelLoss = tuple[int, tuple[float, float]]
