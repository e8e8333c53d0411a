"""How long values live, as a stranger reads it: what the newest run says counts, also about older values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from examples import read_checkpoint
from holdfast.datastream import KeyedProcessFunction
from holdfast.kernel.clock import ManualClock
from holdfast.state import ListStateDescriptor, MapStateDescriptor, StateTtlConfig, ValueStateDescriptor
from tests.stories.local import Program, master

START = 1_000_000


class Uses(KeyedProcessFunction):
    """Keeps what comes in a value, a list and a map that live as long as each start of the job says."""

    def __init__(self, config: StateTtlConfig | None) -> None:
        self.config = config

    def open(self, runtime_context: Any) -> None:
        descriptors: list[Any] = [
            ValueStateDescriptor("value", "bigint"),
            ListStateDescriptor("list", "bigint"),
            MapStateDescriptor("map", "bigint", "bigint"),
        ]
        for descriptor in descriptors:
            if self.config is not None:
                descriptor.enable_time_to_live(self.config)
        self.value = runtime_context.get_state(descriptors[0])
        self.list = runtime_context.get_list_state(descriptors[1])
        self.map = runtime_context.get_map_state(descriptors[2])

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.value.update(value.n)
        self.list.add(value.n)
        self.map.put(value.n, value.n)
        yield value.key


class Job:
    """A job that is started again and again with one epoch more."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._epochs: list[dict[str, Any]] = []

    def start(self, at: int, config: StateTtlConfig | None, *elements: tuple[str, int]) -> None:
        """Run an epoch at a time."""
        self._epochs.append({"in": list(elements)})
        program = Program()
        rows = program.source("in", "key string, n bigint").key_by("key").process(Uses(config), "string").uid("uses")
        rows.print().uid("out")
        options = {"state.compaction.enabled": "false"}
        running = master(program, self._place, self._epochs, options, clock=ManualClock(START + at))
        running.run()
        self.directory = Path(running.job.directory.path)

    def read(self, at: int | None = None) -> dict[str, dict[str, Any]]:
        """What a stranger finds, without what has expired at a time."""
        now = None if at is None else START + at
        return {name: content for _, name, _, content in read_checkpoint.states(self.directory, now)}


def lives(milliseconds: int) -> StateTtlConfig.Builder:
    return StateTtlConfig.new_builder(milliseconds)


def test_a_value_is_there_until_its_stamp_plus_the_time_to_live(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.start(0, lives(100).build(), ("a", 1), ("b", 2))
    job.start(50, lives(100).build(), ("a", 3))

    assert job.read() == {
        "value": {"a": 3, "b": 2},
        "list": {"a": [1, 3], "b": [2]},
        "map": {"a": {1: 1, 3: 3}, "b": {2: 2}},
    }
    assert job.read(99) == job.read()
    assert job.read(100) == {"value": {"a": 3}, "list": {"a": [3]}, "map": {"a": {3: 3}}}
    assert job.read(149) == job.read(100)
    assert job.read(150) == {"value": {}, "list": {}, "map": {}}


def test_the_newest_run_says_how_long_all_values_live(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.start(0, lives(100).build(), ("a", 1), ("b", 2))
    job.start(50, lives(1000).build(), ("a", 3))
    assert job.read(999) == job.read()
    assert job.read(1000)["value"] == {"a": 3}


def test_without_a_time_to_live_in_the_newest_run_the_files_do_not_say_what_has_expired(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.start(0, lives(100).build(), ("a", 1), ("b", 2))
    job.start(50, lives(100).disable_cleanup_in_background().build(), ("a", 3))
    assert job.read(10**9) == job.read()
    schemas = [schema for _, _, schema, _ in read_checkpoint.states(job.directory)]
    assert all(schema["ttl"] and "time_to_live" not in schema for schema in schemas)


def test_what_was_there_before_the_time_to_live_was_used_last_when_that_was_switched_on(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.start(0, None, ("a", 1), ("b", 2))
    assert job.read(10**9) == job.read()
    job.start(500, lives(100).build(), ("a", 3))
    assert job.read(599) == job.read()
    assert job.read(600) == {"value": {}, "list": {}, "map": {}}
    job.start(590, None, ("c", 4))
    assert job.read(10**9)["list"] == {"a": [1, 3], "b": [2], "c": [4]}, "switched off, stamps count no more"
