"""Bugs that are put into the real code, one at a time: the simulator must find each of them.

Each is a function that makes the code wrong in one place, and returns what to patch.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from holdfast.checkpoint.coordination import completion
from holdfast.checkpoint.document.completed_checkpoint import pointer_for
from holdfast.checkpoint.document.metadata import encode
from holdfast.checkpoint.retention import deleter, policy, sweeper
from holdfast.checkpoint.storage import location
from holdfast.checkpoint.store import completed_store, id_counter
from holdfast.datastream.sinks import output_directory, parquet
from holdfast.errors import AlreadyExistError, ConflictError, PossibleInconsistentStateError, StorageError
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.queryable.replica import follower
from holdfast.runtime.commit import checkpointing, savepoints, starting_point
from holdfast.runtime.compaction import background
from holdfast.runtime.epoch import epoch_job, epoch_runner
from holdfast.runtime.exchange import barrier
from holdfast.state.run.version import StateVersion
from holdfast.storage.file_system import local
from holdfast.storage.register import fenced_register, version_directory
from holdfast.storage.register.fenced_register import FencedRegister, Lease

Patch = tuple[Any, str, Any]


# The register


def token_not_checked() -> Iterator[Patch]:
    """A leader that was refused takes the newest version for its own and writes on."""
    yield Lease, "_require_own", lambda self, newest: None


def register_overwrites() -> Iterator[Patch]:
    """A version of the register takes the place of another one."""

    def create(self: Any, path: str, data: bytes, mode: int) -> None:
        temporary = f"{path}.tmp"
        with self._open_temporary(temporary, path, mode) as file:
            file.write(data)
            file.flush()
            local.os.fsync(file.fileno())
        local.os.rename(temporary, path)

    yield local.LocalFileSystem, "_create", create


def lost_answer_is_success() -> Iterator[Patch]:
    """A write of the register without an answer counts as written."""

    def commit(self: Any, base: Any, new: Any) -> Any:
        try:
            self._swap(base, new)
        except PossibleInconsistentStateError:
            return None
        except ConflictError as error:
            return self._look_back(base, new, error)
        return None

    yield FencedRegister, "_commit", commit


def lost_answer_is_failure() -> Iterator[Patch]:
    """A write of the register without an answer counts as not written."""

    def commit(self: Any, base: Any, new: Any) -> Any:
        try:
            self._swap(base, new)
        except PossibleInconsistentStateError as error:
            raise StorageError(str(error)) from error
        except ConflictError as error:
            return self._look_back(base, new, error)
        return None

    yield FencedRegister, "_commit", commit


def own_nonce_not_looked_for() -> Iterator[Patch]:
    """A refused write counts as somebody else's, also if it was the own one whose answer was lost."""

    def look_back(new: Any, load: Callable[[], Any], error: Any, document: str, advice: str = "") -> Any:
        return load()

    yield fenced_register, "look_back", look_back


def request_on_its_way_forgotten() -> Iterator[Patch]:
    """A write without an answer that is not there yet counts as never to come."""

    def look_back(new: Any, load: Callable[[], Any], error: Any, document: str, advice: str = "") -> Any:
        newest = load()
        return None if new.nonce in newest.history else newest

    yield fenced_register, "look_back", look_back


def read_before_token() -> Iterator[Patch]:
    """A leader reads the register first, and raises its token then."""
    real = FencedRegister.raise_token

    def raise_token(self: Any, owner: str) -> Any:
        before = self._load().state
        lease = real(self, owner)
        state = replace(lease._record.state, checkpoints=before.checkpoints)
        lease._record = replace(lease._record, state=state)
        return lease

    yield FencedRegister, "raise_token", raise_token


def token_not_raised() -> Iterator[Patch]:
    """A new leader goes on under the token that it finds."""

    def raise_token(self: Any, owner: str) -> Any:
        base = self._load()
        raised = replace(base.state, token=max(1, base.state.token), owner=owner)
        record = base.successor(raised, fenced_register.new_nonce())
        if self._commit(base, record) is not None:
            raise ConflictError("somebody was faster")
        return Lease(self, record)

    yield FencedRegister, "raise_token", raise_token


