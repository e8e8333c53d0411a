"""Asynchronous functions: many elements wait at once, and their results are there before the barrier."""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.common import Time, WatermarkStrategy
from holdfast.datastream import AsyncDataStream, AsyncFunction, AsyncRetryStrategy, ParquetFileSink, ProcessFunction
from holdfast.datastream import async_retry_predicates as predicates
from holdfast.errors import ConfigurationError, EngineError, JobExecutionError
from tests.stories import ledger
from tests.stories.local import RESTARTING, Program, run

LONG = Time.seconds(60)


class Backwards(AsyncFunction[int, str]):
    """Answers the last of a batch first: each waits until all have been asked, then for those after it."""

    def __init__(self, many: int) -> None:
        self.many = many

    def open(self, runtime_context: Any) -> None:
        self.waiting: list[asyncio.Event] = []

    async def async_invoke(self, value: int) -> list[str]:
        mine = asyncio.Event()
        self.waiting.append(mine)
        if len(self.waiting) == self.many:
            self.waiting.pop().set()
        await mine.wait()
        if self.waiting:
            self.waiting.pop().set()
        return [f"{value}", f"{value}!"]


@pytest.mark.parametrize("is_ordered", [True, False])
def test_all_calls_run_at_once_and_results_have_the_requested_order(place: Path, is_ordered: bool) -> None:
    program = Program()
    wait = AsyncDataStream.ordered_wait if is_ordered else AsyncDataStream.unordered_wait
    stream = wait(program.source("numbers", "bigint"), Backwards(5), LONG, 5, "string")
    stream.sink_to(ParquetFileSink(place / "out"))
    run(program, place / "job", [{"numbers": [1, 2, 3, 4, 5]}, {"numbers": [6, 7, 8, 9, 10]}], source_tasks=1)
    order = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10] if is_ordered else [5, 4, 3, 2, 1, 10, 9, 8, 7, 6]
    assert ledger.read(place / "out") == [(text,) for n in order for text in (f"{n}", f"{n}!")]


class Capacity(AsyncFunction[int, int]):
    def open(self, runtime_context: Any) -> None:
        self.under_way = 0

    async def async_invoke(self, value: int) -> list[int]:
        self.under_way += 1
        most = self.under_way
        for _ in range(5):
            await asyncio.sleep(0)
            most = max(most, self.under_way)
        self.under_way -= 1
        return [most]


def test_no_more_are_under_way_than_the_capacity(place: Path) -> None:
    program = Program()
    stream = AsyncDataStream.ordered_wait(program.source("numbers", "bigint"), Capacity(), LONG, 3, "bigint")
    stream.sink_to(ParquetFileSink(place / "out"))
    run(program, place / "job", [{"numbers": list(range(20))}], source_tasks=1)
    assert max(ledger.read(place / "out")) == (3,)


class Ending(AsyncFunction[int, int]):
    """Ends the call for one of the elements as one that is cancelled from within does, or as a process does."""

    def __init__(self, error: type[BaseException], *, in_own_task: bool) -> None:
        self.error = error
        self.in_own_task = in_own_task

    async def async_invoke(self, value: int) -> list[int]:
        if value == 2:
            await (asyncio.create_task(self.end()) if self.in_own_task else self.end())
        return [value]

    async def end(self) -> None:
        raise self.error


@pytest.mark.parametrize("in_own_task", [False, True])
@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit])
def test_a_call_that_is_cancelled_or_exits_fails_the_task_and_loses_no_element(
    place: Path, error: type[BaseException], in_own_task: bool
) -> None:
    program = Program()
    function = Ending(error, in_own_task=in_own_task)
    stream = AsyncDataStream.unordered_wait(program.source("numbers", "bigint"), function, LONG, 5, "bigint")
    stream.sink_to(ParquetFileSink(place / "out"))
    with pytest.raises(JobExecutionError, match=f"the asynchronous call for 2 ended with {error.__name__}"):
        run(program, place / "job", [{"numbers": [1, 2, 3]}], source_tasks=1)
    assert run(program, place / "job", [{"numbers": [1, 3]}], source_tasks=1), "and the next ones are made"
    assert sorted(ledger.read(place / "out")) == [(1,), (3,)]


class Flaky(AsyncFunction[int, str]):
    """Fails so many times as the element says before it answers."""

    def __init__(self, error: type[Exception] | None) -> None:
        self.error = error
        self.asked: dict[int, int] = {}

    async def async_invoke(self, value: int) -> list[str]:
        self.asked[value] = self.asked.get(value, 0) + 1
        if self.asked[value] <= value:
            if self.error is not None:
                raise self.error(f"not yet {value}")
            return []
        return [f"{value} after {self.asked[value]}"]


