"""Without uids, the same program finds its state again, and a changed one is refused rather than given another's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.datastream import DataStream
from holdfast.errors import RestoreError
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
def test_a_changed_program_is_refused_with_what_to_do(tmp_path: Path, build: Any) -> None:
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


def test_what_a_refusal_names_can_be_given_to_the_step(tmp_path: Path) -> None:
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
