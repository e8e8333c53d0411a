"""Services as a whole: their end, their files, and every bad input as a clear error at start."""

import errno
import json
import os
import uuid
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ConfigurationError, FencedError, FormatVersionError, StorageError
from holdfast.ha import (
    AbstractHaServices,
    BlobKey,
    ClientHighAvailabilityServices,
    EmbeddedCluster,
    EmbeddedHaServices,
    EmbeddedJobResultStore,
    ExecutionPlan,
    FileSystemHaServices,
    HighAvailabilityServices,
    HighAvailabilityServicesFactory,
    RegisterCheckpointRecoveryFactory,
    StandaloneCheckpointRecoveryFactory,
    StandaloneHaServices,
    VoidBlobStore,
    create_client_high_availability_services,
    create_high_availability_services,
    ha_type,
)
from holdfast.ha.embedded import EmbeddedElection, EmbeddedLeaderElectionDriverFactory
from holdfast.ha.execution_plan_store import ExecutionPlanListener
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.storage.state_handle import encode_document
from holdfast.testing.leader_election_contract import RecordingContender, RecordingRetrievalListener, eventually

JOB = JobID.from_name("a job")


class Silent(ExecutionPlanListener):
    def on_added_execution_plan(self, job_id: JobID) -> None: ...

    def on_removed_execution_plan(self, job_id: JobID) -> None: ...


@pytest.fixture
def executor() -> Iterator[Executor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


def configuration(tmp_path: Path, **values: Any) -> Configuration:
    return Configuration(
        {
            "high-availability.type": "filesystem",
            "high-availability.storageDir": str(tmp_path / "ha"),
            "high-availability.cluster-id": "/one",
            "high-availability.filesystem.leader-election.lease-duration": "3 s",
            "high-availability.filesystem.leader-election.renew-deadline": "2400 ms",
            "high-availability.filesystem.leader-election.retry-period": "100 ms",
            "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
            **{key.replace("__", "."): value for key, value in values.items()},
        }
    )


# The end of services.


class RecordingBlobs(VoidBlobStore):
    def __init__(self, steps: list[str], failing: set[str]) -> None:
        self.steps, self.failing = steps, failing

    def close(self) -> None:
        note(self, "close blobs")

    def cleanup_all_data(self) -> None:
        note(self, "delete blobs")


class RecordingServices(AbstractHaServices):
    """Writes down what it is asked to do, and fails where it shall."""

    def __init__(self, executor: Executor, *failing: str) -> None:
        self.steps: list[str] = []
        self.failing = set(failing)
        super().__init__(
            Configuration(),
            EmbeddedLeaderElectionDriverFactory(EmbeddedElection(), "me"),
            executor,
            RecordingBlobs(self.steps, self.failing),
            EmbeddedJobResultStore(),
        )

    def create_leader_retrieval_service(self, leader_name: str) -> Any:
        return leader_name

    def create_checkpoint_recovery_factory(self) -> Any:
        return StandaloneCheckpointRecoveryFactory()

    def create_execution_plan_store(self) -> Any:
        return object()

    def internal_close(self) -> None:
        note(self, "close backend")

    def internal_cleanup(self) -> None:
        note(self, "delete pointers")

    def internal_cleanup_job_data(self, job_id: JobID) -> None:
        note(self, f"delete {job_id}")

    def get_leader_path_for_resource_manager(self) -> str:
        return "rm"

    def get_leader_path_for_dispatcher(self) -> str:
        return "dispatcher"

    def get_leader_path_for_job_manager(self, job_id: JobID) -> str:
        return f"job-{job_id}"

    def get_leader_path_for_rest_server(self) -> str:
        return "rest"


def note(recorder: Any, step: str) -> None:
    recorder.steps.append(step)
    if step in recorder.failing:
        raise OSError(f"could not {step}")


def test_closing_keeps_all_data(executor: Executor) -> None:
    services = RecordingServices(executor)
    services.close()
    assert services.steps == ["close blobs", "close backend"]


def test_closing_goes_on_past_errors_and_names_all_of_them(executor: Executor) -> None:
    services = RecordingServices(executor, "close blobs", "close backend")
    with pytest.raises(StorageError, match=r"Could not properly close the RecordingServices") as caught:
        services.close()
    assert services.steps == ["close blobs", "close backend"]
    assert "could not close blobs" in str(caught.value) and "could not close backend" in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)


