"""An inspector of job directories: what is there must be what the retained checkpoints name, and nothing else."""

from __future__ import annotations

from pathlib import Path

from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint, read_retained
from holdfast.kernel.ids import JobID
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.local import LocalFileSystem
from holdfast.storage.register import WINDOW, FileRegister, RegisterState


def job_directory(root: Path | str, name: str = "job") -> JobDirectory:
    """The directory of a job of the epoch runner."""
    return JobDirectory(LocalFileSystem(), str(root), JobID.from_name(name))


def register_of(directory: JobDirectory) -> RegisterState:
    """The newest version of its register."""
    return FileRegister(directory.fs, directory.register_dir).read()


def retained(directory: JobDirectory) -> list[CompletedCheckpoint]:
    """The checkpoints that its register names, oldest first."""
    return read_retained(directory, register_of(directory))


def inspect(root: Path | str, name: str = "job", *, outputs: tuple[Path, ...] = ()) -> None:
    """Judges a job directory after its job has ended.

    Args:
        root: The checkpoint directory.
        name: Of the job.
        outputs: Directories of Parquet sinks, whose staged files are looked for too.

    Raises:
        AssertionError: A file is left over, or one is missing.
    """
    directory = job_directory(root, name)
    checkpoints = retained(directory)
    top = sorted(path.name for path in Path(directory.path).iterdir())
    requested = [name for name in top if name.startswith("parallelism-")]
    assert len(requested) <= 1, "a request for another parallelism replaces those before it"
    top = [name for name in top if name not in requested]
    assert top == sorted([*(f"chk-{c.pointer.checkpoint_id}" for c in checkpoints), "register", "shared", "taskowned"])
    for checkpoint in checkpoints:
        assert [path.name for path in Path(checkpoint.path).iterdir()] == ["_metadata"]

    named = {text for checkpoint in checkpoints for text in checkpoint.metadata.strings()}
    runs = {run.path for checkpoint in checkpoints for op in checkpoint.metadata.operators for run in op.runs}
    assert {f"shared/{path.name}" for path in Path(directory.shared_dir).iterdir()} == runs
    owned = [path.name for path in Path(directory.taskowned_dir).iterdir()]
    nonces = [file for file in owned if file.endswith(".nonce")]
    assert len(nonces) == 1, "the nonce file of the last attempt stays, the others go"
    assert all(file in named or f"taskowned/{file}" in named for file in owned if file not in nonces)
    for output in outputs:
        staged = [path for path in output.glob(".holdfast/*/*") if path.is_file()]
        for ledger in output.glob(".holdfast/*/ledger"):
            marks = sorted(path.name for path in ledger.iterdir())
            assert len({mark.partition(".")[0] for mark in marks}) == 1, "the intents below the highest go"
        assert [path for path in staged if str(path.relative_to(output)) not in named] == []
    versions = [path for path in Path(directory.register_dir).iterdir() if path.name != "trimmed"]
    assert len(versions) <= WINDOW + 1
