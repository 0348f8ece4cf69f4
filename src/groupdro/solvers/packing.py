"""Values of a run as JSON and arrays, and back."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from groupdro.geometry import Spectral

__all__ = ["Arrays", "pack", "restore"]

Arrays = dict[str, NDArray[Any]]


def pack(value: Any, arrays: Arrays) -> Any:
    """Return JSON for a value whose arrays are put aside; objects that a run makes anew are left out as None.

    Parameters
    ----------
    value : object
        Numbers, text, arrays, lists and mappings of them, and dataclasses of all these. Of a pass over the data only
        the point is kept.
    arrays : dict
        Gets the arrays.

    Returns
    -------
    object
        What JSON can hold.
    """
    if isinstance(value, np.ndarray):
        name = f"a{len(arrays)}"
        arrays[name] = value
        return {"array": name}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    if isinstance(value, list | tuple):
        return {"list": [pack(part, arrays) for part in value]}
    if isinstance(value, Mapping):
        return {"mapping": {key: pack(part, arrays) for key, part in value.items()}}
    if hasattr(value, "point_fields"):
        return {"mapping": {name: pack(getattr(value, name), arrays) for name in value.point_fields}}
    if isinstance(value, Spectral) or _is_record(value):
        return {"mapping": {f.name: pack(getattr(value, f.name), arrays) for f in fields(value)}}
    return None


def restore(old: Any, packed: Any, arrays: Arrays) -> Any:
    """Return the value that was packed, of the kind that a fresh run has in its place.

    Parameters
    ----------
    old : object
        What a fresh run has; kept where nothing was packed, changed where it can be.
    packed : object
        JSON of `pack`.
    arrays : dict
        The arrays.

    Returns
    -------
    object
        The value.
    """
    if packed is None:
        return old
    ((kind, content),) = packed.items()
    if kind == "array":
        return arrays[content]
    if kind == "value":
        return content
    if kind == "list":
        parts = [restore(None, part, arrays) for part in content]
        return tuple(parts) if isinstance(old, tuple) else parts
    if _is_record(old):
        for key, part in content.items():
            setattr(old, key, restore(getattr(old, key), part, arrays))
        return old
    whole = {key: restore(None, part, arrays) for key, part in content.items()}
    if isinstance(old, Spectral) or (old is None and "directions" in whole):
        return Spectral(**whole)
    return replace(old, **whole) if is_dataclass(old) and not isinstance(old, type) else whole


def _is_record(value: Any) -> bool:
    return is_dataclass(value) and not getattr(type(value), "__dataclass_params__").frozen  # noqa: B009
