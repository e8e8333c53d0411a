"""`sum(1)`, `min(1)` and `max(1)` of tuples, as in PyFlink: declared, without a type, and named."""

from collections import namedtuple

import pytest

from holdfast.datastream.sinks import ParquetFileSink
from holdfast.errors import ConfigurationError, JobExecutionError
from holdfast.types.row import Row
from holdfast.types.types import Types
from tests.stories import ledger
from tests.stories.local import Program, epochs, run

PAIR = Types.TUPLE([Types.STRING(), Types.LONG()])
PAIRS = [("a", 3), ("a", 1), ("b", 5), ("a", None), ("a", 2), ("b", 7)]
SUMS = [("a", 3), ("a", 4), ("a", 4), ("a", 6), ("b", 5), ("b", 12)]
LEAST = [("a", 1), ("a", 1), ("a", 1), ("a", 3), ("b", 5), ("b", 5)]
GREATEST = [("a", 3), ("a", 3), ("a", 3), ("a", 3), ("b", 5), ("b", 7)]
Point = namedtuple("Point", "k v")


def outcome(directory, element_type, reduce, elements):
    """What a job emits that is stopped after each of its two epochs, and goes on from its checkpoint."""
    for epoch in range(1, 3):
        program = Program()
        pairs = program.source("pairs", element_type).key_by(lambda pair: pair[0], key_type="string")
        reduced = (
            reduce(pairs).uid("reduced").map(lambda pair: tuple(pair), output_type="k string, v bigint").uid("rows")
        )
        reduced.sink_to(ParquetFileSink(str(directory / "out"))).uid("out")
        half = len(elements) // 2
        run(program, directory / "job", epochs("pairs", [elements[:half], elements[half:]][:epoch]))
    return sorted(ledger.read(directory / "out"))


@pytest.mark.parametrize("element_type", [PAIR, None, Types.PICKLED_BYTE_ARRAY()], ids=["declared", "none", "pickled"])
@pytest.mark.parametrize(("reduce", "expected"), [
    (lambda stream: stream.sum(1), SUMS),
    (lambda stream: stream.min(1), LEAST),
    (lambda stream: stream.max(1), GREATEST),
])  # fmt: skip
def test_a_part_of_tuples_is_reduced_by_its_position(tmp_path, element_type, reduce, expected):
    assert outcome(tmp_path, element_type, reduce, PAIRS) == expected


@pytest.mark.parametrize("kind", [Row("k", "v"), Point], ids=["Row", "named tuple"])
@pytest.mark.parametrize("field", [1, "v"])
def test_parts_that_have_names_are_reduced_by_these_too(tmp_path, kind, field):
    rows = [kind(*pair) for pair in PAIRS]
    assert outcome(tmp_path, None, lambda stream: stream.sum(field), rows) == SUMS


def test_what_was_declared_stays_declared_and_the_first_and_last_of_a_part_are_found():
    stream = Program().source("pairs", PAIR).key_by(lambda pair: pair[0], key_type="string")
    for reduced in (stream.sum(1), stream.sum("f1"), stream.min(0), stream.max(1), stream.first(1), stream.last(1)):
        assert reduced.get_type() == PAIR


def test_elements_that_are_no_tuples_are_summed_up_themselves(tmp_path):
    program = Program()
    numbers = program.source("numbers").key_by(lambda number: number % 2, key_type="bigint")
    program_sums = numbers.sum().uid("sums").map(lambda total: (total,), output_type="v bigint").uid("rows")
    program_sums.sink_to(ParquetFileSink(str(tmp_path / "out"))).uid("out")
    run(program, tmp_path / "job", epochs("numbers", [[1, 2], [3, 4]]))
    assert sorted(ledger.read(tmp_path / "out")) == [(1,), (2,), (4,), (6,)]


@pytest.mark.parametrize("position", [2, -1, "w"])
def test_a_part_that_is_not_there_is_named(tmp_path, position):
    with pytest.raises(ConfigurationError, match=f"no column {position!r}"):
        Program().source("pairs", PAIR).key_by(lambda pair: pair[0], key_type="string").sum(position)
    with pytest.raises(JobExecutionError, match=rf"sum\(\): \('a', 1\) has no part {position!r}"):
        outcome(tmp_path, None, lambda stream: stream.sum(position), PAIRS)


@pytest.mark.parametrize("position", [None, 1.5, True])
def test_a_position_is_a_number_or_a_name(position):
    with pytest.raises(ConfigurationError, match="position of a part"):
        Program().source("pairs").key_by(lambda pair: pair[0], key_type="string").sum(position)


@pytest.mark.parametrize("element_type", [PAIR, None, "k string, v bigint"], ids=["declared", "none", "row"])
def test_the_element_with_the_best_part_is_chosen_and_of_equal_ones_the_first(tmp_path, element_type):
    elements = [("a", 3), ("a", None), ("a", 1), ("b", 5), ("a", 2), ("a", 9)]
    least = outcome(tmp_path / "least", element_type, lambda stream: stream.min_by(1), elements)
    assert least == [("a", 1), ("a", 1), ("a", 1), ("a", 3), ("a", 3), ("b", 5)]
    greatest = outcome(tmp_path / "greatest", element_type, lambda stream: stream.max_by(1), elements)
    assert greatest == [("a", 3), ("a", 3), ("a", 3), ("a", 3), ("a", 9), ("b", 5)]
    first = outcome(tmp_path / "first", element_type, lambda stream: stream.max_by(0), elements)
    assert first == [("a", 3)] * 5 + [("b", 5)]
    with pytest.raises((ConfigurationError, JobExecutionError), match=r"max_by\(\).* no (part|column) 5"):
        outcome(tmp_path / "none", element_type, lambda stream: stream.max_by(5), elements)
