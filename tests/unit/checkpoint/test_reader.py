"""What a job starts from, and what it says when that is damaged."""

import shutil

import pytest

from holdfast.checkpoint.claim import import_snapshot
from holdfast.checkpoint.completed_checkpoint import (
    read_by_path,
    read_newest,
    read_retained,
    root_of,
    try_read_retained,
)
from holdfast.checkpoint.metadata import encode
from holdfast.errors import ConfigurationError, CorruptFileError, FormatVersionError, NotExistError
from holdfast.storage.job_directory import FileName
from holdfast.storage.state_handle import encode_document
from tests.unit.checkpoint.support import LocalJob, complete, document, with_operator


@pytest.fixture
def job(tmp_path):
    job = LocalJob(tmp_path / "checkpoints")
    _, coordinator = job.lead()
    for epoch in (1, 2, 3):
        complete(coordinator, epoch, runs=[job.write_run(1, epoch)])
    return job


def metadata_file(job, checkpoint_id, tmp_path):
    return tmp_path / "checkpoints" / str(job.directory.job_id) / f"chk-{checkpoint_id}" / "_metadata"


def test_the_newest_completed_checkpoint_is_found(job):
    state = job.register.read()
    assert read_newest(job.directory, state).metadata.epoch == 3
    assert [checkpoint.metadata.epoch for checkpoint in read_retained(job.directory, state)] == [1, 2, 3]


def test_a_job_without_checkpoints_has_none(tmp_path):
    job = LocalJob(tmp_path)
    assert read_newest(job.directory, job.register.read()) is None
    assert read_retained(job.directory, job.register.read()) == []


def test_directory_directory_with_slash_and_document_mean_the_same(job, tmp_path):
    directory = str(metadata_file(job, 2, tmp_path).parent)
    for path in (directory, directory + "/", directory + "/_metadata", "file://" + directory, f" {directory} "):
        found = read_by_path(path)
        assert found.metadata.epoch == 2
        assert found.get_external_pointer() in (directory, "file://" + directory)
    assert root_of(read_by_path(directory)) == job.directory.path


@pytest.mark.parametrize("path", ["/nowhere", "/nowhere/_metadata", "relative/nothing", "/", "/tmp/"])
def test_a_path_without_a_checkpoint_is_told(path):
    with pytest.raises(NotExistError, match="No checkpoint or savepoint"):
        read_by_path(path)


def test_a_path_that_is_none_is_told():
    with pytest.raises(ConfigurationError, match="empty"):
        read_by_path("")
    with pytest.raises(ConfigurationError, match="'ftp'"):
        read_by_path("ftp://server/chk-1")
    with pytest.raises(TypeError):
        read_by_path(None)


