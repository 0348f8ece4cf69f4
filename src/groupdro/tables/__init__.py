"""Models bundled with the table columns that they read, and `load` for any saved model."""

from groupdro.tables.table_model import TableModel, load

__all__ = ["TableModel", "load"]
