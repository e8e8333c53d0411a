"""Sinks that commit a checkpoint while the job runs the next epoch: how far it runs ahead, and whoever dies there."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ConfigurationError, JobExecutionError, StorageError, UserFunctionError
from holdfast.runtime.commit import uncommitted
from holdfast.runtime.commit.commit_manager import MAX_PENDING
from holdfast.runtime.function.sink import CommitRequest, Committer, CommitterInitContext
from holdfast.runtime.job.control import JobStatus
from holdfast.runtime.master.job_client import JobClient
from holdfast.runtime.master.job_master import JobMaster
from holdfast.testing.leader_election_contract import eventually
from tests.stories import journal, ledger, tidiness
from tests.stories.journal import Journal
from tests.stories.local import RESTARTING, Program, WaitingEngine, epochs, master
from tests.stories.process import run

WORDS = [[f"word-{epoch}"] for epoch in range(1, 5)]
PAYMENTS = ledger.payments(4, 40, 7, 1)
SECONDS = 30.0


class Diary:
    """What has happened, in its order, and where a commit is held up.

    Args:
        held: The epochs whose commits wait until they are let go.
    """

    def __init__(self, *held: int) -> None:
        self.lines: list[str] = []
        self.gates = {epoch: threading.Event() for epoch in held}
        self._epoch = 0

    def __call__(self, line: str) -> None:
        self.lines.append(line)

    def epoch_begins(self, stage: int, partition: int) -> None:
        """For the epoch runner: its first task."""
        if (stage, partition) == (0, 0):
            self._epoch += 1
            self(f"epoch {self._epoch}")

    def has(self, line: str) -> Callable[[], bool]:
        return lambda: line in self.lines

    def await_line(self, line: str) -> None:
        eventually(self.has(line), f"{line!r} in {self.lines}", SECONDS)

    def let_go(self) -> None:
        for gate in self.gates.values():
            gate.set()


class DiarySink(Journal):
    """A journal whose committer says what it does, and waits where it is told."""

    def __init__(self, directory: Path, diary: Diary) -> None:
        super().__init__(directory)
        self.diary: Diary | None = diary

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "diary": None}

    def create_committer(self, context: CommitterInitContext) -> Committer:
        assert self.diary is not None
        return _DiaryCommitter(super().create_committer(context), self.diary)


class _DiaryCommitter(Committer):
    def __init__(self, inner: Committer, diary: Diary) -> None:
        self._inner, self._diary = inner, diary

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        epoch = requests[0].epoch
        self._diary(f"commit {epoch}")
        gate = self._diary.gates.get(epoch)
        assert gate is None or gate.wait(SECONDS), "nobody let it go"
        self._inner.commit(requests)
        self._diary(f"committed {epoch}")


def job(place: Path, diary: Diary, options: dict[str, Any] | None = None, **settings: Any) -> JobMaster:
    program = Program()
    program.source("words", "string").map(str.upper, "string").uid("same").sink_to(DiarySink(place / "out", diary)).uid(
        "out"
    )
    settings = {"interceptor": diary.epoch_begins, "source_tasks": 1, **settings}
    return master(program, place / "job", epochs("words", WORDS), options, **settings)


def most(pending: int) -> dict[str, str]:
    return {MAX_PENDING.key: str(pending)}


class Running:
    """A job in a thread of its own."""

    def __init__(self, running: JobMaster) -> None:
        self.master = running
        self.client = JobClient(running)

    def end(self) -> JobStatus:
        assert self.client.await_termination(SECONDS)
        return self.master.status


def newest_epochs(place: Path) -> list[int]:
    """The epochs whose output the newest checkpoint names."""
    newest = tidiness.retained(tidiness.job_directory(place / "job"))[-1].metadata
    return sorted({int(e["epoch"]) for o in newest.operators for es in o.committables.values() for e in es})


def newest_epoch(place: Path) -> int:
    checkpoints = tidiness.retained(tidiness.job_directory(place / "job"))
    return checkpoints[-1].metadata.epoch if checkpoints else 0


def audit(place: Path) -> None:
    assert journal.read(place / "out") == [word.upper() for words in WORDS for word in words]
    register = tidiness.register_of(tidiness.job_directory(place / "job"))
    assert register.newest is not None
    assert register.newest_committed == register.newest.checkpoint_id, "everything is known to be committed"
    tidiness.inspect(place / "job")


@pytest.mark.parametrize("pending", [1, 2])
def test_the_job_runs_ahead_of_its_sink_by_so_many_checkpoints_and_no_further(place: Path, pending: int) -> None:
    diary = Diary(1)
    running = Running(job(place, diary, most(pending)))
    diary.await_line(f"epoch {pending + 1}")
    eventually(lambda: newest_epoch(place) == pending + 1, "its checkpoint completes")
    assert not threading.Event().wait(0.2)
    assert sorted(diary.lines) == ["commit 1", *(f"epoch {n}" for n in range(1, pending + 2))]
    assert journal.read(place / "out") == []
    assert newest_epochs(place) == list(range(1, pending + 2)), "it names all that may not be committed"
    waiting = running.master.metrics.numbers.sinks["out"]
    assert (waiting.last_epoch, waiting.pending_epochs) == (None, pending + 1)

    diary.let_go()
    assert running.end() is JobStatus.SUSPENDED
    commits = [line for line in diary.lines if line.startswith("commit")]
    assert commits == [f"{what} {n}" for n in range(1, 5) for what in ("commit", "committed")], "in their order"
    audit(place)


def test_without_pending_checkpoints_each_epoch_finds_the_one_before_committed(place: Path) -> None:
    diary = Diary()
    assert job(place, diary, most(0)).run() is JobStatus.SUSPENDED
    assert diary.lines == [f"{what} {n}" for n in range(1, 5) for what in ("epoch", "commit", "committed")]
    audit(place)


def test_a_number_that_is_none_is_refused(place: Path) -> None:
    with pytest.raises(ConfigurationError, match="epoch before is committed, not -1"):
        job(place, Diary(), most(-1)).run()


def test_a_job_that_waits_for_its_sinks_logs_it(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(uncommitted, "_LOG_SECONDS", 0.05)
    diary = Diary(1)
    with caplog.at_level(logging.WARNING):
        running = Running(job(place, diary))
        eventually(lambda: "waiting for the commit of checkpoint 1" in caplog.text, "it says so")
        assert "sinks that have not finished: 'out'" in caplog.text
        diary.let_go()
        running.end()
    audit(place)


def test_all_output_is_committed_when_a_savepoint_is_reported(place: Path) -> None:
    diary = Diary(1)
    running = Running(job(place, diary, engine=WaitingEngine))
    diary.await_line("epoch 2")
    asked = running.client.trigger_savepoint(place / "savepoints")
    assert not threading.Event().wait(0.2)
    assert not asked.done()
    diary.let_go()
    path = Path(asked.result(SECONDS))
    assert journal.read(place / "out")[:2] == ["WORD-1", "WORD-2"]
    assert b"committables" in (path / "_metadata").read_bytes()
    assert b"WORD" not in (path / "_metadata").read_bytes(), "a savepoint names no output"
    eventually(lambda: len(journal.read(place / "out")) == len(WORDS), "all epochs")
    running.master.control.stop()
    assert running.end() is JobStatus.SUSPENDED
    audit(place)


def test_a_job_that_is_stopped_ends_when_everything_is_committed(place: Path) -> None:
    diary = Diary(2)
    running = Running(job(place, diary))
    diary.await_line("epoch 3")
    running.master.control.stop()
    assert not running.client.await_termination(0.2)
    diary.let_go()
    assert running.end() is JobStatus.SUSPENDED
    done = newest_epoch(place)
    assert len(journal.read(place / "out")) == done < len(WORDS)
    assert job(place, Diary()).run() is JobStatus.SUSPENDED
    audit(place)


class Growing(WaitingEngine):
    """An engine whose sources grow, which knows when it has read what they hold."""

    def process_all_available(self, ended: threading.Event) -> None:
        eventually(lambda: ended.is_set() or self._next == len(self.inputs), "it reads everything", SECONDS)


def test_all_available_is_processed_when_it_is_committed(place: Path) -> None:
    diary = Diary(4)
    running = Running(job(place, diary, engine=Growing))
    diary.await_line("commit 4")
    threading.Timer(0.2, diary.let_go).start()
    running.client.process_all_available()
    assert journal.read(place / "out") == [word.upper() for words in WORDS for word in words]
    running.master.control.stop()
    assert running.end() is JobStatus.SUSPENDED
    audit(place)


def test_an_attempt_ends_after_its_commits_and_the_next_one_commits_the_rest(place: Path) -> None:
    diary = Diary(1)
    failed = threading.Event()

    def fail_once(stage: int, partition: int) -> None:
        diary.epoch_begins(stage, partition)
        if diary.has("epoch 2")() and not failed.is_set():
            diary.await_line("commit 1")
            failed.set()
            raise StorageError("the worker is gone")

    running = Running(job(place, diary, RESTARTING, interceptor=fail_once))
    assert failed.wait(SECONDS)
    assert not threading.Event().wait(0.2)
    assert sorted(diary.lines) == ["commit 1", "epoch 1", "epoch 2"], "no second attempt beside the commit"
    diary.let_go()
    assert running.end() is JobStatus.SUSPENDED
    assert diary.lines[3:6] == ["committed 1", "commit 1", "committed 1"], "nobody had noted that it ended well"
    audit(place)


def test_a_job_that_fails_leaves_nothing_staged_of_a_checkpoint_that_is_complete(place: Path) -> None:
    diary = Diary(1)

    def fail(stage: int, partition: int) -> None:
        diary.epoch_begins(stage, partition)
        if diary.has("epoch 3")():
            threading.Timer(0.2, diary.let_go).start()
            raise UserFunctionError("same", None, 3, ValueError("a row that nobody expected"))

    running = Running(job(place, diary, {**most(2), "restart-strategy.type": "none"}, interceptor=fail))
    with pytest.raises(JobExecutionError):
        running.end()
    assert running.master.status is JobStatus.FAILED
    assert journal.read(place / "out") == [word.upper() for words in WORDS[:2] for word in words]


HANGS = ("before:sink.commit:2=hang", "after:sink.commit:2=hang")
DEATHS = (
    "before:sink.stage:3=kill",
    "before:metadata.write:3=kill",
    "after:metadata.write:3=kill",
    "before:notify:3=kill",
)


@pytest.mark.parametrize("hang", HANGS)
@pytest.mark.parametrize("death", DEATHS)
def test_killed_beside_a_commit_and_run_again(tmp_path: Path, hang: str, death: str) -> None:
    """The commit of epoch 2 hangs, or its end is never heard of, while epoch 3 runs, and the process dies there."""
    checkpoints, output = tmp_path / "checkpoints", tmp_path / "out"
    first = run("epoch_job.py", checkpoints, output, fault=f"{hang},{death}")
    assert first.was_killed, first.output
    shown = {row[0] for row in ledger.read(output)}
    committed = sum(map(len, PAYMENTS[: 1 if hang.startswith("before") else 2]))
    assert len(shown) == committed, "what comes after it is not committed before it"
    newest = tidiness.retained(tidiness.job_directory(checkpoints, "ledger"))[-1].metadata
    assert newest.epoch == (3 if "notify" in death else 2)
    named = {int(e["epoch"]) for o in newest.operators for es in o.committables.values() for e in es}
    # The document of epoch 2 may be older than the end of the commit beside it, which is that of epoch 1.
    assert named == {2, 3} if "notify" in death else named - {1} == {2}
    second = run("epoch_job.py", checkpoints, output)
    assert second.code == 0, second.output
    ledger.audit(output, PAYMENTS, two_stages=True)
    tidiness.inspect(checkpoints, "ledger", outputs=(output,))
