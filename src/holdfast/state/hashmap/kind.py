"""Which column and which handle belong to which kind of state."""

from __future__ import annotations

from typing import Any, Final

from holdfast.state.backend.keyed import AbstractKeyedStateBackend
from holdfast.state.declaration.descriptor import StateDescriptor, StateKind
from holdfast.state.hashmap.collection_column import ListColumn, MapColumn
from holdfast.state.hashmap.collection_handle import ListHandle, MapHandle
from holdfast.state.hashmap.column import Column, ScalarColumn
from holdfast.state.hashmap.handle import (
    AggregatingHandle,
    CellHandle,
    CopiedValueHandle,
    DefaultValueHandle,
    FoldingHandle,
    OpaqueValueHandle,
    ReducingHandle,
    RowValueHandle,
    ValueHandle,
)
from holdfast.state.hashmap.ttl import (
    ExpiringAggregatingHandle,
    ExpiringFoldingHandle,
    ExpiringListHandle,
    ExpiringMapHandle,
    ExpiringReducingHandle,
    ExpiringValueHandle,
)
from holdfast.state.layout.column_layout import StateLayout
from holdfast.state.layout.value_codec import OpaqueCodec, RowCodec

_COLUMNS: Final[dict[StateKind, type[Column]]] = {StateKind.LIST: ListColumn, StateKind.MAP: MapColumn}
_HANDLES: Final[dict[StateKind, type[CellHandle[Any]]]] = {
    StateKind.LIST: ListHandle,
    StateKind.MAP: MapHandle,
    StateKind.REDUCING: ReducingHandle,
    StateKind.AGGREGATING: AggregatingHandle,
    StateKind.FOLDING: FoldingHandle,
}
_EXPIRING: Final[dict[StateKind, type[CellHandle[Any]]]] = {
    StateKind.VALUE: ExpiringValueHandle,
    StateKind.LIST: ExpiringListHandle,
    StateKind.MAP: ExpiringMapHandle,
    StateKind.REDUCING: ExpiringReducingHandle,
    StateKind.AGGREGATING: ExpiringAggregatingHandle,
    StateKind.FOLDING: ExpiringFoldingHandle,
}


def column_for(layout: StateLayout) -> Column:
    """Return an empty column for a state."""
    return _COLUMNS.get(layout.kind, ScalarColumn)(layout)


def handle_for(
    backend: AbstractKeyedStateBackend, descriptor: StateDescriptor[Any], layout: StateLayout, namespace_serializer: Any
) -> CellHandle[Any]:
    """Return a handle for a state, of the fastest class that does."""
    if layout.ttl:
        handle_class = _EXPIRING[layout.kind]
    elif layout.kind is not StateKind.VALUE:
        handle_class = _HANDLES[layout.kind]
    elif descriptor.has_default_value():
        handle_class = DefaultValueHandle
    else:
        opaque = isinstance(layout.value, OpaqueCodec)
        handle_class = ValueHandle if layout.value.shares else OpaqueValueHandle if opaque else CopiedValueHandle
        if isinstance(layout.value, RowCodec):
            handle_class = RowValueHandle
    return handle_class(backend, descriptor, namespace_serializer)