def test_closing_with_contenders_says_so_and_closes_the_rest(executor: Executor) -> None:
    services = RecordingServices(executor)
    election = services.get_dispatcher_leader_election()
    election.start_leader_election(RecordingContender("x:1"))
    with pytest.raises(StorageError, match="dispatcher"):
        services.close()
    assert services.steps == ["close blobs", "close backend"]
    election.close()
    services.close()


def test_pointers_are_deleted_before_blobs(executor: Executor) -> None:
    services = RecordingServices(executor)
    services.cleanup_all_data()
    assert services.steps == ["delete pointers", "delete blobs"]


def test_blobs_are_kept_if_the_pointers_cannot_be_deleted(executor: Executor) -> None:
    """FLINK-22014: a pointer to nothing cannot be recovered from."""
    services = RecordingServices(executor, "delete pointers")
    with pytest.raises(StorageError, match="Could not properly clean up all data"):
        services.cleanup_all_data()
    assert services.steps == ["delete pointers"]


def test_cleaning_up_closes_in_any_case(executor: Executor) -> None:
    services = RecordingServices(executor, "delete pointers", "close backend")
    with pytest.raises(StorageError) as caught:
        services.close_with_optional_clean(True)
    assert services.steps == ["delete pointers", "close blobs", "close backend"]
    assert "delete pointers" in str(caught.value) and "close backend" in str(caught.value)
    kept = RecordingServices(executor)
    kept.close_with_optional_clean(False)
    assert kept.steps == ["close blobs", "close backend"]


def test_a_job_is_cleaned_up_on_the_given_executor_and_may_be_again(executor: Executor) -> None:
    services = RecordingServices(executor)
    for _ in range(2):
        services.global_cleanup_async(JOB, executor).result(timeout=30)
    assert services.steps == [f"delete {JOB}"] * 2
    failing = RecordingServices(executor, f"delete {JOB}")
    with pytest.raises(OSError):
        failing.global_cleanup_async(JOB, executor).result(timeout=30)


def test_the_components_have_their_names_in_the_backend(executor: Executor) -> None:
    services = RecordingServices(executor)
    assert services.get_resource_manager_leader_retriever() == "rm"
    assert services.get_job_manager_leader_retriever(JOB, "ignored:1") == f"job-{JOB}"
    assert services.get_web_monitor_leader_retriever() == services.get_cluster_rest_endpoint_leader_retriever()
    assert services.get_job_result_store() is services.get_job_result_store()
    assert services.io_executor is executor
    assert services.logger.name == __name__


# Types.


def test_the_type_is_chosen_by_the_configuration(executor: Executor, tmp_path: Path) -> None:
    assert ha_type(Configuration()) == "none"
    assert ha_type(Configuration({"high-availability": "ZooKeeper"})) == "zookeeper"
    assert ha_type(Configuration({"recovery.mode": "standalone"})) == "none"
    newer = Configuration({"high-availability.type": "embedded", "high-availability": "zookeeper"})
    assert ha_type(newer) == "embedded"
    assert isinstance(create_high_availability_services(Configuration(), executor), StandaloneHaServices)
    assert isinstance(create_high_availability_services(newer, executor), EmbeddedHaServices)
    services = create_high_availability_services(configuration(tmp_path), executor)
    assert isinstance(services, FileSystemHaServices)
    services.close()


class OwnFactory(HighAvailabilityServicesFactory):
    def create_ha_services(self, configuration: Configuration, executor: Executor) -> HighAvailabilityServices:
        return StandaloneHaServices("own:1")


class BrokenFactory(HighAvailabilityServicesFactory):
    def create_ha_services(self, configuration: Configuration, executor: Executor) -> HighAvailabilityServices:
        raise ValueError("nothing works")


