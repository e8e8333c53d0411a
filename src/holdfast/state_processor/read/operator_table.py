"""Operator state of a savepoint as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from holdfast.checkpoint.document.metadata import OperatorMetadata
from holdfast.errors import NotExistError, StateMigrationError
from holdfast.kernel.ids import JobID
from holdfast.runtime.exchange.owned_file import read_owned
from holdfast.state.operator.operator_snapshot import (
    InlineSnapshotStore,
    Mode,
    OperatorSnapshot,
    SnapshotChunk,
    StoredState,
)
from holdfast.state.operator.payload import readable, table_of
from holdfast.state_processor.form.state_form import fitted_array
from holdfast.storage.file_system.scheme import file_system_for
from holdfast.storage.job.job_directory import JobDirectory
from holdfast.types.conversion.migration import migrate_column
from holdfast.types.information.sealed_type import sealed
from holdfast.types.information.type_information import TypeInformation, type_from_json
from holdfast.types.key.key_codec import CompositeKeyCodec, codec_from_json

_VALUE: Final = "value"
_KEY: Final = "key"


@dataclass(frozen=True)
class OperatorStateTable:
    """The operator state of one operator.

    Attributes:
        root: The directory that paths of files are relative to.
        metadata: What the document says of the operator.
    """

    root: str
    metadata: OperatorMetadata

    @staticmethod
    def kinds(metadata: OperatorMetadata) -> dict[str, str]:
        """Return the mode of each state by name."""
        return {name: state.mode.value for snapshot in _snapshots(metadata) for name, state in snapshot.states.items()}

    def read(self, name: str, mode: Mode) -> pa.Table:
        """Return a state as a whole.

        Raises:
            NotExistError: There is no such state of this mode.
            CorruptFileError: A file is damaged.
        """
        kinds = self.kinds(self.metadata)
        if kinds.get(name) != mode.value:
            known = kinds or "none"
            raise NotExistError(
                f"Operator {self.metadata.uid!r} has no operator state {name!r} that is {mode.value!r}; it has {known}."
            )
        states = [snapshot.states[name] for snapshot in _snapshots(self.metadata) if name in snapshot.states]
        if mode is Mode.BROADCAST:
            states = states[:1]  # any copy is the whole
        elif mode is Mode.UNION:
            copies = [state for state in states if state.is_handed_out]
            states = [*copies[:1], *(state for state in states if not state.is_handed_out)]
        kind = type_from_json(sealed(states[-1].description["type"]))
        if mode is Mode.BROADCAST:
            return self._broadcast(states[0], kind)
        columns = [self._value(state, chunk, kind) for state in states for chunk in state.chunks]
        return pa.table({_VALUE: pa.chunked_array(columns, kind.arrow_type)})

    def _broadcast(self, state: StoredState, kind: TypeInformation) -> pa.Table:
        codec = codec_from_json(state.description["key"])
        key_type: Any = getattr(codec, "key_type", None)
        keys, values = [], []
        for chunk in state.chunks:
            column = self._load(chunk).column(_KEY).combine_chunks()
            if isinstance(codec, CompositeKeyCodec):
                column = codec.key_type.to_array([codec.user_key(key) for key in codec.from_storage(column)])
            keys.append(column)
            values.append(self._value(state, chunk, kind))
        stored = codec.storage_type if key_type is None else key_type.arrow_type
        return pa.table({_KEY: pa.chunked_array(keys, stored), _VALUE: pa.chunked_array(values, kind.arrow_type)})

    def _value(self, state: StoredState, chunk: SnapshotChunk, kind: TypeInformation) -> pa.Array:
        with readable(self.metadata.uid):
            column = self._load(chunk).column(_VALUE).combine_chunks()
        own = type_from_json(sealed(state.type_of(chunk)))
        if own == kind:
            return column
        answer = kind.resolve_compatibility(own)
        if answer.is_incompatible():
            raise StateMigrationError(
                f"Operator state of {self.metadata.uid!r} has elements of the types {own} and {kind}, which are not "
                "brought into one form without the program."
            )
        return fitted_array(migrate_column(column, own, kind), kind.arrow_type)

    def _load(self, chunk: SnapshotChunk) -> pa.Table:
        if chunk.is_inline:
            return table_of(InlineSnapshotStore().read(chunk.data), chunk, self.metadata.uid)
        return table_of(_owned(self.root, chunk.data), chunk, self.metadata.uid)


def _owned(root: str, data: Mapping[str, Any]) -> bytes:
    # Only paths of files count here, so any job's id will do.
    directory = JobDirectory(file_system_for(root), root, JobID.from_name(root), create_subdir=False)
    return read_owned(directory, data)


def _snapshots(metadata: OperatorMetadata) -> Iterator[OperatorSnapshot]:
    for subtask in metadata.subtasks:
        if subtask is not None and "states" in subtask:
            yield OperatorSnapshot.from_json(subtask)
