"""The handle of a job takes what users pass, and refuses what they should not have before the job hears of it."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

from holdfast.common import CompletableFuture
from holdfast.errors import (
    CheckpointError,
    CheckpointFailureReason,
    ConfigurationError,
    JobExecutionError,
    StorageError,
)
from holdfast.runtime.exchange.stage_message import JobDescriptor
from holdfast.runtime.function.sink import Committer
from holdfast.runtime.job.control import JobStatus, SnapshotRequest
from holdfast.runtime.master.job_client import JobClient
from holdfast.runtime.master.job_master import JobMaster
from tests.stories.functions import Numbering
from tests.stories.journal import Journal
from tests.stories.local import Program, WaitingEngine, epochs, master

SECONDS = 30.0


def counted(place: Path, function: type[Numbering] = Numbering, **settings: Any) -> JobClient:
    program = Program()
    words = program.source("in", "string").key_by(lambda word: word, "string")
    words.process(function(), "word string, n bigint").uid("count").sink_to(Journal(place / "out")).uid("out")
    return JobClient(master(program, place / "job", epochs("in", [["kelp"]]), **settings))


@pytest.fixture
def client(place: Path) -> Iterator[JobClient]:
    job = counted(place, engine=WaitingEngine)
    yield job
    assert job.exception() is None, "nothing that was refused harmed the job"
    job.cancel()
    assert job.await_termination(SECONDS)


def test_a_savepoint_is_written_to_the_given_path_in_the_given_format(client: JobClient, place: Path) -> None:
    for number, (format_type, name) in enumerate([("native", "NATIVE"), ("CANONICAL", "CANONICAL")]):
        path = Path(client.trigger_savepoint(place / f"s{number}", format_type).result(SECONDS))
        assert path.parent == place / f"s{number}"
        assert json.loads((path / "_metadata").read_text())["properties"]["format"] == name


@pytest.mark.parametrize(
    ("wish", "why"),
    [
        (lambda client: client.trigger_savepoint("s", "avro"), "CANONICAL or NATIVE, not 'avro'"),
        (lambda client: client.trigger_savepoint("s", None), "CANONICAL or NATIVE, not None"),
        (lambda client: client.trigger_savepoint(7), "must be a path, not 7"),
        (lambda client: client.trigger_savepoint(" "), "must be a path"),
        (lambda client: client.stop_with_savepoint(False, b"s"), "must be a path"),
        (lambda client: client.rescale(0), "at least 1, not 0"),
        (lambda client: client.rescale(2.5), "not 2.5"),
        (lambda client: client.rescale(True), "not True"),
        (lambda client: client.rescale({"count": "3"}), "not '3'"),
    ],
)
def test_an_invalid_request_is_rejected_at_once(client: JobClient, wish: Callable[[Any], Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        wish(client)


@pytest.mark.parametrize("wanted", [{"nobody": 2}, {"count": 1000}, {7: 2}])
def test_a_request_that_only_the_job_can_check_is_rejected_and_the_job_continues(
    client: JobClient, wanted: Any
) -> None:
    with pytest.raises(ConfigurationError):
        client.rescale(wanted).result(SECONDS)
    client.rescale({"count": 3}).result(SECONDS)


def test_a_directory_that_cannot_be_written_fails_the_savepoint_and_not_the_job(client: JobClient, place: Path) -> None:
    (place / "file").write_text("no directory")
    with pytest.raises(Exception, match="file"):
        client.trigger_savepoint(place / "file").result(SECONDS)
    assert client.trigger_checkpoint().result(SECONDS) > 0


RUNNING: list[JobMaster] = []
ASKED: list[Any] = []


class Asking(Journal):
    """Asks for a checkpoint while the one before is committed, which is after it was completed."""

    def create_committer(self, context: Any) -> Any:
        return AskingCommitter(super().create_committer(context))


class AskingCommitter(Committer):
    def __init__(self, journal: Committer) -> None:
        self._journal = journal

    def commit(self, requests: Any) -> None:
        if not ASKED:
            ASKED.append(RUNNING[0].control.request(SnapshotRequest()))
        self._journal.commit(requests)


def test_a_requested_checkpoint_is_newer_than_its_request(place: Path) -> None:
    ASKED.clear()
    program = Program()
    program.source("in", "string").sink_to(Asking(place / "out")).uid("out")
    RUNNING[:] = [master(program, place / "job", epochs("in", [["kelp"], ["rock"]]))]
    RUNNING[0].run()
    # The second may have been begun by then, because the first is committed beside its epoch.
    assert ASKED[0].result(0) in (2, 3)


def test_a_second_sigterm_in_the_middle_of_the_first_one_does_not_wait_for_it_for_ever(
    client: JobClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a service manager and a job manager send them, to all processes and to each."""
    held = threading.Lock()
    stop = client.stop

    def stop_and_hear_another() -> None:
        assert held.acquire(timeout=SECONDS), "the second signal waits for what the first one holds"
        os.kill(os.getpid(), signal.SIGTERM)
        stop()
        held.release()

    monkeypatch.setattr(client, "stop", stop_and_hear_another)
    before = signal.getsignal(signal.SIGTERM)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
    assert client.run_to_end().value == "SUSPENDED"
    assert client.was_interrupted
    assert signal.getsignal(signal.SIGTERM) is before


class Refusing(Numbering):
    def process_element(self, word: str, ctx: Any) -> Any:
        raise ValueError(f"no {word} today")


