"""How jobs have ended is kept in files, the newest ones only, and what cannot be read is not shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.dispatcher.store import EndedJobs, cluster_directory
from holdfast.ha.job_result_store import ApplicationStatus, FailureCause, JobResult
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.storage import object_store
from holdfast.storage.local import LocalFileSystem
from holdfast.storage.object_store import S3Options, object_store_for


def result(number: int) -> JobResult:
    cause = FailureCause("ValueError", "boom", "in line 1")
    job = JobID.from_name(str(number))
    return JobResult(job, str(number), ApplicationStatus.FAILED, 7, {"status": "FAILED"}, cause, number, number + 7)


def test_they_come_back_as_they_were_and_a_second_end_of_a_job_replaces_the_first(tmp_path: Path) -> None:
    jobs = EndedJobs(LocalFileSystem(), str(tmp_path), 10)
    for number in (2, 1):
        jobs.add(result(number))
    assert jobs.read() == [result(1), result(2)]
    again = JobResult(result(1).job_id, "again", ApplicationStatus.CANCELED, end_time=99)
    jobs.add(again)
    assert jobs.read() == [result(2), again]


@pytest.mark.parametrize("most", [0, 1, 3])
def test_the_newest_are_kept(tmp_path: Path, most: int) -> None:
    jobs = EndedJobs(LocalFileSystem(), str(tmp_path), most)
    for number in range(5):
        jobs.add(result(number))
    assert jobs.read() == [result(number) for number in range(5 - most, 5)]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"result": {}}'])
def test_what_cannot_be_read_is_not_shown_and_goes_when_there_are_too_many(tmp_path: Path, content: str) -> None:
    jobs = EndedJobs(LocalFileSystem(), str(tmp_path), 2)
    jobs.add(result(1))
    (tmp_path / "ended" / f"{JobID.from_name('x')}-0123456789ab.json").write_text(content)
    (tmp_path / "ended" / "readme.txt").write_text("not ours")
    assert jobs.read() == [result(1)]
    jobs.add(result(2))
    assert jobs.read() == [result(1), result(2)]
    assert len(list((tmp_path / "ended").iterdir())) == 3


def test_the_storage_of_a_cluster_is_reached_as_its_options_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "_current", S3Options())
    configuration = Configuration(
        {
            "high-availability.type": "filesystem",
            "high-availability.storageDir": "s3://clusters/ha",
            "s3.endpoint": "http://127.0.0.1:9",
            "s3.access-key": "test",
            "s3.secret-key": "test",
            "s3.region": "us-east-1",
        }
    )
    fs, path = cluster_directory(configuration, "not used with elections")
    assert object_store.current_s3_options().endpoint == "http://127.0.0.1:9"
    assert fs is object_store_for(path), "it was made with them, and not before"
