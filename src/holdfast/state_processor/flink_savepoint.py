"""Read savepoints of Flink as tables, and convert them to savepoints of Holdfast."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from holdfast.errors import ConfigurationError, NotExistError, StateError
from holdfast.kernel.key_group import DEFAULT_LOWER_BOUND_MAX_PARALLELISM
from holdfast.state.descriptor import StateDescriptor
from holdfast.state_processor.flink.metadata import (
    FlinkFiles,
    FlinkMetadata,
    FlinkOperator,
    operator_id_of,
    read_metadata,
)
from holdfast.state_processor.flink.operator import ImportedOperator, OperatorReader
from holdfast.state_processor.savepoint_writer import SavepointWriter
from holdfast.storage.file_system import join
from holdfast.storage.job_directory import METADATA_NAME, resolve_pointer
from holdfast.storage.scheme import file_system_for


class FlinkSavepointReader:
    """Reads a canonical savepoint of Flink 1.20 or 2.x, without Java: `FlinkSavepointReader.read(path)`.

    Operators are named by their uid, or by the 32 hexadecimal digits that Flink derives from it; states by their name.
    What cannot be read is reported by `problems`. No class of a program is loaded, neither of Java nor of Python.

    >>> reader = FlinkSavepointReader.read("/savepoints/savepoint-4901f0-5a1b")  # doctest: +SKIP
    >>> reader.states("visits")  # doctest: +SKIP
    {'count': 'value'}
    >>> reader.writer().write("/savepoints/for-holdfast")  # doctest: +SKIP
    '/savepoints/for-holdfast'
    """

    def __init__(self, metadata: FlinkMetadata, files: FlinkFiles) -> None:
        self._metadata = metadata
        self._files = files

    @classmethod
    def read(cls, path: str) -> FlinkSavepointReader:
        """Open a savepoint. Blocks.

        Args:
            path: Its directory, or its `_metadata` file.

        Raises:
            NotExistError: There is no savepoint.
            CorruptFileError: Its document is damaged, or not Flink's.
            ConfigurationError: It is a checkpoint, a savepoint in the native format of a state backend, or of an
                unknown version of Flink.
        """
        fs = file_system_for(str(path).strip())
        directory = resolve_pointer(fs, str(path).strip())
        document = join(directory, METADATA_NAME)
        return cls(read_metadata(fs.read(document), document), FlinkFiles(fs, directory))

    def operators(self) -> list[str]:
        """Return the operators that have state: the uid of each, or its id if the savepoint does not have the uid.

        Savepoints of Flink before 2.0 have no uids; other methods accept the uid all the same.
        """
        return sorted(operator.label for operator in self._metadata.operators if operator.has_state)

    def metadata(self) -> pa.Table:
        """Return a table with a row for each operator, as `SavepointReader.metadata` does, without sizes."""
        return pa.Table.from_pylist(
            [
                {
                    "checkpoint-id": self._metadata.checkpoint_id,
                    "operator-name": operator.name,
                    "operator-uid": operator.uid,
                    "operator-uid-hash": operator.operator_id,
                    "operator-parallelism": operator.parallelism,
                    "operator-max-parallelism": operator.max_parallelism,
                }
                for operator in self._metadata.operators
            ]
        )

    def states(self, uid: str) -> dict[str, str]:
        """Return the kind of each state of an operator by name.

        Returns:
            Kinds are `value`, `list`, `map`, `reducing`, `aggregating` and `timers`, of operator state `split`, `union`
            and `broadcast`. A state of PyFlink in process mode is `python` or, of a map, `python map`: only the program
            knows its kind and type.

        Raises:
            NotExistError: There is no such operator.
            StateError: A serializer is unknown, so that the bytes after it cannot be found.
        """
        return self._operator(uid).states()

    def problems(self, uid: str) -> dict[str, str]:
        """Return what cannot be read of an operator: the reason by name of the state, "" for what is no state."""
        return self._operator(uid).problems()

    def read_keyed_state(self, uid: str, state: str | StateDescriptor[Any], *, key_type: Any = None) -> pa.Table:
        """Return a keyed state as an Arrow table; of a map with a row for each entry.

        Columns: `key_group` (Flink's, which hashes differently from Holdfast), `key`, of windows `window_start` and
        `window_end`, `map_key`, `value` (of a list state a list), and with a time to live `stamp`, the time of the last
        use in milliseconds.

        Args:
            uid: The operator.
            state: The name of the state. For a state of PyFlink the descriptor of the program, with `pyflink` replaced
                by `holdfast` in its imports; with the name only, values are the bytes of PyFlink's coder.
            key_type: Type of the keys of a PyFlink program whose `key_by` has none, so that they are pickled.

        Raises:
            NotExistError: There is no such operator or state.
            StateError: It cannot be read; the message has the reason.
            CorruptFileError: The savepoint is damaged, or its values do not have the type of the descriptor.
        """
        return self._operator(uid).read(state, key_type)

    def read_timers(self, uid: str, *, key_type: Any = None) -> pa.Table:
        """Return the timers of an operator that have not fired, as an Arrow table.

        Columns: `key_group`, `key`, `domain` (`event` or `processing`), `service` (`user-timers` for those of
        functions), `timestamp` in milliseconds, of windows `window_start` and `window_end`. Arguments and errors are
        those of `read_keyed_state`.
        """
        return self._operator(uid).read_timers(key_type)

    def read_list_state(self, uid: str, name: str) -> pa.Table:
        """Return a list state that is split over subtasks: one column `value`, all elements.

        Raises:
            NotExistError: There is no such operator or state.
            StateError: It cannot be read.
        """
        return self._operator(uid).read_operator_state(name, "split")

    def read_union_state(self, uid: str, name: str) -> pa.Table:
        """Return a union list state: one column `value`, all elements. Errors are those of `read_list_state`."""
        return self._operator(uid).read_operator_state(name, "union")

    def read_broadcast_state(self, uid: str, name: str) -> pa.Table:
        """Return a broadcast state, once: columns `key` and `value`. Errors are those of `read_list_state`."""
        return self._operator(uid).read_operator_state(name, "broadcast")

    def writer(
        self,
        uids: Iterable[str] = (),
        *,
        leave_out: Iterable[str] = (),
        states: Mapping[str, Sequence[StateDescriptor[Any]]] | None = None,
        key_names: Mapping[str, Sequence[str]] | None = None,
        key_types: Mapping[str, Any] | None = None,
        max_parallelism: int | None = None,
    ) -> SavepointWriter:
        """Return a writer that converts the state to a savepoint of Holdfast: `reader.writer(...).write(path)`.

        Keys are hashed again. An operator keeps its number of key groups. Positions of Flink's sources cannot become
        those of Spark: leave the source out, and configure where the job starts.

        Args:
            uids: Uids of operators, for savepoints without uids (Flink before 2.0).
            leave_out: The operators, or states as `UID/STATE`, that are not converted.
            states: The descriptors of a PyFlink program by operator, with `pyflink` replaced by `holdfast`.
            key_names: Names of the parts of a key by operator, where it is a tuple or a row: the columns that the job
                keys by.
            key_types: Types of keys by operator, where a PyFlink program has none; see `read_keyed_state`.
            max_parallelism: Number of key groups of all operators; default: that of each in Flink.

        Raises:
            StateError: Something cannot be read, and is not left out. The message lists everything, with reasons.
            NotExistError: A named operator or state does not exist.
            ConfigurationError: An operator has no uid, or nothing is left.
        """
        named = {operator_id_of(uid): uid for uid in uids}
        left = set(leave_out)
        operators = [one for one in self._metadata.operators if one.has_state]
        imported = [
            ImportedOperator(
                self._reader(operator),
                operator.uid or named.get(operator.operator_id) or operator.operator_id,
                left,
                (states or {}).get(operator.uid or named.get(operator.operator_id, ""), ()),
                (key_names or {}).get(operator.uid or named.get(operator.operator_id, ""), ()),
                (key_types or {}).get(operator.uid or named.get(operator.operator_id, "")),
            )
            for operator in operators
        ]
        kept = [one for one in imported if not one.is_left_out]
        known = {name for one in imported for name in one.names()}
        wrong = sorted({*left, *(states or {}), *(key_names or {}), *(key_types or {}), *uids} - known)
        if wrong:
            raise NotExistError(f"The savepoint of Flink does not contain {wrong}; it has {sorted(known)}.")
        problems = [line for one in kept for line in one.problems()]
        if problems:
            raise StateError(
                "These cannot be taken over. Leave them out by their names, or see to the reasons:\n  "
                + "\n  ".join(problems)
            )
        if not kept:
            raise ConfigurationError("Nothing of the savepoint of Flink is left.")
        writer = SavepointWriter.new_savepoint(None, DEFAULT_LOWER_BOUND_MAX_PARALLELISM)
        for one in kept:
            writer.with_operator(one.uid, one.transformation().set_max_parallelism(max_parallelism or one.key_groups))
        return writer

    def _operator(self, uid: str) -> OperatorReader:
        wanted = (uid, operator_id_of(uid))
        for operator in self._metadata.operators:
            if operator.uid == uid or operator.operator_id in wanted:
                return self._reader(operator)
        raise NotExistError(f"The savepoint of Flink has no operator {uid!r}; with state it has {self.operators()}.")

    def _reader(self, operator: FlinkOperator) -> OperatorReader:
        return OperatorReader(operator, self._files)
