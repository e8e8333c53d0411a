"""State of which one subtask writes more than one Arrow array can hold, on a small scale: the bound is lowered."""

from __future__ import annotations

import json
import random
from ast import literal_eval
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from examples import read_checkpoint
from holdfast.datastream import KeyedProcessFunction, ParquetFileSink
from holdfast.datastream.functions import CheckpointedFunction, RichMapFunction
from holdfast.errors import JobExecutionError
from holdfast.kernel.clock import ManualClock
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor, batch, run_file
from holdfast.state.run_file import RunHandle, RunMeta, Segment, SegmentData, forget_runs, open_run, write_run
from holdfast.state.version import STATE_CACHE
from holdfast.state_processor import SavepointReader
from holdfast.storage.local import LocalFileSystem
from tests.stories.local import Program, master

FILES = LocalFileSystem()
BOUND = 2000


class Keeper(KeyedProcessFunction):
    """Keeps texts of any length in each kind of state, and says what it had."""

    def open(self, runtime_context: Any) -> None:
        self.text = runtime_context.get_state(ValueStateDescriptor("text", "string"))
        self.texts = runtime_context.get_list_state(ListStateDescriptor("texts", "string"))
        self.entries = runtime_context.get_map_state(MapStateDescriptor("entries", "string", "binary"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        entries = sorted((key, len(content)) for key, content in self.entries.items())
        yield value.key, repr((self.text.value(), list(self.texts.get() or ()), entries))
        text = chr(97 + value.n % 26) * value.n
        if value.n % 7 == 0:
            self.text.clear()
            self.entries.clear()
        else:
            self.text.update(text)
        if value.n % 11 == 0:
            self.texts.update([text])
        else:
            self.texts.add(text)
        for at in range(value.n % 5):
            self.entries.put(f"{at}{text[:50]}", text.encode())
        if value.n % 5 == 4:
            self.entries.remove(f"0{text[:50]}")
        ctx.timer_service().register_processing_time_timer(1_000_000 + value.n)


def expected(epochs: list[list[tuple[str, int]]]) -> tuple[list[tuple[str, str]], dict[str, dict[str, Any]]]:
    """What the function says, and the state at the end, from the elements alone."""
    texts: dict[str, str] = {}
    lists: dict[str, list[str]] = defaultdict(list)
    maps: dict[str, dict[str, bytes]] = defaultdict(dict)
    said = []
    for key, n in (element for epoch in epochs for element in epoch):
        said.append((key, repr((texts.get(key), lists[key], sorted((k, len(v)) for k, v in maps[key].items())))))
        text = chr(97 + n % 26) * n
        if n % 7 == 0:
            texts.pop(key, None)
            maps[key].clear()
        else:
            texts[key] = text
        lists[key] = [text] if n % 11 == 0 else [*lists[key], text]
        maps[key] |= {f"{at}{text[:50]}": text.encode() for at in range(n % 5)}
        if n % 5 == 4:
            maps[key].pop(f"0{text[:50]}")
    return said, {"text": texts, "texts": dict(lists), "entries": {k: v for k, v in maps.items() if v}}


def elements(seed: int) -> list[list[tuple[str, int]]]:
    chance = random.Random(seed)
    return [[(f"k{chance.randrange(12)}", chance.choice((1, 30, 200, 900))) for _ in range(25)] for _ in range(6)]


def go(directory: Path, inputs: list[list[tuple[str, int]]], options: dict[str, str]) -> Path:
    """Run the job on from where it is; the directory of its checkpoints."""
    STATE_CACHE.clear()
    forget_runs()
    program = Program()
    stream = program.source("in", "key string, n int").key_by("key").process(Keeper(), output_type="k string, v string")
    stream.uid("keeper").sink_to(ParquetFileSink(str(directory / "out"))).uid("out")
    epochs = [{"in": one} for one in inputs]
    made = master(program, directory / "jobs", epochs, options, clock=ManualClock(1000), parallelism=2)
    made.run()
    return Path(made.job.directory.path)


def output(directory: Path) -> list[tuple[str, str]]:
    files = sorted(str(file) for file in (directory / "out").glob("*.parquet"))
    return [tuple(row.values()) for row in ds.dataset(files, format="parquet").to_table().to_pylist()]


@pytest.mark.parametrize("backend", ["hashmap", "columnar"])
@pytest.mark.parametrize("max_runs", ["3", "100"])
def test_what_does_not_fit_into_one_array_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, max_runs: str
) -> None:
    monkeypatch.setattr(batch, "BATCH_BYTES", BOUND)
    inputs = elements(1)
    options = {"state.backend.type": backend, "state.compaction.max-runs": max_runs}
    for until in range(1, len(inputs) + 1):  # each epoch starts cold
        place = go(tmp_path, inputs[:until], options)
    said, state = expected(inputs)
    assert sorted(output(tmp_path)) == sorted(said)
    read = {name: content for _, name, _, content in read_checkpoint.states(place)}
    assert {name: read[name] for name in state} == state
    footers = [run.footer for run in runs_of(place)]
    assert any(len(segment.get("batches", ())) > 2 for footer in footers for segment in footer["segments"])
    for run in runs_of(place):
        for name in run.segments:
            file = pa.ipc.open_file(pa.py_buffer(content_of(run, name)))
            sizes = [file.get_batch(at) for at in range(file.num_record_batches)]
            assert all(one.nbytes <= BOUND or one.num_rows == 1 for one in sizes)


def runs_of(place: Path) -> list[read_checkpoint.Run]:
    document, root = read_checkpoint.checkpoint(place)
    return [read_checkpoint.Run(root, handle) for operator in document["operators"] for handle in operator["runs"]]


def content_of(run: read_checkpoint.Run, name: str) -> bytes:
    segment = run.segments[name]
    return run.data[segment["offset"] : segment["offset"] + segment["length"]]


def test_a_value_that_does_not_fit_is_still_named_where_many_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong(KeyedProcessFunction):
        def open(self, runtime_context: Any) -> None:
            self.value = runtime_context.get_state(ValueStateDescriptor("v", "struct<n: tinyint, s: string>"))

        def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
            self.value.update((300 if value.key == "bad" else 1, "x" * value.n))
            yield value.key

    monkeypatch.setattr(batch, "BATCH_BYTES", BOUND)
    program = Program()
    program.source("in", "key string, n int").key_by("key").process(Wrong()).uid("wrong").print()
    rows = [*((f"k{n}", 100) for n in range(200)), ("bad", 1)]
    with pytest.raises(JobExecutionError, match=r"'v' of operator .*\(uid 'wrong'\), key 'bad'"):
        master(program, tmp_path, [{"in": rows}]).run()


def one_run(directory: Path, table: pa.Table) -> RunHandle:
    meta = RunMeta(KeyGroupRange(0, 7), 8, 1, 1, {"kind": "tagged"})
    return write_run(FILES, str(directory), "shared/r", {"s": SegmentData(table, {"kind": "value"})}, meta)


def texts(count: int) -> pa.Table:
    hashes = np.sort(np.random.default_rng(1).integers(0, 2**64, count, np.uint64))
    return pa.table({"hash": hashes, "value": [str(at) * 20 for at in range(count)], "op": np.zeros(count, np.int8)})


def test_the_parts_of_a_segment_have_all_rows_of_each_range_of_key_groups_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "BATCH_BYTES", BOUND)
    table = texts(500)
    segment = open_run(FILES, str(tmp_path), one_run(tmp_path, table)).segment("s")
    assert segment is not None and len(segment.parts) > 10 and segment.table == table
    for start in range(8):
        for end in range(start, 8):
            groups = KeyGroupRange(start, end)
            found = [part.table[part.range(groups)] for part in segment.parts]
            assert pa.concat_tables(found) == table[segment.range(groups)]
    assert np.concatenate([part.hash for part in segment.parts]).tolist() == segment.hash.tolist()


