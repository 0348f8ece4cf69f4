"""Imports of optional dependencies."""

import importlib
from typing import Any

__all__ = ["import_extra"]


def import_extra(module: str, extra: str) -> Any:
    """Import a module of an optional dependency, or say how to install it.

    Parameters
    ----------
    module : str
        Full name of the module.
    extra : str
        The extra of groupdro that installs it.

    Returns
    -------
    module
        The module.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise ImportError(f'{name} cannot be imported ({error}): pip install "groupdro[{extra}]".') from error
