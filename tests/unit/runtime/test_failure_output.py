"""What a failing function prints: its traceback, operator and element once, then one line for each further attempt."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.datastream import (
    BroadcastProcessFunction,
    DataStream,
    FlatMapFunction,
    KeyedProcessFunction,
    ParquetFileSink,
)
from holdfast.datastream.state import MapStateDescriptor
from holdfast.errors import (
    ConfigurationError,
    HoldfastError,
    JobExecutionError,
    NullKeyError,
    OutputTypeError,
    UserFunctionError,
)
from holdfast.kernel.failure_text import error_lines
from holdfast.runtime.job.control import JobStatus
from holdfast.runtime.master.job_client import JobClient
from holdfast.runtime.master.job_master import JobMaster
from holdfast.testing import OperatorHarness
from tests.stories.local import RESTARTING, Program, epochs, master
from tests.stories.real_time import RealTime
from tests.unit.runtime.test_slips_of_sinks import HurriedClock

PAIR = "word string, n bigint"
ROWS = [("kelp", 1), ("eel", 2)]


class Price(KeyedProcessFunction):
    def process_element(self, row: Any, ctx: Any) -> Any:
        yield row.word, self.of(row)

    def of(self, row: Any) -> int:
        return int(10 // (row.n - 2))


def failing(
    place: Path, define: Callable[[DataStream], DataStream], rows: Sequence[Any] = ROWS, **options: Any
) -> tuple[JobMaster, HoldfastError]:
    """The job that a program defines, after it has failed."""
    program = Program()
    define(program.source("in", PAIR)).name("pricing").uid("prices").sink_to(ParquetFileSink(place / "out")).uid("out")
    job = master(program, place / "job", epochs("in", [rows]), {**RESTARTING, **options})
    with pytest.raises(JobExecutionError) as failed:
        job.run()
    assert job.status is JobStatus.FAILED
    assert isinstance(failed.value.__cause__, HoldfastError)
    return job, failed.value


def priced(rows: DataStream) -> DataStream:
    return rows.key_by("word").process(Price(), PAIR)


def test_a_failing_function_is_logged_in_full_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job, error = failing(tmp_path, priced)

    assert job.history.failure_count == 3
    logged = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    first, second = [text for text in logged if "restarts in" in text]
    assert "restarts in 0 ms from its last completed checkpoint" in first
    assert "operator 'pricing' (uid 'prices') failed while processing an element for key 'eel' in epoch 1" in first
    assert "  element: Row(word='eel', n=2)\n" in first
    assert f'File "{__file__}", line ' in first
    assert "    return int(10 // (row.n - 2))" in first
    assert first.endswith("ZeroDivisionError: integer division or modulo by zero")
    assert "holdfast/runtime" not in first, "frames of the package are left out"
    assert second.endswith("after 2 failure(s) in a row: the same error as attempt 1")
    assert str(error).startswith("job 'job' failed 3 times in a row in the same way")
    assert "\n" not in str(error)
    assert "Fix the function and run the job again: it starts from the beginning." in str(error)
    assert len("\n".join([*logged, *error_lines(error)]).splitlines()) <= 40


def test_the_error_of_a_job_that_logged_nothing_has_the_traceback(tmp_path: Path) -> None:
    _, error = failing(tmp_path, priced, **{"restart-strategy.type": "none"})
    printed = "\n".join(error_lines(error))
    assert "  element: Row(word='eel', n=2)" in printed
    assert "    return int(10 // (row.n - 2))" in printed
    assert len(printed.splitlines()) <= 40


def test_a_real_time_job_prints_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    program = RealTime(tmp_path, {"in": ROWS})
    priced(program.source("in", PAIR)).name("pricing").uid("prices").print().uid("out")
    with pytest.raises(JobExecutionError, match=r"operator 'pricing' \(uid 'prices'\) failed"):
        program.finish()
    first, second = [line.getMessage() for line in caplog.records if "restarts in" in line.getMessage()]
    assert "  element: Row(word='eel', n=2)\nTraceback" in first
    assert second.endswith("the same error as attempt 1")


@pytest.mark.parametrize(
    "define",
    [
        lambda rows: rows.map(lambda row: (row.word, 1 // (row.n - 2)), PAIR),
        lambda rows: rows.filter(lambda row: 1 // (row.n - 2)),
        lambda rows: rows.flat_map(lambda row: [(row.word, 1 // (row.n - 2))], PAIR),
        lambda rows: rows.key_by("word").map(lambda row: (row.word, 1 // (row.n - 2)), PAIR),
        lambda rows: rows.key_by("word").filter(lambda row: 1 // (row.n - 2)),
        lambda rows: rows.process(lambda row, ctx: [(row.word, 1 // (row.n - 2))], PAIR),
        lambda rows: rows.key_by(lambda row: 1 // (row.n - 2), "bigint").reduce(lambda one, other: other),
    ],
    ids=["map", "filter", "flat_map", "keyed map", "keyed filter", "process", "key selector"],
)
def test_the_element_is_shown(tmp_path: Path, define: Callable[[DataStream], DataStream]) -> None:
    _, error = failing(tmp_path, define, [("kelp", 1), ("eel", 2), ("cod", 3)])
    assert isinstance(error.__cause__, UserFunctionError)
    assert error.__cause__.details.startswith("  element: Row(word='eel', n=2)\n")


def test_a_long_element_is_shortened(tmp_path: Path) -> None:
    _, error = failing(tmp_path, priced, [("x" * 5000, 2)])
    assert isinstance(error.__cause__, UserFunctionError)
    assert max(map(len, str(error.__cause__).splitlines())) < 1000


def test_a_message_with_a_full_stop_gets_no_second_one(tmp_path: Path) -> None:
    _, error = failing(tmp_path, lambda rows: rows.map(lambda row: row.wrod, PAIR))
    assert "the row has ['word', 'n']. Fix the function" in str(error)


def test_a_failing_function_of_a_sink_is_logged_in_full_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def write(rows: Any, epoch: int) -> None:
        raise KeyError("no such table")

    program = Program()
    program.source("in", PAIR).for_each_epoch(write).uid("out")
    job = master(program, tmp_path / "job", epochs("in", [ROWS]), RESTARTING, clock=HurriedClock(1_000_000))
    with pytest.raises(JobExecutionError, match="10 times in a row") as failed:
        job.run()
    logged = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    printed = "\n".join([*logged, *error_lines(failed.value)])
    assert printed.count('    raise KeyError("no such table")') == 1
    assert len(printed.splitlines()) <= 40, printed


def test_errors_of_different_places_are_both_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    marker = tmp_path / "second"

    def differ(row: Any) -> Any:
        if marker.exists():
            raise ValueError("later")
        marker.touch()
        raise OSError("first")

    failing(tmp_path, lambda rows: rows.map(differ, PAIR), ROWS[:1])
    first, second = [line.getMessage() for line in caplog.records if "restarts in" in line.getMessage()]
    assert "OSError: first" in first
    assert "ValueError: later" in second


# Errors that no restart can change.


class ReturnsOne(FlatMapFunction):
    def flat_map(self, value: Any) -> Any:
        return 5


class ReturnsRow(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return value.word, 1


FINAL = {
    "a type of the output": (lambda rows: rows.map(lambda row: (row.word, "x"), PAIR), OutputTypeError),
    "a wrong type in the function": (lambda rows: rows.map(lambda row: (row.word + 1, 1), PAIR), UserFunctionError),
    "a name": (lambda rows: rows.map(lambda row: undefined, PAIR), UserFunctionError),  # noqa: F821 # type: ignore
    "return for yield": (lambda rows: rows.flat_map(ReturnsOne(), PAIR), UserFunctionError),
    "a returned row": (lambda rows: rows.key_by("word").process(ReturnsRow(), PAIR), OutputTypeError),
}


@pytest.mark.parametrize(("define", "kind"), FINAL.values(), ids=FINAL)
def test_type_errors_are_not_retried(tmp_path: Path, define: Any, kind: type[HoldfastError]) -> None:
    job, error = failing(tmp_path, define)
    assert isinstance(error.__cause__, kind)
    assert job.history.failure_count == 1
    assert "'pricing' (uid 'prices')" in str(error)


def test_they_are_retried_if_the_option_leaves_all_to_the_strategy(tmp_path: Path) -> None:
    options = {"restart-strategy.identical-failures": 0, "restart-strategy.fixed-delay.attempts": 4}
    job, _ = failing(tmp_path, FINAL["a type of the output"][0], **options)
    assert job.history.failure_count == 5


@pytest.mark.parametrize("wrong", [lambda row: None + 1, lambda row: raise_after(ConnectionError("away"))])
def test_what_may_follow_from_a_service_that_was_away_is_retried(tmp_path: Path, wrong: Any) -> None:
    job, _ = failing(tmp_path, lambda rows: rows.map(wrong, PAIR))
    assert job.history.failure_count == 3


def raise_after(first: Exception) -> None:
    try:
        raise first
    except ConnectionError:
        len(5)  # type: ignore[arg-type]


def test_return_for_yield_is_named(tmp_path: Path) -> None:
    _, error = failing(tmp_path / "one", FINAL["return for yield"][0])
    assert "the function returned 5, which is no collection of elements: write `yield` in place of" in str(error)
    _, error = failing(tmp_path / "row", FINAL["a returned row"][0])
    assert "If a process or flat_map function returned one row, write `yield` in place of `return`" in str(error)


class WordOf(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return value.word


@pytest.mark.parametrize(
    "program",
    [
        lambda rows: rows.process(lambda row, context: str(row.word), "string"),
        lambda rows: rows.key_by("word").process(WordOf(), "string"),
        lambda rows: rows.process(lambda row, context: {row.word: row.n}, "string"),
    ],
)
def test_the_letters_of_a_returned_text_are_no_elements(tmp_path: Path, program: Any) -> None:
    _, error = failing(tmp_path, program)
    assert "which is no collection of elements: write `yield` in place of `return`" in str(error)


class TextOfTimer(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_processing_time_timer(7)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        return f"at {timestamp}"


class TextOfRule(BroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return None

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        return f"rule {value}"


def test_nor_are_those_of_a_text_that_a_timer_or_a_broadcast_function_returns() -> None:
    with OperatorHarness(TextOfTimer(), key_by="word", key_type="string", output_type="string") as timer:
        timer.process_element({"word": "kelp"})
        with pytest.raises(UserFunctionError, match="the function returned 'at 7', which is no collection"):
            timer.set_processing_time(7)
    with (
        OperatorHarness(TextOfRule(), broadcast=[MapStateDescriptor("rules", "string", "string")]) as broadcast,
        pytest.raises(UserFunctionError, match="the function returned 'rule 1', which is no collection"),
    ):
        broadcast.process_broadcast_element(1)


def test_a_value_that_a_generator_returns_is_named(caplog: pytest.LogCaptureFixture) -> None:
    def words(row: Any) -> Any:
        if row.n:
            return [(row.word, 0)]
        yield row.word, 1

    def plain(row: Any) -> Any:
        if row.n:
            return
        yield row.word, 1

    rows = Program().source("in", PAIR)
    rows.flat_map(plain, PAIR)
    assert not caplog.records
    rows.flat_map(words, PAIR)
    [warning] = caplog.records
    assert "words' yields, so Python drops the value of its `return`" in warning.getMessage()
    with pytest.raises(ConfigurationError, match=r"map\(\) takes a function that returns, .* yields: call flat_map"):
        rows.map(plain, PAIR)


def test_a_null_key_names_operator_column_and_row(tmp_path: Path) -> None:
    job, error = failing(tmp_path / "column", priced, [("a", 3), (None, 7)])
    assert job.history.failure_count == 1
    assert isinstance(error.__cause__, NullKeyError)
    assert error.__cause__.column == "word"
    assert "Column 'word', the key of operator 'pricing' (uid 'prices'), is null in row" in str(error)
    assert "{'word': None, 'n': 7}" in str(error)
    selected = lambda rows: rows.key_by(lambda row: row.word, "string").process(Price(), PAIR)  # noqa: E731
    _, error = failing(tmp_path / "selector", selected, [("a", 3), (None, 7)])
    assert "The key selector of operator 'pricing' (uid 'prices') returned None for Row(word=None, n=7)" in str(error)


# Jobs that end well.


def test_a_job_that_did_all_there_was_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    program = Program()
    rows = program.source("in", PAIR)
    rows.sink_to(ParquetFileSink(tmp_path / "out")).uid("out")
    with caplog.at_level(logging.INFO):
        client = JobClient(master(program, tmp_path / "job", epochs("in", [ROWS])))
        result = client.get_job_execution_result().result(60)
    words = "all available input is processed; run the job again to process more"
    assert f"job 'job' ended SUSPENDED: {words}" in caplog.text
    assert result.ending == client.ending == words
    assert repr(result).startswith(f"<job {client.get_job_id()} ended SUSPENDED after ")
    assert repr(client).startswith(f"<job 'job' {client.get_job_id()}, SUSPENDED, epoch 1: 2 rows")
    assert repr(rows) == "<DataStream 'in': struct<word: string, n: bigint>>"
    statistics = client._master.statistics.create_snapshot()
    shown = f"{statistics!r} {statistics.history!r}"
    assert "StatsSnapshot(1 completed, 0 in progress, 0 failed, latest CheckpointStats(1, COMPLETED" in shown
    assert len(shown) < 300
