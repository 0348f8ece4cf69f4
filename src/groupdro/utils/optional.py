"""Packages that only some parts need."""

import importlib
from typing import Any

__all__ = ["import_extra"]


def import_extra(module: str, extra: str) -> Any:
    """Import a module that an optional dependency brings.

    Parameters
    ----------
    module : str
        Its full name.
    extra : str
        The extra of this package that installs it.

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