def test_the_result_of_a_job_is_awaited_as_in_pyflink(place: Path) -> None:
    before = time.monotonic()
    client = counted(place, is_bounded=True)
    future = client.get_job_execution_result()
    result = future.result()
    assert isinstance(future, CompletableFuture)
    assert future.done() and not future.cancelled() and future.exception() is None
    assert result.get_job_id() == client.get_job_id()
    assert 0 < result.get_net_runtime() <= 1000 * (time.monotonic() - before) + 1
    assert result.is_job_execution_result() and result.get_all_accumulator_results() == {}
    assert client.get_job_status().result() is result.status is JobStatus.FINISHED
    assert client.get_accumulators().result() == {}


def test_the_result_of_a_job_that_fails_is_its_error(place: Path) -> None:
    client = counted(place, Refusing, options={"restart-strategy.type": "none"})
    future = client.get_job_execution_result()
    with pytest.raises(JobExecutionError, match="no kelp today"):
        future.result(SECONDS)
    assert future.done() and not future.cancelled()
    assert future.exception() is client.exception()
    assert client.get_job_status() is JobStatus.FAILED


def test_a_request_to_a_job_that_has_failed_says_why_it_has(place: Path) -> None:
    failing = counted(place, Refusing, options={"restart-strategy.type": "none"})
    with pytest.raises(JobExecutionError):
        failing.await_termination(SECONDS)
    for future in (failing.trigger_checkpoint(), failing.trigger_savepoint(place / "savepoint"), failing.rescale(2)):
        with pytest.raises(CheckpointError, match=r"The job has ended: .*no kelp today") as failed:
            future.result(SECONDS)
        assert failed.value.reason is CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN
        assert failed.value.__cause__ is failing.exception() is not None
    ended = counted(place / "other", is_bounded=True)
    assert ended.await_termination(SECONDS)
    with pytest.raises(CheckpointError, match=r"The job has ended\.$"):
        ended.trigger_checkpoint().result(SECONDS)


def test_a_future_of_a_running_job_reports_at_once_that_it_is_pending(client: JobClient) -> None:
    """As PyFlink's does: `exception()` of Python's own would wait for the end of the job."""
    future = client.get_job_execution_result()
    told: list[Any] = []
    future.add_done_callback(told.append)
    assert future.exception() is None
    assert not future.done() and not told
    with pytest.raises(TimeoutError):
        future.result(0.01)
    asked = client.cancel()
    assert asked.done() and asked.result() is None
    assert future.exception(timeout=None) is None, "which waits"
    assert told == [future]
    assert future.result().status is JobStatus.CANCELED


@pytest.mark.parametrize(
    "asked",
    [
        lambda client: client.get_job_execution_result(),
        lambda client: client.trigger_savepoint("s"),
        lambda client: client.trigger_checkpoint(),
        lambda client: client.rescale(3),
    ],
)
def test_a_cancelled_future_does_not_affect_the_job(
    client: JobClient, place: Path, asked: Callable[[JobClient], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    failed: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    client.trigger_checkpoint().result(SECONDS)
    future = asked(client)
    while not future.cancel():  # the job may have been faster
        future = asked(client)
    with pytest.raises(CancelledError):
        future.result()
    assert client.trigger_checkpoint().result(SECONDS) > 0, "the job goes on"
    client.cancel()
    assert client.await_termination(SECONDS)
    assert client.get_job_status() is JobStatus.CANCELED
    assert failed == [], "no thread died of an answer that nobody wants"


def test_only_the_first_completion_of_a_future_counts() -> None:
    told: list[Any] = []
    future: CompletableFuture[str] = CompletableFuture()
    future.add_done_callback(lambda done: told.append(done.result()))
    future.set_result("kelp")
    future.set_result("rock")
    future.set_exception(ValueError("sand"))
    assert not future.cancel()
    assert (future.result(), future.exception(), told) == ("kelp", None, ["kelp"])
    failed: CompletableFuture[str] = CompletableFuture()
    failed.set_exception(ValueError("sand"))
    failed.set_result("kelp")
    assert str(failed.exception()) == "sand"
    with pytest.raises(ValueError, match="sand"):
        failed.result()
    given_up: CompletableFuture[str] = CompletableFuture()
    assert given_up.cancel() and given_up.cancelled() and given_up.done()
    given_up.set_result("kelp")
    with pytest.raises(CancelledError):
        given_up.result()


def test_another_parallelism_of_all_operators_is_meant_for_those_too_that_had_got_one_of_their_own(
    client: JobClient,
) -> None:
    client.rescale({"count": 3}).result(SECONDS)
    client.rescale(4).result(SECONDS)
    rescaled = client._master.control.rescales.latest(done=True)
    assert rescaled is not None
    assert rescaled.after == {"count": 4}


class OnceAway(WaitingEngine):
    """Cannot ship the job while it is told so, once."""

    is_away = False

    def update_plan(self, job: JobDescriptor) -> None:
        if self.is_away:
            self.is_away = False
            raise StorageError("the workers are away")
        super().update_plan(job)


def test_a_pending_rescale_is_reported_as_failed_with_its_attempt(place: Path) -> None:
    restarts = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": 0}
    job = counted(place, engine=OnceAway, options=restarts)
    job.trigger_checkpoint().result(SECONDS)
    engine, control = job._master.job.engine, job._master.control
    assert isinstance(engine, OnceAway)
    with job._master.attempt._lock:  # type: ignore[union-attr]
        engine.is_away = True
        first, second = job.rescale(4), job.rescale({"count": 3})
    with pytest.raises(StorageError, match="the workers are away"):
        first.result(SECONDS)
    second.result(SECONDS)  # the next attempt meets it
    assert [(rescale.before, rescale.after) for rescale in control.rescales.newest_first()] == [
        ({"count": 2}, {"count": 3}),
        ({"count": 2}, {"count": 2}),
    ]
    job.cancel()
    assert job.await_termination(SECONDS)
