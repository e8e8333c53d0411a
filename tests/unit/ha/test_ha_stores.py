"""Plans, results and blobs: what outlives a process, and what a crash in the middle leaves."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import (
    AlreadyExistError,
    CorruptFileError,
    FormatVersionError,
    HoldfastError,
    NotExistError,
    PossibleInconsistentStateError,
)
from holdfast.ha import (
    ApplicationStatus,
    BlobKey,
    DefaultExecutionPlanStore,
    EmbeddedJobResultStore,
    ExecutionPlan,
    ExecutionPlanListener,
    FailureCause,
    FileSystemBlobStore,
    FileSystemJobResultStore,
    FileSystemStateHandleStore,
    JobResourceRequirements,
    JobResult,
    JobResultEntry,
    JobResultStore,
    StandaloneExecutionPlanStore,
    VoidBlobStore,
)
from holdfast.ha.entry_map import ENTRY_MAP_FORMAT
from holdfast.ha.execution_plan_store import NamesWatcher, execution_plan_serializer
from holdfast.kernel.ids import JobID
from holdfast.storage.local import LocalFileSystem
from holdfast.storage.state_handle import FileSystemStateStorageHelper, encode_document
from holdfast.storage.versioned_document import FileDocument
from holdfast.testing.leader_election_contract import eventually

JOB = JobID.from_name("job one")
OTHER = JobID.from_name("job two")


# Results.


class LosingFileSystem(LocalFileSystem):
    """Creates files and loses the answer."""

    def create_exclusive(self, path: str, data: bytes) -> None:
        super().create_exclusive(path, data)
        raise PossibleInconsistentStateError("the answer was lost in this test")


@pytest.fixture(params=["embedded", "files", "files, deleted on commit"])
def results(request: pytest.FixtureRequest, tmp_path: Path) -> JobResultStore:
    if request.param == "embedded":
        return EmbeddedJobResultStore()
    return FileSystemJobResultStore(
        LocalFileSystem(), str(tmp_path / "results"), delete_on_commit=request.param != "files"
    )


def result(job_id: JobID = JOB, **fields: Any) -> JobResult:
    return JobResult(job_id, "a job", ApplicationStatus.SUCCEEDED, 1500, {"rows": 7}, None, 100, 1600, **fields)


def test_a_result_is_absent_then_dirty_then_clean(results: JobResultStore) -> None:
    assert not results.has_job_result_entry_async(JOB).result()
    results.create_dirty_result_async(JobResultEntry(result())).result()
    assert results.has_dirty_job_result_entry_async(JOB).result()
    assert not results.has_clean_job_result_entry_async(JOB).result()
    assert results.get_dirty_results() == {result()}
    results.mark_result_as_clean_async(JOB).result()
    assert not results.has_dirty_job_result_entry_async(JOB).result()
    assert results.get_dirty_results() == set()


def test_a_job_ends_once(results: JobResultStore) -> None:
    results.create_dirty_result_async(JobResultEntry(result())).result()
    with pytest.raises(AlreadyExistError, match=str(JOB)):
        results.create_dirty_result_async(JobResultEntry(result())).result()


def test_a_job_without_result_cannot_be_marked_as_clean(results: JobResultStore) -> None:
    with pytest.raises(NotExistError, match=f"Could not mark job {JOB} as clean"):
        results.mark_result_as_clean_async(JOB).result()


def test_marking_twice_changes_nothing_unless_the_result_was_deleted(tmp_path: Path) -> None:
    store = FileSystemJobResultStore(LocalFileSystem(), str(tmp_path), delete_on_commit=False)
    store.create_dirty_result_async(JobResultEntry(result())).result()
    store.mark_result_as_clean_async(JOB).result()
    before = (tmp_path / f"{JOB}.json").read_bytes()
    store.mark_result_as_clean_async(JOB).result()
    assert (tmp_path / f"{JOB}.json").read_bytes() == before
    with pytest.raises(AlreadyExistError):
        store.create_dirty_result_async(JobResultEntry(result())).result()
    forgetful = FileSystemJobResultStore(LocalFileSystem(), str(tmp_path / "2"), delete_on_commit=True)
    forgetful.create_dirty_result_async(JobResultEntry(result())).result()
    forgetful.mark_result_as_clean_async(JOB).result()
    assert list((tmp_path / "2").iterdir()) == []
    with pytest.raises(NotExistError):
        forgetful.mark_result_as_clean_async(JOB).result()


def test_the_next_leader_finds_whose_clean_up_is_owed(tmp_path: Path) -> None:
    failed = JobResult(
        OTHER, "b", ApplicationStatus.FAILED, failure_cause=FailureCause("ValueError", "no", "Traceback ...")
    )
    first = FileSystemJobResultStore(LocalFileSystem(), str(tmp_path))
    for entry in (result(), failed):
        first.create_dirty_result_async(JobResultEntry(entry)).result()
    second = FileSystemJobResultStore(LocalFileSystem(), str(tmp_path))
    assert second.get_dirty_results() == {result(), failed}
    document = json.loads((tmp_path / f"{OTHER}_DIRTY.json").read_bytes())
    assert document["result"]["application-status"] == "FAILED"
    assert document["result"]["failure-cause"]["class"] == "ValueError"


def test_what_is_no_result_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = FileSystemJobResultStore(LocalFileSystem(), str(tmp_path))
    store.create_dirty_result_async(JobResultEntry(result())).result()
    (tmp_path / "x_DIRTY.json").mkdir()
    (tmp_path / "notes_DIRTY.json").write_text("{}")
    assert store.get_dirty_results() == {result()}
    assert "x_DIRTY.json" in caplog.text and "notes_DIRTY.json" in caplog.text


def test_a_lost_answer_to_the_creation_of_a_result_is_found_out_about(tmp_path: Path) -> None:
    store = FileSystemJobResultStore(LosingFileSystem(), str(tmp_path))
    store.create_dirty_result_async(JobResultEntry(result())).result()
    assert store.get_dirty_results() == {result()}


def test_a_crash_while_a_result_is_renamed_leaves_it_clean(tmp_path: Path) -> None:
    store = FileSystemJobResultStore(LocalFileSystem(), str(tmp_path), delete_on_commit=False)
    store.create_dirty_result_async(JobResultEntry(result())).result()
    (tmp_path / f"{JOB}.json").hardlink_to(tmp_path / f"{JOB}_DIRTY.json")
    assert store.has_clean_job_result_entry_async(JOB).result()
    assert not store.has_dirty_job_result_entry_async(JOB).result()
    assert store.get_dirty_results() == set()


def test_a_result_that_cannot_be_read_is_an_error_and_never_skipped(tmp_path: Path) -> None:
    store = FileSystemJobResultStore(LocalFileSystem(), str(tmp_path))
    store.create_dirty_result_async(JobResultEntry(result())).result()
    path = tmp_path / f"{OTHER}_DIRTY.json"
    path.write_bytes(b'{"result": ')
    with pytest.raises(CorruptFileError, match=path.name):
        store.get_dirty_results()
    path.write_bytes(encode_document("job-result", 2, {"result": {}}))
    with pytest.raises(FormatVersionError, match=path.name):
        store.get_dirty_results()


def test_results_are_written_on_the_given_executor(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as executor:
        store = FileSystemJobResultStore(LocalFileSystem(), str(tmp_path), executor=executor)
        store.create_dirty_result_async(JobResultEntry(result())).result(timeout=30)
        assert store.has_job_result_entry_async(JOB).result(timeout=30)


def test_the_words_and_exit_codes_of_results() -> None:
    assert ApplicationStatus.from_job_status("FINISHED") is ApplicationStatus.SUCCEEDED
    assert ApplicationStatus.from_job_status("SUSPENDED") is ApplicationStatus.UNKNOWN
    assert ApplicationStatus.FAILED.process_exit_code == 1443
    assert ApplicationStatus.UNKNOWN.to_job_status() is None
    with pytest.raises(ValueError, match="-1"):
        JobResult(JOB, net_runtime=-1)
    assert JobResult(JOB).is_success()
    assert not JobResult(JOB, failure_cause=FailureCause("E", "m")).is_success()


# Blobs.


@pytest.fixture
def blobs(tmp_path: Path) -> FileSystemBlobStore:
    return FileSystemBlobStore(LocalFileSystem(), str(tmp_path / "blob"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "job.py"
    path.write_bytes(b"print('hello')\n" * 200_000)
    return path


def test_a_blob_comes_back_as_it_was_put(blobs: FileSystemBlobStore, source: Path, tmp_path: Path) -> None:
    key = BlobKey.of(source)
    assert blobs.put(source, JOB, key)
    assert blobs.put(source, JOB, key), "once more changes nothing"
    copy = tmp_path / "copy.py"
    assert blobs.get(JOB, key, copy)
    assert copy.read_bytes() == source.read_bytes()
    assert BlobKey.parse(str(key)) == key


def test_the_same_bytes_of_two_jobs_are_two_blobs(blobs: FileSystemBlobStore, source: Path, tmp_path: Path) -> None:
    first, second = BlobKey.of(source), BlobKey.of(source)
    assert first != second
    blobs.put(source, JOB, first)
    blobs.put(source, OTHER, second)
    assert blobs.delete_all(JOB)
    assert blobs.get(OTHER, second, tmp_path / "copy")
    with pytest.raises(NotExistError):
        blobs.get(JOB, first, tmp_path / "copy")


def test_damage_is_noticed_and_leaves_no_local_file(blobs: FileSystemBlobStore, source: Path, tmp_path: Path) -> None:
    key = BlobKey.of(source)
    blobs.put(source, JOB, key)
    stored = tmp_path / "blob" / f"job_{JOB}" / f"blob_{key}"
    content = bytearray(stored.read_bytes())
    content[1_000_000] ^= 1
    stored.write_bytes(content)
    copy = tmp_path / "copy"
    with pytest.raises(CorruptFileError, match=str(key)):
        blobs.get(JOB, key, copy)
    assert not copy.exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".copy")] == []


def test_a_file_is_not_put_under_the_key_of_another(blobs: FileSystemBlobStore, source: Path, tmp_path: Path) -> None:
    key = BlobKey.of(source)
    changed = tmp_path / "changed"
    changed.write_bytes(b"something else")
    with pytest.raises(CorruptFileError, match="changed"):
        blobs.put(changed, JOB, key)
    with pytest.raises(NotExistError):
        blobs.put(tmp_path / "absent", JOB, key)


def test_deleting_what_is_not_there_succeeds(blobs: FileSystemBlobStore, source: Path, tmp_path: Path) -> None:
    key = BlobKey.of(source)
    assert blobs.delete(JOB, key) and blobs.delete_all(JOB)
    blobs.cleanup_all_data()
    for job_id in (JOB, OTHER):
        blobs.put(source, job_id, BlobKey.of(source))
    blobs.put(source, JOB, key)
    assert blobs.delete(JOB, key)
    blobs.cleanup_all_data()
    assert not (tmp_path / "blob").exists()


def test_a_void_store_keeps_nothing(source: Path, tmp_path: Path) -> None:
    store = VoidBlobStore()
    assert not store.put(source, JOB, BlobKey.of(source))
    assert not store.get(JOB, BlobKey.of(source), tmp_path / "copy")


# Plans.


class Events(ExecutionPlanListener):
    def __init__(self) -> None:
        self.heard: list[tuple[str, JobID]] = []

    def on_added_execution_plan(self, job_id: JobID) -> None:
        self.heard.append(("added", job_id))

    def on_removed_execution_plan(self, job_id: JobID) -> None:
        self.heard.append(("removed", job_id))


class CallingExecutor(Executor):
    """Runs everything at once."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class Plans:
    """Several processes with one plan store."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.stores: list[DefaultExecutionPlanStore] = []

    def handles(self) -> FileSystemStateHandleStore[ExecutionPlan]:
        fs = LocalFileSystem()
        storage = FileSystemStateStorageHelper(fs, str(self.directory), "plan", execution_plan_serializer())
        return FileSystemStateHandleStore(fs, str(self.directory / "pointers"), storage)

    def open(self, listener: ExecutionPlanListener | None = None) -> DefaultExecutionPlanStore:
        entries = FileDocument(LocalFileSystem(), str(self.directory / "pointers"), ENTRY_MAP_FORMAT)
        watcher = NamesWatcher(lambda wake: sorted(entries.read().entries), 0.02)
        store = DefaultExecutionPlanStore(self.handles(), watcher)
        store.start(listener or Events())
        self.stores.append(store)
        return store

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in self.directory.glob("plan*"))


@pytest.fixture
def plans(tmp_path: Path) -> Iterator[Plans]:
    plans = Plans(tmp_path)
    yield plans
    for store in plans.stores:
        store.stop()


def plan(job_id: JobID = JOB, version: int = 1) -> ExecutionPlan:
    return ExecutionPlan(job_id, "a job", {"script": "job.py", "version": version})


def test_a_plan_is_recovered_by_the_next_leader(plans: Plans) -> None:
    plans.open().put_execution_plan(plan())
    successor = plans.open()
    assert successor.get_job_ids() == [JOB]
    assert successor.recover_execution_plan(JOB) == plan()
    assert successor.recover_execution_plan(OTHER) is None


@pytest.mark.parametrize("damage", ["damaged", "gone"])
def test_a_plan_of_ones_own_that_could_not_be_recovered_may_be_put_again(plans: Plans, damage: str) -> None:
    store = plans.open()
    store.put_execution_plan(plan())
    (file,) = plans.files
    if damage == "gone":
        (plans.directory / file).unlink()
    else:
        (plans.directory / file).write_bytes(b"{}")
    with pytest.raises(HoldfastError):
        store.recover_execution_plan(JOB)
    store.put_execution_plan(plan(version=2))
    assert store.recover_execution_plan(JOB) == plan(version=2) == plans.open().recover_execution_plan(JOB)


def test_only_a_known_plan_is_replaced(plans: Plans) -> None:
    first, second = plans.open(), plans.open()
    first.put_execution_plan(plan())
    first.put_execution_plan(plan(version=2))
    with pytest.raises(AlreadyExistError, match=str(JOB)):
        second.put_execution_plan(plan(version=3))
    assert second.recover_execution_plan(JOB) == plan(version=2)
    second.put_execution_plan(plan(version=3))
    assert first.recover_execution_plan(JOB) == plan(version=3)
    assert len(plans.files) == 1


def test_a_store_that_does_not_run_refuses(plans: Plans) -> None:
    store = plans.open()
    store.start(Events())
    store.stop()
    store.stop()
    for refused in (
        lambda: store.put_execution_plan(plan()),
        lambda: store.recover_execution_plan(JOB),
        store.get_job_ids,
    ):
        with pytest.raises(RuntimeError, match="Forgot to call start"):
            refused()


def test_a_plan_goes_when_its_job_has_ended_for_good_and_stays_otherwise(plans: Plans) -> None:
    store = plans.open()
    store.put_execution_plan(plan())
    store.local_cleanup_async(JOB, CallingExecutor()).result()
    assert plans.open().recover_execution_plan(JOB) == plan()
    for _ in range(2):
        store.global_cleanup_async(JOB, CallingExecutor()).result()
    assert store.get_job_ids() == []
    assert plans.files == []


def test_the_bounds_of_a_job_are_kept_with_its_plan(plans: Plans) -> None:
    store = plans.open()
    bounds = JobResourceRequirements({"count": (1, 8)})
    with pytest.raises(NotExistError, match=str(JOB)):
        store.put_job_resource_requirements(JOB, bounds)
    store.put_execution_plan(plan())
    store.put_job_resource_requirements(JOB, bounds)
    found = plans.open().recover_execution_plan(JOB)
    assert found is not None and found.resource_requirements == bounds
    with pytest.raises(ValueError, match="count"):
        JobResourceRequirements({"count": (4, 2)})


def test_the_listener_hears_what_others_do_and_not_what_the_store_does(plans: Plans) -> None:
    events = Events()
    mine, theirs = plans.open(events), plans.open()
    mine.put_execution_plan(plan(JOB))
    theirs.put_execution_plan(plan(OTHER))
    eventually(lambda: events.heard == [("added", OTHER)], f"it hears of the other plan, {events.heard}", 5)
    theirs.global_cleanup_async(OTHER, CallingExecutor()).result()
    theirs.recover_execution_plan(JOB)
    theirs.global_cleanup_async(JOB, CallingExecutor()).result()
    eventually(lambda: ("removed", JOB) in events.heard, "it hears that its own plan was removed", 5)
    assert ("added", JOB) not in events.heard
    assert ("removed", OTHER) not in events.heard, "it never knew that plan"


def test_a_listener_that_fails_is_heard_of_in_the_log_only(plans: Plans, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Events):
        def on_added_execution_plan(self, job_id: JobID) -> None:
            super().on_added_execution_plan(job_id)
            raise ValueError("the listener is broken")

    events = Failing()
    plans.open(events)
    other = plans.open()
    for job_id in (JOB, OTHER):
        other.put_execution_plan(plan(job_id))
    eventually(lambda: len(events.heard) == 2, "both are told", 5)
    assert "the listener is broken" in caplog.text


def test_a_plan_that_cannot_be_read_is_an_error(plans: Plans) -> None:
    store = plans.open()
    store.put_execution_plan(plan())
    (name,) = plans.files
    (plans.directory / name).write_bytes(b"{}")
    with pytest.raises(CorruptFileError, match=name):
        plans.open().recover_execution_plan(JOB)
    (plans.directory / name).unlink()
    with pytest.raises(CorruptFileError, match="is gone"):
        plans.open().recover_execution_plan(JOB)


def test_names_of_other_things_are_skipped(plans: Plans, caplog: pytest.LogCaptureFixture) -> None:
    plans.handles().add_and_lock("not a job id", plan())
    store = plans.open()
    store.put_execution_plan(plan(OTHER))
    assert store.get_job_ids() == [OTHER]
    assert "not a job id" in caplog.text


def test_without_high_availability_nothing_is_kept() -> None:
    store = StandaloneExecutionPlanStore()
    store.start(Events())
    store.put_execution_plan(plan())
    assert store.recover_execution_plan(JOB) is None
    assert store.get_job_ids() == []
    store.global_cleanup_async(JOB, CallingExecutor()).result()
    store.stop()
