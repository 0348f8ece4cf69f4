"""Sets that cannot be extended."""

from typing import Any

__all__ = ["refuse_subclass"]


def refuse_subclass(cls: type, **_: Any) -> None:
    """Refuse to extend a set that compiled code knows by its numbers: it would go on with these alone."""
    parent = cls.__mro__[1].__name__
    raise TypeError(f"{parent} cannot be extended: extend Domain or WeightSet instead.")