def holes_not_looked_for() -> Iterator[Patch]:
    """A version of the register that is written in the place of a deleted one counts."""
    yield version_directory.VersionDirectory, "_is_real", lambda self, version: True


# Documents and pointers


def pointer_before_document() -> Iterator[Patch]:
    """The pointer is written before the document that it names."""

    def write(pending: Any, metadata: Any, storage: Any, store: Any) -> Any:
        data = encode(metadata)
        place = pending.location
        checkpoint = completion.CompletedCheckpoint(
            metadata,
            place.get_external_pointer(),
            pointer_for(metadata, data, completion._pointer_path(place, storage)),
            properties=pending.properties,
            timestamp=pending.timestamp,
            fs=place.fs,
        )
        try:
            subsumed = None
            if not pending.properties.is_savepoint():
                subsumed = store.add_checkpoint_and_subsume_oldest_one(checkpoint)
            place.write_metadata(metadata)
        except Exception as error:
            raise completion.CompletionError(error, keep_files=True) from error
        return completion.Completed(checkpoint, subsumed)

    from holdfast.checkpoint.coordination import instruction_executor

    yield instruction_executor, "write_checkpoint", write


def files_of_unknown_outcome_deleted() -> Iterator[Patch]:
    """What a checkpoint of unknown outcome may name is deleted."""
    real = completion.CompletionError.__init__

    def init(self: Any, cause: BaseException, *, keep_files: bool) -> None:
        real(self, cause, keep_files=False)

    yield completion.CompletionError, "__init__", init


def ids_not_reserved() -> Iterator[Patch]:
    """Ids of checkpoints are handed out without being reserved."""

    def next_id(self: Any) -> int:
        self._next += 1
        return int(self._next - 1)

    yield id_counter.RegisterCheckpointIDCounter, "get_and_increment", next_id
    yield id_counter.RegisterCheckpointIDCounter, "reserve", lambda self, state: state


def oldest_is_restored() -> Iterator[Patch]:
    """A leader starts from the oldest retained checkpoint."""
    real = starting_point.recovery.recover_all
    yield starting_point.recovery, "recover_all", lambda directory, state: real(directory, state)[::-1]


def newest_is_subsumed() -> Iterator[Patch]:
    """The write that adds a checkpoint retains one less than it should: the newest."""
    lease_write = Lease.write

    def write(self: Any, change: Any) -> Any:
        def changed(state: Any) -> Any:
            new = change(state)
            kept = new.checkpoints[:-1] if len(new.checkpoints) > 1 else new.checkpoints
            return replace(new, checkpoints=kept)

        return lease_write(self, changed)

    yield Lease, "write", write


def document_damaged_in_silence() -> Iterator[Patch]:
    """A document is written in place, so a reader may see a half of it."""

    def write(self: Any, metadata: Any) -> bytes:
        data = encode(metadata)
        self.fs.mkdirs(self.path)
        file = local.open(self.metadata_path, "xb")
        file.write(data)
        file.close()
        return data

    yield location.FileCheckpointLocation, "write_metadata", write


# Epochs


def other_attempts_accepted() -> Iterator[Patch]:
    """Tasks of one stage may have read different attempts of the one above."""
    yield barrier, "_upstream_of", lambda current, index: next(b for b in current if b.partition == 0).upstream


def missing_tasks_accepted() -> Iterator[Patch]:
    """An epoch is accepted without all of its tasks, or with one of them twice."""
    yield barrier, "_check_complete", lambda barriers, index, expected: None


def state_moves_on_before_acceptance() -> Iterator[Patch]:
    """The state of an attempt that is refused stays."""
    real = epoch_job.accept
    runners: list[Any] = []
    run = epoch_runner.EpochRunner.run

    def running(self: Any, *arguments: Any, **named: Any) -> Any:
        runners.append(self)
        return run(self, *arguments, **named)

    def accept(last_stage: Any, tasks: Any) -> Any:
        for one in last_stage:
            for step in one.steps:
                if step.run is not None:
                    versions = runners[-1].versions
                    versions[step.uid] = versions[step.uid].plus(epoch_runner.RunHandle.from_json(step.run))
        return real(last_stage, tasks)

    yield epoch_runner.EpochRunner, "run", running
    yield epoch_job, "accept", accept


