"""What sinks do in jobs: killed, started again, started from elsewhere, and with a target that nobody reaches."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import HoldfastError, JobExecutionError, StorageError
from holdfast.kernel import fault
from holdfast.kernel.ids import JobID
from holdfast.testing.epoch.epoch_program import EpochProgram
from holdfast.testing.sink_contract.sink_backend import SeenRow, SinkBackend

FRESH = {"execution.state-recovery.fresh": "true"}
PERSISTENT = {
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "1000000",
    "restart-strategy.fixed-delay.delay": "20 ms",
    "restart-strategy.identical-failures": "1",
    "restart-strategy.identical-unknown-failures": "1",
}
"""A target may be away for an hour: what a sink says of it must not be taken for a failure of the program, of which
some in a row end the job."""

SINK = "out"
MOMENTS = (
    "before:sink.commit:2",
    "after:sink.commit:2",
    "before:metadata.write:2",
    "lost:metadata.write:2",
    "before:pointer.write:2",
    "after:pointer.write:2",
    "lost:pointer.write:2",
    "before:notify:2",
)

SAYS_SO = re.compile(
    rf"sink {SINK!r}: \d+ committables of epoch \d+ were not committed, next try in [\d.]+ s: \S|"
    r"job 'job' restarts in \d+ ms from its last completed checkpoint, after \d+ failure\(s\) in a row: \S"
)
"""What a job that waits for a target logs, each with the reason: by which way it waits, the sink decides."""


class JobContract:
    """Jobs on the epoch runner whose stream ends in the sink."""

    @pytest.fixture(autouse=True)
    def no_faults(self) -> Iterator[None]:
        yield
        fault.clear()

    @pytest.mark.parametrize("moment", MOMENTS)
    def test_a_job_that_dies_and_is_started_again_shows_each_row_once(
        self, sink_backend: SinkBackend, tmp_path: Path, moment: str
    ) -> None:
        fault.install(f"{moment}=raise")
        with suppress(HoldfastError):  # an answer that is lost need not end the job: it looks, and goes on
            _run(sink_backend, tmp_path, 4)
        fault.clear()
        _run(sink_backend, tmp_path, 4)
        assert sorted(sink_backend.rows()) == _rows(1, 4)

    def test_a_job_that_restarts_shows_each_row_once(self, sink_backend: SinkBackend, tmp_path: Path) -> None:
        failures = [2, 5, 6, 11]
        tasks = 0

        def fail(stage: int, subtask: int) -> None:
            nonlocal tasks
            tasks += 1
            if tasks in failures:
                raise StorageError("the worker is gone")

        _run(sink_backend, tmp_path, 4, PERSISTENT, interceptor=fail)
        assert sorted(sink_backend.rows()) == _rows(1, 4)
        assert tasks > max(failures)

    def test_a_job_that_starts_anew_shows_its_rows_too(self, sink_backend: SinkBackend, tmp_path: Path) -> None:
        _run(sink_backend, tmp_path, 3)
        _run(sink_backend, tmp_path, 4, FRESH)
        assert sorted(sink_backend.rows()) == sorted(_rows(1, 3) + _rows(1, 4))

    def test_a_job_started_from_a_checkpoint_of_another_commits_what_that_one_had_not(
        self, sink_backend: SinkBackend, tmp_path: Path
    ) -> None:
        fault.install("before:sink.commit:3=raise")
        with pytest.raises(JobExecutionError):
            _run(sink_backend, tmp_path, 3)
        fault.clear()
        assert sorted(sink_backend.rows()) == _rows(1, 2)
        _run(sink_backend, tmp_path, 5, _starting_from(_checkpoints(tmp_path)[-1]), name="another", parallelism=3)
        assert sorted(sink_backend.rows()) == _rows(1, 5)
        _run(sink_backend, tmp_path, 3)
        assert sorted(sink_backend.rows()) == _rows(1, 5), "the first job finds its epoch committed"

    def test_a_job_that_goes_back_to_an_older_checkpoint_shows_again_what_came_since_and_loses_nothing(
        self, sink_backend: SinkBackend, tmp_path: Path
    ) -> None:
        _run(sink_backend, tmp_path, 4, {"execution.checkpointing.num-retained": "4"})
        older = _checkpoints(tmp_path)[1]
        _run(sink_backend, tmp_path, 5, _starting_from(older))
        assert sorted(sink_backend.rows()) == sorted(_rows(1, 5) + _rows(3, 4))

    def test_a_target_that_is_away_stops_a_job_without_restarts_with_its_epochs_kept(
        self, sink_backend: SinkBackend, tmp_path: Path
    ) -> None:
        _run(sink_backend, tmp_path, 2)
        for _ in range(2):
            with sink_backend.away(), pytest.raises(JobExecutionError):
                _run(sink_backend, tmp_path, 4, {"sink.committer.retries": 1})
        _run(sink_backend, tmp_path, 4)
        assert sorted(sink_backend.rows()) == _rows(1, 4)

    def test_a_job_waits_for_a_target_that_goes_away_says_so_and_loses_nothing(
        self, sink_backend: SinkBackend, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        _run(sink_backend, tmp_path, 2)
        caplog.clear()
        away = ExitStack()
        back = threading.Thread(target=_come_back, args=(away, caplog))

        def go_away(stage: int, subtask: int) -> None:
            if back.ident is None:
                away.enter_context(sink_backend.away())
                back.start()

        _run(sink_backend, tmp_path, 4, PERSISTENT, interceptor=go_away)
        back.join()
        assert sorted(sink_backend.rows()) == _rows(1, 4)
        assert SAYS_SO.search(caplog.text), f"the job waited and did not say so, but: {caplog.text}"


def _run(
    backend: SinkBackend, place: Path, epochs: int, options: Mapping[str, Any] | None = None, **settings: Any
) -> None:
    """A job of so many epochs on a checkpoint directory that it shares with the others of its test."""
    program = EpochProgram()
    rows = program.source("in", backend.columns).map(lambda row: row, backend.columns).uid("same")
    rows.sink_to(backend.new_sink()).uid(SINK)
    inputs = [{"in": _rows(epoch, epoch)} for epoch in range(1, epochs + 1)]
    program.run(place / "checkpoints", inputs, options, **settings)


def _come_back(away: ExitStack, log: pytest.LogCaptureFixture) -> None:
    """Brings a target back after a second, but not before the job has said that it waits."""
    began = time.monotonic()
    with away:
        while time.monotonic() < began + 1.0 or (SAYS_SO.search(log.text) is None and time.monotonic() < began + 60.0):
            time.sleep(0.05)


def _rows(first: int, last: int) -> list[SeenRow]:
    """What the epochs from the first to the last have."""
    return sorted((word, epoch) for word in ("kelp", "rock", "sand") for epoch in range(first, last + 1))


def _checkpoints(place: Path) -> list[Path]:
    """The checkpoints of the first job, oldest first."""
    job = place / "checkpoints" / JobID.from_name("job").to_hex()
    return sorted(job.glob("chk-*"), key=lambda path: int(path.name.partition("-")[2]))


def _starting_from(checkpoint: Path) -> dict[str, str]:
    return {"execution.state-recovery.path": str(checkpoint)}
