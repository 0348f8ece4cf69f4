"""Rows, groups, and grouped data."""

from groupdro.data.grouped_data import GroupedData
from groupdro.data.sampling import BatchPlan, Draw

__all__ = ["BatchPlan", "Draw", "GroupedData"]