def positions_run_ahead() -> Iterator[Patch]:
    """Positions are taken of an input whose epoch is not in the checkpoint."""
    real = checkpointing.EpochCheckpoints._metadata

    def metadata(self: Any, checkpoint_id: int, epochs: Any) -> Any:
        found = real(self, checkpoint_id, epochs)
        positions = found.source_positions
        return replace(found, source_positions={"next": positions["next"] + 1}) if positions else found

    yield checkpointing.EpochCheckpoints, "_metadata", metadata


def runs_of_half_a_range_forgotten() -> Iterator[Patch]:
    """After a change of parallelism a task opens only the runs that lie within its own key groups."""

    def for_range(self: Any, key_groups: KeyGroupRange) -> StateVersion:
        inside = [r for r in self.runs if key_groups.start <= r.range.start and r.range.end <= key_groups.end]
        return StateVersion(tuple(inside))

    yield StateVersion, "for_range", for_range


# Output


def commit_before_pointer() -> Iterator[Patch]:
    """Sinks commit before the checkpoint is complete."""
    real = checkpointing.EpochCheckpoints._complete

    def complete(self: Any, epochs: Any) -> Any:
        self._committing.commit(0, self._staged, is_recovered=True)
        return real(self, epochs)

    yield checkpointing.EpochCheckpoints, "_complete", complete


def restored_output_not_committed() -> Iterator[Patch]:
    """What the restored checkpoint names is not committed again."""
    yield checkpointing.EpochCheckpoints, "commit_restored", lambda self: None


def notified_before_commit() -> Iterator[Patch]:
    """The register says that sinks have committed before they have."""
    real = completed_store.RegisterCompletedCheckpointStore._record

    def record(self: Any, checkpoint: Any, stay: Any) -> None:
        self.mark_notified(checkpoint.checkpoint_id)
        real(self, checkpoint, stay)

    yield completed_store.RegisterCompletedCheckpointStore, "_record", record


def staged_output_of_failed_checkpoint_lost() -> Iterator[Patch]:
    """When a checkpoint fails and is tolerated, the output of its epoch does not belong to the next one."""
    real = checkpointing.EpochCheckpoints._complete

    def complete(self: Any, epochs: Any) -> Any:
        completed = real(self, epochs)
        if completed is None:
            self._staged = {}
        return completed

    yield checkpointing.EpochCheckpoints, "_complete", complete


def commits_without_intent() -> Iterator[Patch]:
    """Files are moved although no intent was written."""
    yield output_directory.CommitLedger, "begin", lambda self, epoch, moves: None


def done_before_moved() -> Iterator[Patch]:
    """An epoch is done before its files have their names."""
    real = output_directory.OutputDirectory.move
    finish = output_directory.CommitLedger.finish
    waiting: list[Any] = []

    def move(self: Any, moves: Any) -> None:
        waiting.append((self, moves))

    def finished(self: Any, epoch: int) -> None:
        finish(self, epoch)
        directory, moves = waiting.pop()
        real(directory, moves)

    yield output_directory.OutputDirectory, "move", move
    yield output_directory.CommitLedger, "finish", finished


def moves_not_synced() -> Iterator[Patch]:
    """Files of output are renamed, and their directories not synced."""

    def move_all(self: Any, moves: Any) -> None:
        for source, target in moves:
            try:
                local.os.rename(source, target)
            except FileNotFoundError:
                continue

    yield local.LocalFileSystem, "move_all", move_all


def sink_sweeps_everything() -> Iterator[Patch]:
    """A sink sweeps what is staged, whoever needs it."""
    real = parquet.ParquetFileSink.sweep
    yield parquet.ParquetFileSink, "sweep", lambda self, context, is_dead: real(self, context, lambda name: True)


# Retention


def sweep_without_grace() -> Iterator[Patch]:
    """What nothing needs goes at once."""
    yield policy.Retention, "_is_over", lambda self, since, now: True


