"""What is shown of a running job: a live line on a terminal, otherwise a log line an epoch."""

from __future__ import annotations

import errno
import io
import logging

import pytest

from holdfast.runtime.commit.uncommitted import short_position
from holdfast.runtime.job.progress import EpochProgress, ProgressReporter

FIRST = EpochProgress(1, 7, 1200, 400.0, 12.4, 3.0, 3 << 20, "batch 0")
SECOND = EpochProgress(2, None, 0, 0.0, 0.0, 0.0, 3 << 20, "batch 1")


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_line_that_is_written_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    screen = Screen()
    reporter = ProgressReporter("flights", screen)
    reporter.report(FIRST)
    reporter.report(SECOND)
    reporter.close()
    start, first, second = screen.getvalue().split("\r\x1b[K")
    assert start == ""
    assert first == "flights: epoch 1: 1,200 rows, 3,000 rows/s, state 3 MiB, checkpoint 7 in 12 ms, batch 0"
    assert second == "flights: epoch 2: 0 rows, 0 rows/s, state 3 MiB, checkpoint - in 0 ms, batch 1\n"
    assert caplog.records == []


def test_elsewhere_each_epoch_is_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    stream = io.StringIO()
    reporter = ProgressReporter("flights", stream)
    reporter.report(FIRST)
    reporter.report(SECOND)
    reporter.close()
    assert [record.getMessage() for record in caplog.records] == [
        f"flights: {FIRST.line()}",
        f"flights: {SECOND.line()}",
    ]
    assert stream.getvalue() == ""


def test_the_newest_records_are_kept_and_listeners_hear_of_each() -> None:
    heard: list[EpochProgress] = []
    reporter = ProgressReporter("flights", io.StringIO(), keep=1)
    reporter.listen(heard.append)
    reporter.report(FIRST)
    reporter.report(SECOND)
    assert reporter.recent == [SECOND]
    assert heard == [FIRST, SECOND]
    assert FIRST.to_dict()["rows_per_second"] == 3000.0


class GoneScreen(Screen):
    """The terminal was closed, and the job runs on."""

    def write(self, text: str, /) -> int:
        raise OSError(errno.EIO, "Input/output error")


def test_a_terminal_that_was_closed_does_not_end_the_job(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "holdfast.progress")
    reporter = ProgressReporter("words", GoneScreen())
    reporter.report(FIRST)
    reporter.report(SECOND)
    reporter.close()
    assert [record.epoch for record in reporter.recent] == [1, 2]
    assert len(caplog.records) == 2, "they are told where others are told of them"


def test_the_position_of_inputs_that_are_read_once_is_in_words() -> None:
    assert short_position({"static_consumed": True, "static": []}) == "all static inputs read"
    assert short_position({"static_consumed": False, "static": []}) == "static inputs not read to their end"
    assert short_position({"static_consumed": True, "static": [], "splits": [{}]}) == "positions of 1 input"
    assert short_position({"static_consumed": True, "streaming": {"batch_id": 3}}) == "batch 3"
