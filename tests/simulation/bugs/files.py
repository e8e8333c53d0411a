"""Bugs in what is deleted, synced, and read by others. `bugs` has them all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from holdfast.checkpoint import claim, retention
from holdfast.queryable.replica import checkpoint_view, follower
from holdfast.runtime import compaction
from holdfast.runtime.commit import checkpointing
from holdfast.runtime.commit import checkpointing as savepoints
from holdfast.state.version import StateVersion
from holdfast.storage import local

Patch = tuple[Any, str, Any]


# Retention


def sweep_without_grace() -> Iterator[Patch]:
    """Unused files are deleted without a grace period."""
    yield retention.Retention, "_is_over", lambda self, since, now: True


def sweep_forgets_memory() -> Iterator[Patch]:
    """The sweep deletes files that the leader has in memory."""
    real = retention.Sweeper.sweep
    yield retention.Sweeper, "sweep", lambda self, live=(), *others, **named: real(self, (), *others, **named)


def sweep_forgets_compaction() -> Iterator[Patch]:
    """The sweep deletes the result of a compaction that is not swapped in yet."""
    yield compaction.Compaction, "live", lambda self: []


def sweep_of_higher_tokens() -> Iterator[Patch]:
    """A former leader deletes files of its successor."""
    yield retention.RetentionView, "may_delete", lambda self, name: name not in self.named
    yield retention.RegisterWriter, "check", lambda self: self.state


def sweep_of_retained() -> Iterator[Patch]:
    """The sweep only keeps the files of the newest checkpoint."""
    real = retention.Sweeper._retained_documents

    def newest(self: Any, state: Any) -> Any:
        return real(self, replace(state, checkpoints=state.checkpoints[-1:]))

    yield retention.Sweeper, "_retained_documents", newest


def compaction_swapped_in_anywhere() -> Iterator[Patch]:
    """The result of a compaction becomes the newest run, instead of replacing the runs that it merged."""

    def swap(version: Any, inputs: Any, outputs: Any) -> Any:
        gone = {run.path for run in inputs}
        return StateVersion((*(run for run in version.runs if run.path not in gone), *outputs))

    yield compaction, "apply_compaction", swap


# The disk, savepoints, replicas


def files_not_synced() -> Iterator[Patch]:
    """Files are not synced."""

    class Fsync:
        def __init__(self, real: Any) -> None:
            self._real = real

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

        def fsync(self, number: int) -> None:
            if isinstance(self._real._opened[number], tuple):
                self._real.fsync(number)

    yield local, "os", Fsync(local.os)


def directories_not_synced() -> Iterator[Patch]:
    """Directories are not synced."""
    yield local, "_sync_directory", lambda path: None


def read_back_not_synced() -> Iterator[Patch]:
    """Data that is found after a lost response counts as durable without a sync."""
    yield local.LocalFileSystem, "make_durable", lambda self, path: None


def savepoint_refers_to_job() -> Iterator[Patch]:
    """A savepoint refers to files of the job instead of copies."""
    yield checkpointing, "copy_files", lambda pending, metadata, own: metadata
    assert savepoints is not None


def savepoint_document_before_files() -> Iterator[Patch]:
    """The document of a savepoint is written before the files that it names."""
    waiting: list[tuple[Any, ...]] = []
    copy, copy_files, finish = claim._copy, checkpointing.copy_files, checkpointing.EpochCheckpoints._finish

    def copy_files_later(pending: Any, metadata: Any, own: Any) -> Any:
        def status(self: Any, path: str) -> Any:
            return real_status(self, {later[3]: later[1] for later in waiting}.get(path, path))

        fs = type(own.fs)
        real_status = fs.status
        waiting.clear()
        with patch.object(claim, "_copy", lambda *one: waiting.append(one)), patch.object(fs, "status", status):
            return copy_files(pending, metadata, own)

    def finished(self: Any, pending: Any, tasks: Any, metadata: Any) -> Any:
        completed = finish(self, pending, tasks, metadata)
        while waiting:
            copy(*waiting.pop())
        return completed

    yield checkpointing, "copy_files", copy_files_later
    yield checkpointing.EpochCheckpoints, "_finish", finished


def replica_shows_the_oldest() -> Iterator[Patch]:
    """A replica answers from an older checkpoint than the newest that it knows."""
    real = follower.Replica.publish

    def publish(self: Any, views: Any) -> None:
        listed = list(views)
        real(self, [listed[self_turn(self) % len(listed)]] if listed else listed)

    turns: dict[int, int] = {}

    def self_turn(replica: Any) -> int:
        turns[id(replica)] = turns.get(id(replica), 0) + 1
        return turns[id(replica)]

    yield follower.Replica, "publish", publish


def replica_mixes_checkpoints() -> Iterator[Patch]:
    """A replica returns runs of one checkpoint with the id of another."""
    from tests.simulation import readers

    real = readers.ReplicaBuilder.build

    def build(self: Any, metadata: Any, before: Any) -> Any:
        older = getattr(self, "_older", None)
        self._older = metadata
        mixed = (
            metadata if older is None else replace(metadata, operators=(older.operators[0], *metadata.operators[1:]))
        )
        return real(self, mixed, before)

    yield readers.ReplicaBuilder, "build", build


def replica_keeps_what_it_has() -> Iterator[Patch]:
    """A replica that has read some runs of a state uses them for each later checkpoint."""
    builder = checkpoint_view.ViewBuilder
    real = builder._layers

    def layers(self: Any, operator: Any, state: str, reading: Any, known: Any) -> Any:
        return tuple(known) or real(self, operator, state, reading, known)

    yield builder, "_layers", layers
