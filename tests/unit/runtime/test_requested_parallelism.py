"""Another parallelism that an operator of the cluster requested is that of the next leader, whatever dies meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import FencedError, StorageError
from holdfast.kernel import fault
from holdfast.kernel.ids import JobID
from holdfast.runtime.job.requested_parallelism import RequestedParallelism
from holdfast.runtime.master.job_client import JobClient
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.local import LocalFileSystem
from holdfast.storage.register import FileRegister
from tests.stories.local import Program, WaitingEngine, master
from tests.stories.process import run as in_process

SECONDS = 30.0


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    yield
    fault.clear()


def started(place: Path, **options: str) -> JobClient:
    program = Program()
    words = program.source("words", "word string")
    counted = words.key_by("word").deduplicate().uid("count")
    counted.key_by("word").deduplicate().uid("again").print().uid("out")
    job = JobClient(master(program, place, [], options, engine=WaitingEngine))
    job.trigger_checkpoint().result(SECONDS)
    return job


def parallelism(job: JobClient) -> dict[str, int]:
    attempt = job._master.attempt
    assert attempt is not None
    return {step.uid: step.parallelism for step in attempt.plan.stateful_steps()}


def stopped(job: JobClient) -> None:
    job.stop()
    assert job.await_termination(SECONDS)


def documents(place: Path) -> list[str]:
    return sorted(path.name for path in place.glob("*/*parallelism-*"))


def test_the_next_leader_has_the_parallelism_that_was_requested(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = started(place)
    assert parallelism(job) == {"again": 2, "count": 2}
    job.rescale({"count": 3}).result(SECONDS)
    job.rescale({"again": 4}).result(SECONDS)
    stopped(job)

    caplog.set_level(logging.INFO, "holdfast")
    job = started(place)
    assert parallelism(job) == {"again": 4, "count": 3}
    assert "job 'job' has the parallelism that was requested while it ran: again=4, count=3" in caplog.text
    job.rescale(1).result(SECONDS)
    stopped(job)

    job = started(place)
    assert parallelism(job) == {"again": 1, "count": 1}
    stopped(job)
    assert len(documents(place)) == 1, "a request replaces those before it"


def test_a_request_that_is_refused_is_not_used_by_the_next_leader(place: Path) -> None:
    job = started(place)
    with pytest.raises(Exception, match="nobody"):
        job.rescale({"nobody": 3}).result(SECONDS)
    stopped(job)
    assert documents(place) == []


def test_a_job_that_has_ended_for_good_forgets_it(place: Path) -> None:
    job = started(place)
    job.rescale(3).result(SECONDS)
    job.cancel()
    assert job.await_termination(SECONDS)
    assert documents(place) == []


def test_a_fresh_start_has_the_parallelism_of_the_program(place: Path) -> None:
    job = started(place)
    job.rescale(3).result(SECONDS)
    stopped(job)
    job = started(place, **{"execution.state-recovery.fresh": "true"})
    assert parallelism(job) == {"again": 2, "count": 2}
    stopped(job)


def test_another_submission_has_the_parallelism_of_its_program(place: Path) -> None:
    first, second = ({"high-availability.submission": digit * 32} for digit in "12")
    job = started(place, **first)
    job.rescale(3).result(SECONDS)
    job._master.control.is_interrupted = True  # its process ends, the submission goes on
    stopped(job)
    job = started(place, **first)
    assert parallelism(job) == {"again": 3, "count": 3}
    stopped(job)
    job = started(place, **second)
    assert parallelism(job) == {"again": 2, "count": 2}
    stopped(job)


def test_a_program_that_cannot_have_it_any_more_runs_with_its_own(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = started(place, **{"pipeline.max-parallelism": "8"})
    job.rescale({"count": 3, "again": 8}).result(SECONDS)
    stopped(job)
    [document] = place.glob("*/parallelism-*")
    directory = JobDirectory(LocalFileSystem(), str(place), JobID.from_name("job"))
    requested = RequestedParallelism(directory, FileRegister.of(directory).read().incarnation or "")
    requested.write(FileRegister.of(directory).raise_token("test"), {"count": 9})
    assert not document.exists()
    job = started(place, **{"pipeline.max-parallelism": "8"})
    assert parallelism(job) == {"again": 2, "count": 2}
    assert "cannot have the parallelism that was requested while it ran (count=9)" in caplog.text
    stopped(job)


@pytest.mark.parametrize(("moment", "after"), [("before", 2), ("after", 3), ("lost", 3)])
def test_a_request_with_a_failed_write_applies_only_if_it_is_durable(place: Path, moment: str, after: int) -> None:
    job = started(place)
    fault.install(f"{moment}:rescale.write=raise")
    request = job.rescale({"count": 3})
    if moment == "before":
        with pytest.raises(fault.FaultInjectedError):
            request.result(SECONDS)
    else:
        request.result(SECONDS)
    fault.clear()
    assert parallelism(job)["count"] == after
    assert job.trigger_checkpoint().result(SECONDS) > 0, "the job goes on"
    stopped(job)
    job = started(place)
    assert parallelism(job)["count"] == after
    stopped(job)


@pytest.mark.parametrize(("moment", "after"), [("before", 2), ("after", 5), ("lost", 5)])
def test_a_leader_that_is_killed_while_it_writes_a_request(tmp_path: Path, moment: str, after: int) -> None:
    first = in_process("rescaled_job.py", tmp_path, "5", fault=f"{moment}:rescale.write=kill")
    assert first.was_killed, first.output
    second = in_process("rescaled_job.py", tmp_path)
    assert second.code == 0, second.output
    assert second.output.splitlines()[-1] == f"parallelism {after}"


def test_a_deposed_leader_withdraws_its_request(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = JobDirectory(LocalFileSystem(), str(place), JobID.from_name("job"))
    directory.create()
    register = FileRegister.of(directory)
    old, requested = register.raise_token("old"), RequestedParallelism(directory, "line")
    requested.write(old, {"count": 3})
    create = LocalFileSystem.create_exclusive

    def slow(self: LocalFileSystem, path: str, data: bytes) -> None:
        if "parallelism-" in path:
            monkeypatch.undo()
            register.raise_token("new")
        create(self, path, data)

    monkeypatch.setattr(LocalFileSystem, "create_exclusive", slow)
    with pytest.raises(FencedError):
        requested.write(old, {"count": 7})
    assert requested.read() == {"count": 3}
    with pytest.raises(FencedError):
        requested.write(old, {"count": 8})
    assert requested.read() == {"count": 3}


def test_a_request_of_a_higher_token_counts(place: Path) -> None:
    directory = JobDirectory(LocalFileSystem(), str(place), JobID.from_name("job"))
    directory.create()
    requested = RequestedParallelism(directory, "line")
    for number in range(1, 4):
        writer = FileRegister.of(directory).raise_token("leader")
        requested.write(writer, {"": number})
        requested.write(writer, {"": 10 * number})
        assert requested.read() == {"": 10 * number}
    assert RequestedParallelism(directory, "another").read() == {}
    assert len(documents(place)) == 1


def test_a_damaged_request_is_named_and_not_used(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = started(place)
    job.rescale(3).result(SECONDS)
    stopped(job)
    [document] = place.glob("*/parallelism-*")
    document.write_bytes(document.read_bytes()[:-9])
    job = started(place)
    assert parallelism(job) == {"again": 2, "count": 2}
    assert "cannot be read, so that of the program is used. Rescale again" in caplog.text
    assert document.name in caplog.text
    stopped(job)


def test_unavailable_storage_rejects_the_request_and_the_job_continues(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = started(place)
    create = LocalFileSystem.create_exclusive

    def away(self: LocalFileSystem, path: str, data: bytes) -> None:
        if "parallelism-" in path:
            raise StorageError("the disk is away")
        create(self, path, data)

    monkeypatch.setattr(LocalFileSystem, "create_exclusive", away)
    with pytest.raises(StorageError, match="the disk is away"):
        job.rescale(3).result(SECONDS)
    assert parallelism(job) == {"again": 2, "count": 2}
    assert job.trigger_checkpoint().result(SECONDS) > 0
    stopped(job)
