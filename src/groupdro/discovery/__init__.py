"""Groups of rows in which a model fails, found from describing columns."""

from groupdro.discovery.find import find_groups
from groupdro.discovery.found import FoundGroups

__all__ = ["FoundGroups", "find_groups"]
