"""The installed torch, or an error that names the extra which installs it.

The modules of this package take torch from here. Inside of them, ``import torch`` is PyTorch too: imports are absolute.
"""

from groupdro.utils.optional import import_extra

__all__ = ["nn", "torch"]

torch = import_extra("torch", "torch")
nn = import_extra("torch.nn", "torch")
