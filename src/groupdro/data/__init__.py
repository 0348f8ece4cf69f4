"""Rows, groups, and the data that have both."""

from groupdro.data.grouped_data import GroupedData
from groupdro.data.sampling import BatchPlan, Draw

__all__ = ["BatchPlan", "Draw", "GroupedData"]
