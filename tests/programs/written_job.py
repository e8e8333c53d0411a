"""Checkpoints without a job: state is written with the real backend and completed through the real register.

For tests and benchmarks of whatever reads checkpoints, and for users who test a client of queryable state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from holdfast.checkpoint.completed_checkpoint import pointer_for
from holdfast.checkpoint.metadata import CheckpointMetadata, OperatorMetadata, encode
from holdfast.kernel.ids import JobID, OperatorID, new_nonce
from holdfast.kernel.key_group import key_groups_of, range_of
from holdfast.state.descriptor import StateDescriptor
from holdfast.state.environment import Environment
from holdfast.state.hashmap.backend import HashMapKeyedStateBackend
from holdfast.state.run_file import RunHandle
from holdfast.state.version import StateCache, StateVersion
from holdfast.storage.job_directory import SHARED, FileName, JobDirectory
from holdfast.storage.local import LocalFileSystem
from holdfast.storage.register import FileRegister, RegisterState, RegisterWriter
from holdfast.types.key_codec import key_codec_for
from holdfast.types.type_parser import to_type

Write = Callable[[Any], None]


class WrittenJob:
    """One keyed operator whose epochs somebody writes by hand.

    Args:
        root: The checkpoint directory of all jobs.
        descriptors: The operator's states.
        key_type: Type of its keys, None for keys without one.
        name: Of the job.
        uid: Of the operator.
        parallelism: Number of subtasks.
        max_parallelism: Number of key groups.
        retained: How many checkpoints the register names.
        namespace: A namespace and its serializer, for all states.
    """

    def __init__(
        self,
        root: Path | str,
        descriptors: Sequence[StateDescriptor[Any]],
        key_type: Any = "string",
        *,
        name: str = "job",
        uid: str = "operator",
        parallelism: int = 2,
        max_parallelism: int = 128,
        retained: int = 3,
        namespace: tuple[Any, Any] = (None, None),
    ) -> None:
        self.job_id = JobID.from_name(name)
        self.name = name
        self.directory = JobDirectory(LocalFileSystem(), str(root), self.job_id)
        self.directory.create()
        self.register = FileRegister.of(self.directory)
        self.writer: RegisterWriter = self.register.raise_token("writer")
        self.incarnation = new_nonce()
        self.epoch = 0
        self.runs: tuple[RunHandle, ...] = ()
        self._descriptors = descriptors
        self._codec = key_codec_for(None if key_type is None else to_type(key_type))
        self._uid = uid
        self._parallelism = parallelism
        self._max_parallelism = max_parallelism
        self._retained = retained
        self._namespace = namespace

    def epoch_of(self, writes: Iterable[tuple[Any, Write]]) -> None:
        """Write one epoch without completing a checkpoint.

        Args:
            writes: Keys, and for each what to do with the states, which are attributes named as their descriptors.
        """
        self.epoch += 1
        pairs = list(writes)
        keys = [self._codec.dict_key(key) for key, _ in pairs]
        hashes = self._codec.hashes(keys)
        groups = key_groups_of(hashes, self._max_parallelism).astype(int)
        subtasks = groups * self._parallelism // self._max_parallelism
        new: list[RunHandle] = []
        for subtask in range(self._parallelism):
            chosen = [position for position, owner in enumerate(subtasks) if owner == subtask]
            run = self._run_of(subtask, [keys[i] for i in chosen], hashes[chosen], [pairs[i][1] for i in chosen])
            new += [run] if run is not None else []
        self.runs = (*self.runs, *new)

    def checkpoint(self, writes: Iterable[tuple[Any, Write]] = ()) -> int:
        """Write one epoch, complete a checkpoint and return its id."""
        self.epoch_of(writes)
        return self.complete()

    def complete(self) -> int:
        """Complete a checkpoint of what was written so far and return its id."""
        number = self.writer.state.next_checkpoint_id
        self.writer.write(lambda state: replace(state, next_checkpoint_id=number + 1))
        metadata = self.metadata(number)
        data, path = encode(metadata), self.directory.metadata_path(number)
        self.directory.fs.create_exclusive(path, data)
        pointer = pointer_for(metadata, data, self.directory.relative(path))

        def add(state: RegisterState) -> RegisterState:
            return replace(state, checkpoints=(*state.checkpoints, pointer)[-self._retained :])

        self.writer.write(add)
        return number

    def restore(self, runs: tuple[RunHandle, ...]) -> None:
        """Go back to earlier runs under a new leader, as a restore of an older checkpoint does."""
        self.writer = self.register.raise_token("next writer")
        self.runs = runs
        self.incarnation = new_nonce()

    def metadata(self, checkpoint_id: int) -> CheckpointMetadata:
        """Return the document of a checkpoint of what was written so far."""
        operator = OperatorMetadata(
            self._uid,
            OperatorID.from_uid(self._uid).to_hex(),
            self._uid,
            self._parallelism,
            self._max_parallelism,
            self._codec.to_json(),
            self.runs,
        )
        return CheckpointMetadata(
            str(self.job_id),
            self.name,
            checkpoint_id,
            self.epoch,
            self.writer.token,
            self.incarnation,
            completed_at=1_000_000 + self.epoch,
            processing_time=self.epoch,
            operators=(operator,),
        )

    def _run_of(self, subtask: int, keys: Sequence[Any], hashes: Any, writes: Sequence[Write]) -> RunHandle | None:
        key_groups = range_of(subtask, self._max_parallelism, self._parallelism)
        environment = Environment(str(self.job_id), self._uid, subtask, self._parallelism, self._max_parallelism)
        backend = HashMapKeyedStateBackend(
            environment, self.job_id, self._uid, self._codec, self._max_parallelism, key_groups, cache=StateCache()
        )
        backend.open_version(self._version(), self.directory.fs, self.directory.path)
        states = SimpleNamespace(**self._handles(backend))
        for slot, write in zip(backend.prepare(keys, hashes), writes, strict=True):
            backend.slot = slot
            write(states)
        name = FileName.new(self.writer.token, self.epoch, 0, self._uid, subtask)
        run = backend.flush(lambda: f"{SHARED}/{name.format('.run')}", self.writer.token, self.epoch)
        backend.dispose()
        return run

    def _version(self) -> StateVersion:
        return StateVersion(self.runs)

    def _handles(self, backend: HashMapKeyedStateBackend) -> Mapping[str, Any]:
        handles = {}
        for descriptor in self._descriptors:
            name = descriptor.name.replace("-", "_")
            handles[name] = backend.get_partitioned_state(*self._namespace, descriptor)
        return handles
