"""A function without keys may ask what time it is, and is told that timers belong to keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.datastream import CoProcessFunction, ProcessFunction
from holdfast.errors import ConfigurationError
from holdfast.kernel.watermark import MIN_WATERMARK
from holdfast.testing import OperatorHarness
from tests.stories import journal
from tests.stories.journal import Journal
from tests.stories.local import Program, run


class Clock(ProcessFunction):
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterator[Any]:
        times = ctx.timer_service()
        yield times.current_processing_time(), times.current_watermark()


def test_the_current_times_are_those_of_the_epoch() -> None:
    with OperatorHarness(Clock(), output_type="now bigint, watermark bigint") as harness:
        harness.set_processing_time(1_000)
        harness.process_element("a")
        harness.process_watermark(700)
        harness.process_element("b")
        assert [tuple(row) for row in harness.output] == [(1_000, MIN_WATERMARK), (1_000, 700)]


class Clocks(CoProcessFunction):
    def process_element1(self, value: Any, ctx: CoProcessFunction.Context) -> Iterator[Any]:
        yield from self.times(ctx)

    def process_element2(self, value: Any, ctx: CoProcessFunction.Context) -> Iterator[Any]:
        yield from self.times(ctx)

    def times(self, ctx: Any) -> Iterator[Any]:
        times = ctx.timer_service()
        yield times.current_processing_time() > 0, times.current_watermark()


def test_a_function_of_two_streams_without_keys_gets_the_time(tmp_path: Path) -> None:
    program = Program()
    first, second = program.source("first", "string"), program.source("second", "string")
    first.connect(second).process(Clocks(), "b boolean, n bigint").uid("clocks").sink_to(Journal(tmp_path / "out"))
    run(program, tmp_path / "job", [{"first": ["a"], "second": ["b"]}])
    assert [tuple(row) for row in journal.read(tmp_path / "out")] == [(True, MIN_WATERMARK)] * 2


class Calls(ProcessFunction):
    def __init__(self, call: Callable[[Any], None]) -> None:
        self.call = call

    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> None:
        self.call(ctx.timer_service())


@pytest.mark.parametrize("domain", ["processing", "event"])
@pytest.mark.parametrize(("verb", "word"), [("register", "registered"), ("delete", "deleted")])
def test_timers_are_rejected_with_advice(domain: str, verb: str, word: str) -> None:
    function = Calls(lambda timers: getattr(timers, f"{verb}_{domain}_time_timer")(5))
    with (
        OperatorHarness(function, output_type="bigint") as harness,
        pytest.raises(ConfigurationError, match=rf"'harness' {word} a timer, but .* call key_by\(\) before it"),
    ):
        harness.process_element("a")
