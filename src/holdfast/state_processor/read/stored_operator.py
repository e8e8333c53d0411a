"""The keyed state of one operator of a savepoint, read for some of its key groups and keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.checkpoint.document.metadata import OperatorMetadata
from holdfast.errors import ConfigurationError, NotExistError, StateError, StateMigrationError
from holdfast.kernel.key_group import KeyGroupRange, key_group_of
from holdfast.state.compaction.merge_state import merge_state
from holdfast.state.compaction.merge_timer import merge_timers
from holdfast.state.declaration.descriptor import StateKind
from holdfast.state.layout.column_layout import NAMESPACE, OP, VALUE, Op
from holdfast.state.layout.evolution import forms_of
from holdfast.state.run.probe import KEY
from holdfast.state.run.run_file import HASH, RunReader, Segment, open_run
from holdfast.state_processor.form.state_form import StateForm
from holdfast.storage.file_system.scheme import file_system_for
from holdfast.types.information.sealed_type import sealed
from holdfast.types.key.abstract_key_codec import KeyCodec
from holdfast.types.key.key_codec import codec_from_json

Hashes = npt.NDArray[np.uint64]
_KINDS_OF_VALUES: Final = (Op.PUT.value, Op.APPEND.value)


@dataclass(frozen=True)
class Keys:
    """Keys that are wanted, as files have them."""

    stored: pa.Array
    hashes: tuple[int, ...]

    @classmethod
    def of(cls, codec: KeyCodec, wanted: Sequence[Any]) -> Keys:
        """Return keys that a user gives.

        Raises:
            NullKeyError, OutputTypeError: One cannot be a key.
        """
        dict_keys = list(dict.fromkeys(codec.dict_key(key) for key in wanted))
        return cls(codec.storage_array(dict_keys), tuple(codec.hashes(dict_keys).tolist()))


@dataclass(frozen=True)
class StoredOperator:
    """One operator of a savepoint; it can be pickled.

    Attributes:
        root: The directory that paths of runs are relative to.
        metadata: What the document says of the operator.
        now: Processing time of the savepoint.
    """

    root: str
    metadata: OperatorMetadata
    now: int

    @cached_property
    def key(self) -> KeyCodec:
        """Codec of the keys.

        Raises:
            StateError: The operator has no keyed state.
        """
        if self.metadata.key is None:
            raise StateError(f"Operator {self.metadata.uid!r} has no keyed state.")
        return codec_from_json(self.metadata.key)

    @cached_property
    def forms(self) -> dict[str, StateForm]:
        """The states by name, in the form that the newest run has."""
        found: dict[str, StateForm] = {}
        for run in reversed(self._runs):
            for name in run.segment_names():
                if name not in found:
                    segment = run.segment(name)
                    assert segment is not None
                    found[name] = StateForm.stored(name, segment.entry.schema, self.key, run.path)
        return dict(sorted(found.items()))

    def form(self, name: str) -> StateForm:
        """Return the form of a state.

        Raises:
            NotExistError: There is no such state.
        """
        form = self.forms.get(name)
        if form is None:
            raise NotExistError(
                f"Operator {self.metadata.uid!r} has no keyed state {name!r} in the savepoint; it has "
                f"{list(self.forms)}."
            )
        return form

    def wanted_groups(self, key_groups: Any, keys: Keys | None) -> list[KeyGroupRange]:
        """Return the ranges of key groups that have to be read.

        Args:
            key_groups: One, or several, as a user gives them; None for all.
            keys: Keys that are wanted; None for all.

        Raises:
            ConfigurationError: There is no such key group.
        """
        most = self.metadata.max_parallelism
        wanted = set(range(most)) if key_groups is None else _numbers(key_groups)
        if not wanted <= set(range(most)):
            raise ConfigurationError(
                f"Operator {self.metadata.uid!r} has the key groups 0 to {most - 1}, not {sorted(wanted)[-1]}."
            )
        if keys is not None:
            wanted &= {key_group_of(hash64, most) for hash64 in keys.hashes}
        # Numbers that follow each other have the same distance from their position.
        runs = groupby(enumerate(sorted(wanted)), lambda pair: pair[1] - pair[0])
        ranges = ([group for _, group in pairs] for _, pairs in runs)
        return [KeyGroupRange(groups[0], groups[-1]) for groups in ranges]

    def rows(
        self, form: StateForm, key_groups: KeyGroupRange, keys: Keys | None, *, expired: bool
    ) -> Iterator[pa.Table]:
        """Yield the rows of a state that are there, sorted by hash, in the columns of a segment.

        Args:
            form: The state.
            key_groups: Only these.
            keys: Only these; None for all.
            expired: Whether what has expired is told of as well.

        Raises:
            CorruptFileError: A run is damaged.
            NotExistError: A run is gone.
        """
        if form.is_timers:
            merged = merge_timers(form.name, self._runs[::-1], key_groups, is_oldest=True)
            if merged is not None:
                yield merged.table if keys is None else _only(merged.table, keys)
            return
        found = [segment for run in reversed(self._runs) for segment in run.newest_first(form.name)]
        parts = [(segment, segment.range(key_groups)) for segment in found]
        for some in _of_keys(parts, keys):
            table = self._merged(form, some, expired)
            if table is not None and table.num_rows:
                yield table if keys is None else _only(table, keys)

    def _merged(self, form: StateForm, parts: list[tuple[Segment, slice]], expired: bool) -> pa.Table | None:
        filled = [(segment, rows) for segment, rows in parts if rows.stop > rows.start]
        if not filled:
            return None
        segment, rows = filled[0]
        if len(filled) == 1 and segment.entry.schema == form.schema and not form.has_stamps:
            table = segment.table.slice(rows.start, rows.stop - rows.start)
            keep = pc.is_in(table.column(OP), pa.array(_KINDS_OF_VALUES, pa.int8()))
            if form.kind is StateKind.LIST:
                keep = pc.and_(keep, pc.greater(pc.list_value_length(table.column(VALUE)), 0))
            return table if pc.all(keep).as_py() else table.filter(keep)
        for segment, _ in filled:
            _require_readable(segment, form)
        # The newest segment says in which form the result is, also where it has no rows.
        if filled[0][0] is not parts[0][0]:
            filled.insert(0, (parts[0][0], slice(parts[0][1].start, parts[0][1].start)))
        merged = merge_state(filled, True, None if expired else self.now, form.schema)
        return None if merged is None else merged.table

    @cached_property
    def _runs(self) -> list[RunReader]:
        fs = file_system_for(self.root)
        return [open_run(fs, self.root, run) for run in self.metadata.runs]

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredOperator, (self.root, self.metadata, self.now)


def _require_readable(segment: Segment, form: StateForm) -> None:
    """Make sure that no class of a program is needed to bring rows into the newest form, and no pickle is loaded."""
    older, newer = ([one.to_json() for one in forms_of(schema)] for schema in (segment.entry.schema, form.schema))
    if older != newer and sealed([older, newer]) != [older, newer]:
        raise StateMigrationError(
            f"State {form.name!r} has values that only the program can bring into the form that it declares now. Let "
            "the job run until they are compacted, and take a savepoint then."
        )


def _numbers(key_groups: Any) -> set[int]:
    given = [key_groups] if isinstance(key_groups, int) else list(key_groups)
    if not all(type(group) is int and group >= 0 for group in given):
        raise ConfigurationError(f"Key groups are whole numbers from 0 on, one or several, not {key_groups!r:.200}.")
    return set(given)


def _of_keys(parts: list[tuple[Segment, slice]], keys: Keys | None) -> Iterator[list[tuple[Segment, slice]]]:
    """The rows to be merged, all at once, or for some keys hash by hash."""
    if not parts:
        return
    if keys is None:
        yield parts
        return
    for hash64 in sorted(set(keys.hashes)):
        wanted = np.uint64(hash64)
        some = []
        for segment, rows in parts:
            hashes = segment.hash[rows]
            first, end = (int(np.searchsorted(hashes, wanted, side=side)) for side in ("left", "right"))
            some.append((segment, slice(rows.start + first, rows.start + end)))
        yield some


def _only(table: pa.Table, keys: Keys) -> pa.Table:
    """Without other keys that have the same hash."""
    return table.filter(pc.is_in(table.column(KEY), keys.stored))


def only_namespaces(table: pa.Table, namespaces: Sequence[bytes] | None) -> pa.Table:
    """Return the rows of some namespaces; None stands for all."""
    if namespaces is None:
        return table
    return table.filter(pc.is_in(table.column(NAMESPACE), pa.array(list(namespaces), pa.binary())))


def hash_column(table: pa.Table) -> Hashes:
    """Return the hashes of some rows."""
    hashes: Hashes = table.column(HASH).to_numpy()
    return hashes