def sweep_forgets_memory() -> Iterator[Patch]:
    """The sweep does not know what the leader has in memory."""
    real = sweeper.Sweeper.sweep
    yield sweeper.Sweeper, "sweep", lambda self, live=(), *others, **named: real(self, (), *others, **named)


def sweep_forgets_compaction() -> Iterator[Patch]:
    """What a compaction has written and nobody has swapped in yet is swept."""
    yield background.Compaction, "live", lambda self: []


def sweep_of_higher_tokens() -> Iterator[Patch]:
    """A deposed leader sweeps what its successor has written."""
    yield policy.View, "may_delete", lambda self, name: name not in self.named
    yield sweeper.Lease, "check", lambda self: self.state


def sweep_of_retained() -> Iterator[Patch]:
    """The sweep looks at the newest checkpoint alone."""
    real = sweeper.Sweeper._retained_documents

    def newest(self: Any, state: Any) -> Any:
        return real(self, replace(state, checkpoints=state.checkpoints[-1:]))

    yield sweeper.Sweeper, "_retained_documents", newest


def compaction_swapped_in_anywhere() -> Iterator[Patch]:
    """The result of a compaction becomes the newest of a version, not the place of what it was made of."""

    def swap(version: Any, inputs: Any, outputs: Any) -> Any:
        gone = {run.path for run in inputs}
        return StateVersion((*(run for run in version.runs if run.path not in gone), *outputs))

    yield background, "swap", swap


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
    """What is read back after a lost answer counts as durable."""
    yield local.LocalFileSystem, "make_durable", lambda self, path: None


def savepoint_refers_to_job() -> Iterator[Patch]:
    """A savepoint names files of the job instead of copies."""
    yield checkpointing, "copied", lambda pending, metadata, own: metadata
    assert savepoints is not None


def replica_shows_the_oldest() -> Iterator[Patch]:
    """A replica answers from a checkpoint that is not the newest it knows."""
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
    """A replica shows the runs of one checkpoint under the name of another."""
    from tests.simulation import readers

    real = readers.ReplicaBuilder.build

    def build(self: Any, metadata: Any, before: Any) -> Any:
        older = getattr(self, "_older", None)
        self._older = metadata
        mixed = metadata if older is None else replace(metadata, operators=(older.operators[0], *metadata.operators[1:]))
        return real(self, mixed, before)

    yield readers.ReplicaBuilder, "build", build


MUTATIONS: Final[dict[str, Callable[[], Iterator[Patch]]]] = {
    function.__name__.replace("_", " "): function
    for function in (
        token_not_checked,
        register_overwrites,
        lost_answer_is_success,
        lost_answer_is_failure,
        own_nonce_not_looked_for,
        request_on_its_way_forgotten,
        read_before_token,
        token_not_raised,
        holes_not_looked_for,
        pointer_before_document,
        files_of_unknown_outcome_deleted,
        ids_not_reserved,
        oldest_is_restored,
        newest_is_subsumed,
        document_damaged_in_silence,
        other_attempts_accepted,
        missing_tasks_accepted,
        state_moves_on_before_acceptance,
        positions_run_ahead,
        runs_of_half_a_range_forgotten,
        commit_before_pointer,
        restored_output_not_committed,
        notified_before_commit,
        staged_output_of_failed_checkpoint_lost,
        commits_without_intent,
        done_before_moved,
        moves_not_synced,
        sink_sweeps_everything,
        sweep_without_grace,
        sweep_forgets_memory,
        sweep_forgets_compaction,
        sweep_of_higher_tokens,
        sweep_of_retained,
        compaction_swapped_in_anywhere,
        files_not_synced,
        directories_not_synced,
        read_back_not_synced,
        savepoint_refers_to_job,
        replica_shows_the_oldest,
        replica_mixes_checkpoints,
    )
}


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """The code with one bug."""
    with ExitStack() as stack:
        for place, attribute, value in MUTATIONS[name]():
            stack.enter_context(patch.object(place, attribute, value))
        yield


__all__ = ["AlreadyExistError", "deleter", "errno"]