def test_calls_are_retried_by_the_strategy(place: Path) -> None:
    def retried(error: type[Exception] | None, strategy: AsyncRetryStrategy, numbers: list[int]) -> list[str]:
        program = Program()
        source = program.source("numbers", "bigint")
        stream = AsyncDataStream.ordered_wait_with_retry(source, Flaky(error), LONG, strategy, output_type="string")
        out = place / f"out-{error and error.__name__}-{len(numbers)}"
        stream.sink_to(ParquetFileSink(out))
        run(program, place / out.name / "job", [{"numbers": numbers}])
        return [text for (text,) in ledger.read(out)]

    only_timeouts = partial(predicates.exception_type_predicate, expected_error_type=TimeoutError)
    fixed = AsyncRetryStrategy.fixed_delay(4, 0, None, only_timeouts)
    assert retried(TimeoutError, fixed, [0, 1, 3]) == ["0 after 1", "1 after 2", "3 after 4"]
    with pytest.raises(JobExecutionError, match="not yet 4"):
        retried(TimeoutError, fixed, [4])
    with pytest.raises(JobExecutionError, match="not yet 1"):
        retried(ValueError, fixed, [1])
    growing = AsyncRetryStrategy.exponential_backoff(3, 0, 1, 2.0, predicates.empty_result_predicate, None)
    # An empty result that is not asked for again is a result.
    assert retried(None, growing, [0, 2, 3]) == ["0 after 1", "2 after 3"]
    doubling = AsyncRetryStrategy.exponential_backoff(9, 10, 60, 2.0)
    assert [doubling.get_backoff_time_millis(n) for n in (1, 2, 3, 4)] == [10, 20, 40, 60]


class Never(AsyncFunction[int, str]):
    async def async_invoke(self, value: int) -> list[str]:
        if value % 2:
            await asyncio.Event().wait()
        return [f"{value}"]


class Instead(Never):
    def timeout(self, value: int) -> list[str]:
        return [f"{value} took too long"]


def test_a_call_that_times_out_is_replaced_or_fails_the_task(place: Path) -> None:
    for function, out in ((Instead(), place / "out"), (Never(), place / "failed")):
        program = Program()
        source = program.source("numbers", "bigint")
        stream = AsyncDataStream.ordered_wait(source, function, Time.milliseconds(20), output_type="string")
        stream.uid("ask").sink_to(ParquetFileSink(out))
        inputs = [{"numbers": [1, 2]}]
        if isinstance(function, Instead):
            run(program, place / "job", inputs, source_tasks=1)
            assert ledger.read(out) == [("1 took too long",), ("2",)]
        else:
            with pytest.raises(JobExecutionError, match=r"(?s)\(uid 'ask'\).*call for 1 took longer than its timeout"):
                run(program, place / "other", inputs, source_tasks=1)


class Timed(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value, ctx.timestamp()


def test_results_have_the_timestamps_of_their_elements_in_any_order(place: Path) -> None:
    program = Program()
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, _: 100 * value)
    stamped = program.source("numbers", "bigint").assign_timestamps_and_watermarks(strategy)
    stream = AsyncDataStream.unordered_wait(stamped, Backwards(3), LONG, output_type="string")
    stream.process(Timed(), "text string, at bigint").sink_to(ParquetFileSink(place / "out"))
    run(program, place / "job", [{"numbers": [1, 2, 3]}], source_tasks=1)
    expected = [(text, 100 * n) for n in (3, 2, 1) for text in (f"{n}", f"{n}!")]
    assert ledger.read(place / "out") == expected


class Asked(AsyncFunction[int, int]):
    async def async_invoke(self, value: int) -> list[int]:
        await asyncio.sleep(0.001 * (value % 3))
        return [value] * (value % 3)


@pytest.mark.parametrize("is_ordered", [True, False])
def test_each_result_counts_once_though_tasks_fail_and_other_subtasks_go_on(place: Path, is_ordered: bool) -> None:
    inputs = [{"numbers": list(range(start, start + 7))} for start in range(0, 42, 7)]
    tasks = itertools.count()

    def strike(stage: int, partition: int) -> None:
        if next(tasks) in (3, 9, 14, 26):
            raise EngineError("struck")

    for parallelism, until in ((2, 3), (3, 5), (1, 6)):
        program = Program()
        wait = AsyncDataStream.ordered_wait if is_ordered else AsyncDataStream.unordered_wait
        asked = wait(program.source("numbers", "bigint"), Asked(), LONG, 3, "bigint").uid("asked")
        keyed = asked.map(lambda n: (n % 5, 1), "k bigint, n bigint").uid("pairs").key_by("k")
        sums = keyed.reduce(lambda a, b: (a.k, a.n + b.n)).uid("sums")
        sums.sink_to(ParquetFileSink(place / "out")).uid("out")
        run(program, place / "job", inputs[:until], RESTARTING, parallelism=parallelism, interceptor=strike)
    assert next(tasks) > 26
    wanted = [n % 5 for n in range(42) for _ in range(n % 3)]
    assert sorted(ledger.read(place / "out")) == sorted((k, n) for k in range(5) for n in range(1, wanted.count(k) + 1))


def test_an_invalid_asynchronous_call_is_rejected(place: Path) -> None:
    source = Program().source("numbers", "bigint")
    for arguments, message in (
        ((5, Never(), LONG), "data_stream is a DataStream, not 5"),
        ((source, lambda value: [value], LONG), "async_function is an instance of AsyncFunction"),
        ((source, Never, LONG), "async_function is an instance of AsyncFunction"),
        ((source, Never(), 5), "timeout is a positive length of time"),
        ((source, Never(), LONG, 0), "capacity is a positive number, not 0"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            AsyncDataStream.ordered_wait(*arguments)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="at least one attempt"):
        AsyncRetryStrategy.fixed_delay(0, 10)

    class Text(AsyncFunction[int, str]):
        async def async_invoke(self, value: int) -> Any:
            return "not a list"

    program = Program()
    stream = AsyncDataStream.ordered_wait(program.source("numbers"), Text(), LONG, output_type="string")
    stream.sink_to(ParquetFileSink(place / "out"))
    with pytest.raises(Exception, match="must return a list of results, not 'not a list'"):
        run(program, place / "job", [{"numbers": [1]}])
