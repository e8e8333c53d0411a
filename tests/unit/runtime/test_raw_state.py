"""Raw state: what a function writes into streams is there again, wherever its key groups and partitions have gone."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint import CheckpointStreamFactory
from holdfast.datastream.functions import CheckpointedFunction, RichMapFunction
from holdfast.errors import ConfigurationError, JobExecutionError, StateMigrationError
from holdfast.kernel import fault
from holdfast.kernel.key_group import key_group_of
from holdfast.state import StatePartitionStreamProvider, StateSnapshotContext
from holdfast.state.descriptor import ListStateDescriptor
from holdfast.types.key_codec import key_codec_for
from holdfast.types.type_parser import to_type
from tests.stories import journal
from tests.stories.journal import Journal
from tests.stories.local import RESTARTING, Program, epochs, run
from tests.stories.tidiness import job_directory, retained

OUT = "key bigint, seen bigint, everything bigint"
CODEC = key_codec_for(to_type("bigint"))


def group_of(key: int) -> int:
    return key_group_of(CODEC.hash(key), 8)


class Counts(RichMapFunction, CheckpointedFunction):
    """Counts keys in plain dicts, which it writes itself: by key group, and once more for the subtask as a whole."""

    def initialize_state(self, context: Any) -> None:
        self.by_group: dict[int, Counter[int]] = {}
        for part in context.get_raw_keyed_state_inputs():
            with part.get_stream() as stream:
                content = {int(key): count for key, count in json.loads(stream.read()).items()}
            assert part.get_key_group_id() not in self.by_group
            self.by_group[part.get_key_group_id()] = Counter(content)
        self.total = 0
        for partition in context.get_raw_operator_state_inputs():
            assert isinstance(partition, StatePartitionStreamProvider)
            self.total += int(partition.get_stream().read())

    def snapshot_state(self, context: Any) -> None:
        assert isinstance(context, StateSnapshotContext)
        output = context.get_raw_keyed_operator_state_output()
        own = list(output.get_key_group_list())
        assert set(self.by_group) <= set(own)
        for group, counts in self.by_group.items():
            output.start_new_key_group(group)
            text = json.dumps(counts).encode()
            assert output.write(text[:3]) + output.write(text[3:]) == len(text)
        if self.total % 2:
            factory = context.get_checkpoint_stream_factory()
            assert isinstance(factory, CheckpointStreamFactory)
            with factory.create_checkpoint_state_output_stream() as stream:
                stream.write(b"%d" % self.total)
                handle = stream.close_and_get_handle()
                assert handle is not None and handle.open_input_stream().read() == b"%d" % self.total
        else:
            whole = context.get_raw_operator_state_output()
            for part in (self.total - 1, 1):
                whole.start_new_partition()
                whole.write(b"%d" % part)

    def map(self, value: int) -> Any:
        counts = self.by_group.setdefault(group_of(value), Counter())
        counts[value] += 1
        self.total += 1
        return value, counts[value], self.total


def counting(
    out: Path,
    parallelism: int,
    *,
    function: Any = None,
    keyed: bool = True,
    key_type: str = "bigint",
    max_parallelism: int | None = None,
) -> Program:
    program = Program()
    numbers = program.source("in", "bigint")
    selector = (lambda n: str(n)) if key_type == "string" else lambda n: n
    stream: Any = numbers.key_by(selector, key_type) if keyed else numbers
    stream = stream.map(function or Counts(), OUT).uid("counts").set_parallelism(parallelism)
    if max_parallelism is not None:
        stream.set_max_parallelism(max_parallelism)
    stream.sink_to(Journal(out)).uid("out")
    return program


BATCHES = [[0, 1, 2, 3, 4, 5, 6, 7], [1, 1, 3], [0, 9, 9], [7, 3, 1, 0], [5], [11, 0, 1]]
SMALL = {"pipeline.max-parallelism": "8"}


@pytest.mark.parametrize(
    ("threshold", "parallelisms"), [("0 b", (2, 2)), ("20 kb", (1, 3)), ("20 kb", (4, 1)), ("0 b", (3, 2))]
)
def test_counts_go_on_at_any_parallelism(tmp_path: Path, threshold: str, parallelisms: tuple[int, int]) -> None:
    settings = SMALL | {"execution.checkpointing.data-inline-threshold": threshold}
    for number, until in ((0, 3), (1, 5), (0, 6)):
        program = counting(tmp_path / "out", parallelisms[number])
        run(program, tmp_path / "job", epochs("in", BATCHES[:until]), settings)
    seen: Counter[int] = Counter()
    expected = []
    for number in (number for batch in BATCHES for number in batch):
        seen[number] += 1
        expected.append((number, seen[number]))
    rows = journal.read(tmp_path / "out")
    assert Counter((row[0], row[1]) for row in rows) == Counter(expected)
    # The last checkpoint has one part for each key group, in whatever subtask.
    [*_, newest] = retained(job_directory(tmp_path / "job"))
    [counts] = [operator for operator in newest.metadata.operators if operator.uid == "counts"]
    keyed = [part["states"]["_raw_keyed"] for part in counts.subtasks if part and "_raw_keyed" in part["states"]]
    assert sum(chunk["count"] for part in keyed for chunk in part["chunks"]) == len({group_of(n) for n in seen})
    # The partitions of all subtasks add up.
    run(counting(tmp_path / "last", 1), tmp_path / "job", epochs("in", [*BATCHES, [2]]), settings)
    assert journal.read(tmp_path / "last") == [(2, seen[2] + 1, len(expected) + 1)]


def test_a_crash_leaves_raw_state_as_if_nothing_had_happened(tmp_path: Path) -> None:
    fault.install("before:metadata.write:2=raise")
    run(counting(tmp_path / "out", 2), tmp_path / "job", epochs("in", BATCHES), SMALL | RESTARTING)
    assert fault.arrivals("metadata.write") > 2
    fault.clear()
    last = {row[0]: row[1] for row in sorted(journal.read(tmp_path / "out"))}
    assert last == Counter(number for batch in BATCHES for number in batch)


def test_raw_keyed_state_alone_fixes_the_key_groups_and_the_type_of_keys(tmp_path: Path) -> None:
    """Its bytes belong to key groups: with other groups, or other keys, nobody would find them."""
    out, job = tmp_path / "out", tmp_path / "job"
    run(counting(out, 2), job, epochs("in", BATCHES[:3]), SMALL)
    with pytest.raises(ConfigurationError, match="its state has 8, which cannot change"):
        run(counting(out, 2, max_parallelism=32), job, epochs("in", BATCHES))
    with pytest.raises(StateMigrationError, match="the type of a key cannot change"):
        run(counting(out, 2, key_type="string"), job, epochs("in", BATCHES))
    with pytest.raises(ConfigurationError, match="above the max parallelism 8"):
        run(counting(out, 9), job, epochs("in", BATCHES))
    run(counting(out, 3), job, epochs("in", BATCHES), {"pipeline.max-parallelism": "32"})
    last = {row[0]: row[1] for row in sorted(journal.read(out))}
    assert last == Counter(number for batch in BATCHES for number in batch)


class Indifferent(RichMapFunction, CheckpointedFunction):
    """Looks at no raw state."""

    def initialize_state(self, context: Any) -> None:
        self.own = context.get_operator_state_store().get_list_state(ListStateDescriptor("own", "bigint"))

    def snapshot_state(self, context: Any) -> None:
        self.own.add(1)

    def map(self, value: int) -> Any:
        return value, 0, 0


class Writing(Counts):
    """Does something with the contexts that is not possible."""

    def __init__(self, wrong: str) -> None:
        self.wrong = wrong

    def snapshot_state(self, context: Any) -> None:
        output = context.get_raw_keyed_operator_state_output()
        if self.wrong == "no key group":
            output.write(b"x")
        for group in (99,) if self.wrong == "foreign" else (0, 0):
            output.start_new_key_group(group)


def test_unread_raw_state_is_kept_once(tmp_path: Path) -> None:
    run(counting(tmp_path / "out", 2), tmp_path / "job", epochs("in", BATCHES[:2]), SMALL)
    for parallelism in (3, 2, 2):
        program = counting(tmp_path / "out", parallelism, function=Indifferent())
        run(program, tmp_path / "job", epochs("in", [*BATCHES[:2], *[[1]] * 3]), SMALL)
    run(counting(tmp_path / "last", 2), tmp_path / "job", epochs("in", [*BATCHES[:2], *[[1]] * 3, [1, 3, 7]]), SMALL)
    assert {row[0]: row[1] for row in journal.read(tmp_path / "last")} == {1: 4, 3: 3, 7: 2}


def test_invalid_raw_state_calls_are_rejected(tmp_path: Path) -> None:
    for wrong, message in (("no key group", "start_new_key_group"), ("foreign", "another subtask"), ("twice", "once")):
        with pytest.raises(JobExecutionError, match=message):
            program = counting(tmp_path / "out", 1, function=Writing(wrong))
            run(program, tmp_path / wrong, epochs("in", [[0]]), SMALL)
    with pytest.raises(JobExecutionError, match="has no keys"):
        run(counting(tmp_path / "out", 1, keyed=False), tmp_path / "narrow", epochs("in", [[0]]), SMALL)
    run(counting(tmp_path / "out", 1), tmp_path / "job", epochs("in", BATCHES[:1]), SMALL)
    with pytest.raises(StateMigrationError, match="no keys any more"):
        program = counting(tmp_path / "out", 1, function=Indifferent(), keyed=False)
        run(program, tmp_path / "job", epochs("in", BATCHES[:2]), SMALL)
