"""What sinks do with an epoch: staged for nobody, committed for everybody, once, whoever dies in the middle."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import HoldfastError
from holdfast.testing.sink_contract.commit_process import CommitProcess, lines_of_a_commit
from holdfast.testing.sink_contract.sink_backend import SeenRow, SinkBackend
from holdfast.testing.sink_contract.sink_stage import SinkStage

INCARNATION = "1" * 32
ANOTHER = "2" * 32


class SinkJob:
    """One job that writes into the target; each of its commits is that of a new process."""

    def __init__(self, backend: SinkBackend, staging: Path, incarnation: str = INCARNATION) -> None:
        self.backend = backend
        self.staging = staging
        self.incarnation = incarnation
        self._first = self._stage()
        self._first.prepare()

    def write(self, epoch: int, first: Sequence[SeenRow], second: Sequence[SeenRow] = (), attempt: int = 1) -> Any:
        """Stages an epoch by two subtasks."""
        return self._first.write(epoch, first, 0, attempt) + self._first.write(epoch, second, 1, attempt)

    def commit(self, committables: Any, checkpoint_id: int = 1, *, is_recovered: bool = False) -> None:
        """Commits an epoch."""
        self._stage().commit(committables, checkpoint_id, is_recovered=is_recovered)

    def sweep(self, attempt: int) -> int:
        """Removes what an attempt has staged."""
        return self._stage().sweep(lambda name: name.attempt == attempt)

    def process(self, committables: Any, line: int = 0) -> CommitProcess:
        """A process that commits, up to a line."""
        return CommitProcess(self.backend, self.staging, self.incarnation, committables, line)

    def lines(self, committables: Any) -> int:
        """Commits in a process; how many lines that took."""
        return lines_of_a_commit(self.backend, self.staging, self.incarnation, committables)

    def _stage(self) -> SinkStage:
        stage = SinkStage(self.backend.new_sink(), self.staging, self.backend.columns, incarnation=self.incarnation)
        stage.target = getattr(getattr(self, "_first", None), "target", None)
        return stage


class CommitContract:
    """Staging and committing."""

    @pytest.fixture
    def job(self, sink_backend: SinkBackend, tmp_path: Path) -> SinkJob:
        staging = tmp_path / "staged by the job"
        staging.mkdir()
        return SinkJob(sink_backend, staging)

    def test_nothing_is_seen_before_the_commit_and_everything_after_it(
        self, job: SinkJob, sink_backend: SinkBackend
    ) -> None:
        committables = job.write(1, [("kelp", 1), ("rock", 2)], [("sand", 3)])
        assert sink_backend.rows() == []
        job.commit(committables)
        assert sorted(sink_backend.rows()) == [("kelp", 1), ("rock", 2), ("sand", 3)]

    def test_an_epoch_without_rows_shows_nothing(self, job: SinkJob, sink_backend: SinkBackend) -> None:
        for epoch in (1, 2):
            committables = job.write(epoch, [])
            if committables:
                job.commit(committables)
        assert sink_backend.rows() == []

    def test_a_commit_that_is_repeated_long_after_shows_nothing_twice(
        self, job: SinkJob, sink_backend: SinkBackend
    ) -> None:
        epochs = [job.write(epoch, [("kelp", epoch)], [("rock", epoch)]) for epoch in (1, 2, 3)]
        for last, committables in enumerate(epochs):
            job.commit(committables)
            for earlier in epochs[: last + 1]:
                job.commit(earlier, is_recovered=True)
        for committables in epochs:
            job.commit(committables, is_recovered=True)
        assert sorted(sink_backend.rows()) == sorted((word, epoch) for word in ("kelp", "rock") for epoch in (1, 2, 3))

    def test_several_epochs_of_one_checkpoint_are_committed(self, job: SinkJob, sink_backend: SinkBackend) -> None:
        committables = job.write(2, [("rock", 2)]) + job.write(1, [("kelp", 1)])
        job.commit(committables)
        job.commit(committables, is_recovered=True)
        assert sorted(sink_backend.rows()) == [("kelp", 1), ("rock", 2)]

    def test_what_a_failed_attempt_has_staged_is_never_seen(self, job: SinkJob, sink_backend: SinkBackend) -> None:
        job.write(1, [("failed", 1)], attempt=1)
        committables = job.write(1, [("kelp", 1)], attempt=2)
        job.sweep(attempt=1)
        job.commit(committables)
        job.sweep(attempt=1)
        assert sink_backend.rows() == [("kelp", 1)]

    def test_jobs_of_one_target_stay_out_of_each_others_way(
        self, job: SinkJob, sink_backend: SinkBackend, tmp_path: Path
    ) -> None:
        """The same uid, the same epochs, the same subtasks; what tells them apart is their incarnation."""
        (tmp_path / "other").mkdir()
        other = SinkJob(sink_backend, tmp_path / "other", ANOTHER)
        job.write(1, [("failed", 1)], attempt=1)
        theirs = other.write(1, [("rock", 1)], attempt=1)
        job.sweep(attempt=1)
        other.commit(theirs)
        job.commit(job.write(1, [("kelp", 1)], attempt=2))
        other.commit(theirs, is_recovered=True)
        assert sorted(sink_backend.rows()) == [("kelp", 1), ("rock", 1)]

    @pytest.mark.timeout(600)
    def test_a_process_that_is_killed_in_a_commit_leaves_work_that_the_next_one_finishes(
        self, job: SinkJob, sink_backend: SinkBackend
    ) -> None:
        expected = [("kelp", 1), ("rock", 1)]
        for epoch, line in enumerate(self._lines(job, sink_backend), start=2):
            committables = job.write(epoch, [("kelp", epoch)], [("rock", epoch)])
            process = job.process(committables, line)
            process.answer()
            process.kill()
            job.commit(committables, is_recovered=True)
            expected += [("kelp", epoch), ("rock", epoch)]
            assert sorted(sink_backend.rows()) == sorted(expected), f"killed at line {line} of the commit"

    @pytest.mark.timeout(600)
    def test_a_process_that_sleeps_in_a_commit_and_wakes_when_the_next_one_has_committed_changes_nothing(
        self, job: SinkJob, sink_backend: SinkBackend
    ) -> None:
        expected = [("kelp", 1), ("rock", 1)]
        for epoch, line in enumerate(self._lines(job, sink_backend), start=2):
            committables = job.write(epoch, [("kelp", epoch)], [("rock", epoch)])
            process = job.process(committables, line)
            process.answer()
            expected += [("kelp", epoch), ("rock", epoch)]
            with suppress(HoldfastError):  # the one that sleeps may hold a lock of the target
                job.commit(committables, is_recovered=True)
                assert sorted(sink_backend.rows()) == sorted(expected), f"asleep at line {line} of the commit"
            process.go_on()
            job.commit(committables, is_recovered=True)
            assert sorted(sink_backend.rows()) == sorted(expected), f"woken at line {line} of the commit"

    @pytest.mark.timeout(600)
    @pytest.mark.parametrize("ends", ["killed", "woken"])
    def test_a_process_that_stops_in_a_commit_beside_the_next_epoch_leaves_both_to_the_next_one(
        self, job: SinkJob, sink_backend: SinkBackend, ends: str
    ) -> None:
        """The newest checkpoint names two epochs then: one whose commit had begun, and one that came after it."""
        lines = self._lines(job, sink_backend)
        expected = [("kelp", 1), ("rock", 1)]
        for epoch, line in zip((2, 4), (lines[len(lines) // 3], lines[-1]), strict=True):
            first = job.write(epoch, [("kelp", epoch)], [("rock", epoch)])
            second = job.write(epoch + 1, [("kelp", epoch + 1)])
            process = job.process(first, line)
            process.answer()
            if ends == "killed":
                process.kill()
            with suppress(HoldfastError):  # the one that sleeps may hold a lock of the target
                job.commit(second + first, is_recovered=True)
            if ends == "woken":
                process.go_on()
            job.commit(second + first, is_recovered=True)
            expected += [("kelp", epoch), ("rock", epoch), ("kelp", epoch + 1)]
            assert sorted(sink_backend.rows()) == sorted(expected), f"{ends} at line {line} of the commit"

    def test_processes_that_commit_the_same_at_the_same_time_show_it_once(
        self, job: SinkJob, sink_backend: SinkBackend
    ) -> None:
        expected = []
        for epoch in range(1, 6):
            committables = job.write(epoch, [("kelp", epoch)], [("rock", epoch)])
            with ThreadPoolExecutor(3) as pool:
                processes = list(pool.map(lambda _, c=committables: job.process(c), range(3)))
                list(pool.map(CommitProcess.answer, processes))
            for process in processes:
                process.kill()
            try:
                job.commit(committables, is_recovered=True)
            except HoldfastError as error:
                raise AssertionError(f"epoch {epoch} is not committed when all have ended") from error
            expected += [("kelp", epoch), ("rock", epoch)]
            assert sorted(sink_backend.rows()) == sorted(expected)

    def _lines(self, job: SinkJob, sink_backend: SinkBackend) -> list[int]:
        lines = job.lines(job.write(1, [("kelp", 1)], [("rock", 1)]))
        return sorted({1 + step * (lines - 1) // (sink_backend.steps - 1) for step in range(sink_backend.steps)})
