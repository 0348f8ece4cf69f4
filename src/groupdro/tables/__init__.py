"""Models together with the columns of a table that they read, and the one way to load any model."""

from groupdro.tables.table_model import TableModel, load

__all__ = ["TableModel", "load"]
