"""Sets that cannot be subclassed."""

from typing import Any

__all__ = ["refuse_subclass"]


def refuse_subclass(cls: type, **_: Any) -> None:
    """Refuse subclasses of a set that compiled code knows by its numbers alone and would treat like the parent."""
    parent = cls.__mro__[1].__name__
    raise TypeError(f"{parent} cannot be subclassed; subclass Domain or WeightSet instead.")
