"""Without uids, the same program finds its state again, and a changed one is refused rather than given another's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.datastream import BroadcastProcessFunction, CoMapFunction, DataStream, OutputTag
from holdfast.datastream.state import MapStateDescriptor
from holdfast.errors import RestoreError
from holdfast.runtime.graph.stream_graph import SourceNode
from holdfast.types.type_parser import to_type
from tests.stories.functions import Numbering
from tests.stories.journal import Journal, as_tuples, read
from tests.stories.local import Program, epochs, run

TYPE = "word string, n bigint"
WORDS = ["kelp", "rock", "kelp"]


def counted(words: DataStream) -> DataStream:
    return words.key_by(word, "string").process(Numbering(pair), TYPE)


def word(row: Any) -> str:
    return row if isinstance(row, str) else row.word


def pair(row: Any, number: int) -> tuple[str, int]:
    return word(row), number


class Other(Numbering):
    """Does the same, and is another function."""


def plain(words: DataStream, out: Path) -> None:
    counted(words).sink_to(Journal(out))


def after_a_keyed_step(words: DataStream, out: Path) -> None:
    plain(counted(words), out)


def after_a_map(words: DataStream, out: Path) -> None:
    plain(words.map(lambda element: element, "string"), out)


def by_another_function(words: DataStream, out: Path) -> None:
    words.key_by(word, "string").process(Other(pair), TYPE).sink_to(Journal(out))


def by_another_key(words: DataStream, out: Path) -> None:
    rows = words.map(lambda element: (element, element), "word string, other string")
    rows.key_by("other").process(Numbering(pair), TYPE).sink_to(Journal(out))


def beside_one_like_it(words: DataStream, out: Path) -> None:
    plain(words, out.with_name("beside"))
    plain(words, out)


def before_one_with_a_uid(words: DataStream, out: Path) -> None:
    counted(words).key_by("word").process(Numbering(pair), TYPE).uid("second").sink_to(Journal(out))


def with_another_sink(words: DataStream, out: Path) -> None:
    counts = counted(words)
    counts.map(lambda row: row.word, "string").print()
    counts.sink_to(Journal(out))


def with_a_map_after_it(words: DataStream, out: Path) -> None:
    counted(words).map(lambda row: (row.word, row.n), TYPE).sink_to(Journal(out))


def with_names(words: DataStream, out: Path) -> None:
    counted(words).name("counts").sink_to(Journal(out)).name("pages")


def start(build: Callable[[DataStream, Path], None], place: Path, epoch_count: int = 1, **options: Any) -> Any:
    program = Program()
    build(program.source("in", "string"), place / "out")
    run(program, place / "job", epochs("in", [WORDS] * epoch_count), options)
    return sorted(as_tuples(read(place / "out")))


ONCE = [("kelp", 1), ("kelp", 2), ("rock", 1)]
TWICE = [("kelp", 1), ("kelp", 2), ("kelp", 3), ("kelp", 4), ("rock", 1), ("rock", 2)]


@pytest.mark.parametrize("build", [plain, with_another_sink, with_a_map_after_it, with_names])
def test_the_same_program_and_one_with_more_at_its_end_go_on(tmp_path: Path, build: Any) -> None:
    assert start(plain, tmp_path) == ONCE
    assert start(build, tmp_path, 2) == TWICE


CHANGED = [
    after_a_keyed_step,
    after_a_map,
    by_another_function,
    by_another_key,
    beside_one_like_it,
    before_one_with_a_uid,
]


@pytest.mark.parametrize("build", CHANGED)
def test_a_changed_program_is_rejected_with_advice(tmp_path: Path, build: Any) -> None:
    start(plain, tmp_path)
    with pytest.raises(RestoreError) as raised:
        start(build, tmp_path, 2)
    error = raised.value
    (missing,) = error.missing_uids
    assert missing.startswith("process-")
    assert "derived from the structure of the program" in str(error)
    assert ".uid('...')" in str(error)
    assert "-n (execution.state-recovery.ignore-unclaimed-state)" in str(error)


def named(first: str, words: DataStream, out: Path) -> None:
    counts = words.key_by(word, "string").process(Numbering(pair), TYPE).uid(first)
    counts.sink_to(Journal(out)).uid("journal-2")


def test_the_uid_in_the_error_can_be_set_on_the_step(tmp_path: Path) -> None:
    start(plain, tmp_path)
    with pytest.raises(RestoreError) as raised:
        start(after_a_map, tmp_path, 2)
    (missing,) = raised.value.missing_uids
    assert (
        start(lambda words, out: named(missing, words.map(lambda element: element, "string"), out), tmp_path, 2)
        == TWICE
    )


def as_it_was_derived_before(words: DataStream, out: Path) -> None:
    """As the program `plain` named its steps when uids were made of name and position."""
    named("keyed-process-1", words, out)


def test_a_checkpoint_of_before_is_taken_by_the_same_program(tmp_path: Path) -> None:
    assert start(as_it_was_derived_before, tmp_path) == ONCE
    assert start(plain, tmp_path, 2) == TWICE
    # And what it writes then is of today.
    assert start(plain, tmp_path, 3)[-1] == ("rock", 3)


@pytest.mark.parametrize("build", [after_a_keyed_step, after_a_map, beside_one_like_it])
def test_a_checkpoint_of_before_is_refused_to_another_program(tmp_path: Path, build: Any) -> None:
    start(as_it_was_derived_before, tmp_path)
    with pytest.raises(RestoreError, match="'keyed-process-1'"):
        start(build, tmp_path, 2)


def uids_of(build: Callable[[DataStream, Path], None]) -> list[str]:
    program = Program()
    build(program.source("in", "string"), Path("out"))
    return [node.identity for node in program.get_stream_graph().nodes if node.keeps_state]


def test_a_derived_uid_is_the_same_in_every_version() -> None:
    """Checkpoints hold them: change this list and no program without uids finds its state."""
    assert uids_of(plain) == ["process-3b122737e0", "journal-8b0c6d0ef1"]
    assert uids_of(beside_one_like_it) == [
        "process-b8084cc49f",
        "journal-f4b74aed2b",
        "process-896305b37f",
        "journal-a1892d6a3d",
    ]


def test_the_order_in_which_streams_are_united_does_not_count() -> None:
    def united(*order: int) -> list[str]:
        program = Program()
        inputs = [program.source(uid, "string") for uid in ("a", "b", "c")]
        first, *others = (inputs[place] for place in order)
        plain(first.union(*others), Path("out"))
        return [node.identity for node in program.get_stream_graph().nodes if node.keeps_state]

    assert united(0, 1, 2) == united(2, 0, 1)
    assert united(0, 1) != united(0, 2)


def topic(program: Program, name: str, type_info: str = "string") -> DataStream:
    """An input without a uid, which is known by what it reads."""
    node = SourceNode(
        name="kafka", element_type=to_type(type_info), is_streaming=True, reads=f"kafka of subscribe {name!r}"
    )
    return DataStream(program, node)


Build = Callable[[dict[str, DataStream]], None]


def derived(order: str, build: Build) -> dict[str, str]:
    """Names of the steps of a program with one input for each letter, defined in this order, and their uids."""
    program = Program()
    build({letter: topic(program, letter) for letter in order})
    return {node.name: node.identity for node in program.get_stream_graph().nodes if node.keeps_state}


def end(stream: DataStream, name: str) -> None:
    stream.sink_to(Journal(Path(name))).name(f"{name} journal")


def each_counted(streams: dict[str, DataStream]) -> None:
    for letter, stream in streams.items():
        end(counted(stream).name(f"{letter} counts"), letter)


def each_written(streams: dict[str, DataStream]) -> None:
    for letter, stream in streams.items():
        end(stream.map(word, "string"), letter)


def each_in_a_side_output(streams: dict[str, DataStream]) -> None:
    for letter, stream in streams.items():
        counts = counted(stream).name(f"{letter} counts")
        end(counts, letter)
        end(counts.get_side_output(OutputTag("late", TYPE)), f"{letter} late")


def each_with_another(streams: dict[str, DataStream]) -> None:
    for letter, stream in streams.items():
        end(counted(stream.union(streams["c"])).name(f"{letter} counts"), letter)


def each_beside_another(streams: dict[str, DataStream]) -> None:
    for letter, stream in streams.items():
        pairs = stream.key_by(word, "string").connect(streams["c"].key_by(word, "string"))
        end(pairs.map(Either(), "string").name(f"{letter} pairs"), letter)


def one_beside_the_other(streams: dict[str, DataStream]) -> None:
    pairs = streams["a"].key_by(word, "string").connect(streams["b"].key_by(word, "string"))
    end(pairs.map(Either(), "string").name("pairs"), "pairs")


def each_with_broadcast(streams: dict[str, DataStream]) -> None:
    for letter, stream in streams.items():
        rules = streams["c"].broadcast(MapStateDescriptor("rules", "string", "string"))
        end(stream.connect(rules).process(Ruled(), "string").name(f"{letter} ruled"), letter)


class Either(CoMapFunction):
    def map1(self, value: Any) -> Any:
        return value

    def map2(self, value: Any) -> Any:
        return value


class Ruled(BroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        yield value


@pytest.mark.parametrize(
    "build",
    [
        each_counted,
        each_written,
        each_in_a_side_output,
        each_with_another,
        each_beside_another,
        one_beside_the_other,
        each_with_broadcast,
    ],
)
def test_derived_uids_do_not_depend_on_the_place_of_an_input(build: Build) -> None:
    uids = derived("abc", build)
    assert len(set(uids.values())) == len(uids)
    assert all(derived(order, build) == uids for order in ("acb", "bac", "bca", "cab", "cba"))


def test_derived_uids_depend_on_the_order_of_connected_inputs() -> None:
    def the_other_way(streams: dict[str, DataStream]) -> None:
        one_beside_the_other({"a": streams["b"], "b": streams["a"]})

    assert not set(derived("ab", one_beside_the_other).values()) & set(derived("ba", the_other_way).values())


def test_an_input_more_leaves_those_that_were_there_their_state() -> None:
    before = derived("ab", each_counted)
    assert before.items() < derived("cab", each_counted).items()


def test_equal_inputs_are_numbered_and_the_log_explains_it(caplog: Any) -> None:
    def in_order(*names: str) -> list[str]:
        program = Program()
        for place, name in enumerate(names):
            end(counted(topic(program, name)).name(f"counts {place}"), str(place))
        return [node.identity for node in program.get_stream_graph().nodes if node.keeps_state]

    in_order("a", "b")
    assert "by their order only" not in caplog.text
    assert len(set(in_order("a", "b", "b"))) == 6
    told = "which differ by their order only: 'counts 1', '1 journal', 'counts 2', '2 journal'; call .uid('...')"
    assert told in caplog.text


def test_an_input_with_a_uid_may_read_something_else() -> None:
    def moved(name: str) -> list[str]:
        program = Program()
        for uid, what in (("orders", name), ("returns", "b")):
            end(counted(topic(program, what).uid(uid)), uid)
        return [node.identity for node in program.get_stream_graph().nodes if node.keeps_state]

    assert moved("a") == moved("c")


def test_programs_that_no_order_of_inputs_changes_keep_the_uids_that_they_had() -> None:
    """Sinks are known by them to what they write to: change this list and an epoch may be committed twice."""
    assert derived("a", each_counted) == {"a counts": "process-c2dc04c2aa", "a journal": "journal-40b87c8889"}

    def all_in_one(streams: dict[str, DataStream]) -> None:
        first, *others = streams.values()
        end(counted(first.union(*others)).name("counts"), "all")

    assert derived("ab", all_in_one) == {"counts": "process-caa55a6a27", "all journal": "journal-6d30889ca2"}


def test_two_topics_in_another_order_go_on_with_their_own_counts(tmp_path: Path) -> None:
    def two(order: str, inputs: list[dict[str, list[str]]]) -> None:
        program, uids = Program(), {}
        for letter in order:
            stream = topic(program, letter)
            uids[letter] = stream
            plain(stream, tmp_path / letter)
        graph = program.get_stream_graph()
        fed = [{uids[letter]._node.identity: words for letter, words in epoch.items()} for epoch in inputs]
        run(graph, tmp_path / "job", fed)

    first = {"a": ["kelp"] * 5, "b": ["kelp"]}
    two("ab", [first])
    two("ba", [first, {"a": ["kelp"], "b": ["kelp"]}])
    assert sorted(as_tuples(read(tmp_path / "a")))[-1] == ("kelp", 6)
    assert sorted(as_tuples(read(tmp_path / "b")))[-1] == ("kelp", 2)
