"""Elements that an operator without keys gets piece by piece are the same elements, each once and in their order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.common import WatermarkStrategy
from holdfast.datastream import OutputTag, ProcessFunction
from holdfast.runtime.exchange.layout import Chunk
from holdfast.runtime.task.steps import OperatorExecutor
from tests.stories import functions, journal
from tests.stories.journal import Journal, as_tuples
from tests.stories.local import Program, epochs, run

EVENS = OutputTag("evens", "bigint")
TIMED = "number bigint, copy bigint, at bigint"
NUMBERS = 7_001
COPIES = 3


class Copies(ProcessFunction):
    """Emits each number three times with its timestamp, and even ones to the side as well."""

    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterator[Any]:
        if value % 2 == 0:
            yield EVENS, value
        for copy in range(COPIES):
            yield value, copy, ctx.timestamp()


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many elements operators without keys were given at once."""
    sizes: list[int] = []
    accept = OperatorExecutor.accept

    def noted(self: OperatorExecutor, chunk: Chunk) -> Chunk:
        sizes.append(len(chunk))
        return accept(self, chunk)

    monkeypatch.setattr(OperatorExecutor, "accept", noted)
    return sizes


@pytest.mark.parametrize("packed", [False, True])
def test_times_side_outputs_and_order_are_those_of_the_whole(place: Path, taken: list[int], packed: bool) -> None:
    program = Program()
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, _: 10 * value)
    numbers = program.source("numbers", "bigint").map(lambda value: value, "bigint")
    copies = numbers.assign_timestamps_and_watermarks(times).process(Copies(), TIMED)
    copies.get_side_output(EVENS).sink_to(Journal(place / "evens")).uid("evens")
    by_number = copies.key_by(lambda row: row.number % 10, "bigint")
    numbered = by_number.process(functions.Numbering(lambda row, seq: (*row, seq)), f"{TIMED}, seq bigint")
    numbered.uid("numbered").sink_to(Journal(place / "out")).uid("out")
    inputs = epochs("numbers", [list(range(NUMBERS)), [NUMBERS]])
    run(program, place / "job", inputs, {"execution.exchange.packed": packed}, source_tasks=1)
    seen, expected = dict.fromkeys(range(10), 0), []
    for number in range(NUMBERS + 1):
        for copy in range(COPIES):
            seen[number % 10] += 1
            expected.append((number, copy, 10 * number, seen[number % 10]))
    assert as_tuples(journal.read(place / "out")) == sorted(expected)
    assert sorted(journal.read(place / "evens")) == list(range(0, NUMBERS + 1, 2))
    assert (max(taken) < NUMBERS) == packed


def test_pieces_shrink_as_elements_become_many(place: Path, taken: list[int]) -> None:
    program = Program()
    numbers = program.source("numbers", "bigint").flat_map(lambda value: [value] * 1_000, "bigint")
    numbers.sink_to(Journal(place / "out")).uid("out")
    run(program, place / "job", epochs("numbers", [list(range(600))]), source_tasks=1)
    assert len(journal.read(place / "out")) == 600_000
    assert sum(taken) == 600
    assert set(taken[1:-1]) == {16}
