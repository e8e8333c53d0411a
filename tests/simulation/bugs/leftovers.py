"""Bugs by which a job leaves more and more behind, and one by which it leaves too little. `bugs` has them all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from holdfast.checkpoint import completed_checkpoint, retention
from holdfast.datastream.sinks import output_directory, output_files
from holdfast.datastream.sinks import output_files as parquet
from holdfast.errors import AlreadyExistError, NotExistError
from holdfast.storage import versioned_document

Patch = tuple[Any, str, Any]


def sink_sweeps_committed_output() -> Iterator[Patch]:
    """A sink deletes its committed files, except the newest one."""
    real = parquet.ParquetFileSink.sweep

    def sweep(self: Any, context: Any, is_dead: Any) -> int:
        fs = output_files.file_system_for(self.path)
        committed = sorted(name for name in fs.list_names(self.path) if name.startswith(self.names.prefix))
        return real(self, context, is_dead) + sum(fs.delete_in(self.path, name) for name in committed[:-1])

    yield parquet.ParquetFileSink, "sweep", sweep


def nothing_is_subsumed() -> Iterator[Patch]:
    """Checkpoints are retained forever."""
    yield completed_checkpoint, "subsume", lambda checkpoints, *others: (list(checkpoints), [])


def documents_never_deleted() -> Iterator[Patch]:
    """Documents of checkpoints that are no longer retained are not deleted."""
    yield retention.Sweeper, "_delete_checkpoint", lambda self, path: None


def staged_output_never_swept() -> Iterator[Patch]:
    """Files that failed attempts staged for a sink are not deleted."""
    yield parquet.ParquetFileSink, "sweep", lambda self, context, is_dead: 0


def ledger_never_trimmed() -> Iterator[Patch]:
    """The markers of all epochs stay in the ledger of an output directory."""

    def finish(self: Any, epoch: int) -> None:
        with suppress(AlreadyExistError, NotExistError):
            self._directory.add_second_name(self._path(epoch, "begun"), self._path(epoch, "done"))

    yield output_directory.CommitLedger, "finish", finish


def half_written_intents_stay() -> Iterator[Patch]:
    """If a process dies while it writes an intent, the partial file stays in the ledger."""
    yield output_directory, "final_name", lambda name: None


def register_never_trimmed() -> Iterator[Patch]:
    """All versions of the register stay."""
    yield versioned_document, "WINDOW", 1 << 40


def half_written_versions_stay() -> Iterator[Patch]:
    """If a process dies while it writes a version of the register, the partial file stays."""
    yield versioned_document, "final_name", lambda name: None
