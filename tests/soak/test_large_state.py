"""One subtask writes, or emits, more text in one epoch than an Arrow array can hold, at its real size.

`STORY_GIB` says how much; a run needs about twice as much memory, and as much disk. Small copies of these stories,
with a lowered bound, are `tests/unit/state/test_large_state.py` and `tests/unit/runtime/test_long_chunks.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from holdfast.datastream import KeyedProcessFunction, ParquetFileSink
from holdfast.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from holdfast.state.run_file import forget_runs
from holdfast.state.version import STATE_CACHE
from tests.stories.local import Program, run

pytestmark = pytest.mark.soak

GIB = float(os.environ.get("STORY_GIB", "2.5"))
LENGTH = 64 * 1024
TEXTS = [chr(97 + at) * LENGTH for at in range(26)]  # the same few objects, so that Python holds them once


class Keeper(KeyedProcessFunction):
    """Keeps a long text for each key, in the kind of state that it is given."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def open(self, runtime_context: Any) -> None:
        if self.kind == "value":
            self.state = runtime_context.get_state(ValueStateDescriptor("s", "string"))
        elif self.kind == "list":
            self.state = runtime_context.get_list_state(ListStateDescriptor("s", "string"))
        else:
            self.state = runtime_context.get_map_state(MapStateDescriptor("s", "bigint", "string"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        text = TEXTS[value.n % 26]
        if value.asked:
            if self.kind == "value":
                found = self.state.value()
            else:
                found = next(iter(self.state.get())) if self.kind == "list" else self.state.get(value.n)
            yield value.n, found == text
        elif self.kind == "value":
            self.state.update(text)
        elif self.kind == "list":
            self.state.add(text)
        else:
            self.state.put(value.n, text)


@pytest.mark.parametrize("backend", ["hashmap", "columnar"])
@pytest.mark.parametrize(
    ("kind", "keys"),
    [("value", None), ("list", None), ("map", None), ("map", 1)],
    ids=["value", "list", "map", "one-map"],
)
def test_more_than_two_gib_of_one_epoch_are_read_again(
    tmp_path: Path, backend: str, kind: str, keys: int | None
) -> None:
    count = int(GIB * 2**30) // LENGTH
    options = {"state.backend.type": backend, "state.backend.hashmap.memory": "64 mb"}
    asked = list(range(0, count, count // 20))

    def name(n: int) -> str:
        return f"k{n % (keys or count)}"

    def go(inputs: list[list[tuple[str, int, bool]]]) -> None:
        STATE_CACHE.clear()
        forget_runs()
        program = Program()
        stream = program.source("in", "key string, n bigint, asked boolean").key_by("key")
        done = stream.process(Keeper(kind), output_type="n bigint, found boolean").uid("keeper")
        done.sink_to(ParquetFileSink(str(tmp_path / "out"))).uid("out")
        run(program, tmp_path / "jobs", [{"in": rows} for rows in inputs], options, parallelism=1, source_tasks=1)

    first = [(name(n), n, False) for n in range(count)]
    go([first])
    go([first, [(name(n), n, True) for n in asked]])
    files = list((tmp_path / "out").glob("*.parquet"))
    answers = sorted(tuple(row.values()) for file in files for row in pq.read_table(file).to_pylist())
    assert answers == [(n, True) for n in asked]


class FiresAtTheEnd(KeyedProcessFunction):
    """Emits a long text for each key when its timer fires: those of a task in one go."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        ctx.timer_service().register_processing_time_timer(1)
        return iter(())

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield ctx.get_current_key(), TEXTS[ctx.get_current_key() % 26]


class Right(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        yield value.n, str(value.text == TEXTS[value.n % 26])


@pytest.mark.parametrize("behind", ["a sink", "a key"])
def test_more_than_two_gib_that_fire_in_one_epoch_arrive(tmp_path: Path, behind: str) -> None:
    numbers = list(range(int(GIB * 2**30) // LENGTH))
    program = Program()
    texts = (
        program.source("in", "bigint").key_by(lambda n: n, "bigint").process(FiresAtTheEnd(), "n bigint, text string")
    )
    stream = texts.uid("fires")
    if behind == "a key":
        stream = stream.key_by("n").process(Right(), "n bigint, text string").uid("right")
    stream.sink_to(ParquetFileSink(str(tmp_path / "out"))).uid("out")
    run(program, tmp_path / "jobs", [{"in": numbers}], parallelism=1, source_tasks=1)
    found = []
    for file in (tmp_path / "out").glob("*.parquet"):
        for batch in pq.ParquetFile(file).iter_batches(batch_size=1000):
            found += [(n, text in ("True", TEXTS[n % 26])) for n, text in zip(*batch.to_pydict().values(), strict=True)]
    assert sorted(found) == [(n, True) for n in numbers]