def test_a_segment_of_several_batches_that_does_not_say_so_is_read_by_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So earlier versions wrote what they could not read again."""
    monkeypatch.setattr(batch, "BATCH_BYTES", BOUND)
    monkeypatch.setattr(run_file, "COLUMN_BYTES", 4 * BOUND)
    handle = one_run(tmp_path, texts(500))
    segment = open_run(FILES, str(tmp_path), handle).segment("s")
    assert segment is not None
    silent = Segment(segment._blocks, replace(segment.entry, batches=()))
    assert [part.table for part in silent.parts] == [part.table for part in segment.parts]


def test_rows_are_taken_of_what_is_too_long_for_one_array(monkeypatch: pytest.MonkeyPatch) -> None:
    table = texts(300)
    parts = pa.concat_tables([table[:100], table[100:250], table[250:]])
    rows = np.random.default_rng(2).permutation(300)
    wanted = table.take(pa.array(rows))
    monkeypatch.setattr(batch, "BATCH_BYTES", 1000)
    found = batch.take_rows(parts, rows)
    assert found.combine_chunks() == wanted and found.column(1).num_chunks > 5
    assert batch.take_rows(parts, rows[:0]).num_rows == 0


class Hoarder(RichMapFunction, CheckpointedFunction):
    """Keeps texts of any length in each kind of operator state, and says how many bytes of each it found."""

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.texts = store.get_list_state(ListStateDescriptor("texts", "string"))
        self.union = store.get_union_list_state(ListStateDescriptor("union"))
        self.entries = store.get_broadcast_state(MapStateDescriptor("entries", "string", "struct<b: binary>"))
        union = [text for text in self.union.get() if text]
        self.found = [sorted(self.texts.get()), sorted(set(union)), sorted(row.b for _, row in self.entries.items())]

    def snapshot_state(self, context: Any) -> None:
        pass

    def map(self, value: str) -> tuple[str]:
        self.texts.add(value)
        self.union.add(value)
        self.entries.put(value, (value.encode(),))
        return (repr(self.found),)


def test_operator_state_that_does_not_fit_into_one_array_is_written_in_pieces_and_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was found: more than 2 GiB of texts in one epoch, and a TypeError that named neither operator nor state."""
    monkeypatch.setattr(batch, "BATCH_BYTES", BOUND)
    chance = random.Random(3)
    kept = [f"{at}{'x' * chance.choice((1, 300, 900, 5000))}" for at in range(60)]
    for parallelism, inputs in ((1, [kept]), (1, [kept, ["one"]]), (3, [kept, ["one"], ["two"]])):
        program = Program()
        stream = program.source("in", "string").map(Hoarder(), "value string").uid("hoard").set_parallelism(parallelism)
        stream.sink_to(ParquetFileSink(str(tmp_path / "out"))).uid("out")
        made = master(program, tmp_path / "jobs", [{"in": one} for one in inputs], source_tasks=1, parallelism=2)
        made.run()
    texts, union, entries = literal_eval(output(tmp_path)[60][0])
    assert (texts, union, entries) == (sorted(kept), sorted(kept), sorted(text.encode() for text in kept))
    _, union, entries = literal_eval(output(tmp_path)[61][0])
    assert (union, entries) == (sorted([*kept, "one"]), sorted(text.encode() for text in [*kept, "one"]))

    newest = max(Path(made.job.directory.path).glob("chk-*"), key=lambda path: int(path.name[4:]))
    reader = SavepointReader.read(None, str(newest))
    everything = sorted([*kept, "one", "two"])
    assert sorted(reader.read_list_state("hoard", "texts").column("value").to_pylist()) == everything
    [hoard] = [one for one in json.loads((newest / "_metadata").read_text())["operators"] if one["uid"] == "hoard"]
    for state in hoard["subtasks"][0]["states"].values():
        assert len(state["chunks"]) > 5
        assert all(chunk["length"] < 2 * BOUND or chunk["items"] == 1 for chunk in state["chunks"])
