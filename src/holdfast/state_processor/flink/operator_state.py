"""Operator state of Flink: lists that are dealt out, unions and broadcast maps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from holdfast.errors import StateError
from holdfast.state_processor.flink.data_input import DataInput
from holdfast.state_processor.flink.flink_metadata import OperatorStateHandle
from holdfast.state_processor.flink.keyed_state import read_state_info
from holdfast.state_processor.flink.serializer import FlinkSerializer
from holdfast.state_processor.flink.snappy_frames import decompressed

SPLIT, UNION, BROADCAST = "split", "union", "broadcast"
_OPERATOR, _BROADCAST = 1, 2
_VERSIONS: Final = (5, 6)
_COMPRESSION_SINCE: Final = 6


@dataclass(frozen=True)
class FlinkOperatorState:
    """One operator state.

    Attributes:
        name, mode: Of the state; `split`, `union` or `broadcast`.
        value: Serializer of elements, or of the values of a broadcast map.
        key: Serializer of the keys of a broadcast map.
    """

    name: str
    mode: str
    value: FlinkSerializer
    key: FlinkSerializer | None = None

    @property
    def problem(self) -> str | None:
        """Why it cannot be read; None if it can."""
        for part in (self.value, self.key):
            if part is not None and part.type is None:
                return part.problem or f"{part.name} has no values that state can have."
        return None


def read_operator_states(handle: OperatorStateHandle, data: bytes, path: str) -> tuple[FlinkOperatorState, ...]:
    """Return what states are in the operator state of a subtask.

    Raises:
        CorruptFileError: It is damaged.
        StateError: It has a serializer whose snapshot this release does not know.
    """
    return _meta(handle, DataInput(data, path))[1]


def read_elements(handle: OperatorStateHandle, data: bytes, path: str, name: str) -> list[Any]:
    """Return the elements of a state in the operator state of a subtask; of a broadcast map pairs.

    Raises:
        CorruptFileError: It is damaged.
        StateError: The state cannot be read; says why.
    """
    is_compressed, states = _meta(handle, DataInput(data, path))
    found = [state for state in states if state.name == name]
    partitions = handle.states.get(name)
    if not found or partitions is None:
        return []
    state = found[0]
    if state.problem is not None:
        raise StateError(f"State {name!r} in file {path!r} cannot be read. {state.problem}")
    elements: list[Any] = []
    for offset in partitions.offsets:
        if not 0 < offset < len(data):
            raise DataInput(data, path).corrupt(f"an element should begin at {offset}; there are {len(data)} bytes.")
        source = DataInput(decompressed(data, offset, path) if is_compressed else data[offset:], path, None)
        if state.key is None:
            elements.append(state.value.read(source))
        else:
            elements += [(state.key.read(source), state.value.read(source)) for _ in range(source.count())]
    return elements


def _meta(handle: OperatorStateHandle, source: DataInput) -> tuple[bool, tuple[FlinkOperatorState, ...]]:
    version = source.int32()
    if version not in _VERSIONS:
        raise source.corrupt(f"operator state begins with version {version}, and not with {_VERSIONS}.")
    is_compressed = source.boolean() if version >= _COMPRESSION_SINCE else False
    states = []
    for wanted in (_OPERATOR, _BROADCAST):
        for _ in range(source.short()):
            name, kind, _, serializers = read_state_info(source)
            value = serializers.get("VALUE_SERIALIZER")
            key = serializers.get("KEY_SERIALIZER") if wanted == _BROADCAST else None
            if kind != wanted or value is None or (wanted == _BROADCAST and key is None):
                raise source.corrupt(f"operator state {name!r} is not described as one.")
            mode = handle.states[name].mode if name in handle.states else SPLIT
            states.append(FlinkOperatorState(name, mode, value, key))
    return is_compressed, tuple(states)
