"""No deletion crosses a link: what it points to may belong to somebody else."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.claim import dispose_savepoint
from holdfast.checkpoint.storage import check_savepoint_directory
from holdfast.datastream import KeyedProcessFunction
from holdfast.datastream.connectors.table_files import TableDirectory
from holdfast.datastream.sinks.output_directory import CommitLedger, OutputDirectory, StagedFile
from holdfast.dispatcher.store import AddressBook
from holdfast.errors import ConfigurationError, HoldfastError, StorageError
from holdfast.ha import ApplicationStatus, FileSystemJobResultStore, JobResult, JobResultEntry
from holdfast.ha.blob_store import FileSystemBlobStore
from holdfast.ha.cluster_storage import ClusterStorage
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.rest.client import AddressFile
from holdfast.runtime.commit.checkpointing import probe_savepoint_directory
from holdfast.runtime.job.control import SnapshotRequest
from holdfast.state import ValueStateDescriptor
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.local import LocalFileSystem
from holdfast.storage.local_copies import LocalCopies
from tests.stories.local import Program, master


class Last(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", "bigint"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        self.last.update(value.n)
        yield value.n


def go(root: Path, epochs: int, name: str = "job", savepoint: Path | None = None) -> Path:
    program = Program()
    program.source("in", "key string, n bigint").key_by("key").process(Last()).uid("last").print().uid("out")
    options = {"execution.checkpointing.num-retained": "1", "state.compaction.max-runs": "3"}
    job = master(program, root, [{"in": [("k", n)]} for n in range(epochs)], options, name=name, parallelism=1)
    if savepoint is not None:
        job.control.request(SnapshotRequest(True, str(savepoint)))
    job.run()
    return Path(job.job.directory.path)


def names(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def test_the_sweep_leaves_what_a_link_in_place_of_a_checkpoint_points_to(tmp_path: Path) -> None:
    job = go(tmp_path / "jobs", 1)
    [chk] = job.glob("chk-*")
    victim = tmp_path / "victim"
    shutil.copytree(chk, victim)
    (victim / "thesis.tex").write_text("x")
    shutil.move(chk, tmp_path / "moved")
    chk.symlink_to(victim)
    before = names(victim)
    go(tmp_path / "jobs", 6)
    assert names(victim) == before


def test_the_sweep_does_not_follow_a_link(tmp_path: Path) -> None:
    other = go(tmp_path / "other", 3, "other")
    job = go(tmp_path / "jobs", 2)
    for run in (job / "shared").iterdir():
        shutil.copy(run, other / "shared")
    shutil.rmtree(job / "shared")
    (job / "shared").symlink_to(other / "shared")
    before = set(names(other / "shared"))
    go(tmp_path / "jobs", 8)
    assert before <= set(names(other / "shared"))


def savepoint_of(tmp_path: Path) -> tuple[Path, Path]:
    job = go(tmp_path / "jobs", 3, savepoint=tmp_path / "savepoints")
    [savepoint] = (tmp_path / "savepoints").glob("savepoint-*")
    return job, savepoint


def test_the_disposal_of_a_savepoint_follows_no_link(tmp_path: Path) -> None:
    job, savepoint = savepoint_of(tmp_path)
    alias = tmp_path / "alias"
    alias.symlink_to(savepoint)
    before = names(savepoint)
    for path in (alias, f"{alias}/", f"{alias}/.", f"{alias}/.//./", alias / "_metadata", f"{alias}/./_metadata"):
        with pytest.raises(ConfigurationError, match="is a link"):
            dispose_savepoint(str(path))
    assert names(savepoint) == before
    shutil.rmtree(savepoint / "shared", ignore_errors=True)
    (savepoint / "shared").symlink_to(job / "shared")
    kept = names(job)
    dispose_savepoint(str(savepoint))
    assert names(job) == kept and [left.name for left in savepoint.iterdir()] == ["shared"]


@pytest.mark.parametrize(
    "place", ["chk-1", "shared", "shared/below/that", "register", "taskowned", "link", "shared/../register"]
)
def test_a_savepoint_is_not_written_where_a_job_deletes_files(tmp_path: Path, place: str) -> None:
    job = go(tmp_path / "jobs", 2)
    (job / "link").symlink_to(job / "shared")
    before = names(job)
    for path in (job / place, f"file://{job / place}"):
        with pytest.raises(ConfigurationError, match=r"cannot be written to .* belongs to a job"):
            probe_savepoint_directory(str(path))
    assert names(job) == before


@pytest.mark.parametrize("place", ["here", "./here", "~/here", "file:here", "../here"])
def test_a_savepoint_does_not_go_to_a_relative_path(place: str) -> None:
    with pytest.raises(ConfigurationError, match="is relative"):
        check_savepoint_directory(place)


def test_a_directory_that_is_only_called_like_one_of_a_job_may_have_savepoints(tmp_path: Path) -> None:
    for name in ("shared", "chk-7", "register/deep"):
        probe_savepoint_directory(str(tmp_path / name))
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "shared")
    probe_savepoint_directory(str(link))
    assert not list((tmp_path / "shared").iterdir())


def test_the_file_system_deletes_in_directories_only(tmp_path: Path) -> None:
    fs = LocalFileSystem()
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    (real / "a").write_text("")
    link.symlink_to(real)
    with pytest.raises(StorageError, match=r"'a' was not deleted: .*link' is a link to .*real'"):
        fs.delete_in(str(link), "a")
    with pytest.raises(HoldfastError):
        fs.delete_in(str(real / "a"), "b")
    assert fs.delete_in(str(real), "a") and not fs.delete_in(str(real), "a") and not fs.delete_in(f"{real}-", "a")


def test_the_blobs_of_a_job_are_not_deleted_through_a_link(tmp_path: Path) -> None:
    others, job = tmp_path / "others", JobID("0" * 32)
    others.mkdir()
    (others / "file").write_text("of somebody else")
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / f"job_{job}").symlink_to(others)
    store = FileSystemBlobStore(LocalFileSystem(), str(tmp_path / "blobs"))
    with pytest.raises(StorageError, match="link"):
        store.delete_all(job)
    store.cleanup_all_data()
    assert (others / "file").read_text() == "of somebody else"


def test_a_ledger_of_output_forgets_nothing_behind_a_link(tmp_path: Path) -> None:
    output = tmp_path / "out"
    theirs, mine = (CommitLedger(OutputDirectory(str(output)), f".holdfast/{name}") for name in ("theirs", "mine"))
    for epoch in (1, 2):
        theirs.begin(epoch, [StagedFile("staged", "final")], [])
    (output / ".holdfast/mine").mkdir()
    (output / ".holdfast/mine/ledger").symlink_to(output / ".holdfast/theirs/ledger")
    before = names(output)
    with pytest.raises(StorageError, match="is a link"):
        mine.finish(2)
    assert [name for name in before if name not in names(output)] == []


def test_a_cluster_that_is_cleaned_up_leaves_what_a_link_points_to(tmp_path: Path) -> None:
    def storage(cluster: str) -> ClusterStorage:
        values = {"high-availability.storageDir": str(tmp_path / "ha"), "high-availability.cluster-id": cluster}
        return ClusterStorage(Configuration(values))

    theirs, mine = storage("/theirs"), storage("/mine")
    theirs.open("filesystem")
    Path(mine.path).symlink_to(theirs.path)
    before = names(Path(theirs.path))
    assert before
    with pytest.raises(StorageError, match="is a link"):
        mine.clean_up(lambda: None)
    assert names(Path(theirs.path)) == before


def test_who_listens_no_more_deletes_his_address_through_no_link(tmp_path: Path) -> None:
    directory = JobDirectory(LocalFileSystem(), str(tmp_path / "job"), JobID.from_name("job"))
    file = AddressFile(directory)
    file.publish("http://127.0.0.1:1", "token", 1)
    others, mine = tmp_path / "others", Path(directory.path) / "rest"
    shutil.copytree(mine, others)
    shutil.rmtree(mine)
    mine.symlink_to(others)
    before = names(others)
    assert before
    with pytest.raises(StorageError, match="is a link"):
        file.withdraw()
    assert names(others) == before


@pytest.mark.parametrize("deleted", [True, False], ids=["deleted", "marked"])
def test_results_of_jobs_are_not_cleaned_through_a_link(tmp_path: Path, deleted: bool) -> None:
    job, others, mine = JobID("0" * 32), tmp_path / "others", tmp_path / "mine"
    others.mkdir()
    (others / f"{job}_DIRTY.json").write_text("of somebody else")
    mine.symlink_to(others)
    store = FileSystemJobResultStore(LocalFileSystem(), str(mine), delete_on_commit=deleted)
    with pytest.raises(StorageError, match="is a link"):
        store.mark_result_as_clean_async(job).result()
    assert names(others) == [f"{job}_DIRTY.json"]


@pytest.mark.parametrize("deleted", ["true", "false"])
def test_the_directory_of_results_that_the_user_names_may_be_a_link(tmp_path: Path, deleted: str) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "results").symlink_to(tmp_path / "disk")
    options = {
        "high-availability.storageDir": str(tmp_path / "ha"),
        "job-result-store.storage-path": str(tmp_path / "results"),
        "job-result-store.delete-on-commit": deleted,
    }
    store, job = ClusterStorage(Configuration(options)).job_result_store(None), JobID("0" * 32)
    store.create_dirty_result_async(JobResultEntry(JobResult(job, "job", ApplicationStatus.SUCCEEDED))).result()
    assert names(tmp_path / "disk") == [f"{job}_DIRTY.json"]
    store.mark_result_as_clean_async(job).result()
    assert names(tmp_path / "disk") == ([] if deleted == "true" else [f"{job}.json"])


def test_a_table_does_not_take_the_identity_of_another_away(tmp_path: Path) -> None:
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    TableDirectory(str(theirs)).write_identity("theirs")
    mine.mkdir()
    (mine / "_holdfast").symlink_to(theirs / "_holdfast")
    with pytest.raises(StorageError, match="is a link"):
        TableDirectory(str(mine)).write_identity("mine")
    TableDirectory(str(theirs)).require_identity("theirs")
    (tmp_path / "link").symlink_to(theirs)
    TableDirectory(str(tmp_path / "link")).write_identity("of the next table here")
    TableDirectory(str(theirs)).require_identity("of the next table here")


def test_a_job_manager_deletes_its_address_through_no_link(tmp_path: Path) -> None:
    book, term = AddressBook(LocalFileSystem(), str(tmp_path)), "00000000-0000-0000-0000-00000000000"
    book.publish("http://127.0.0.1:1", "token", f"{term}1")
    others, mine = tmp_path / "others", tmp_path / "rest"
    mine.rename(others)
    mine.symlink_to(others)
    before = names(others)
    with pytest.raises(StorageError, match="is a link"):
        book.withdraw()
    with pytest.raises(StorageError, match="is a link"):
        book.publish("http://127.0.0.1:2", "token", f"{term}2")
    assert len(before) == 1 and set(before) < set(names(others))


def test_output_is_not_taken_out_of_the_directory_that_a_link_points_to(tmp_path: Path) -> None:
    output, others = tmp_path / "out", tmp_path / "others"
    others.mkdir()
    (others / "staged").write_text("of somebody else")
    (output / ".holdfast").mkdir(parents=True)
    (output / ".holdfast/mine").symlink_to(others)
    with pytest.raises(StorageError, match=r"'staged' was not moved: .*mine' is a link to .*others'"):
        OutputDirectory(str(output)).move([StagedFile(".holdfast/mine/staged", "final")])
    assert names(others) == ["staged"] and not (output / "final").exists()


def test_the_directory_of_output_that_the_user_names_may_be_a_link(tmp_path: Path) -> None:
    staging = tmp_path / "disk/.holdfast/mine"
    staging.mkdir(parents=True)
    (staging / "staged").write_text("mine")
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    OutputDirectory(str(tmp_path / "out")).move([StagedFile(".holdfast/mine/staged", "final")])
    assert (tmp_path / "disk/final").read_text() == "mine" and not names(staging)


def test_a_rename_does_not_follow_a_link(tmp_path: Path) -> None:
    fs, real, link, target = LocalFileSystem(), tmp_path / "real", tmp_path / "link", str(tmp_path / "target")
    real.mkdir()
    (real / "a").write_text("of somebody else")
    link.symlink_to(real)
    moves = [(str(link / "a"), target)]
    for move in (fs.move_all, fs.rename_all, fs.link_all, lambda moves: fs.rename(*moves[0])):
        with pytest.raises(StorageError, match=r"'a' was not moved: .*link' is a link"):
            move(moves)
    assert names(tmp_path) == ["link", "real", "real/a"]
    fs.rename(str(real / "a"), target)
    assert names(real) == []


def test_room_for_copies_is_not_made_behind_a_link(tmp_path: Path) -> None:
    others, cache, origin = tmp_path / "others", tmp_path / "cache", tmp_path / "origin"
    for directory in (others, origin):
        directory.mkdir()
    (others / "thesis.tex").write_text("of somebody else" * 100)
    cache.symlink_to(others)
    (origin / "run").write_text("state")
    copies = LocalCopies(LocalFileSystem(), str(cache), 100, lambda content, path: None)
    assert bytes(copies.mmap(str(origin / "run"))) == b"state"
    copies.write_atomic(str(origin / "other"), b"more")
    assert names(others) == ["thesis.tex"]
