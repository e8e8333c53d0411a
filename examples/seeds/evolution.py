"""The seeds' example of state whose serializer changes from one version of a program to the next.

python examples/seeds/evolution.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.datastream import (
    CheckpointedFunction,
    DataStream,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    KeyedProcessFunction,
)
from holdfast.datastream.state import ValueState, ValueStateDescriptor
from holdfast.testing import OperatorHarness
from holdfast.types import TypeSerializer, TypeSerializerSchemaCompatibility, TypeSerializerSnapshot


@dataclass
class MyState:
    """What is kept of a key."""

    count: int
    last: str = ""


class MyStateTypeSerializer(TypeSerializer[MyState]):
    """Version 1 wrote the count as text. Version 2 writes JSON, with the last word."""

    def __init__(self, version: int = 2) -> None:
        self.version = version

    def serialize(self, value: MyState) -> bytes:
        if self.version == 1:
            return str(value.count).encode()
        return json.dumps([value.count, value.last]).encode()

    def deserialize(self, data: bytes) -> MyState:
        return MyState(int(data)) if self.version == 1 else MyState(*json.loads(data))

    def snapshot_configuration(self) -> TypeSerializerSnapshot[MyState]:
        return MyStateSnapshot(self.version)


class MyStateSnapshot(TypeSerializerSnapshot[MyState]):
    """Stands beside what the serializer has written, and is asked by a later one whether that can be read."""

    def __init__(self, version: int = 0) -> None:
        self.version = version

    def get_current_version(self) -> int:
        return 1

    def write_snapshot(self) -> Any:
        return {"version": self.version}

    def read_snapshot(self, read_version: int, content: Any) -> None:
        self.version = content["version"]

    def restore_serializer(self) -> TypeSerializer[MyState]:
        return MyStateTypeSerializer(self.version)

    def resolve_schema_compatibility(
        self, old_serializer_snapshot: TypeSerializerSnapshot[MyState]
    ) -> TypeSerializerSchemaCompatibility[MyState]:
        old = old_serializer_snapshot
        if not isinstance(old, MyStateSnapshot) or old.version > self.version:
            return TypeSerializerSchemaCompatibility.incompatible("it is newer than this program")
        if old.version == self.version:
            return TypeSerializerSchemaCompatibility.compatible_as_is()
        return TypeSerializerSchemaCompatibility.compatible_after_migration()


class Remember(KeyedProcessFunction, CheckpointedFunction):
    """Handles state schema evolution."""

    state: ValueState[MyState]

    def __init__(self, version: int = 2) -> None:
        self.version = version

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        descriptor: ValueStateDescriptor[MyState] = ValueStateDescriptor("myState", MyStateTypeSerializer(self.version))

        # Configure state migration: this keeps the serializer that was given.
        descriptor.initialize_serializer_unless_set(MyStateTypeSerializer(self.version))

        self.state = context.get_keyed_state_store().get_state(descriptor)

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """Managed state is saved by itself."""

    def process_element(self, value: str, ctx: KeyedProcessFunction.Context) -> Iterator[str]:
        before = self.state.value() or MyState(0)
        self.state.update(MyState(before.count + 1, value))
        yield f"{value} {before.count + 1}, before it {before.last or 'nothing that is known'}"


def define(words: DataStream, version: int = 2) -> DataStream:
    """The program, for any stream of words, keyed by their first letter."""
    keyed = words.key_by(lambda word: word[0], "string")
    return keyed.process(Remember(version), "string").uid("remember")


def main() -> None:
    """Counts with version 1, and goes on with version 2."""
    with OperatorHarness(Remember(1), key_by=lambda word: word[0], key_type="string", output_type="string") as first:
        for word in ("kelp", "krill"):
            first.process_element(word)
        print(*first.output, sep="\n")
        taken = first.snapshot(1)
    with OperatorHarness.restore(
        [taken], Remember(2), key_by=lambda word: word[0], key_type="string", output_type="string"
    ) as second:
        for word in ("kraken", "kelp"):
            second.process_element(word)
        print(*second.output, sep="\n")


if __name__ == "__main__":
    main()