def test_a_type_of_ones_own(executor: Executor) -> None:
    def services(name: str) -> HighAvailabilityServices:
        return create_high_availability_services(Configuration({"high-availability.type": name}), executor)

    assert isinstance(services(f"{__name__}.OwnFactory"), StandaloneHaServices)
    with pytest.raises(ConfigurationError, match=r"instantiated HighAvailabilityServicesFactory .*nothing works"):
        services(f"{__name__}.BrokenFactory")
    for wrong in ("nonsense", "no.such.module", f"{__name__}.Absent", f"{__name__}.JOB", "json.JSONDecoder"):
        with pytest.raises(ConfigurationError, match=r"high-availability\.type"):
            services(wrong)


def test_without_high_availability_everybody_leads_and_nothing_is_kept(tmp_path: Path) -> None:
    services = StandaloneHaServices("rm:1", "dispatcher:2", "rest:3", configuration(tmp_path))
    contender, listener = RecordingContender("x:1"), RecordingRetrievalListener()
    election = services.get_dispatcher_leader_election()
    assert not election.has_leadership_async(services.DEFAULT_LEADER_ID).result()
    election.start_leader_election(contender)
    assert contender.session_id == HighAvailabilityServices.DEFAULT_LEADER_ID == uuid.UUID(int=0)
    assert election.has_leadership_async(services.DEFAULT_LEADER_ID).result()
    assert not election.has_leadership_async(uuid.uuid4()).result()
    services.get_dispatcher_leader_retriever().start(listener)
    assert listener.address == "dispatcher:2"
    unknown = RecordingRetrievalListener()
    services.get_job_manager_leader_retriever(JOB).start(unknown)
    assert unknown.address == "UNKNOWN"
    election.close()
    assert not contender.leads
    services.close()
    with pytest.raises(RuntimeError, match="shut down"):
        services.get_dispatcher_leader_election()


def test_without_high_availability_two_drivers_on_one_directory_are_fenced(tmp_path: Path) -> None:
    def lead() -> Any:
        factory = StandaloneHaServices(configuration=configuration(tmp_path)).get_checkpoint_recovery_factory()
        assert isinstance(factory, RegisterCheckpointRecoveryFactory)
        return factory.get_writer(JOB)

    first = lead()
    second = lead()
    with pytest.raises(FencedError):
        first.write(lambda state: replace(state, terminal="FINISHED"))
    second.write(lambda state: replace(state, terminal="FINISHED"))


