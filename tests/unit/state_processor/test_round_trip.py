"""A job continues from a savepoint that was written from the tables of its own savepoint."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.datastream.functions import CheckpointedFunction, KeyedProcessFunction
from holdfast.kernel.clock import ManualClock
from holdfast.state import ListStateDescriptor, MapStateDescriptor, StateTtlConfig, ValueStateDescriptor
from holdfast.state_processor import OperatorTransformation, SavepointReader, SavepointWriter
from holdfast.state_processor.bootstrap import StateBootstrapTransformation
from tests.stories import journal, tidiness
from tests.stories.journal import Journal
from tests.stories.local import Program, epochs, run

PATH = "execution.state-recovery.path"
MAX_PARALLELISM = 16


def descriptors(kind: str) -> dict[str, Any]:
    record = "n bigint, word string" if kind == "declared" else None
    states = {
        "record": ValueStateDescriptor("record", record),
        "lengths": ListStateDescriptor("lengths", "bigint"),
        "letters": MapStateDescriptor("letters", "string", "bigint"),
        "recent": ValueStateDescriptor("recent", "bigint"),
        "lately": MapStateDescriptor("lately", "string", "bigint"),
    }
    ttl = StateTtlConfig.new_builder(3).build()
    states["recent"].enable_time_to_live(ttl)
    states["lately"].enable_time_to_live(ttl)
    return states


class Everything(KeyedProcessFunction, CheckpointedFunction):
    """Has state of each kind, and emits with each word, and with each timer, all that it has of the key."""

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.epochs = store.get_broadcast_state(MapStateDescriptor("epochs", "string", "bigint"))
        self.seen = store.get_union_list_state(ListStateDescriptor("seen", "string"))

    def snapshot_state(self, context: Any) -> None:
        self.epochs.put("epochs", (self.epochs.get("epochs") or 0) + 1)

    def open(self, runtime_context: Any) -> None:
        declared = descriptors("declared")
        self.record = runtime_context.get_state(declared["record"])
        self.lengths = runtime_context.get_list_state(declared["lengths"])
        self.letters = runtime_context.get_map_state(declared["letters"])
        self.recent = runtime_context.get_state(declared["recent"])
        self.lately = runtime_context.get_map_state(declared["lately"])

    def process_element(self, pair: Any, ctx: Any) -> Any:
        word, number = pair
        self.record.update(((self.record.value() or (0,))[0] + 1, word))
        self.recent.update((self.recent.value() or 0) + 1)
        self.letters.put(chr(97 + number % 3), number)
        self.lately.put(chr(97 + number % 3), number)
        if number % 5 == 0:
            self.letters.clear()
        if number % 7 == 0:
            self.lengths.clear()
            self.record.clear()
        self.lengths.add(number)
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + number % 4)
        yield word, self.told("element")

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield str(ctx.get_current_key()), self.told(f"timer {timestamp}")

    def told(self, why: str) -> str:
        return repr(
            (
                why,
                self.record.value(),
                list(self.lengths.get()),
                sorted(self.letters.items()),
                self.recent.value(),
                sorted(self.lately.items()),
                self.epochs.get("epochs"),
            )
        )


KEYS: dict[str, tuple[Any, Any]] = {
    "column": ("word", None),
    "columns": (["word", "number"], None),
    "typed": (lambda pair: pair[0], "string"),
    "untyped": (lambda pair: pair[0], None),
}


def program(out: Path, key: str, parallelism: int) -> Program:
    program = Program()
    selector, key_type = KEYS[key]
    stream = program.source("in", "word string, number bigint").key_by(selector, key_type)
    told = stream.process(Everything(), "word string, told string").uid("everything")
    told.set_parallelism(parallelism).set_max_parallelism(MAX_PARALLELISM)
    told.sink_to(Journal(out)).uid("out")
    return program


def newest(directory: Path) -> Any:
    return tidiness.retained(tidiness.job_directory(directory))[-1]


def written_again(path: str, key: str, target: str, now: int) -> str:
    """A savepoint with the same state, made of nothing but tables."""
    reader = SavepointReader.read(None, path)
    typed = {"key_type": "string"} if key == "untyped" else {}
    keyed = ["word", "number"] if key == "columns" else "key"
    parts: list[StateBootstrapTransformation] = []
    for name, descriptor in descriptors("declared").items():
        if name not in reader.states("everything"):
            continue
        table = reader.read_keyed_state("everything", name, **typed)
        if key == "columns":
            struct = table.column("key").combine_chunks()
            parts_of_key = dict(zip(["word", "number"], struct.flatten(), strict=True))
            table = table.drop_columns(["key"])
            for part, column in parts_of_key.items():
                table = table.append_column(part, column)
        keyed_table = OperatorTransformation.bootstrap_with(table).key_by(keyed, untyped=key == "untyped")
        map_key = "map_key" if "map_key" in table.column_names else None
        stamp = "stamp" if "stamp" in table.column_names else None
        parts.append(keyed_table.to_state(descriptor, "value", map_key=map_key, stamp=stamp))
    if any(kind == "timers" for kind in reader.states("everything").values()):
        timers = reader.read_timers("everything", **typed)
        if key == "columns":
            for position, part in enumerate(["word", "number"]):
                timers = timers.append_column(part, timers.column("key").combine_chunks().flatten()[position])
        keyed_timers = OperatorTransformation.bootstrap_with(timers).key_by(keyed, untyped=key == "untyped")
        parts.append(keyed_timers.to_timers("timestamp"))
    epochs_seen = reader.read_broadcast_state("everything", "epochs")
    descriptor = MapStateDescriptor("epochs", "string", "bigint")
    parts.append(OperatorTransformation.bootstrap_with(epochs_seen).to_broadcast_state(descriptor))
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.and_also(part)
    writer = SavepointWriter.new_savepoint(None, MAX_PARALLELISM).set_clock(ManualClock(now)).set_parallelism(3)
    return writer.with_operator("everything", whole).write(target)


WORDS = st.sampled_from(["kelp", "rock", "ü", "", "sand"])
BATCH = st.lists(st.tuples(WORDS, st.integers(0, 20)), max_size=12)
SOME = settings(deadline=None, max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("key", list(KEYS))
@SOME
@given(
    before=st.lists(BATCH, min_size=1, max_size=3),
    after=st.lists(BATCH, min_size=1, max_size=3),
    backends=st.tuples(*[st.sampled_from(["hashmap", "columnar"])] * 2),
    parallelism=st.integers(1, 4),
)
def test_the_job_goes_on_as_from_its_own_savepoint(
    key: str, place: Path, before: Any, after: Any, backends: tuple[str, str], parallelism: int
) -> None:
    before = [[("kelp", 1)], *before]
    with tempfile.TemporaryDirectory(dir=place) as directory:
        root = Path(directory)
        first = {"state.backend.type": backends[0]}
        run(program(root / "out", key, 2), root / "job", epochs("in", before), first, clock=ManualClock(0))
        checkpoint = newest(root / "job")
        now = checkpoint.metadata.processing_time
        copied = written_again(checkpoint.path, key, str(root / "copy"), now)
        already = Counter(rows(root / "out"))
        for name, start in (("out", None), ("copied", copied)):
            options = {"state.backend.type": backends[1], **({} if start is None else {PATH: start})}
            inputs = epochs("in", [*before, *after] if start is None else after)
            job = root / ("job" if start is None else "job-copied")
            run(program(root / name, key, parallelism), job, inputs, options, clock=ManualClock(now))
        assert Counter(rows(root / "copied")) == Counter(rows(root / "out")) - already


def rows(out: Path) -> list[Any]:
    return journal.as_tuples(journal.read(out))


def test_what_is_read_is_what_was_written(place: Path) -> None:
    table = pa.table({"k": ["a", "b", "ü"], "n": [1, 2, 3], "l": [[1], [2, 3], [4]]})
    made = (
        OperatorTransformation.bootstrap_with(table)
        .key_by("k")
        .to_state(ValueStateDescriptor("n", "bigint"), "n")
        .to_state(ListStateDescriptor("l", "int"), "l")
    )
    path = SavepointWriter.new_savepoint(None, 8).with_operator("op", made).write(str(place / "savepoint"))
    reader = SavepointReader.read(None, path)
    assert reader.states("op") == {"l": "list", "n": "value"}
    found = reader.read_keyed_state("op", "n", columns=["key", "value"]).to_pylist()
    assert sorted(found, key=lambda row: row["key"]) == [
        {"key": k, "value": n} for k, n in zip("abü", (1, 2, 3), strict=True)
    ]
    assert reader.read_keyed_state("op", "l", keys=["b", "none"]).column("value").to_pylist() == [[2, 3]]
