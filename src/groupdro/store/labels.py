"""Classes and group names: their allowed types, and how they are stored."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from groupdro.store.document import GROUPS, parse_json, to_json
from groupdro.utils.bundle import check
from groupdro.utils.types import Array

__all__ = ["check_classes", "classes_array", "label_to_json", "names_bytes", "parse_names"]


def names_bytes(names: Sequence[Any]) -> bytes:
    """Return the content of the file of group names, after checking that it can be read again.

    Parameters
    ----------
    names : sequence
        Names in the order of the groups.

    Returns
    -------
    bytes
        JSON in ASCII.
    """
    content = to_json([label_to_json(name, "groups") for name in names], GROUPS)
    parse_names(content, len(names), None)
    return content


def label_to_json(label: Any, argument: str) -> Any:
    """Return a class or group name as a JSON value.

    Parameters
    ----------
    label : object
        Text, a number, a boolean, or a tuple of these.
    argument : str
        Name of the argument in errors.

    Returns
    -------
    str, bool, int, float or list
        The label; a tuple becomes a list.
    """
    if isinstance(label, np.generic) and not isinstance(label, np.datetime64 | np.timedelta64):
        label = label.item()
    if isinstance(label, tuple) and label:
        return [label_to_json(part, argument) for part in label]
    if not _is_scalar(label):
        raise ValueError(f"{argument} has a label that cannot be stored: {label!r}. Use text or a number instead.")
    return label


def parse_names(content: bytes, n_groups: int, n_columns: int | None) -> tuple[Any, ...]:
    """Read the names of the groups.

    Parameters
    ----------
    content : bytes
        The file.
    n_groups : int
        Number of groups.
    n_columns : int or None
        Number of columns whose combinations are the groups, if known.

    Returns
    -------
    tuple
        The original names.
    """
    labels = parse_json(content, GROUPS)
    check(isinstance(labels, list) and len(labels) == n_groups, f"its {GROUPS} does not name every group")
    for label in labels:
        parts = label if isinstance(label, list) else [label]
        check(bool(parts) and all(map(_is_scalar, parts)), "the name of a group is neither text nor a number")
        check(n_columns in (None, len(parts)), "the name of a group does not fit the group columns")
    names = tuple(tuple(label) if isinstance(label, list) else label for label in labels)
    check(len(set(names)) == len(names), "two groups have the same name")
    return names


def classes_array(classes: Sequence[Any]) -> Array:
    """Return classes as an array of their type.

    Parameters
    ----------
    classes : sequence
        Classes, all of one type.

    Returns
    -------
    ndarray
        An array of int64, float64, bool or text; of objects if text ends in a null character, which text arrays drop.
    """
    if isinstance(classes[0], str) and any(label.endswith("\0") for label in classes):
        return np.array(classes, dtype=object)
    return np.array(classes, dtype=np.int64 if type(classes[0]) is int else None)


def check_classes(label_kind: Any, classes: Any) -> None:
    """Check the classes of a manifest.

    Parameters
    ----------
    label_kind : object
        "classes", or "float" for targets that are numbers.
    classes : object
        The classes as JSON values: sorted, and all of one type. None if targets are numbers.
    """
    if label_kind == "float":
        check(classes is None, "it has classes although its targets are numbers")
        return
    check(label_kind == "classes", f"its kind of labels is {str(label_kind)[:40]!r}")
    check(isinstance(classes, list) and bool(classes) and all(map(_is_scalar, classes)), "its classes are not labels")
    kinds = {type(label) for label in classes}
    check(len(kinds) == 1, "its classes are of mixed types")
    check(int not in kinds or max(map(abs, classes)) < 2**63, "its classes are numbers of more than 64 bits")
    check(all(a < b for a, b in itertools.pairwise(classes)), "its classes are not sorted")


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value))