def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_is_proposed(job, tmp_path):
    file = metadata_file(job, 3, tmp_path)
    whole = file.read_bytes()
    before = str(metadata_file(job, 2, tmp_path).parent)
    for damaged in (whole[:-1], whole[: len(whole) // 2], b"", whole[:100] + bytes([whole[100] ^ 4]) + whole[101:]):
        file.write_bytes(damaged)
        with pytest.raises(CorruptFileError) as caught:
            read_newest(job.directory, job.register.read())
        assert str(file) in str(caught.value)
        assert f"-s {before}" in str(caught.value)
        assert caught.value.path == str(file)
        with pytest.raises(CorruptFileError):
            read_retained(job.directory, job.register.read())
    assert read_by_path(before).metadata.epoch == 2


def test_if_an_older_one_is_damaged_the_newest_is_proposed(job, tmp_path):
    metadata_file(job, 2, tmp_path).write_bytes(b"")
    with pytest.raises(CorruptFileError, match="checkpoint 2 cannot be restored") as caught:
        read_retained(job.directory, job.register.read())
    assert f"The newest one, checkpoint 3, is whole: start with -s {metadata_file(job, 3, tmp_path).parent} " in str(
        caught.value
    )


def test_a_checkpoint_that_is_gone_is_as_bad_as_a_damaged_one(job, tmp_path):
    metadata_file(job, 3, tmp_path).unlink()
    with pytest.raises(CorruptFileError, match="checkpoint 3 cannot be restored"):
        read_newest(job.directory, job.register.read())


def test_the_proposal_passes_over_those_that_are_damaged_too(job, tmp_path):
    for checkpoint_id in (3, 2):
        metadata_file(job, checkpoint_id, tmp_path).write_bytes(b"")
    with pytest.raises(CorruptFileError, match="checkpoint 1, is whole"):
        read_newest(job.directory, job.register.read())
    metadata_file(job, 1, tmp_path).write_bytes(b"")
    with pytest.raises(CorruptFileError, match="No other checkpoint of the job is whole"):
        read_newest(job.directory, job.register.read())


def test_a_whole_document_that_is_not_the_completed_one_is_refused(job, tmp_path):
    metadata_file(job, 3, tmp_path).write_bytes(encode(document(3, 77)))
    with pytest.raises(CorruptFileError, match="differs from the document"):
        read_newest(job.directory, job.register.read())


def test_a_document_of_a_newer_version_is_told_so(job, tmp_path):
    metadata_file(job, 3, tmp_path).write_bytes(encode_document("checkpoint", 99, {}))
    with pytest.raises(FormatVersionError, match="version 99"):
        read_by_path(str(metadata_file(job, 3, tmp_path)))


def test_a_listing_shows_damaged_ones_beside_the_others(job, tmp_path):
    metadata_file(job, 2, tmp_path).write_bytes(b"x")
    found = try_read_retained(job.directory, job.register.read())
    assert [pointer.checkpoint_id for pointer, _ in found] == [1, 2, 3]
    assert [isinstance(what, CorruptFileError) for _, what in found] == [False, True, False]


def test_a_job_that_starts_from_another_ones_checkpoint_depends_on_nothing_of_it(job, tmp_path):
    operator_file = FileName.new(1, 2, 0, "op", 0).format(".state")
    job.directory.fs.write_atomic(job.directory.absolute(f"taskowned/{operator_file}"), b"operator state")
    staged = FileName.new(1, 3, 0, "out", 0).format(".parquet")
    job.directory.fs.write_atomic(job.directory.absolute(f"taskowned/{staged}"), b"staged output")
    elsewhere = str(tmp_path / "out" / "_staging" / FileName.new(1, 3, 0, "out", 0).format(".parquet"))
    job.directory.fs.write_atomic(elsewhere, b"stays")
    metadata = with_operator(
        read_by_path(str(metadata_file(job, 3, tmp_path))).metadata,
        subtasks=({"file": f"taskowned/{operator_file}"},),
        committables={"out": [{"epoch": 3, "subtask": 0, "value": {"file": staged}}], "sink": [{"path": elsewhere}]},
    )
    checkpoint = read_by_path(str(metadata_file(job, 3, tmp_path)))
    checkpoint.metadata = metadata
    other = LocalJob(tmp_path / "other")
    adopted = import_snapshot(checkpoint, other.directory, 5)
    shutil.rmtree(tmp_path / "checkpoints")
    [run] = adopted.operators[0].runs
    name = FileName.parse(run.path.removeprefix("shared/"))
    assert name.token == 5
    assert other.directory.fs.read(other.directory.absolute(run.path)) == b"state"
    file = adopted.operators[0].subtasks[0]["file"]
    assert other.directory.fs.read(other.directory.absolute(file)) == b"operator state"
    output = adopted.operators[0].committables["out"][0]["value"]["file"]
    assert other.directory.fs.read(other.directory.absolute(f"taskowned/{output}")) == b"staged output"
    assert adopted.operators[0].committables["sink"] == [{"path": elsewhere}]
    assert (adopted.epoch, adopted.source_positions) == (metadata.epoch, metadata.source_positions)


def test_the_own_checkpoint_is_adopted_as_it_is(job, tmp_path):
    checkpoint = read_by_path(str(metadata_file(job, 2, tmp_path)))
    before = job.files()
    assert import_snapshot(checkpoint, job.directory, 9) is checkpoint.metadata
    assert job.files() == before


def test_a_run_that_is_gone_or_cut_off_is_told_when_it_is_adopted(job, tmp_path):
    checkpoint = read_by_path(str(metadata_file(job, 3, tmp_path)))
    path = job.directory.absolute(checkpoint.metadata.operators[0].runs[0].path)
    other = LocalJob(tmp_path / "other")
    with open(path, "wb") as file:  # noqa: PTH123
        file.write(b"st")
    with pytest.raises(CorruptFileError, match="instead of 5"):
        import_snapshot(checkpoint, other.directory, 5)
    job.directory.fs.delete(path)
    with pytest.raises(CorruptFileError, match="missing"):
        import_snapshot(checkpoint, other.directory, 5)


def test_state_of_a_subtask_that_is_gone_is_told_when_it_is_adopted(job, tmp_path):
    gone = f"taskowned/{FileName.new(1, 1, 0, 'op', 0).format('.state')}"
    checkpoint = read_by_path(str(metadata_file(job, 3, tmp_path)))
    checkpoint.metadata = with_operator(checkpoint.metadata, subtasks=(None, {"states": [{"path": gone}]}))
    with pytest.raises(CorruptFileError, match=f"{gone}.*missing"):
        import_snapshot(checkpoint, LocalJob(tmp_path / "other").directory, 5)
