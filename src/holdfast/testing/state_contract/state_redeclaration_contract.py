"""The part of the contract of state backends that is about another serializer, or another time to live, than before."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from holdfast.errors import StateError, StateMigrationError, UserFunctionError
from holdfast.state.declaration.descriptor import ListStateDescriptor, ValueStateDescriptor
from holdfast.state.declaration.ttl_config import StateTtlConfig
from holdfast.testing.state_contract.evolving_serializer import CodeSerializer, PriceSerializer, UnitSerializer
from holdfast.testing.state_contract.state_epochs import StateEpochs
from holdfast.testing.state_contract.state_kinds import kinds_of_state
from holdfast.types.conversion.convert import to_type
from holdfast.types.information.type_information import Types
from holdfast.types.row import Row


class StateRedeclarationContract:
    """State whose declaration changes in more than its type."""

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
