"""High availability whose files are all in an S3 store, reached as `s3.*` options say."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.errors import ConfigurationError, FencedError, StorageError
from holdfast.ha import (
    ApplicationStatus,
    BlobKey,
    ExecutionPlan,
    JobResult,
    JobResultEntry,
    create_high_availability_services,
)
from holdfast.ha.execution_plan_store import ExecutionPlanListener
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.storage import object_store
from holdfast.storage.object_store import S3Options
from holdfast.storage.scheme import file_system_for
from holdfast.testing import S3Server
from holdfast.testing.leader_election_contract import RecordingContender, eventually

pytestmark = [pytest.mark.services, pytest.mark.timeout(120)]
JOB = JobID.from_name("a job")


class Silent(ExecutionPlanListener):
    def on_added_execution_plan(self, job_id: JobID) -> None: ...

    def on_removed_execution_plan(self, job_id: JobID) -> None: ...


@pytest.fixture(autouse=True)
def _no_options_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "_current", S3Options())


@pytest.fixture
def executor() -> Iterator[Executor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


def configuration(server: S3Server) -> Configuration:
    bucket = f"bucket-{uuid.uuid4().hex[:12]}"
    server.make_bucket(bucket)
    prefix = "high-availability.filesystem.leader-election"
    return Configuration(
        {
            "high-availability.type": "filesystem",
            "high-availability.storageDir": f"s3://{bucket}/ha",
            f"{prefix}.lease-duration": "2 s",
            f"{prefix}.renew-deadline": "1500 ms",
            f"{prefix}.retry-period": "100 ms",
            "s3.endpoint": server.endpoint,
            "s3.access-key": "test",
            "s3.secret-key": "test",
            "s3.region": "us-east-1",
        }
    )


def test_plans_blobs_results_and_registers_pass_from_leader_to_leader(tmp_path: Path, executor: Executor) -> None:
    with S3Server() as server:
        options = configuration(server)
        first, second = (create_high_availability_services(options, executor) for _ in range(2))
        contenders = [RecordingContender(f"host-{number}:1") for number in range(2)]
        elections = [services.get_dispatcher_leader_election() for services in (first, second)]
        plans = [services.get_execution_plan_store() for services in (first, second)]
        for store in plans:
            store.start(Silent())
        elections[0].start_leader_election(contenders[0])
        eventually(lambda: contenders[0].leads, "the first leads", 30)
        elections[1].start_leader_election(contenders[1])
        plan = ExecutionPlan(JOB, "a job", {"script": "job.py"})
        plans[0].put_execution_plan(plan)
        (tmp_path / "blob.py").write_text("pass")
        key = BlobKey.of(tmp_path / "blob.py")
        first.create_blob_store().put(tmp_path / "blob.py", JOB, key)
        result = JobResult(JOB, "a job", ApplicationStatus.SUCCEEDED, 5)
        first.get_job_result_store().create_dirty_result_async(JobResultEntry(result)).result(30)
        writer = first.get_checkpoint_recovery_factory().get_writer(JOB)  # type: ignore[attr-defined]

        elections[0].close()
        eventually(lambda: contenders[1].leads, "the second leads", 30)
        assert plans[1].recover_execution_plan(JOB) == plan
        second.create_blob_store().get(JOB, key, tmp_path / "copy.py")
        assert (tmp_path / "copy.py").read_text() == "pass"
        assert [found.job_id for found in second.get_job_result_store().get_dirty_results()] == [JOB]
        assert second.get_checkpoint_recovery_factory().get_writer(JOB).token == 2  # type: ignore[attr-defined]
        with pytest.raises(FencedError):
            writer.check()
        with pytest.raises(FencedError):
            plans[0].put_execution_plan(ExecutionPlan(JOB, "a job", {"script": "late.py"}))

        for store in plans:
            store.stop()
        elections[1].close()
        first.close()
        second.close_with_optional_clean(True)
        root = str(options.get_string("high-availability.storageDir"))
        assert file_system_for(root).list_names(f"{root}/default") == ["checkpoints"]


def test_a_store_that_ignores_conditions_is_refused_at_start(executor: Executor) -> None:
    with (
        S3Server(honours_conditions=False) as careless,
        pytest.raises(StorageError, match="ignores the condition If-None-Match"),
    ):
        create_high_availability_services(configuration(careless), executor)


def test_one_process_reaches_object_stores_in_one_way() -> None:
    object_store.use_s3_options(Configuration({"s3.endpoint": "http://one:9000"}))
    object_store.use_s3_options(Configuration())
    with pytest.raises(ConfigurationError, match=r"http://one:9000.*http://two:9000"):
        object_store.use_s3_options(Configuration({"s3.endpoint": "http://two:9000"}))


def test_a_process_that_is_started_inherits_the_options() -> None:
    values = {"s3.endpoint": "http://one:9000", "s3.secret-key": "secret", "s3.path.style.access": "false"}
    object_store.use_s3_options(Configuration(values))
    program = "from holdfast.storage.object_store import current_s3_options as c; print(c(), c().secret_key)"
    environment = {**os.environ, **object_store.s3_environment()}
    told = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert "http://one:9000" in told.stdout
    assert told.stdout.strip().endswith(" secret")
