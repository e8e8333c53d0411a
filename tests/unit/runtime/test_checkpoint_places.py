"""Where a job keeps its checkpoints, and what becomes of them when it ends: the options act, or say why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast.checkpoint.config import CheckpointConfig
from holdfast.checkpoint.storage import CheckpointStorageFactory, FileSystemCheckpointStorage
from holdfast.cli import main
from holdfast.datastream import KeyedProcessFunction
from holdfast.datastream.functions import CheckpointedFunction, RichMapFunction
from holdfast.datastream.state import ListStateDescriptor, ValueStateDescriptor
from holdfast.errors import ConfigurationError, JobExecutionError
from holdfast.kernel import fault
from holdfast.kernel.configuration import Configuration
from holdfast.runtime.job.control import JobStatus
from holdfast.runtime.job.engine import checkpoint_root
from holdfast.runtime.master.job_master import JobMaster
from tests.stories import local

RETENTION = "execution.checkpointing.externalized-checkpoint-retention"
NO_SUBDIRECTORY = {"execution.checkpointing.create-subdir": "false"}


class Sum(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", "bigint", 0))

    def process_element(self, value: Any, ctx: Any) -> Any:
        if value < 0:
            raise ValueError("negative")
        self.sum.update(self.sum.value() + value)
        yield self.sum.value()


def job(root: Path, batches: list[list[int]], options: dict[str, Any], **settings: Any) -> tuple[JobMaster, list[int]]:
    seen: list[int] = []
    program = local.Program()
    numbers = program.source("numbers", "bigint")
    sums = numbers.key_by(lambda _: 0, "bigint").process(Sum(), output_type="bigint").uid("sum")
    sums.for_each_epoch(lambda rows, epoch: seen.extend(row["value"] for row in rows.to_pylist())).uid("out")
    return local.master(program, root, local.epochs("numbers", batches), options, **settings), seen


def files(master: JobMaster) -> set[str]:
    """What is left in a job's directory, but for its register."""
    root = Path(master.job.directory.path)
    return {
        str(p.relative_to(root)) for p in root.rglob("*") if p.is_file() and not p.is_relative_to(root / "register")
    }


@pytest.mark.parametrize(
    ("retention", "how", "kept"),
    [
        ("RETAIN_ON_CANCELLATION", "cancelled", True),
        ("RETAIN_ON_CANCELLATION", "finished", True),
        ("DELETE_ON_CANCELLATION", "cancelled", False),
        ("DELETE_ON_CANCELLATION", "finished", False),
        ("DELETE_ON_CANCELLATION", "failed", True),
        ("DELETE_ON_CANCELLATION", "suspended", True),
        ("NO_EXTERNALIZED_CHECKPOINTS", "cancelled", False),
        ("NO_EXTERNALIZED_CHECKPOINTS", "failed", False),
        ("NO_EXTERNALIZED_CHECKPOINTS", "suspended", True),
    ],
)
def test_the_retention_option_decides_about_checkpoints(tmp_path: Path, retention: str, how: str, kept: bool) -> None:
    batches = [[1], [2], [-1 if how == "failed" else 3]]
    master, _ = job(tmp_path, batches, {RETENTION: retention}, is_bounded=how == "finished")
    if how == "cancelled":
        master.progress.listen(lambda record: master.control.cancel() if record.epoch == 2 else None)
    if how == "failed":
        with pytest.raises(JobExecutionError):
            master.run()
    else:
        assert master.run().value == {"cancelled": "CANCELED"}.get(how, how.upper())
    assert any(name.startswith("chk-") for name in files(master)) is kept
    if not kept:
        assert files(master) == set()
        again, seen = job(tmp_path, [[10]], {RETENTION: retention}, is_bounded=False)
        assert again.run() is (JobStatus.FINISHED if how == "finished" else JobStatus.SUSPENDED)
        assert seen == ([] if how == "finished" else [10]), "nothing is left to go on from"


def test_a_job_with_an_interrupted_deletion_has_no_checkpoint(tmp_path: Path) -> None:
    options = {RETENTION: "DELETE_ON_CANCELLATION", "execution.checkpointing.num-retained": "9"}
    master, _ = job(tmp_path, [[1], [2], [3]], options)
    master.progress.listen(lambda record: master.control.cancel() if record.epoch == 2 else None)
    fault.install("before:subsume.delete:4=raise")
    try:
        with pytest.raises(JobExecutionError, match=r"subsume\.delete"):
            master.run()
    finally:
        fault.clear()
    assert files(master)
    again, seen = job(tmp_path, [[10], [20]], options)
    assert again.run() is JobStatus.SUSPENDED
    assert seen == [10, 30], "it starts anew"


