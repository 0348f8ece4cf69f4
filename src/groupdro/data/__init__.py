"""Rows, groups, and the data that have both."""

from groupdro.data.grouped_data import BatchPlan, Draw, GroupedData

__all__ = ["BatchPlan", "Draw", "GroupedData"]
