"""Tables on disk whose rows are ordered by group and shuffled within each group."""

from groupdro.store.document import StoreError
from groupdro.store.grouped_store import GroupedStore

__all__ = ["GroupedStore", "StoreError"]
