"""Reading savepoints of Flink as tables, and making savepoints of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.recovery import resolve_pointer
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
from holdfast.storage.job_directory import METADATA_NAME
from holdfast.storage.scheme import file_system_for


class FlinkSavepointReader:
    """The state in a canonical savepoint of Flink 1.20 or 2.x, without Java: `FlinkSavepointReader.read(path)`.

    Operators are named by their uid, or by the 32 hexadecimal digits that Flink makes of it, and states by their name.
    What cannot be read is told by `problems`, and nothing is guessed: no class of a program is loaded, neither of Java
    nor of Python.
    """

    def __init__(self, metadata: FlinkMetadata, files: FlinkFiles) -> None:
        self._metadata = metadata
        self._files = files

    @classmethod
    def read(cls, path: str) -> FlinkSavepointReader:
        """Open a savepoint.

        Args:
            path: Its directory, or its `_metadata` file.

        Raises:
            NotExistError: There is none.
            CorruptFileError: Its document is damaged, or none of Flink.
            ConfigurationError: It is a checkpoint or a savepoint in the native format of a state backend, or of a
                version of Flink that is not known.
        """
        fs = file_system_for(str(path).strip())
        directory = resolve_pointer(fs, str(path).strip())
        document = join(directory, METADATA_NAME)
        return cls(read_metadata(fs.read(document), document), FlinkFiles(fs, directory))

    def operators(self) -> list[str]:
        """Return the operators that have state: the uid of each, or its id where the savepoint does not tell the uid.

        Savepoints of Flink before 2.0 tell no uid. It can be asked for all the same.
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

        Kinds are `value`, `list`, `map`, `reducing`, `aggregating` and `timers`, of state without keys `split`,
        `union` and `broadcast`. A state of PyFlink in process mode is `python` or, of a map, `python map`: what it is
        and of which type only the program knows.

        Raises:
            NotExistError: There is no such operator.
            StateError: A serializer is not known, so that what stands behind it cannot be found.
        """
        return self._operator(uid).states()

    def problems(self, uid: str) -> dict[str, str]:
        """Return what of an operator cannot be read, and why, by the name of the state; "" for what is no state."""
        return self._operator(uid).problems()

    def read_keyed_state(self, uid: str, state: str | StateDescriptor[Any], *, key_type: Any = None) -> pa.Table:
        """Return a keyed state as a table; of a map with a row for each entry.

        Columns: `key_group` (of Flink, which hashes otherwise than Holdfast), `key`, of windows `window_start` and
        `window_end`, `map_key`, `value` (of a list state a list), and with a time to live `stamp`, the time of the
        last use in milliseconds.

        Args:
            uid: The operator.
            state: The name of the state. For a state of PyFlink the descriptor of the program, with `pyflink` replaced
                by `holdfast` in its imports; with the name only, values are the bytes of PyFlink's coder.
            key_type: Type of the keys of a PyFlink program whose `key_by` has none, so that they are pickled.

        Raises:
            NotExistError: There is no such operator or state.
            StateError: It cannot be read; says why.
            CorruptFileError: The savepoint is damaged, or its values are not of the type of the descriptor.
        """
        return self._operator(uid).read(state, key_type)

    def read_timers(self, uid: str, *, key_type: Any = None) -> pa.Table:
        """Return the timers of an operator that have not fired.

        Columns: `key_group`, `key`, `domain` (`event` or `processing`), `service` (`user-timers` are those of
        functions), `timestamp` in milliseconds, of windows `window_start` and `window_end`.
        """
        return self._operator(uid).read_timers(key_type)

    def read_list_state(self, uid: str, name: str) -> pa.Table:
        """Return an operator list that is dealt out over subtasks: one column `value`, all elements."""
        return self._operator(uid).read_operator_state(name, "split")

    def read_union_state(self, uid: str, name: str) -> pa.Table:
        """Return a union list: one column `value`, all elements."""
        return self._operator(uid).read_operator_state(name, "union")

    def read_broadcast_state(self, uid: str, name: str) -> pa.Table:
        """Return a broadcast state, once: columns `key` and `value`."""
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
        """Return what writes the state as a savepoint of Holdfast: `reader.writer(...).write(path)`.

        Keys are hashed anew. An operator keeps its number of key groups. Positions of sources are Flink's own and
        cannot become those of Spark: leave the source out, and let the job begin where it should.

        Args:
            uids: Names of operators, where the savepoint does not tell them: Flink before 2.0.
            leave_out: What stays behind: operators, or states as `UID/STATE`.
            states: The descriptors of a PyFlink program by operator, with `pyflink` replaced by `holdfast`.
            key_names: Names of the parts of a key by operator, where it is a tuple or a row: those that the job keys
                by.
            key_types: Types of keys by operator, where a PyFlink program has none; see `read_keyed_state`.
            max_parallelism: Number of key groups of all operators; else that of each in Flink.

        Raises:
            StateError: Something cannot be read, and is not left out. Says all of it, with reasons.
            NotExistError: Something that is named is not there.
            ConfigurationError: An operator has no uid.
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
