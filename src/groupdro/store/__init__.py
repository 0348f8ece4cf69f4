"""Tables on disk whose rows are ordered by group and shuffled within each group."""

from groupdro.store.grouped_store import GroupedStore
from groupdro.store.manifest import StoreError

__all__ = ["GroupedStore", "StoreError"]
