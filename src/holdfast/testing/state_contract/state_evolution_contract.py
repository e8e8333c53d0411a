"""The contract of state backends: state that was written under an older declaration."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest

from holdfast.errors import StateError, StateMigrationError, UserFunctionError
from holdfast.state.descriptor import ListStateDescriptor, MapStateDescriptor, StateTtlConfig, ValueStateDescriptor
from holdfast.testing.state_contract.state_access_contract import StateEpochs, WindowSerializer, kinds_of_state
from holdfast.types.avro import avro_type
from holdfast.types.row import Row
from holdfast.types.serializer import (
    TypeSerializer,
    TypeSerializerSchemaCompatibility,
    TypeSerializerSnapshot,
)
from holdfast.types.type_parser import to_type
from holdfast.types.types import Types

# User-defined serializers that change between two starts.

Compatibility = TypeSerializerSchemaCompatibility[Any]


class PriceSerializer(TypeSerializer[Decimal]):
    """A serializer of prices: as text in version 1, in hundredths in version 2."""

    def __init__(self, version: int = 1) -> None:
        self.version = version

    def serialize(self, value: Decimal) -> bytes:
        return str(value).encode() if self.version == 1 else int(value * 100).to_bytes(8, "big")

    def deserialize(self, data: bytes) -> Decimal:
        return Decimal(data.decode()) if self.version == 1 else Decimal(int.from_bytes(data, "big")) / 100

    def snapshot_configuration(self) -> TypeSerializerSnapshot[Decimal]:
        return PriceSnapshot(self.version)


class PriceSnapshot(TypeSerializerSnapshot[Decimal]):
    """The snapshot of a `PriceSerializer`, with its version."""

    def __init__(self, version: int = 0) -> None:
        self.version = version

    def get_current_version(self) -> int:
        return 1

    def write_snapshot(self) -> Any:
        return self.version

    def read_snapshot(self, read_version: int, content: Any) -> None:
        self.version = content

    def restore_serializer(self) -> PriceSerializer:
        return PriceSerializer(self.version)

    def resolve_schema_compatibility(self, old_serializer_snapshot: Any) -> Compatibility:
        """Newer versions migrate older ones; version 0 is incompatible."""
        old = old_serializer_snapshot.version
        if old // self.version > 1:
            return TypeSerializerSchemaCompatibility.incompatible(
                f"version {self.version} cannot read what version {old} has written"
            )
        if old == self.version:
            return TypeSerializerSchemaCompatibility.compatible_as_is()
        return TypeSerializerSchemaCompatibility.compatible_after_migration()


class CodeSerializer(TypeSerializer[str]):
    """A serializer of words: their position in a list."""

    def __init__(self, words: Sequence[str] = ()) -> None:
        self.words = list(words)

    def serialize(self, value: str) -> bytes:
        return bytes([self.words.index(value)])

    def deserialize(self, data: bytes) -> str:
        return self.words[data[0]]

    def is_immutable_type(self) -> bool:
        return True

    def snapshot_configuration(self) -> TypeSerializerSnapshot[str]:
        return CodeSnapshot(self.words)


class CodeSnapshot(TypeSerializerSnapshot[str]):
    """The snapshot of a `CodeSerializer`, with its words."""

    def __init__(self, words: Sequence[str] = ()) -> None:
        self.words = list(words)

    def get_current_version(self) -> int:
        return 1

    def write_snapshot(self) -> Any:
        return self.words

    def read_snapshot(self, read_version: int, content: Any) -> None:
        self.words = list(content)

    def restore_serializer(self) -> CodeSerializer:
        return CodeSerializer(self.words)

    def resolve_schema_compatibility(self, old_serializer_snapshot: Any) -> Compatibility:
        """Older words keep their positions; new ones are appended."""
        old = old_serializer_snapshot.words
        words = [*old, *(word for word in self.words if word not in old)]
        if words == self.words:
            return TypeSerializerSchemaCompatibility.compatible_as_is()
        return TypeSerializerSchemaCompatibility.compatible_with_reconfigured_serializer(CodeSerializer(words))


class UnitSerializer(TypeSerializer[Any]):
    """A serializer of numbers that are read with a unit, which is not written."""

    def __init__(self, unit: str = "") -> None:
        self.unit = unit

    def serialize(self, value: Any) -> bytes:
        return bytes([value])

    def deserialize(self, data: bytes) -> Any:
        return data[0], self.unit

    def snapshot_configuration(self) -> TypeSerializerSnapshot[Any]:
        return UnitSnapshot(self.unit)


class UnitSnapshot(TypeSerializerSnapshot[Any]):
    """The snapshot of a `UnitSerializer`, with its unit."""

    def __init__(self, unit: str = "") -> None:
        self.unit = unit

    def get_current_version(self) -> int:
        return 1

    def write_snapshot(self) -> Any:
        return self.unit

    def read_snapshot(self, read_version: int, content: Any) -> None:
        self.unit = content

    def restore_serializer(self) -> UnitSerializer:
        return UnitSerializer(self.unit)

    def resolve_schema_compatibility(self, old_serializer_snapshot: Any) -> Compatibility:
        """Every unit is compatible."""
        return TypeSerializerSchemaCompatibility.compatible_as_is()


OLD_ROW = Types.ROW_NAMED(["id", "name", "gone"], [Types.INT(), Types.STRING(), Types.DOUBLE()])
NEW_ROW = Types.ROW_NAMED(
    ["added", "name", "id", "level"],
    [Types.SQL_DATE(), Types.STRING(), Types.LONG(), Types.STRING()],
    defaults={"level": "basic"},
)
OLD_VALUES = [Row(id=1, name="a", gone=0.5), Row(id=-5, name=None, gone=None), Row(id=None, name="ü", gone=1.0)]
NEW_VALUES = [
    Row(added=None, name="a", id=1, level="basic"),
    Row(added=None, name=None, id=-5, level="basic"),
    Row(added=None, name="ü", id=None, level="basic"),
]
ANOTHER = Row(added=None, name="new", id=2**40, level="gold")


@dataclasses.dataclass
class Before:
    """An account in its former form."""

    owner: str
    cents: int
    tags: list[str]


@dataclasses.dataclass
class After:
    """An account in its present form."""

    tags: list[str]
    cents: int
    owner: str = ""
    currency: str = "EUR"
    notes: list[str] = dataclasses.field(default_factory=lambda: ["old"])


# In a program both versions have one name; here they are two classes.
After.__qualname__ = Before.__qualname__ = "Account"

OLD_AVRO = avro_type(
    '{"type": "record", "name": "shop.Order", "fields": [{"name": "id", "type": "int"},'
    ' {"name": "price", "type": "float"}, {"name": "note", "type": ["null", "string"], "default": null}]}'
)
NEW_AVRO = avro_type(
    '{"type": "record", "name": "shop.Order", "fields": [{"name": "price", "type": "double"},'
    ' {"name": "number", "type": "long", "aliases": ["id"]}, {"name": "state", "type": "string", "default": "open"}]}'
)


class StateEvolutionContract:
    """Tests of state under an older declaration."""

    # Rows, dataclasses, Avro records.

    @pytest.mark.parametrize(
        ("old", "new", "write", "read"), kinds_of_state(OLD_ROW, NEW_ROW), ids=lambda item: getattr(item, "name", "")
    )
    def test_fields_come_and_go_and_numbers_widen_in_every_kind_of_state(
        self, epochs: StateEpochs, old: Any, new: Any, write: Any, read: Any
    ) -> None:
        with epochs.epoch() as task:
            for key in ("a", "b", "c"):
                write(task.state(key, old), OLD_VALUES)
        with epochs.epoch() as task:
            before = read(task.state("a", new))
            assert before == NEW_VALUES[: len(before)]
            write(task.state("a", new), [ANOTHER])
        with epochs.epoch() as task:
            now = read(task.state("a", new))
            assert now[-1] == ANOTHER
            assert now[:-1] in ([], before)
            assert read(task.state("b", new)) == before
        for _ in range(2):
            with epochs.epoch() as task:
                write(task.state("b", new), [ANOTHER])
                assert read(task.state("c", new)) == before
                assert read(task.state("a", new)) == now

    def test_dataclasses_evolve_and_stay_instances(self, epochs: StateEpochs) -> None:
        old, new = ValueStateDescriptor[Any]("v", Before), ValueStateDescriptor[Any]("v", After)
        with epochs.epoch() as task:
            task.state("a", old).update(Before("ann", 5, ["x"]))
            task.state("b", old).update(Before("bob", 6, []))
        with epochs.epoch() as task:
            found = task.state("a", new).value()
            assert found == After(tags=["x"], cents=5, owner="ann", currency="EUR", notes=["old"])
            found.notes.append("not kept: nobody has updated it")
            task.state("b", new).update(After([], 7, "bob", "USD", []))
        with epochs.epoch() as task:
            assert task.state("a", new).value().notes == ["old"]
            assert task.state("b", new).value() == After([], 7, "bob", "USD", [])

    def test_avro_records_evolve_as_their_schemas_say(self, epochs: StateEpochs) -> None:
        old, new = ListStateDescriptor[Any]("l", OLD_AVRO), ListStateDescriptor[Any]("l", NEW_AVRO)
        with epochs.epoch() as task:
            task.state("a", old).add({"id": 1, "price": 0.5})
            task.state("a", old).add({"id": 2, "price": 1.5, "note": "hm"})
        with epochs.epoch() as task:
            task.state("a", new).add({"number": 2**40, "price": 0.1})
        with epochs.epoch() as task:
            assert list(task.state("a", new).get()) == [
                {"price": 0.5, "number": 1, "state": "open"},
                {"price": 1.5, "number": 2, "state": "open"},
                {"price": 0.1, "number": 2**40, "state": "open"},
            ]

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("bigint", "int"),
            ("string", "bigint"),
            ("struct<a: int>", "struct<a: string>"),
            ("struct<a: int>", "struct<b: int>"),
            (Types.TUPLE([Types.INT()]), Types.TUPLE([Types.INT(), Types.INT()])),
            (Before, OLD_ROW),
            (OLD_AVRO, avro_type({"type": "record", "name": "Other", "fields": [{"name": "id", "type": "int"}]})),
            (
                OLD_AVRO,
                avro_type(
                    {
                        "type": "record",
                        "name": "Order",
                        "fields": [{"name": "id", "type": "int"}, {"name": "new", "type": "int"}],
                    }
                ),
            ),
        ],
        ids=str,
    )
    def test_an_incompatible_declaration_is_refused_and_nothing_is_lost(
        self, epochs: StateEpochs, old: Any, new: Any
    ) -> None:
        kept = ValueStateDescriptor[Any]("kept", "bigint")
        before = ValueStateDescriptor[Any]("v", old)
        with epochs.epoch() as task:
            task.state("a", kept).update(1)
            task.state("a", before)
            array = to_type(old).arrow_type
            assert array is not None
            task.state("a", before).update(_example(old))
        task = epochs.open()
        with pytest.raises(StateMigrationError, match=r"'v'.*not compatible"):
            task.state("a", ValueStateDescriptor("v", new))
        epochs.fail(task)
        with epochs.epoch() as task:
            assert task.state("a", kept).value() == 1
            assert task.state("a", before).value() == _example(old)

    # One change after the other.

    def test_a_field_that_was_dropped_and_comes_back_is_new(self, epochs: StateEpochs) -> None:
        first = ValueStateDescriptor[Any]("v", "struct<a: int, b: int>")
        second = ValueStateDescriptor[Any]("v", "struct<a: bigint>")
        third = ValueStateDescriptor[Any]("v", "struct<a: bigint, b: string>")
        with epochs.epoch() as task:
            task.state("a", first).update(Row(1, 2))
            task.state("b", first).update(Row(3, 4))
            task.state("c", first).update(Row(5, 6))
        with epochs.epoch() as task:
            # It asks for the state and writes nothing: that alone drops the field.
            assert task.state("a", second).value() == Row(a=1)
        with epochs.epoch() as task:
            assert task.state("a", third).value() == Row(a=1, b=None)
            task.state("b", third).update(Row(3, "back"))
        with epochs.epoch() as task:
            found = [task.state(key, third).value() for key in "abc"]
            assert found == [Row(a=1, b=None), Row(a=3, b="back"), Row(a=5, b=None)]

    def test_a_change_that_is_taken_back_is_two_changes(self, epochs: StateEpochs) -> None:
        first = ValueStateDescriptor[Any]("v", "struct<a: int, b: int>")
        second = ValueStateDescriptor[Any]("v", "struct<a: int>")
        with epochs.epoch() as task:
            task.state("a", first).update(Row(1, 2))
        with epochs.epoch() as task:
            task.state("b", second).update(Row(3))
        for _ in range(2):
            with epochs.epoch() as task:
                assert task.state("a", first).value() == Row(a=1, b=None)
                assert task.state("b", first).value() == Row(a=3, b=None)
                task.state("c", first).update(Row(5, 6))

    def test_state_that_is_not_requested_keeps_its_form(self, epochs: StateEpochs) -> None:
        row = ValueStateDescriptor[Any]("v", OLD_ROW)
        own = ListStateDescriptor[Any]("own", PriceSerializer(1))
        with epochs.epoch() as task:
            task.state("a", row).update(OLD_VALUES[0])
            task.state("a", own).add(Decimal(1))
        for number in range(3):
            with epochs.epoch() as task:
                task.state("a", ValueStateDescriptor[Any]("other", "bigint")).update(number)
        with epochs.epoch() as task:
            assert task.state("a", row).value() == OLD_VALUES[0]
            assert list(task.state("a", own).get()) == [Decimal(1)]
            assert task.state("a", ValueStateDescriptor("other", "bigint")).value() == 2

    def test_an_epoch_that_fails_leaves_the_older_form(self, epochs: StateEpochs) -> None:
        old, new = ValueStateDescriptor[Any]("v", "int"), ValueStateDescriptor[Any]("v", "bigint")
        with epochs.epoch() as task:
            task.state("a", old).update(1)
            task.state("b", old).update(2)
        task = epochs.open()
        task.state("a", new).update(2**40)
        epochs.succeed(task)
        epochs.abandon()
        # The program is taken back to its older version.
        assert epochs.values(["a", "b"], old) == [1, 2]
        assert epochs.values(["a", "b"], new) == [1, 2]

    def test_rescaled_between_two_versions_of_the_program(self, epochs: StateEpochs) -> None:
        old, new = ValueStateDescriptor[Any]("v", "int"), ValueStateDescriptor[Any]("v", "decimal(20,0)")
        keys = [f"k{number}" for number in range(40)]
        with epochs.epoch() as task:
            for number, key in enumerate(keys):
                task.state(key, old).update(number)
        epochs.parallelism = 3
        with epochs.task(1) as task:
            for key in keys:
                if epochs.subtask_of(key) == 1:
                    task.state(key, new).update(Decimal(10**15))
        epochs.complete()
        epochs.parallelism = 2
        expected = []
        for number, key in enumerate(keys):
            epochs.parallelism = 3
            expected.append(Decimal(10**15) if epochs.subtask_of(key) == 1 else Decimal(number))
        epochs.parallelism = 2
        assert epochs.values(keys, new) == expected

    def test_namespaces_and_evolution(self, epochs: StateEpochs) -> None:
        serializer = WindowSerializer()
        with epochs.epoch() as task:
            for window in (1, 2):
                state = task.state("a", ListStateDescriptor("l", "int"), window, serializer)
                state.set_current_namespace(window)
                state.add(window)
        with epochs.epoch() as task:
            state = task.state("a", ListStateDescriptor("l", "double"), 1, serializer)
            for window in (1, 2):
                state.set_current_namespace(window)
                assert list(state.get()) == [float(window)]
                state.add(0.5)
        with epochs.epoch() as task:
            state = task.state("a", ListStateDescriptor("l", "double"), 2, serializer)
            state.set_current_namespace(2)
            assert list(state.get()) == [2.0, 0.5]

    def test_the_keys_of_a_map_do_not_change(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            task.state("a", MapStateDescriptor("m", "int", "int")).put(1, 1)
        task = epochs.open()
        with pytest.raises(StateMigrationError, match=r"the map key type int .*declares bigint"):
            task.state("a", MapStateDescriptor("m", "bigint", "int"))
        epochs.fail(task)


def _example(described: Any) -> Any:
    if described is Before:
        return Before("x", 1, [])
    if described is OLD_AVRO:
        return {"id": 1, "price": 0.5, "note": None}
    return {"bigint": 2**40, "string": "x", "struct<a: int>": Row(a=1)}.get(str(described), (1,))


class StateRedeclarationContract:
    """Tests of state whose declaration changes in more than its type."""

    # A user's own serializer.

    @pytest.mark.parametrize("shape", ["plain", "list", "field"])
    def test_a_users_serializer_migrates_its_own_format(self, epochs: StateEpochs, shape: str) -> None:
        def declared(version: int) -> Any:
            own = to_type(PriceSerializer(version))
            found = own if shape == "plain" else Types.LIST(own) if shape == "list" else Types.ROW_NAMED(["p"], [own])
            return ValueStateDescriptor[Any]("v", found)

        def wrapped(price: Decimal) -> Any:
            return price if shape == "plain" else [price, None] if shape == "list" else Row(p=price)

        with epochs.epoch() as task:
            task.state("a", declared(1)).update(wrapped(Decimal("1.50")))
            task.state("b", declared(1)).update(wrapped(Decimal(2)))
        with epochs.epoch() as task:
            assert task.state("a", declared(2)).value() == wrapped(Decimal("1.50"))
            task.state("b", declared(2)).update(wrapped(Decimal(3)))
        for _ in range(2):
            with epochs.epoch() as task:
                assert task.state("a", declared(2)).value() == wrapped(Decimal("1.50"))
                assert task.state("b", declared(2)).value() == wrapped(Decimal(3))
        task = epochs.open()
        with pytest.raises(StateMigrationError, match="version 1 cannot read what version 2 has written"):
            task.state("a", declared(1))
        epochs.fail(task)

    def test_a_serializer_that_is_compatible_as_it_is_reads_the_bytes(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            task.state("a", ValueStateDescriptor("v", UnitSerializer("m"))).update(3)
        with epochs.epoch() as task:
            # Its snapshot says that metres may be read as feet, whatever that means.
            assert task.state("a", ValueStateDescriptor("v", UnitSerializer("ft"))).value() == (3, "ft")

    def test_a_serializer_that_has_to_be_reconfigured_goes_on_with_the_old_codes(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            task.state("a", ListStateDescriptor("l", CodeSerializer(["red", "green"]))).add_all(["green", "red"])
        for _ in range(2):
            with epochs.epoch() as task:
                # The program lists colours in another order, and one more; written are numbers.
                state = task.state("a", ListStateDescriptor("l", CodeSerializer(["blue", "red", "green"])))
                assert list(state.get())[:2] == ["green", "red"]
                state.add("blue")
        with epochs.epoch() as task:
            state = task.state("a", ListStateDescriptor("l", CodeSerializer(["green"])))
            assert list(state.get()) == ["green", "red", "blue", "blue"]

    def test_a_snapshot_that_raises_is_named(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            task.state("a", ValueStateDescriptor("v", PriceSerializer(1))).update(Decimal(1))
        task = epochs.open()
        with pytest.raises(UserFunctionError, match="'v' raised ZeroDivisionError"):
            task.state("a", ValueStateDescriptor("v", PriceSerializer(0)))
        epochs.fail(task)

    # A time to live.

    @pytest.mark.parametrize(
        ("_", "descriptor", "write", "read"),
        kinds_of_state("bigint", "bigint"),
        ids=lambda item: getattr(item, "name", ""),
    )
    def test_a_time_to_live_is_switched_on_and_off(
        self, epochs: StateEpochs, _: Any, descriptor: Any, write: Any, read: Any
    ) -> None:
        def expiring(on: bool) -> Any:
            descriptor.enable_time_to_live(StateTtlConfig.new_builder(100).build() if on else StateTtlConfig.DISABLED)
            return descriptor

        epochs.processing_time = 1_000
        with epochs.epoch() as task:
            for key in "abc":
                write(task.state(key, expiring(False)), [7, 8])
        with epochs.epoch() as task:
            expected = read(task.state("a", expiring(False)))
            assert expected
        epochs.processing_time = 2_000
        with epochs.epoch() as task:
            # From here on it lives for 100 ms, whoever reads it or not.
            assert read(task.state("a", expiring(True))) == expected
        epochs.processing_time = 2_099
        with epochs.epoch() as task:
            assert read(task.state("b", expiring(True))) == expected
            task.state("c", expiring(True)).clear()
            write(task.state("c", expiring(True)), [9])
        epochs.processing_time = 2_100
        with epochs.epoch() as task:
            gone = read(task.state("b", expiring(True)))
            assert gone in ([], [None], None)
            assert read(task.state("c", expiring(True))) == [9]
        with epochs.epoch() as task:
            assert read(task.state("c", expiring(False))) == [9]
        epochs.processing_time = 10_000
        with epochs.epoch() as task:
            assert read(task.state("c", expiring(False))) == [9]
        with epochs.epoch() as task:
            assert read(task.state("c", expiring(True))) == [9]
        epochs.processing_time = 10_100
        with epochs.epoch() as task:
            assert read(task.state("c", expiring(True))) in ([], [None], None)

    def test_a_type_changes_together_with_the_time_to_live(self, epochs: StateEpochs) -> None:
        old, new = ListStateDescriptor[Any]("l", "int"), ListStateDescriptor[Any]("l", "struct<a: int>")
        with pytest.raises(StateError), epochs.epoch() as task:
            task.state("a", old).add(1)
            task.state("a", old).add(None)
        with epochs.epoch() as task:
            task.state("a", old).add(1)
        new = ListStateDescriptor[Any]("l", "bigint")
        new.enable_time_to_live(StateTtlConfig.new_builder(100).build())
        epochs.processing_time = 50
        with epochs.epoch() as task:
            task.state("a", new).add(2**40)
        epochs.processing_time = 149
        with epochs.epoch() as task:
            assert list(task.state("a", new).get()) == [1, 2**40]
        epochs.processing_time = 150
        with epochs.epoch() as task:
            assert list(task.state("a", new).get()) == []
