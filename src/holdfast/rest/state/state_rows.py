"""Rows of one state: those of a key, those that meet conditions, and where most of the bytes are.

A request reads for a few seconds at most, key group by key group, and says where the next one goes on.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import HoldfastError
from holdfast.kernel.key_group import KeyGroupRange, key_groups_of, subtask_of
from holdfast.queryable.replica.scan import Condition, matching
from holdfast.rest.answer import RefusedError
from holdfast.state.layout.column_layout import MAP_KEY, NAMESPACE, VALUE
from holdfast.state.run.probe import KEY
from holdfast.state_processor.read.json_value import json_value
from holdfast.state_processor.read.state_table import StateTable
from holdfast.state_processor.read.stored_operator import hash_column
from holdfast.state_processor.savepoint_reader import SavepointReader
from holdfast.types.key.key_codec import TaggedKeyCodec

READ_SECONDS: Final = 4.0
LARGEST: Final = 20
MOST_ROWS: Final = 500
_PARTS: Final = 128
_LONGEST: Final = 4000
_AND: Final = re.compile(r"""\s+and\s+(?=(?:[^"\\]|\\.|"(?:[^"\\]|\\.)*")*$)""", re.IGNORECASE | re.DOTALL)
"""What is between two conditions; in a text it is part of the text."""
_CONDITION: Final = re.compile(r"\s*([^\s=!<>]+)\s*(==|!=|<=|>=|=|<|>)\s*(.+?)\s*", re.DOTALL)


def keys_meant(reader: SavepointReader, uid: str, text: str) -> list[Any]:
    """Return what a text may mean as a key of an operator: itself, JSON, a time, a decimal, bytes in hexadecimal.

    Raises:
        RefusedError: Nothing that fits.
    """
    candidates: list[Any] = [text]
    for read in (json.loads, date.fromisoformat, datetime.fromisoformat, Decimal, bytes.fromhex):
        with suppress(ValueError, ArithmeticError, RecursionError):
            candidates.append(read(text))
    fitting: list[Any] = []
    reason = ""
    for candidate in candidates:
        try:
            reader.require_key(uid, candidate)
        except HoldfastError as error:
            reason = reason or str(error)
        else:
            if not any(type(candidate) is type(other) and candidate == other for other in fitting):
                fitting.append(candidate)
    if not fitting:
        raise RefusedError(400, f"{text!r:.200} is no key of operator {uid!r}: {reason}")
    return fitting


def conditions_in(text: str) -> list[Condition]:
    """Read conditions such as ``value.total > 100 and key != "N1"``.

    Raises:
        RefusedError: They are none.
    """
    found = []
    for part in _AND.split(text.strip()) if text.strip() else ():
        match = _CONDITION.fullmatch(part)
        if match is None:
            raise RefusedError(
                400, f"{part!r:.200} is no condition: write a column, one of == != < <= > >=, and a value, as in "
                "value > 100 or value.name == \"x\"; several with 'and'."
            )  # fmt: skip
        operand: Any = match[3]
        with suppress(ValueError, RecursionError):
            operand = json.loads(operand)
        found.append((match[1], "==" if match[2] == "=" else match[2], operand))
    return found


class StateRows:
    """The rows of one state with keys.

    Args:
        table: The state.
    """

    def __init__(self, table: StateTable) -> None:
        self._table = table
        self._groups = table.operator.metadata.max_parallelism

    @property
    def columns(self) -> list[dict[str, str]]:
        """Names and types of the columns."""
        kind = self._table.type
        tagged = {name for name, codec in self._codecs().items() if isinstance(codec, TaggedKeyCodec)}
        return [
            {"name": name, "type": "any" if name in tagged else str(part)}
            for name, part in zip(kind.names, kind.types, strict=True)
        ]

    def all(self) -> list[dict[str, str]]:
        """The rows of the keys that the table is about."""
        groups = self._table.operator.wanted_groups(None, self._table.keys)
        found: list[dict[str, str]] = []
        for table in self._table.read(groups):
            found += self._shown(table.slice(0, MOST_ROWS - len(found)))
        return found

    def scan(self, conditions: Sequence[Condition], contained: str, start: int, limit: int) -> dict[str, Any]:
        """Return rows that meet conditions.

        Args:
            conditions: On columns and on fields of them.
            contained: A text that one of the columns contains, in any case; empty for all rows.
            start: The key group to begin with.
            limit: About how many rows, up to a bound. Parts of key groups are told of as a whole; one that alone has
                more rows than the bound is cut.

        Raises:
            RefusedError: A condition does not fit the columns.
        """
        self._check(conditions)
        ends = time.monotonic() + READ_SECONDS
        found: list[dict[str, str]] = []
        read, cut = 0, False
        for groups in self._parts(start):
            if len(found) >= limit or time.monotonic() > ends:
                return {"rows": found, "read": read, "cut": cut, "next": groups.start}
            rows, seen, is_cut = self._part(groups, conditions, contained)
            if found and len(found) + len(rows) > MOST_ROWS:
                return {"rows": found, "read": read, "cut": cut, "next": groups.start}
            found, read, cut = found + rows, read + seen, cut or is_cut
        return {"rows": found, "read": read, "cut": cut, "next": None}

    def _part(
        self, groups: KeyGroupRange, conditions: Sequence[Condition], contained: str
    ) -> tuple[list[dict[str, str]], int, bool]:
        """The rows of a part that are wanted, how many were read, and whether there are more."""
        found: list[dict[str, str]] = []
        read, cut = 0, False
        for table in self._table.read([groups]):
            read += table.num_rows
            kept = matching(self._as_batch(table), conditions) if conditions else table
            if not contained:
                cut = cut or kept.num_rows > MOST_ROWS - len(found)
                kept = kept.slice(0, MOST_ROWS - len(found))
            rows = [row for row in self._shown(kept) if not contained or _contains(row, contained)]
            cut = cut or len(rows) > MOST_ROWS - len(found)
            found += rows[: MOST_ROWS - len(found)]
        return found, read, cut

    def largest(self) -> dict[str, Any]:
        """Return the largest keys and key groups by the bytes of their rows, as they are before they are encoded."""
        ends = time.monotonic() + 2 * READ_SECONDS
        sizes, counts = np.zeros(self._groups, np.int64), np.zeros(self._groups, np.int64)
        top: list[tuple[int, int, dict[str, str]]] = []
        keys, stopped = 0, None
        for groups in self._parts(0):
            if time.monotonic() > ends:
                stopped = groups.start
                break
            for rows in self._table.operator.rows(self._table.form, groups, None, expired=self._table.expired):
                hashes, own = hash_column(rows), bytes_of_rows(rows)
                of_rows = key_groups_of(hashes, self._groups).astype(np.int64)
                sizes += np.bincount(of_rows, own, self._groups).astype(np.int64)
                counts += np.bincount(of_rows, minlength=self._groups)
                starts = np.flatnonzero(np.append(True, hashes[1:] != hashes[:-1]))
                keys += len(starts)
                top = self._with_largest(top, rows, own, starts)
        order = np.argsort(-sizes, kind="stable")[:LARGEST]
        parallelism = self._table.operator.metadata.parallelism
        return {
            "keys": keys,
            "rows": int(counts.sum()),
            "bytes": int(sizes.sum()),
            "groups": self._groups,
            "stopped_at": stopped,
            "largest_keys": [{**row, "rows": count, "bytes": size} for size, count, row in top],
            "largest_groups": [
                {
                    "group": int(group),
                    "subtask": subtask_of(int(group), self._groups, parallelism),
                    "rows": int(counts[group]),
                    "bytes": int(sizes[group]),
                }
                for group in order
                if sizes[group]
            ],
        }

    def _with_largest(
        self,
        top: list[tuple[int, int, dict[str, str]]],
        rows: pa.Table,
        sizes: npt.NDArray[np.int64],
        starts: npt.NDArray[np.int64],
    ) -> list[tuple[int, int, dict[str, str]]]:
        of_keys = np.add.reduceat(sizes, starts)
        counts = np.diff(np.append(starts, rows.num_rows))
        order = np.argsort(-of_keys, kind="stable")[:LARGEST]
        if len(top) == LARGEST:
            order = order[of_keys[order] > top[-1][0]]
        if len(order):
            shown = self._shown(self._table.as_columns(rows.take(pa.array(starts[order]))), only=("key_group", "key"))
            top = [*top, *zip(of_keys[order].tolist(), counts[order].tolist(), shown, strict=True)]
        return sorted(top, key=lambda entry: -entry[0])[:LARGEST]

    def _parts(self, start: int) -> Iterator[KeyGroupRange]:
        size = max(1, self._groups // _PARTS)
        for first in range(start, self._groups, size):
            yield KeyGroupRange(first, min(first + size, self._groups) - 1)

    def _check(self, conditions: Sequence[Condition]) -> None:
        try:
            matching(self._as_batch(self._table.type.arrow_schema.empty_table()), conditions)
        except (pa.ArrowException, KeyError, TypeError, ValueError, OverflowError) as error:
            columns = ", ".join(f"{column['name']} {column['type']}" for column in self.columns)
            raise RefusedError(400, f"The condition does not fit the columns ({columns}): {error}") from error

    def _as_batch(self, table: pa.Table) -> pa.RecordBatch:
        """As one batch, in which keys without a declared type are texts."""
        table = table.combine_chunks()
        arrays = []
        codecs = self._codecs()
        for name in table.column_names:
            column = table.column(name).combine_chunks()
            codec = codecs.get(name)
            if isinstance(codec, TaggedKeyCodec):
                column = pa.array([text_of(codec.user_key(key)) for key in column.to_pylist()], pa.string())
            arrays.append(column)
        return pa.RecordBatch.from_arrays(arrays, names=table.column_names)

    def _codecs(self) -> Mapping[str, Any]:
        form = self._table.form
        return {KEY: form.key} if form.map_key is None else {KEY: form.key, MAP_KEY: form.map_key}

    def _shown(self, table: pa.Table | pa.RecordBatch, only: Sequence[str] | None = None) -> list[dict[str, str]]:
        """Rows as texts."""
        codecs = self._codecs()
        found: list[dict[str, str]] = []
        for row in table.to_pylist():
            for name, codec in codecs.items():
                if isinstance(codec, TaggedKeyCodec) and isinstance(row.get(name), bytes):
                    row[name] = codec.user_key(row[name])
            found.append({name: text_of(value) for name, value in row.items() if only is None or name in only})
        return found


def bytes_of_rows(rows: pa.Table) -> npt.NDArray[np.int64]:
    """Return how many bytes key, namespace, map key and value of each row have."""
    total = np.zeros(rows.num_rows, np.int64)
    for name in (KEY, NAMESPACE, MAP_KEY, VALUE):
        if name in rows.column_names:
            column = rows.column(name)
            total += _sizes(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)
    return total


def _sizes(array: Any) -> npt.NDArray[np.int64]:
    if isinstance(array, pa.ChunkedArray):
        return np.concatenate([_sizes(chunk) for chunk in array.chunks]) if array.num_chunks else np.zeros(0, np.int64)
    kind = array.type
    if pa.types.is_struct(kind):
        return sum((_sizes(part) for part in array.flatten()), np.zeros(len(array), np.int64))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        offsets = array.offsets.to_numpy().astype(np.int64)
        parts = [array.keys, array.items] if pa.types.is_map(kind) else [array.values]
        ends = np.append(0, np.cumsum(sum((_sizes(part) for part in parts), np.zeros(len(parts[0]), np.int64))))
        return ends[offsets[1:]] - ends[offsets[:-1]]  # type: ignore[no-any-return]
    if kind.num_fields == 0 and (pa.types.is_string(kind) or pa.types.is_binary(kind) or _is_large(kind)):
        return pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)  # type: ignore[no-any-return]
    try:
        width = kind.bit_width
    except ValueError:
        width = 0
    return np.full(len(array), -(-width // 8), np.int64)


def _is_large(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))


def text_of(value: Any) -> str:
    """Return a value as a text for people: as JSON, cut if it is long."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=json_value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


def _contains(row: Mapping[str, str], text: str) -> bool:
    wanted = text.casefold()
    return any(wanted in value.casefold() for value in row.values())
