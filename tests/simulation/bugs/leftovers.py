"""Bugs by which a job leaves more and more behind, and one by which it leaves too little. `bugs` has them all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from holdfast.checkpoint import retention, store
from holdfast.datastream.sinks import output_directory, output_files
from holdfast.datastream.sinks import output_files as parquet
from holdfast.errors import AlreadyExistError, NotExistError
from holdfast.storage import versioned_document

Patch = tuple[Any, str, Any]


def sink_sweeps_committed_output() -> Iterator[Patch]:
    """The sweep of a sink deletes what it has committed, but for the newest file."""
    real = parquet.ParquetFileSink.sweep

    def sweep(self: Any, context: Any, is_dead: Any) -> int:
        fs = output_files.file_system_for(self.path)
        committed = sorted(name for name in fs.list_names(self.path) if name.startswith(self.names.prefix))
        return real(self, context, is_dead) + sum(fs.delete_in(self.path, name) for name in committed[:-1])

    yield parquet.ParquetFileSink, "sweep", sweep


def nothing_is_subsumed() -> Iterator[Patch]:
    """Checkpoints are retained for ever."""
    yield store, "subsume", lambda checkpoints, *others: (list(checkpoints), [])


def documents_never_deleted() -> Iterator[Patch]:
    """Documents of checkpoints that are not retained any more stay."""
    yield retention.Sweeper, "_delete_checkpoint", lambda self, path: None


def staged_output_never_swept() -> Iterator[Patch]:
    """What dead attempts have staged for a sink stays."""
    yield parquet.ParquetFileSink, "sweep", lambda self, context, is_dead: 0


def ledger_never_trimmed() -> Iterator[Patch]:
    """The marks of all epochs stay in the ledger of an output directory."""

    def finish(self: Any, epoch: int) -> None:
        with suppress(AlreadyExistError, NotExistError):
            self._directory.add_second_name(self._path(epoch, "begun"), self._path(epoch, "done"))

    yield output_directory.CommitLedger, "finish", finish


def half_written_intents_stay() -> Iterator[Patch]:
    """What a process that dies while it writes an intent leaves in the ledger stays."""
    yield output_directory, "final_name", lambda name: None


def register_never_trimmed() -> Iterator[Patch]:
    """All versions of the register stay."""
    yield versioned_document, "WINDOW", 1 << 40


def half_written_versions_stay() -> Iterator[Patch]:
    """What a process that dies while it writes a version of the register leaves there stays."""
    yield versioned_document, "final_name", lambda name: None
