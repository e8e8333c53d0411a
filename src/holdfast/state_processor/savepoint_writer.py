"""Write savepoints: new ones, and changed copies of others."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.claim import import_snapshot
from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint, pointer_for, read_by_path
from holdfast.checkpoint.metadata import (
    CLAIMED,
    EVENT_TIME,
    PREVIOUS_EPOCH,
    TARGETS,
    CheckpointMetadata,
    OperatorMetadata,
    encode,
)
from holdfast.checkpoint.snapshot_type import CheckpointProperties
from holdfast.checkpoint.storage import check_savepoint_directory
from holdfast.errors import AlreadyExistError, ConfigurationError, NotExistError
from holdfast.kernel import fault
from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.ids import JobID, OperatorID, new_nonce
from holdfast.kernel.key_group import DEFAULT_LOWER_BOUND_MAX_PARALLELISM, check_parallelism
from holdfast.state_processor.bootstrap import SourcePositions, StateBootstrapTransformation, as_table
from holdfast.state_processor.operator_writing import SavepointTarget, write_operator, write_positions
from holdfast.state_processor.state_edit import StateEdit, write_edit
from holdfast.state_processor.state_table import StoredOperator
from holdfast.storage.file_system import FileSystem, join, parent
from holdfast.storage.job_directory import METADATA_NAME, JobDirectory
from holdfast.storage.scheme import file_system_for

_JOB_NAME = "state processor"


class SavepointWriter:
    """Writes a savepoint, from which jobs start like from any other.

    The other methods only collect changes and return the writer; `write` does the work. A savepoint exists once its
    document is written, which comes last and is atomic: a writer that dies before leaves no savepoint.

    >>> import tempfile
    >>> from holdfast.state import ValueStateDescriptor
    >>> from holdfast.state_processor import OperatorTransformation, SavepointReader
    >>> rows = OperatorTransformation.bootstrap_with(pa.table({"user": ["ada"], "n": [3]}))
    >>> counts = rows.key_by("user").to_state(ValueStateDescriptor("count", "bigint"), "n")
    >>> place = tempfile.mkdtemp()
    >>> path = SavepointWriter.new_savepoint(max_parallelism=64).with_operator("visits", counts).write(f"{place}/new")
    >>> changed = SavepointWriter.from_existing_savepoint(path).change_operator_identifier("visits", "counts")
    >>> SavepointReader.read(None, changed.write(f"{place}/renamed")).operators()
    ['counts']
    """

    def __init__(self, base: CompletedCheckpoint | None, max_parallelism: int, checkpoint_id: int) -> None:
        check_parallelism(1, max_parallelism)
        if type(checkpoint_id) is not int or checkpoint_id < 1:
            raise ConfigurationError(f"A checkpoint id is a whole number from 1 on, not {checkpoint_id!r}.")
        self._base = base
        self._max_parallelism = max_parallelism
        self._checkpoint_id = checkpoint_id
        self._parallelism = min(os.cpu_count() or 1, max_parallelism)
        self._clock: Clock = SystemClock()
        self._transformations: dict[str, StateBootstrapTransformation] = {}
        self._removed: list[str] = []
        self._renamed: list[tuple[str, str]] = []
        self._edits: list[StateEdit] = []
        self._positions: SourcePositions | None = None

    @classmethod
    def new_savepoint(
        cls, spark: Any = None, max_parallelism: int = DEFAULT_LOWER_BOUND_MAX_PARALLELISM, checkpoint_id: int = 1
    ) -> SavepointWriter:
        """Begin an empty savepoint.

        Args:
            spark: A Spark session or None; not needed, because a DataFrame has its own.
            max_parallelism: Number of key groups, from 1 to 32768, of operators that set none. It is fixed for the life
                of the state.
            checkpoint_id: The id of the savepoint.

        Raises:
            ConfigurationError: A number is out of range.
        """
        if isinstance(spark, int):
            raise ConfigurationError(
                f"new_savepoint(spark, max_parallelism): the first argument is a session or None, not {spark!r}."
            )
        return cls(None, max_parallelism, checkpoint_id)

    @classmethod
    def from_existing_savepoint(cls, spark: Any, path: str | None = None) -> SavepointWriter:
        """Begin with everything in another savepoint, or in a retained checkpoint. Reads its document.

        The new savepoint needs no file of the other, which may be deleted.

        Args:
            spark: A Spark session or None; or the path, if it is the only argument.
            path: Directory of the other, or its `_metadata` file.

        Raises:
            NotExistError: There is no savepoint.
            CorruptFileError: Its document is damaged.
            ConfigurationError: The path is missing.
        """
        if path is None and isinstance(spark, str | os.PathLike):
            path = str(spark)
        if path is None:
            raise ConfigurationError("from_existing_savepoint(spark, path) needs the path of a savepoint.")
        base = read_by_path(str(path))
        return cls(base, DEFAULT_LOWER_BOUND_MAX_PARALLELISM, base.checkpoint_id)

    def with_operator(self, uid: str, transformation: StateBootstrapTransformation) -> SavepointWriter:
        """Add an operator with the state of a transformation.

        Args:
            uid: Uid of the operator in the job.
            transformation: Its state.

        Raises:
            ConfigurationError: There is an operator with this uid already, or it is no transformation.
        """
        if not isinstance(uid, str) or not uid:
            raise ConfigurationError(f"An operator has a uid that is a text and not empty, not {uid!r}.")
        if not isinstance(transformation, StateBootstrapTransformation):
            raise ConfigurationError(f"Operator {uid!r} needs a StateBootstrapTransformation, not {transformation!r}.")
        if uid in self._uids():
            raise ConfigurationError(
                f"The savepoint already contains operator {uid!r}. All uids must be unique: remove_operator() it "
                "first, or put both parts of its state together with and_also()."
            )
        if transformation.max_parallelism is not None:
            check_parallelism(1, transformation.max_parallelism)
        self._transformations[uid] = transformation
        return self

    def remove_operator(self, uid: str) -> SavepointWriter:
        """Remove an operator, by uid or by operator id; an unknown operator is no error."""
        found = self._transformations.pop(uid, None)
        if found is None:
            self._removed.append(uid)
        return self

    def change_operator_identifier(self, from_uid: str, to_uid: str) -> SavepointWriter:
        """Give an operator of the existing savepoint another uid; two calls can swap two.

        Args:
            from_uid: Its uid, or its operator id; `write` checks that it exists.
            to_uid: The new uid.

        Raises:
            ConfigurationError: The new uid is empty or no text.
        """
        if not isinstance(to_uid, str) or not to_uid:
            raise ConfigurationError(f"An operator has a uid that is a text and not empty, not {to_uid!r}.")
        self._renamed.append((from_uid, to_uid))
        return self

    def replace_state(self, uid: str, state: str, table: Any) -> SavepointWriter:
        """Replace the content of a state of the existing savepoint by a table.

        Args:
            uid: Uid of the operator in the new savepoint.
            state: Name of the state; its kind and types stay.
            table: An Arrow table or record batch with the columns that `SavepointReader.read_keyed_state` returns.
                `key_group` is optional; if it is present, it must be the key group of the key.

        Raises:
            ConfigurationError: It is no Arrow table.
        """
        self._edits.append(StateEdit(uid, state, _arrow_table(table, state), is_whole=True))
        return self

    def update_state(self, uid: str, state: str, table: Any) -> SavepointWriter:
        """Set the content of the keys in a table, of a map the entries; all others stay as they are.

        Arguments and errors are those of `replace_state`.
        """
        self._edits.append(StateEdit(uid, state, _arrow_table(table, state), is_whole=False))
        return self

    def with_source_positions(self, positions: SourcePositions) -> SavepointWriter:
        """Start the sources of the job at these positions, instead of at their start.

        Args:
            positions: The positions of a stopped Spark query: `SparkQueryReader.source_positions`. They replace those
                of an existing savepoint.

        Raises:
            ConfigurationError: They are no `SourcePositions`.
        """
        if not isinstance(positions, SourcePositions):
            raise ConfigurationError(f"with_source_positions() takes SourcePositions, not {positions!r:.200}.")
        self._positions = positions
        return self

    def set_parallelism(self, parallelism: int) -> SavepointWriter:
        """Set the number of parts of keyed state, and so of the tasks that write it; default: number of processors.

        A part is in memory while it is written. A job starts with any parallelism.

        Raises:
            ConfigurationError: It is out of range.
        """
        check_parallelism(parallelism, 1 << 15)
        self._parallelism = parallelism
        return self

    def set_clock(self, clock: Clock) -> SavepointWriter:
        """Set the clock of a new savepoint's processing time, before which the time of its jobs never goes back."""
        self._clock = clock
        return self

    def write(self, path: str) -> str:
        """Write the savepoint. Blocks.

        Args:
            path: A directory that does not exist or is empty.

        Returns:
            The path, from which a job starts (`-s PATH`).

        Raises:
            ConfigurationError: There is nothing to write, the path is relative or a job's own, or a uid is ambiguous.
            AlreadyExistError: The directory is not empty.
            NotExistError: An operator that is to be renamed or changed does not exist.
            StateError, NullKeyError, OutputTypeError: A table does not fit the state.
            StorageError: A file could not be written.
        """
        path = str(path).rstrip("/")
        operators = self._kept()
        if not operators and not self._transformations:
            raise ConfigurationError("A savepoint needs an operator: call with_operator() before write().")
        fs = _empty_place(path)
        metadata = self._copied(path, fs, operators)
        target = SavepointTarget(
            path, metadata.job_id, self._parallelism, metadata.token, metadata.epoch, metadata.processing_time
        )
        made = [
            write_operator(uid, transformation, self._max_parallelism, target)
            for uid, transformation in self._transformations.items()
        ]
        metadata = replace(metadata, operators=(*self._apply_edits(metadata, target), *made))
        if self._positions is not None:
            metadata = replace(metadata, source_positions=write_positions(self._positions, target))
        data = encode(metadata)
        with fault.point("metadata.write"):
            fs.create_exclusive(join(path, METADATA_NAME), data)
        return path

    def _apply_edits(self, metadata: CheckpointMetadata, target: SavepointTarget) -> tuple[OperatorMetadata, ...]:
        """Return the copied operators, with the changes of their states."""
        operators = {operator.uid: operator for operator in metadata.operators}
        for edit in self._edits:
            operator = operators.get(edit.uid)
            if operator is None:
                raise NotExistError(
                    f"The savepoint does not contain state of operator {edit.uid!r}, which is to be changed; it has "
                    f"{sorted(operators)}."
                )
            stored = StoredOperator(target.root, operator, metadata.processing_time)
            place = target.place(edit.uid, stored.key, operator.max_parallelism)
            operators[edit.uid] = replace(operator, runs=write_edit(edit, stored, place))
        return tuple(operators.values())

    def _uids(self) -> set[str]:
        return {*self._names().values(), *self._transformations}

    def _names(self) -> dict[str, str]:
        """Return the new uid of each operator that stays, by its uid in the existing savepoint."""
        base = () if self._base is None else self._base.metadata.operators
        removed = set(self._removed)
        names = {one.uid: one.uid for one in base if not {one.uid, one.operator_id} & removed}
        for source, to in self._renamed:
            names |= {one.uid: to for one in base if one.uid in names and source in (one.uid, one.operator_id)}
        return names

    def _kept(self) -> tuple[OperatorMetadata, ...]:
        """Return the operators that stay, under their new uids."""
        base = () if self._base is None else self._base.metadata.operators
        known = {name for operator in base for name in (operator.uid, operator.operator_id)}
        unknown = [source for source, _ in self._renamed if source not in known]
        if unknown:
            raise NotExistError(
                f"The savepoint does not contain state of operator {unknown[0]!r}, which is to be renamed; it has "
                f"{sorted(operator.uid for operator in base)}."
            )
        names = self._names()
        new = [*names.values(), *self._transformations]
        twice = sorted({uid for uid in new if new.count(uid) > 1})
        if twice:
            raise ConfigurationError(f"The savepoint would have operators {twice} twice. All uids must be unique.")
        return tuple(_renamed(operator, names) for operator in base if operator.uid in names)

    def _copied(self, path: str, fs: FileSystem, operators: tuple[OperatorMetadata, ...]) -> CheckpointMetadata:
        """Copy the files of the existing savepoint, and return the document for the new one."""
        if self._base is None:
            return self._new_document()
        base = self._base.metadata
        names = self._names()
        unfit = {CLAIMED, EVENT_TIME} if self._renamed else {CLAIMED}  # event time is told by uids
        extra = {name: value for name, value in base.extra.items() if name not in unfit} | {PREVIOUS_EPOCH: 0}
        if TARGETS in extra:
            extra[TARGETS] = {names.get(uid, uid): target for uid, target in base.extra[TARGETS].items()}
        document = replace(
            base,
            operators=operators,
            incarnation=new_nonce(),
            properties=CheckpointProperties.for_savepoint().to_json(),
            extra=extra,
        )
        pointer = pointer_for(document, encode(document), self._base.path)
        # Where files are is said by what the base is; the document's own properties say what it becomes.
        source = CompletedCheckpoint(replace(document, properties=base.properties), self._base.path, pointer)
        own = JobDirectory(fs, path, JobID.from_hex(base.job_id), create_subdir=False)
        return replace(import_snapshot(source, own, base.token), properties=document.properties)

    def _new_document(self) -> CheckpointMetadata:
        now = self._clock.now_ms()
        return CheckpointMetadata(
            job_id=JobID.generate().to_hex(),
            job_name=_JOB_NAME,
            checkpoint_id=self._checkpoint_id,
            epoch=1,
            token=1,
            incarnation=new_nonce(),
            completed_at=now,
            processing_time=now,
            properties=CheckpointProperties.for_savepoint().to_json(),
            extra={PREVIOUS_EPOCH: 0},
        )


def _arrow_table(given: Any, state: str) -> pa.Table:
    table = as_table(given)
    if table is None:
        raise ConfigurationError(
            f"State {state!r} is changed by an Arrow table, not by a {type(given).__name__}: of a Spark DataFrame give "
            "frame.toArrow()."
        )
    return table


def _renamed(operator: OperatorMetadata, names: Mapping[str, str]) -> OperatorMetadata:
    uid = names[operator.uid]
    if uid == operator.uid:
        return operator
    committables = {names.get(sink, sink): staged for sink, staged in operator.committables.items()}
    return replace(operator, uid=uid, operator_id=OperatorID.from_uid(uid).to_hex(), committables=committables)


def _empty_place(path: str) -> FileSystem:
    """Return the file system of an empty path; directories are made with the first file in them."""
    check_savepoint_directory(parent(path), path)
    fs = file_system_for(path)
    if fs.exists(path) and fs.list_names(path):
        is_whole = fs.exists(join(path, METADATA_NAME))
        what = "there is a savepoint" if is_whole else "the directory is not empty (perhaps of a writer that died)"
        raise AlreadyExistError(f"No savepoint can be written to {path!r}: {what}. Name a new directory.")
    return fs
