"""The installed torch, or an error that names the extra to install.

The modules of this subpackage import torch from here. ``import torch`` inside them is also PyTorch: imports are
absolute.
"""

from groupdro.utils.optional import import_extra

__all__ = ["nn", "torch"]

torch = import_extra("torch", "torch")
nn = import_extra("torch.nn", "torch")
