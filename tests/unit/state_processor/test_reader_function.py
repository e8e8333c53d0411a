"""A function reads the state of each key as the program sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import ConfigurationError, StateMigrationError, UserFunctionError
from holdfast.state import MapStateDescriptor, ValueStateDescriptor
from holdfast.state_processor import KeyedStateReaderFunction, OperatorTransformation, SavepointReader, SavepointWriter


class Tell(KeyedStateReaderFunction):
    def __init__(self, kind: str | None = None) -> None:
        self._kind = kind

    def open(self, runtime_context: Any) -> None:
        self.pickled = runtime_context.get_state(ValueStateDescriptor("pickled", self._kind))
        self.entries = runtime_context.get_map_state(MapStateDescriptor("entries", "string", "bigint"))

    def read_key(self, key: Any, context: Any) -> Any:
        if key == "fails":
            raise ValueError("cannot be read")
        timers = context.registered_processing_time_timers(), context.registered_event_time_timers()
        yield key, self.pickled.value(), sorted(self.entries.items()), *timers


def savepoint(place: Path, keys: list[str]) -> SavepointReader:
    values = pa.table({"k": keys, "v": [f"value of {key}" for key in keys]})
    entries = pa.table({"k": [keys[0], "only entries"], "e": ["x", "y"], "n": [1, 2]})
    timers = pa.table({"k": [keys[0], "only a timer"], "t": [5, 6]})
    made = (
        OperatorTransformation.bootstrap_with(values)
        .key_by("k")
        .to_state(ValueStateDescriptor("pickled"), "v")
        .and_also(
            OperatorTransformation.bootstrap_with(entries)
            .key_by("k")
            .to_state(MapStateDescriptor("entries", "string", "bigint"), "n", map_key="e")
        )
        .and_also(OperatorTransformation.bootstrap_with(timers).key_by("k").to_timers("t"))
    )
    return SavepointReader.read(
        None, SavepointWriter.new_savepoint(None, 32).with_operator("op", made).write(str(place / "savepoint"))
    )


def test_each_key_with_any_state_is_read_once(place: Path) -> None:
    reader = savepoint(place, ["a", "b"])
    assert sorted(reader.read_keys("op", Tell())) == [
        ("a", "value of a", [("x", 1)], {5}, set()),
        ("b", "value of b", [], set(), set()),
        ("only a timer", None, [], {6}, set()),
        ("only entries", None, [("y", 2)], set(), set()),
    ]
    by_group = [row for group in range(32) for row in reader.read_keys("op", Tell(), key_groups=group)]
    assert sorted(by_group) == sorted(reader.read_keys("op", Tell()))


def test_errors_of_a_function_are_reported(place: Path) -> None:
    reader = savepoint(place, ["fails"])
    with pytest.raises(UserFunctionError, match="cannot be read"):
        reader.read_keys("op", Tell())
    with pytest.raises(StateMigrationError):
        reader.read_keys("op", Tell("bigint"))
    with pytest.raises(ConfigurationError, match="KeyedStateReaderFunction"):
        reader.read_keys("op", lambda key: key)  # type: ignore[arg-type]
