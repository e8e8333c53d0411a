"""What a job manager keeps of a job may hold secrets: only the user that submitted it can read it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from holdfast.ha.blob_store import BlobKey
from holdfast.ha.cluster_storage import ClusterStorage
from holdfast.ha.execution_plan_store import ExecutionPlan
from holdfast.ha.job_result_store import JobResult, JobResultEntry
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID

JOB = JobID.from_name("job")


def storage(tmp_path: Path) -> ClusterStorage:
    options = {"high-availability.storageDir": str(tmp_path / "ha"), "high-availability.cluster-id": "sea"}
    return ClusterStorage(Configuration(options))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def kept(tmp_path: Path) -> tuple[Path, Path]:
    """Keeps a plan and a program; returns the file of the plan and the directory of programs."""
    cluster = storage(tmp_path)
    cluster.open("filesystem")
    cluster.execution_plan_storage().store(ExecutionPlan(JOB, "job", {"options": {"password": "seaweed"}}))
    program = tmp_path / "job.py"
    program.write_text("PASSWORD = 'seaweed'")
    cluster.blob_store().put(program, JOB, BlobKey.of(program))
    [plan] = Path(cluster.path).glob("submittedExecutionPlan*")
    return plan, Path(cluster.path) / "blob"


def test_plans_programs_and_results_are_private(tmp_path: Path) -> None:
    plan, blobs = kept(tmp_path)
    assert (mode(plan), mode(blobs)) == (0o600, 0o700)
    results = storage(tmp_path).job_result_store(None)
    results.create_dirty_result_async(JobResultEntry(JobResult(JOB))).result()
    [result] = (tmp_path / "ha" / "job-result-store").rglob("*.json")
    assert mode(result) == 0o600


def test_files_of_older_releases_become_private(tmp_path: Path) -> None:
    plan, blobs = kept(tmp_path)
    plan.chmod(0o644)
    blobs.chmod(0o755)
    storage(tmp_path).open("filesystem")
    assert (mode(plan), mode(blobs)) == (0o600, 0o700)


def test_a_file_of_another_user_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plan, _ = kept(tmp_path)
    plan.chmod(0o644)

    def refused(path: str, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("holdfast.storage.local.os.chmod", refused)
    storage(tmp_path).open("filesystem")
    assert f"Other users can read {str(plan)!r}. Set its mode to 0600" in caplog.text
