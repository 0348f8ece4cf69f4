"""Conversion of a run's values to JSON and arrays, and back."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from groupdro.geometry import Spectral
from groupdro.utils.bundle import BundleError, check
from groupdro.utils.types import Array

__all__ = ["Arrays", "pack", "restore"]

Arrays = dict[str, Array]

_LARGEST_COUNT = 2**53  # for epochs, steps and so on: the largest count that a float represents exactly


def pack(value: Any, arrays: Arrays) -> Any:
    """Return a value as JSON, with its arrays stored separately. Objects that a run recreates become None.

    Parameters
    ----------
    value : object
        Numbers, text, arrays, lists and mappings of these, and dataclasses of them all. Of an evaluation, only the
        point is kept.
    arrays : dict
        Receives the arrays.

    Returns
    -------
    object
        A value that JSON can represent.
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
    """Return a packed value, checked against its counterpart in a fresh run.

    Parameters
    ----------
    old : object
        The counterpart in a fresh run. It is kept where nothing was packed, and updated in place if possible. The
        packed value must have its type and shape, because compiled loops do not check array bounds. If None, any value
        is accepted and the caller must check it.
    packed : object
        JSON from `pack`.
    arrays : dict
        The arrays.

    Returns
    -------
    object
        The restored value.

    Raises
    ------
    BundleError
        If the value does not fit.
    """
    try:
        return _restore(old, packed, arrays, anything=old is None)
    except BundleError:
        raise
    except Exception as error:  # malformed JSON can make the code below raise anything
        raise BundleError(f"{type(error).__name__}: {error}") from None


def _restore(old: Any, packed: Any, arrays: Arrays, *, anything: bool) -> Any:
    if packed is None:
        return old
    ((kind, content),) = packed.items()
    if kind == "mapping":
        return _restore_mapping(old, content, arrays, anything=anything)
    if kind == "list":
        parts = [_restore(None, part, arrays, anything=True) for part in content]
        new: Any = tuple(parts) if isinstance(old, tuple) else parts
    else:
        check(kind in ("array", "value"), f"it has a value of unknown kind {kind!r}")
        new = arrays[content] if kind == "array" else content
    check(anything or _is_like(new, old), "it has a value whose type or shape does not fit the run")
    return new


def _restore_mapping(old: Any, content: dict[str, Any], arrays: Arrays, *, anything: bool) -> Any:
    if _is_record(old):
        names = {f.name for f in fields(old)}
        for key, part in content.items():
            check(key in names, f"it has an unknown value {key!r}")
            grows = key in getattr(old, "grows", ())
            setattr(old, key, _restore(getattr(old, key), part, arrays, anything=grows))
        return old
    if hasattr(old, "point_fields"):
        check(set(content) == set(old.point_fields), "it has the wrong fields for an evaluation")
        parts = content.items()
        point = {key: _restore(getattr(old, key), part, arrays, anything=False) for key, part in parts}
        finite = all(part is None or bool(np.isfinite(part).all()) for part in point.values())
        check(finite, "an evaluation was made at values that are not finite")
        return replace(old, **point)
    check(anything or isinstance(old, Spectral), "it has values where the run expects none")
    whole = {key: _restore(None, part, arrays, anything=True) for key, part in content.items()}
    is_spectral = isinstance(old, Spectral) or set(whole) == {part.name for part in fields(Spectral)}
    return Spectral(**whole) if is_spectral else whole


def _is_like(new: Any, old: Any) -> bool:
    """Return whether a value can replace another: same type and shape, and not NaN."""
    if isinstance(old, np.ndarray):
        same = isinstance(new, np.ndarray) and (new.dtype, new.shape) == (old.dtype, old.shape)
        return same and not bool(np.isnan(new).any())
    if isinstance(old, bool) or isinstance(new, bool):
        return isinstance(old, bool) and isinstance(new, bool)
    if isinstance(old, int):
        return isinstance(new, int) and 0 <= new <= max(old, _LARGEST_COUNT)
    if isinstance(old, float):
        return isinstance(new, float | int) and abs(new) <= (np.inf if isinstance(new, float) else _LARGEST_COUNT)
    return type(new) is type(old)


def _is_record(value: Any) -> bool:
    return is_dataclass(value) and not getattr(type(value), "__dataclass_params__").frozen  # noqa: B009
