"""The handle of a job takes what users pass, and refuses what they should not have before the job hears of it."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ConfigurationError
from holdfast.runtime.function.sink import Committer
from holdfast.runtime.job.control import SnapshotRequest
from holdfast.runtime.master.job_client import JobClient
from holdfast.runtime.master.job_master import JobMaster
from tests.stories.functions import Numbering
from tests.stories.journal import Journal
from tests.stories.local import Program, WaitingEngine, epochs, master

SECONDS = 30.0


@pytest.fixture
def client(place: Path) -> Iterator[JobClient]:
    program = Program()
    words = program.source("in", "string").key_by(lambda word: word, "string")
    words.process(Numbering(), "word string, n bigint").uid("count").sink_to(Journal(place / "out")).uid("out")
    job = JobClient(master(program, place / "job", epochs("in", [["kelp"]]), engine=WaitingEngine))
    yield job
    assert job.exception() is None, "nothing that was refused harmed the job"
    job.cancel()
    assert job.await_termination(SECONDS)


def test_a_savepoint_goes_where_a_path_says_in_the_format_that_is_named(client: JobClient, place: Path) -> None:
    for number, (format_type, name) in enumerate([("native", "NATIVE"), ("CANONICAL", "CANONICAL")]):
        path = Path(client.trigger_savepoint(place / f"s{number}", format_type).result(SECONDS))
        assert path.parent == place / f"s{number}"
        assert json.loads((path / "_metadata").read_text())["properties"]["format"] == name


@pytest.mark.parametrize(
    ("wish", "why"),
    [
        (lambda client: client.trigger_savepoint("s", "avro"), "CANONICAL or NATIVE, not 'avro'"),
        (lambda client: client.trigger_savepoint("s", None), "CANONICAL or NATIVE, not None"),
        (lambda client: client.trigger_savepoint(7), "is a path, not 7"),
        (lambda client: client.trigger_savepoint(" "), "is a path"),
        (lambda client: client.stop_with_savepoint(False, b"s"), "is a path"),
        (lambda client: client.rescale(0), "at least 1, not 0"),
        (lambda client: client.rescale(2.5), "not 2.5"),
        (lambda client: client.rescale(True), "not True"),
        (lambda client: client.rescale({"count": "3"}), "not '3'"),
    ],
)
def test_what_cannot_be_is_refused_at_once(client: JobClient, wish: Callable[[Any], Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        wish(client)


@pytest.mark.parametrize("wanted", [{"nobody": 2}, {"count": 1000}, {7: 2}])
def test_what_only_the_job_can_tell_is_refused_by_it_and_it_goes_on(client: JobClient, wanted: Any) -> None:
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


def test_a_checkpoint_is_never_one_that_was_complete_before_it_was_asked_for(place: Path) -> None:
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