def test_a_job_without_a_subdirectory_resumes_and_is_found_by_the_commands(tmp_path: Path) -> None:
    first, seen = job(tmp_path, [[1], [2]], NO_SUBDIRECTORY)
    first.run()
    assert seen == [1, 3]
    assert (tmp_path / "register").is_dir() and (tmp_path / "chk-2" / "_metadata").exists()
    second, seen = job(tmp_path, [[1], [2], [4]], NO_SUBDIRECTORY)
    second.run()
    assert seen == [7]
    listed = CliRunner().invoke(main, ["checkpoints", str(tmp_path), "--json"])
    assert str(first.job.job_id) in listed.stdout


def test_two_jobs_may_not_share_a_directory_without_subdirectories(tmp_path: Path) -> None:
    first, _ = job(tmp_path, [[1]], NO_SUBDIRECTORY)
    first.run()
    second, _ = job(tmp_path, [[1]], NO_SUBDIRECTORY, name="another")
    with pytest.raises(ConfigurationError, match="has the checkpoints of job"):
        second.run()


class OwnStorage(CheckpointStorageFactory):
    def create_from_config(self, config: Configuration) -> Any:
        return FileSystemCheckpointStorage("/somewhere")


@pytest.mark.parametrize(
    ("options", "root"),
    [
        ({}, None),
        ({"execution.checkpointing.dir": "/data"}, "/data"),
        ({"execution.checkpointing.dir": "/data", "execution.checkpointing.storage": "filesystem"}, "/data"),
        ({"execution.checkpointing.dir": "/data", "state.checkpoint-storage": "jobmanager"}, None),
        ({"state.checkpoints.dir": "s3://bucket/data"}, "s3://bucket/data"),
    ],
)
def test_the_directory_of_checkpoints_is_chosen_as_in_flink(options: dict[str, str], root: str | None) -> None:
    assert checkpoint_root(Configuration(options)) == root


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"execution.checkpointing.storage": "filesystem"}, "execution.checkpointing.dir is not set"),
        ({"execution.checkpointing.storage": f"{__name__}:OwnStorage"}, "write their files by path"),
        ({"execution.savepoint-restore-mode": "legacy"}, "copies what it needs"),
    ],
)
def test_impossible_requests_are_rejected_with_the_reason(options: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        configuration = Configuration(options)
        configuration.validate()
        checkpoint_root(configuration)


def test_a_program_chooses_the_storage_by_an_object_as_well(tmp_path: Path) -> None:
    options = Configuration()
    config = CheckpointConfig(options)
    config.set_checkpoint_storage(FileSystemCheckpointStorage(str(tmp_path), savepoint_directory="/savepoints"))
    assert checkpoint_root(options) == str(tmp_path)
    assert options.to_dict()["execution.checkpointing.savepoint-dir"] == "/savepoints"
    assert "execution.checkpointing.data-inline-threshold" not in options.to_dict()


class Words(RichMapFunction, CheckpointedFunction):
    def initialize_state(self, context: Any) -> None:
        self.seen = context.get_operator_state_store().get_list_state(ListStateDescriptor("seen", "string"))

    def snapshot_state(self, context: Any) -> None:
        pass

    def map(self, value: Any) -> Any:
        self.seen.add(value)
        return value


@pytest.mark.parametrize(("threshold", "goes_to_files"), [(0, True), (10_000, False)])
def test_the_threshold_of_a_storage_that_a_program_chooses_holds_in_its_tasks(
    tmp_path: Path, threshold: int, goes_to_files: bool
) -> None:
    options = Configuration()
    CheckpointConfig(options).set_checkpoint_storage(FileSystemCheckpointStorage(str(tmp_path), threshold))
    program = local.Program()
    program.source("words", "string").map(Words(), "string").uid("keep").print().uid("out")
    local.run(program, tmp_path, local.epochs("words", [["a"], ["b"]]), options.to_dict())
    assert bool(list(tmp_path.glob("*/taskowned/*.state"))) is goes_to_files
