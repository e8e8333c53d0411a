"""Keyed state that is read from mapped runs batch by batch."""

from __future__ import annotations

from holdfast.state.columnar.column import stored_column_for
from holdfast.state.declaration.options import HASHMAP_MEMORY
from holdfast.state.hashmap.column import Column
from holdfast.state.hashmap.keyed_backend import HashMapKeyedStateBackend
from holdfast.state.hashmap.placement import Cells
from holdfast.state.hashmap.store import Store
from holdfast.state.layout.column_layout import StateLayout


class ColumnarKeyedStateBackend(HashMapKeyedStateBackend):
    """Holds what the current batch touches and what the epoch has changed, and nothing when the task has ended.

    Decoded cells, handles and files are those of `hashmap`; list and map state read piece by piece.
    """

    def commit_cache(self) -> None:
        """Keep nothing: the runs are mapped, and the page cache has what was read lately."""
        self._removals.remember(self._reader, self.env.get_configuration().get(HASHMAP_MEMORY))
        self.dispose()

    def _note_flushed(self, slots: Cells) -> None:
        """Nothing is kept, so it does not matter which keys have become empty."""

    def _new_column(self, layout: StateLayout) -> Column:
        return stored_column_for(layout)

    def _is_too_large(self, store: Store) -> bool:
        return True
