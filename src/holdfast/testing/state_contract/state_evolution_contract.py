"""The part of the contract of state backends that is about state written under an older declaration."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from typing import Any

import pytest

from holdfast.errors import StateMigrationError
from holdfast.state.declaration.descriptor import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.testing.state_contract.evolving_serializer import PriceSerializer
from holdfast.testing.state_contract.state_epochs import StateEpochs
from holdfast.testing.state_contract.state_kinds import kinds_of_state
from holdfast.testing.state_contract.state_registration_contract import WindowSerializer
from holdfast.types.conversion.avro import avro_type
from holdfast.types.conversion.convert import to_type
from holdfast.types.information.type_information import Types
from holdfast.types.row import Row

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
    """An account, as it was first."""

    owner: str
    cents: int
    tags: list[str]


@dataclasses.dataclass
class After:
    """An account, as it became."""

    tags: list[str]
    cents: int
    owner: str = ""
    currency: str = "EUR"
    notes: list[str] = dataclasses.field(default_factory=lambda: ["old"])


# Versions of a program use the same name for what are two classes here.
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
    """State under an older declaration."""

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
    def test_what_cannot_take_over_is_refused_and_nothing_is_lost(
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
        with pytest.raises(StateMigrationError, match=r"'v'.*cannot take over"):
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

    def test_what_nobody_asks_for_is_carried_on_as_it_is(self, epochs: StateEpochs) -> None:
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
