"""Savepoints are written from columns, functions and other savepoints; wrong input is refused with the reason."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.checkpoint.completed_checkpoint import read_by_path
from holdfast.errors import (
    AlreadyExistError,
    ConfigurationError,
    HoldfastError,
    JobExecutionError,
    NotExistError,
    NullKeyError,
    OutputTypeError,
    StateError,
    StateMigrationError,
)
from holdfast.kernel import fault
from holdfast.kernel.clock import ManualClock
from holdfast.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from holdfast.state_processor import (
    BroadcastStateBootstrapFunction,
    KeyedStateBootstrapFunction,
    OperatorTransformation,
    SavepointReader,
    SavepointWriter,
    StateBootstrapFunction,
    StateBootstrapTransformation,
)
from holdfast.types.type_parser import to_type
from tests.stories import journal
from tests.stories.functions import Numbering
from tests.stories.journal import Journal
from tests.stories.local import Program, epochs, run

PATH = "execution.state-recovery.path"
COUNT = ValueStateDescriptor("count", "bigint")
HISTORY = pa.table({"word": ["kelp", "rock", "ü"], "n": [5, 7, 9]})


def counts(table: Any = HISTORY, **key: Any) -> StateBootstrapTransformation:
    return OperatorTransformation.bootstrap_with(table).key_by("word", **key).to_state(COUNT, "n")


def written(place: Path, transformation: StateBootstrapTransformation, max_parallelism: int = 16) -> str:
    writer = SavepointWriter.new_savepoint(None, max_parallelism).set_clock(ManualClock(0))
    return writer.with_operator("count", transformation).write(str(place / "savepoint"))


def numbered(place: Path, path: str, words: list[str], *, key: Any = "word", key_type: Any = None) -> list[Any]:
    """What a job that numbers words emits when it starts from a savepoint."""
    program = Program()
    stream = program.source("in", "word string").key_by(key, key_type)
    told = stream.process(Numbering(lambda row, n: (row[0], n)), "word string, n bigint").uid("count")
    told.sink_to(Journal(place / "out")).uid("out")
    inputs = epochs("in", [[(word,) for word in words]])
    run(program, place / "job", inputs, {PATH: path}, clock=ManualClock(0))
    return sorted(journal.as_tuples(journal.read(place / "out")))


# What is made.


def test_a_job_goes_on_from_a_table(place: Path) -> None:
    path = written(place, counts())
    assert numbered(place, path, ["kelp", "ü", "sand"]) == [("kelp", 6), ("sand", 1), ("ü", 10)]


def test_an_untyped_key_is_that_of_a_function(place: Path) -> None:
    path = written(place, counts(untyped=True))
    assert numbered(place, path, ["kelp"], key=lambda row: row[0]) == [("kelp", 6)]


BERTH = "struct<pier: string, number: int>"


@pytest.mark.parametrize("key_type", [None, BERTH])
def test_a_column_of_rows_is_a_key_by_itself_as_in_the_job(place: Path, key_type: Any) -> None:
    berths = pa.array([{"pier": "east", "number": 1}, {"pier": "west", "number": 2}], to_type(BERTH).arrow_type)
    path = written(place, counts(pa.table({"word": berths, "n": [5, 7]}), key_type=key_type))
    program = Program()
    stream = program.source("in", f"word {BERTH}").key_by("word")
    told = stream.process(Numbering(lambda row, n: (row[0].number, n)), "number int, n bigint").uid("count")
    told.sink_to(Journal(place / "out")).uid("out")
    inputs = epochs("in", [[(("east", 1),), (("west", 2),), (("west", 3),)]])
    run(program, place / "job", inputs, {PATH: path}, clock=ManualClock(0))
    assert sorted(journal.as_tuples(journal.read(place / "out"))) == [(1, 6), (2, 8), (3, 1)]


def test_elements_of_a_list_may_be_a_row_each(place: Path) -> None:
    table = pa.table({"k": [1, 2, 1, 1], "n": [4, 5, 3, 4]})
    seen = OperatorTransformation.bootstrap_with(table).key_by("k").to_state(ListStateDescriptor("seen", "int"), "n")
    found = SavepointReader.read(None, written(place, seen)).read_keyed_state("count", "seen", columns=["key", "value"])
    assert sorted(map(tuple, (row.values() for row in found.to_pylist()))) == [(1, [4, 3, 4]), (2, [5])]


class Bootstrap(KeyedStateBootstrapFunction):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(COUNT)

    def process_element(self, value: Any, ctx: Any) -> None:
        self.count.update((self.count.value() or 0) + value[1])
        ctx.timer_service().register_processing_time_timer(-5)


def test_a_function_writes_state_row_by_row_and_its_timers_wait(place: Path) -> None:
    twice = pa.concat_tables([HISTORY, HISTORY])
    path = written(place, OperatorTransformation.bootstrap_with(twice).key_by("word").transform(Bootstrap()))
    timers = SavepointReader.read(None, path).read_timers("count", columns=["key", "timestamp"]).to_pylist()
    assert sorted(row["key"] for row in timers) == ["kelp", "rock", "ü"]
    assert numbered(place, path, ["kelp", "rock"]) == [("kelp", 11), ("rock", 15)]


def test_a_function_may_take_a_list_and_compute_its_keys(place: Path) -> None:
    elements = [("kelp", 2), ("rock", 3)]
    keyed = OperatorTransformation.bootstrap_with(elements).key_by(lambda pair: pair[0], "string")
    assert numbered(place, written(place, keyed.transform(Bootstrap())), ["kelp"]) == [("kelp", 3)]


class Rules(BroadcastStateBootstrapFunction):
    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.rules = store.get_broadcast_state(MapStateDescriptor("rules", "string", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> None:
        self.rules.put(value[0], value[1])


class Offsets(StateBootstrapFunction):
    def initialize_state(self, context: Any) -> None:
        self.offsets = context.get_operator_state_store().get_list_state(ListStateDescriptor("offsets", "bigint"))
        self.seen: list[int] = []

    def process_element(self, value: Any, ctx: Any) -> None:
        self.seen.append(value[1])

    def snapshot_state(self, context: Any) -> None:
        self.offsets.add_all(self.seen)


def test_operator_state_is_made_by_functions_and_of_columns(place: Path) -> None:
    data = OperatorTransformation.bootstrap_with(HISTORY)
    all_of_it = (
        data.transform(Rules())
        .and_also(data.transform(Offsets()))
        .and_also(data.to_union_list_state(ListStateDescriptor("words", "string"), "word"))
        .and_also(data.to_broadcast_state(MapStateDescriptor("more", "string", "double"), "word", "n"))
    )
    reader = SavepointReader.read(None, written(place, all_of_it))
    assert reader.states("count") == {"more": "broadcast", "offsets": "split", "rules": "broadcast", "words": "union"}
    assert reader.read_list_state("count", "offsets").column("value").to_pylist() == [5, 7, 9]
    assert reader.read_union_state("count", "words").column("value").to_pylist() == ["kelp", "rock", "ü"]
    rules = reader.read_broadcast_state("count", "rules").to_pydict()
    assert dict(zip(rules["key"], rules["value"], strict=True)) == {"kelp": 5, "rock": 7, "ü": 9}
    assert reader.read_broadcast_state("count", "more").column("value").to_pylist() == [5.0, 7.0, 9.0]


# What is made of others.


def test_another_savepoint_is_copied_whole_with_uids_swapped_and_one_left_out(place: Path) -> None:
    first = SavepointWriter.new_savepoint(None, 16).set_clock(ManualClock(0))
    doubled = counts(HISTORY.set_column(1, "n", pa.array([10, 14, 18])))
    first.with_operator("count", counts()).with_operator("other", doubled).with_operator("gone", counts())
    path = first.write(str(place / "first"))
    second = SavepointWriter.from_existing_savepoint(None, path).remove_operator("gone")
    second.change_operator_identifier("count", "other").change_operator_identifier("other", "count")
    copied = second.write(str(place / "second"))
    shutil.rmtree(path)
    reader = SavepointReader.read(None, copied)
    assert reader.operators() == ["count", "other"]
    assert sorted(reader.read_keyed_state("count", "count").column("value").to_pylist()) == [10, 14, 18]
    assert sorted(reader.read_keyed_state("other", "count").column("value").to_pylist()) == [5, 7, 9]
    assert read_by_path(copied).metadata.is_savepoint


def test_what_is_to_be_renamed_must_be_there(place: Path) -> None:
    path = written(place, counts())
    writer = SavepointWriter.from_existing_savepoint(None, path).change_operator_identifier("nobody", "else")
    with pytest.raises(NotExistError, match="does not contain state of operator 'nobody'"):
        writer.write(str(place / "second"))
    writer = SavepointWriter.from_existing_savepoint(path).with_operator("else", counts())
    with pytest.raises(ConfigurationError, match="twice"):
        writer.change_operator_identifier("count", "else").write(str(place / "third"))


# What is refused.


def test_a_uid_is_given_once(place: Path) -> None:
    path = written(place, counts())
    with pytest.raises(ConfigurationError, match="already contains operator 'count'"):
        SavepointWriter.from_existing_savepoint(None, path).with_operator("count", counts())
    with pytest.raises(ConfigurationError, match="already contains operator 'a'"):
        SavepointWriter.new_savepoint().with_operator("a", counts()).with_operator("a", counts())


@pytest.mark.parametrize("number", [0, -1, 32769, True, "16"])
def test_max_parallelism_has_bounds(number: Any) -> None:
    with pytest.raises(ConfigurationError, match="from 1 to 32768"):
        SavepointWriter.new_savepoint(None, number)


def test_an_empty_savepoint_is_refused(place: Path) -> None:
    with pytest.raises(ConfigurationError, match="needs an operator"):
        SavepointWriter.new_savepoint().write(str(place / "savepoint"))
    with pytest.raises(ConfigurationError, match="relative"):
        SavepointWriter.new_savepoint().with_operator("a", counts()).write("savepoint")


BAD: dict[str, tuple[StateBootstrapTransformation, type[HoldfastError], str]] = {
    "a null key": (counts(pa.table({"word": ["a", None], "n": [1, 2]})), NullKeyError, "of row 1 is null"),
    "a null value": (counts(pa.table({"word": ["a", "b"], "n": [1, None]})), StateError, "'n' is null in row 1"),
    "two rows for a key": (counts(pa.table({"word": ["a", "b", "a"], "n": [1, 2, 3]})), StateError, "for key 'a'"),
    "values that do not fit": (counts(pa.table({"word": ["a"], "n": ["x"]})), OutputTypeError, "declared as bigint"),
    "numbers too large": (counts(pa.table({"word": ["a"], "n": [1.5]})), OutputTypeError, "declared as bigint"),
    "keys that do not fit": (counts(key_type="int"), OutputTypeError, "does not fit the declared type int"),
    "no such column": (counts(pa.table({"word": ["a"], "m": [1]})), ConfigurationError, "'n'"),
    "no such key": (counts(pa.table({"key": ["a"], "n": [1]})), ConfigurationError, "'word'"),
    "one state twice": (counts().and_also(counts()), StateError, "twice"),
    "two kinds of keys": (
        counts().and_also(
            OperatorTransformation.bootstrap_with(HISTORY)
            .key_by("n")
            .to_state(ValueStateDescriptor("word", "string"), "word")
        ),
        StateError,
        "one type of key",
    ),
    "nothing of a table": (
        StateBootstrapTransformation(OperatorTransformation.bootstrap_with(HISTORY).key_by("word")._empty().keyed),
        ConfigurationError,
        "nothing says what becomes of it",
    ),
}


@pytest.mark.parametrize("what", list(BAD))
def test_what_cannot_be_state_is_refused_and_is_no_savepoint(place: Path, what: str) -> None:
    transformation, error, message = BAD[what]
    with pytest.raises(error, match=message):
        written(place, transformation)
    with pytest.raises(NotExistError):
        read_by_path(str(place / "savepoint"))


def test_a_job_with_another_type_of_key_does_not_start(place: Path) -> None:
    table = pa.table({"word": [1, 2], "n": [5, 6]})
    with pytest.raises((StateMigrationError, JobExecutionError), match="key"):
        numbered(place, written(place, counts(table)), ["kelp"])


# Crashes.


@pytest.mark.parametrize("where", ["run.write", "metadata.write"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_writer_that_dies_leaves_a_whole_savepoint_or_none(place: Path, where: str, when: str) -> None:
    fault.install(f"{when}:{where}=raise")
    with pytest.raises(fault.FaultInjectedError):
        written(place, counts())
    fault.clear()
    if (where, when) == ("metadata.write", "after"):
        assert SavepointReader.read(None, str(place / "savepoint")).read_keyed_state("count", "count").num_rows == 3
    else:
        with pytest.raises(NotExistError):
            SavepointReader.read(None, str(place / "savepoint"))
        if (where, when) != ("run.write", "before"):
            with pytest.raises(AlreadyExistError, match="not empty"):
                written(place, counts())


def test_of_two_writers_one_wins_and_loses_no_file(place: Path) -> None:
    target = str(place / "savepoint")
    late = SavepointWriter.new_savepoint(None, 16).set_clock(ManualClock(0)).with_operator("late", counts())

    class Rival(ManualClock):
        def now_ms(self) -> int:
            written(place, counts())
            return 0

    late.set_clock(Rival(0))
    with pytest.raises(AlreadyExistError):
        late.write(target)
    reader = SavepointReader.read(None, target)
    assert reader.operators() == ["count"] and reader.read_keyed_state("count", "count").num_rows == 3


@pytest.mark.parametrize(
    ("column", "declared"),
    [
        (pa.array(["5"]), "bigint"),
        (pa.array([5]), "string"),
        (pa.array([True]), "bigint"),
        (pa.array([5], pa.timestamp("us")), "bigint"),
        (pa.array(["x"]), "binary"),
        (pa.array([["5"]]), "array<bigint>"),
        (pa.array([{"n": "5"}]), "n bigint"),
    ],
)
def test_a_value_of_another_kind_is_not_converted_but_refused(place: Path, column: pa.Array, declared: str) -> None:
    table = pa.table({"word": ["kelp"], "n": column})
    made = (
        OperatorTransformation.bootstrap_with(table).key_by("word").to_state(ValueStateDescriptor("n", declared), "n")
    )
    with pytest.raises(OutputTypeError, match=r"another kind of value.* Cast the column"):
        SavepointWriter.new_savepoint(None, 16).with_operator("op", made).write(str(place / "savepoint"))


def test_the_keys_of_a_broadcast_state_may_be_rows_and_each_is_there_once(place: Path) -> None:
    limits = MapStateDescriptor("limits", "struct<site: string, floor: smallint>", "double")
    keys = [{"floor": 1, "site": "kelp"}, {"floor": 2, "site": "kelp"}]
    table = pa.table({"key": keys, "value": [0.5, None]})
    transformation = OperatorTransformation.bootstrap_with(table).to_broadcast_state(limits)
    found = SavepointReader.read(None, written(place, transformation)).read_broadcast_state("count", "limits")
    assert sorted(found.to_pylist(), key=lambda row: row["key"]["floor"]) == table.to_pylist()
    for same in (pa.table({"key": keys[:1] * 2, "value": [1.0, 2.0]}), pa.table({"key": [0.0, -0.0], "value": [1, 2]})):
        kind = limits if pa.types.is_struct(same["key"].type) else MapStateDescriptor("limits", "double", "bigint")
        with pytest.raises(StateError, match="two rows for one key"):
            SavepointWriter.new_savepoint().with_operator(
                "count", OperatorTransformation.bootstrap_with(same).to_broadcast_state(kind)
            ).write(str(place / "twice"))