@pytest.fixture
def pair(executor: Executor, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[list[Any]]:
    """Two processes of one cluster."""
    if request.param == "embedded":
        cluster = EmbeddedCluster()
        services: list[Any] = [EmbeddedHaServices(configuration(tmp_path), executor, cluster) for _ in range(2)]
    else:
        services = [FileSystemHaServices(configuration(tmp_path), executor) for _ in range(2)]
    yield services
    for one in services:
        one.close()


@pytest.mark.parametrize("pair", ["embedded", "filesystem"], indirect=True)
def test_the_leader_stores_plans_and_its_successor_recovers_them(pair: list[Any], executor: Executor) -> None:
    contenders = [RecordingContender(f"host-{number}:1") for number in range(2)]
    elections = [services.get_dispatcher_leader_election() for services in pair]
    plans = [services.get_execution_plan_store() for services in pair]
    for store in plans:
        store.start(Silent())
    elections[0].start_leader_election(contenders[0])
    eventually(lambda: contenders[0].leads, "the first leads")
    elections[1].start_leader_election(contenders[1])
    plan = ExecutionPlan(JOB, "a job", {"script": "job.py"})
    plans[0].put_execution_plan(plan)
    with pytest.raises(FencedError):
        plans[1].global_cleanup_async(JOB, executor).result(timeout=30)
    elections[0].close()
    eventually(lambda: contenders[1].leads, "the second leads")
    assert plans[1].recover_execution_plan(JOB) == plan
    with pytest.raises(FencedError):
        plans[0].put_execution_plan(ExecutionPlan(JOB, "a job", {"script": "late.py"}))
    plans[1].global_cleanup_async(JOB, executor).result(timeout=30)
    assert plans[1].get_job_ids() == []
    for store in plans:
        store.stop()
    elections[1].close()


@pytest.mark.parametrize("pair", ["embedded", "filesystem"], indirect=True)
def test_a_factory_of_a_new_term_fences_the_one_before_and_ids_go_on(pair: list[Any], executor: Executor) -> None:
    first, second = (services.get_checkpoint_recovery_factory() for services in pair)
    counter = first.create_checkpoint_id_counter(JOB)
    used = [counter.get_and_increment() for _ in range(3)]
    assert first.create_recovered_completed_checkpoint_store(JOB, 3).get_all_checkpoints() == []
    successor = second.create_checkpoint_id_counter(JOB)
    assert successor.get_and_increment() > max(used)
    with pytest.raises(FencedError):
        first.get_writer(JOB).write(lambda state: replace(state, terminal="FINISHED"))
    for services in pair:
        services.global_cleanup_async(JOB, executor).result(timeout=30)


def test_ids_are_not_used_twice_although_the_register_was_cleaned_up(tmp_path: Path, executor: Executor) -> None:
    (tmp_path / "checkpoints" / str(JOB) / "chk-41").mkdir(parents=True)
    services = EmbeddedHaServices(configuration(tmp_path), executor)
    counter = services.get_checkpoint_recovery_factory().create_checkpoint_id_counter(JOB)
    assert counter.get_and_increment() == 42
    services.close()


def test_everything_of_a_cluster_can_be_deleted(tmp_path: Path, executor: Executor) -> None:
    services = FileSystemHaServices(configuration(tmp_path), executor)
    contender = RecordingContender("x:1")
    election = services.get_dispatcher_leader_election()
    election.start_leader_election(contender)
    eventually(lambda: contender.leads, "it leads")
    store = services.get_execution_plan_store()
    store.start(Silent())
    store.put_execution_plan(ExecutionPlan(JOB, "a job", {}))
    blob = tmp_path / "blob.py"
    blob.write_text("pass")
    services.create_blob_store().put(blob, JOB, BlobKey.of(blob))
    store.stop()
    election.close()
    services.close_with_optional_clean(True)
    assert not (tmp_path / "ha" / "one").exists()
    again = FileSystemHaServices(configuration(tmp_path), executor)
    again.close()


def test_a_clean_up_that_failed_at_the_marker_leaves_the_cluster_whole_and_can_be_repeated(
    tmp_path: Path, executor: Executor
) -> None:
    services = FileSystemHaServices(configuration(tmp_path), executor)
    contender = RecordingContender("x:1")
    election = services.get_dispatcher_leader_election()
    election.start_leader_election(contender)
    eventually(lambda: contender.leads, "it leads")
    store = services.get_execution_plan_store()
    store.start(Silent())
    plan = ExecutionPlan(JOB, "a job", {})
    store.put_execution_plan(plan)
    store.stop()
    election.close()
    marker = tmp_path / "ha" / "one" / "cluster.json"
    marker.unlink()
    marker.mkdir()  # which no file system deletes as a file
    with pytest.raises(StorageError, match="the blobs are kept as well"):
        services.cleanup_all_data()
    kept = services.get_execution_plan_store()
    kept.start(Silent())
    assert kept.recover_execution_plan(JOB) == plan
    kept.stop()
    marker.rmdir()
    services.close_with_optional_clean(True)
    assert not (tmp_path / "ha" / "one").exists()


# Bad input.


@pytest.mark.parametrize(
    "cluster_id",
    [
        *("", "/", "..", "a/../b", "a/./b", "bell\x07", "x" * 300, "\ud800"),
        *("prod/jobs", "prod/team/leader", "a/blob/b", "job-result-store/prod"),
    ],
)
def test_a_cluster_id_that_cannot_be_a_path_is_refused(cluster_id: str, tmp_path: Path, executor: Executor) -> None:
    with pytest.raises(ConfigurationError, match=r"high-availability\.cluster-id"):
        FileSystemHaServices(configuration(tmp_path, **{"high-availability.cluster-id": cluster_id}), executor)


def test_a_missing_storage_directory_is_named(executor: Executor) -> None:
    with pytest.raises(ConfigurationError, match=r"mandatory parameter 'high-availability\.storageDir'"):
        FileSystemHaServices(Configuration(), executor)


def test_a_relative_storage_directory_would_be_another_one_for_each_process(
    tmp_path: Path, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"storageDir': 'shared/ha' is relative"):
        FileSystemHaServices(configuration(tmp_path, **{"high-availability.storageDir": "shared/ha"}), executor)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("directory", ["/proc/holdfast", "a file/ha"])
def test_a_storage_directory_that_cannot_be_written_is_named(
    directory: str, tmp_path: Path, executor: Executor
) -> None:
    (tmp_path / "a file").write_text("not a directory")
    path = str(Path(tmp_path) / directory)
    with pytest.raises(StorageError, match=r"high-availability\.storageDir"):
        FileSystemHaServices(configuration(tmp_path, **{"high-availability.storageDir": path}), executor)


def test_a_directory_in_which_nothing_can_be_created_exclusively_is_refused(
    tmp_path: Path, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system without hard links, as some mounts of object stores are."""

    def refuse(source: str, target: str) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(StorageError, match="hard links"):
        FileSystemHaServices(configuration(tmp_path), executor)


def test_times_with_which_two_could_lead_are_refused(tmp_path: Path, executor: Executor) -> None:
    key = "high-availability.filesystem.leader-election.renew-deadline"
    with pytest.raises(ConfigurationError, match="renew deadline"):
        FileSystemHaServices(configuration(tmp_path, **{key: "4 s"}), executor)
    with pytest.raises(ConfigurationError, match="must be shorter than"):
        FileSystemHaServices(configuration(tmp_path, **{key: "3 s"}), executor)


def test_a_directory_of_another_cluster_is_refused(tmp_path: Path, executor: Executor) -> None:
    FileSystemHaServices(configuration(tmp_path), executor).close()
    marker = tmp_path / "ha" / "one" / "cluster.json"
    body = json.loads(marker.read_bytes())
    other = {field: body[field] for field in ("name", "cluster_id", "storage")}
    marker.write_bytes(encode_document("cluster", 1, {**other, "type": "zookeeper"}))
    with pytest.raises(ConfigurationError, match="belongs to another cluster"):
        FileSystemHaServices(configuration(tmp_path), executor)


@pytest.mark.parametrize("what", ["cluster.json", "leader/v-00000000000000000001"])
def test_files_of_a_newer_version_are_refused_at_start(what: str, tmp_path: Path, executor: Executor) -> None:
    path = tmp_path / "ha" / "one" / what
    path.parent.mkdir(parents=True)
    kind = "cluster" if what == "cluster.json" else "leader-lease"
    path.write_bytes(encode_document(kind, 99, {}))
    with pytest.raises(FormatVersionError, match=path.name):
        FileSystemHaServices(configuration(tmp_path), executor)


def test_a_client_finds_the_rest_endpoint(tmp_path: Path, executor: Executor) -> None:
    services = FileSystemHaServices(configuration(tmp_path), executor)
    election = services.get_cluster_rest_endpoint_leader_election()
    contender = RecordingContender("rest:8081", election)
    election.start_leader_election(contender)
    client = create_client_high_availability_services(configuration(tmp_path))
    assert isinstance(client, ClientHighAvailabilityServices)
    listener = RecordingRetrievalListener()
    retriever = client.get_cluster_rest_endpoint_leader_retriever()
    retriever.start(listener)
    eventually(lambda: listener.address == "rest:8081", "the client finds the endpoint")
    retriever.stop()
    client.close()
    election.close()
    services.close()
    with pytest.raises(ConfigurationError, match="embedded"):
        create_client_high_availability_services(Configuration({"high-availability.type": "embedded"}))
