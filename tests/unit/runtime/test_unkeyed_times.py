"""A function without keys may ask what time it is, and is told that timers belong to keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.datastream import ProcessFunction
from holdfast.errors import ConfigurationError
from holdfast.kernel.watermark import MIN_WATERMARK
from holdfast.testing import OperatorHarness


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


class Calls(ProcessFunction):
    def __init__(self, call: Callable[[Any], None]) -> None:
        self.call = call

    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> None:
        self.call(ctx.timer_service())


@pytest.mark.parametrize("domain", ["processing", "event"])
@pytest.mark.parametrize(("verb", "word"), [("register", "set"), ("delete", "deleted")])
def test_timers_are_refused_with_what_to_do(domain: str, verb: str, word: str) -> None:
    function = Calls(lambda timers: getattr(timers, f"{verb}_{domain}_time_timer")(5))
    with (
        OperatorHarness(function, output_type="bigint") as harness,
        pytest.raises(ConfigurationError, match=rf"'harness' {word} a timer, but .* call key_by\(\) before it"),
    ):
        harness.process_element("a")
