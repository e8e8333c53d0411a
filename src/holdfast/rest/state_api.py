"""`/jobs/:jobid/state` and the paths below it: the state in completed checkpoints and savepoints."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint, directory_of, read_by_path
from holdfast.checkpoint.statistics import COMPLETED
from holdfast.errors import ConfigurationError, HoldfastError, NotExistError, OutputTypeError, StateError
from holdfast.kernel.key_group import KeyGroupRange, key_groups_of, subtask_of
from holdfast.queryable.replica.checkpoint_view import filter_rows
from holdfast.queryable.wire.request import Condition
from holdfast.rest.http import HttpError, Request, Response
from holdfast.rest.route import (
    ANY,
    FLAG,
    INTEGER,
    STRING,
    Schema,
    any_of,
    array,
    choice,
    component,
    described,
    integer,
    mapping,
    nullable,
    record,
    serves,
)
from holdfast.runtime.master.job_master import JobMaster
from holdfast.state.layout import MAP_KEY, NAMESPACE, VALUE
from holdfast.state.probe import KEY
from holdfast.state_processor.differences import differences, sizes, summaries
from holdfast.state_processor.savepoint_reader import SavepointReader
from holdfast.state_processor.state_table import StateTable, hash_column, json_value
from holdfast.types.key_codec import TaggedKeyCodec

_SNAPSHOT: Final[Mapping[str, Schema]] = {
    "id": integer(1),
    "type": choice("CHECKPOINT", "SAVEPOINT"),
    "path": STRING,
    "timestamp": nullable(INTEGER),
    "state_size": nullable(integer(0)),
}
_SNAPSHOT_RECORD: Final = component("Snapshot", record(_SNAPSHOT))
SNAPSHOTS: Final = component("Snapshots", record({"snapshots": array(_SNAPSHOT_RECORD)}))
STATES: Final = component(
    "States",
    record(
        {
            **_SNAPSHOT,
            "epoch": integer(0),
            "counted": FLAG,
            "states": described("Operator, name, kind, type and sizes of each state.", array(mapping(ANY))),
        }
    ),
)
STATES_QUERY: Final = record(
    None, {"count": described("Whether entries are counted, which reads all rows.", choice("true", "false"))}
)
DIFFERENCE: Final = component(
    "StateDifference",
    record({"before": _SNAPSHOT_RECORD, "after": _SNAPSHOT_RECORD, "differences": array(mapping(ANY))}),
)
ROWS: Final = component(
    "StateRows",
    record(
        {
            "checkpoint": integer(1),
            "columns": array(record({"name": STRING, "type": STRING})),
            "rows": array(mapping(STRING)),
            "read": integer(0),
            "cut": described("Whether there are more rows than returned.", FLAG),
            "next": described("The key group to continue from.", nullable(integer(0))),
        }
    ),
)
_COUNT: Final = integer(0, 999_999_999)
ROWS_QUERY: Final = record(
    None,
    {
        "key": described("Only the rows of this key.", STRING),
        "where": described("Conditions on columns, such as value > 100.", STRING),
        "contains": described("Text that a column contains.", STRING),
        "start": described("First key group.", _COUNT),
        "limit": described("Approximate number of rows.", _COUNT),
    },
)
_LARGE: Final = mapping(any_of(STRING, INTEGER))
LARGEST_ROWS: Final = component(
    "LargestKeys",
    record(
        {
            "checkpoint": integer(1),
            "keys": integer(0),
            "rows": integer(0),
            "bytes": integer(0),
            "groups": integer(1),
            "stopped_at": described(
                "The key group at which the time was over, null if all were read.", nullable(integer(0))
            ),
            "largest_keys": array(_LARGE),
            "largest_groups": array(_LARGE),
        }
    ),
)


READ_SECONDS: Final = 4.0
LARGEST: Final = 20
MOST_ROWS: Final = 500
_PARTS: Final = 128
_LONGEST: Final = 4000
_AND: Final = re.compile(r"""\s+and\s+(?=(?:[^"\\]|\\.|"(?:[^"\\]|\\.)*")*$)""", re.IGNORECASE | re.DOTALL)
"""The separator of conditions, not inside quotes."""
_CONDITION: Final = re.compile(r"\s*([^\s=!<>]+)\s*(==|!=|<=|>=|=|<|>)\s*(.+?)\s*", re.DOTALL)
_ID: Final = re.compile("[0-9]{1,19}")
_READERS: Final = 2
"""Requests that read files at one time: they compete with the job for cores."""
_WAIT_SECONDS: Final = 5.0
_STATE: Final = "/jobs/:jobid/state/:snapshotid/operators/:uid/:state"
_OPERATOR_STATE: Final[dict[str, Callable[[SavepointReader, str, str], Any]]] = {
    "split": SavepointReader.read_list_state,
    "union": SavepointReader.read_union_state,
    "broadcast": SavepointReader.read_broadcast_state,
}


def parse_key_candidates(reader: SavepointReader, uid: str, text: str) -> list[Any]:
    """Return the possible meanings of a text as a key of an operator: string, JSON, time, decimal, hexadecimal bytes.

    Raises:
        HttpError: No meaning fits the operator's key type.
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
        raise HttpError(400, f"{text!r:.200} is not a key of operator {uid!r}: {reason}")
    return fitting


def parse_conditions(text: str) -> list[Condition]:
    """Parse conditions such as ``value.total > 100 and key != "N1"``.

    Raises:
        HttpError: They are malformed.
    """
    found = []
    for part in _AND.split(text.strip()) if text.strip() else ():
        match = _CONDITION.fullmatch(part)
        if match is None:
            raise HttpError(
                400, f"{part!r:.200} is not a condition: write a column, one of == != < <= > >=, and a value, as in "
                "value > 100 or value.name == \"x\"; several with 'and'."
            )  # fmt: skip
        operand: Any = match[3]
        with suppress(ValueError, RecursionError):
            operand = json.loads(operand)
        found.append((match[1], "==" if match[2] == "=" else match[2], operand))
    return found


class StateRows:
    """The rows of one keyed state: of one key, those that meet conditions, and the largest ones.

    A scan reads key group by key group for a few seconds at most, and returns where the next one must continue.

    Args:
        table: The state.
    """

    def __init__(self, table: StateTable) -> None:
        self._table = table
        self._groups = table.operator.metadata.max_parallelism

    @property
    def columns(self) -> list[dict[str, str]]:
        kind = self._table.type
        tagged = {name for name, codec in self._codecs().items() if isinstance(codec, TaggedKeyCodec)}
        return [
            {"name": name, "type": "any" if name in tagged else str(part)}
            for name, part in zip(kind.names, kind.types, strict=True)
        ]

    def all(self) -> list[dict[str, str]]:
        """Return the rows of the keys that the table is restricted to."""
        groups = self._table.operator.wanted_groups(None, self._table.keys)
        found: list[dict[str, str]] = []
        for table in self._table.read(groups):
            found += self._shown(table.slice(0, MOST_ROWS - len(found)))
        return found

    def scan(self, conditions: Sequence[Condition], contained: str, start: int, limit: int) -> dict[str, Any]:
        """Return rows that meet conditions.

        Args:
            conditions: Conditions on columns and on fields of them.
            contained: A text that one of the columns must contain, in any case; empty for all rows.
            start: The first key group.
            limit: Approximate number of rows, up to a maximum. A range of key groups is returned completely; if one
                alone has more rows than the maximum, it is cut.

        Raises:
            HttpError: A condition does not fit the columns.
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
        """Return the matching rows of a range, the number of rows read, and whether the result is cut."""
        found: list[dict[str, str]] = []
        read, cut = 0, False
        for table in self._table.read([groups]):
            read += table.num_rows
            kept = filter_rows(self._as_batch(table), conditions) if conditions else table
            if not contained:
                cut = cut or kept.num_rows > MOST_ROWS - len(found)
                kept = kept.slice(0, MOST_ROWS - len(found))
            rows = [row for row in self._shown(kept) if not contained or _contains(row, contained)]
            cut = cut or len(rows) > MOST_ROWS - len(found)
            found += rows[: MOST_ROWS - len(found)]
        return found, read, cut

    def largest(self) -> dict[str, Any]:
        """Return the largest keys and key groups by the bytes of their rows, before encoding."""
        ends = time.monotonic() + 2 * READ_SECONDS
        sizes, counts = np.zeros(self._groups, np.int64), np.zeros(self._groups, np.int64)
        top: list[tuple[int, int, dict[str, str]]] = []
        keys, stopped = 0, None
        for groups in self._parts(0):
            if time.monotonic() > ends:
                stopped = groups.start
                break
            for rows in self._table.operator.rows(self._table.form, groups, None, expired=self._table.expired):
                hashes, own = hash_column(rows), row_sizes(rows)
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
            filter_rows(self._as_batch(self._table.type.arrow_schema.empty_table()), conditions)
        except (pa.ArrowException, KeyError, TypeError, ValueError, OverflowError) as error:
            columns = ", ".join(f"{column['name']} {column['type']}" for column in self.columns)
            raise HttpError(400, f"The condition does not fit the columns ({columns}): {error}") from error

    def _as_batch(self, table: pa.Table) -> pa.RecordBatch:
        """Return one batch, in which keys without a declared type are strings."""
        table = table.combine_chunks()
        arrays = []
        codecs = self._codecs()
        for name in table.column_names:
            column = table.column(name).combine_chunks()
            codec = codecs.get(name)
            if isinstance(codec, TaggedKeyCodec):
                column = pa.array([to_text(codec.user_key(key)) for key in column.to_pylist()], pa.string())
            arrays.append(column)
        return pa.RecordBatch.from_arrays(arrays, names=table.column_names)

    def _codecs(self) -> Mapping[str, Any]:
        form = self._table.form
        return {KEY: form.key} if form.map_key is None else {KEY: form.key, MAP_KEY: form.map_key}

    def _shown(self, table: pa.Table | pa.RecordBatch, only: Sequence[str] | None = None) -> list[dict[str, str]]:
        """Return rows with all values as strings."""
        codecs = self._codecs()
        found: list[dict[str, str]] = []
        for row in table.to_pylist():
            for name, codec in codecs.items():
                if isinstance(codec, TaggedKeyCodec) and isinstance(row.get(name), bytes):
                    row[name] = codec.user_key(row[name])
            found.append({name: to_text(value) for name, value in row.items() if only is None or name in only})
        return found


def row_sizes(rows: pa.Table) -> npt.NDArray[np.int64]:
    """Return the bytes of key, namespace, map key and value of each row."""
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


def to_text(value: Any) -> str:
    """Return a value as text to show: as JSON, cut if it is long."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=json_value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


def _contains(row: Mapping[str, str], text: str) -> bool:
    wanted = text.casefold()
    return any(wanted in value.casefold() for value in row.values())


@dataclass(frozen=True)
class Snapshot:
    """A completed checkpoint or savepoint.

    Attributes:
        id: The checkpoint id.
        is_savepoint: Whether it is a savepoint.
        path: Its directory.
        timestamp: Completion time in milliseconds since 1970; None if it is unknown without reading the document.
        state_size: Bytes of its state; None if they are unknown.
    """

    id: int
    is_savepoint: bool
    path: str
    timestamp: int | None
    state_size: int | None

    def to_json(self) -> dict[str, Any]:
        kind = "SAVEPOINT" if self.is_savepoint else "CHECKPOINT"
        return {
            "id": self.id,
            "type": kind,
            "path": self.path,
            "timestamp": self.timestamp,
            "state_size": self.state_size,
        }


def list_snapshots(master: JobMaster) -> list[Snapshot]:
    """Return the retained checkpoints, and the savepoints of this process, newest first.

    Raises:
        StorageError: The register cannot be read.
    """
    statistics = master.statistics.create_snapshot()
    known = {stats.checkpoint_id: stats for stats in (*statistics.history, statistics.latest_savepoint) if stats}
    found: dict[int, Snapshot] = {}
    for pointer in master.job.register.read().checkpoints:
        path = directory_of(master.job.directory.absolute(pointer.path))
        stats = known.get(pointer.checkpoint_id)
        is_known = stats is not None and stats.status == COMPLETED
        found[pointer.checkpoint_id] = Snapshot(
            pointer.checkpoint_id,
            False,
            path,
            stats.end_timestamp if stats is not None and is_known else None,
            stats.state_size if stats is not None and is_known else None,
        )
    for number, stats in known.items():
        if stats.status == COMPLETED and stats.properties.is_savepoint() and stats.external_path is not None:
            found[number] = Snapshot(number, True, stats.external_path, stats.end_timestamp, stats.state_size)
    return [found[number] for number in sorted(found, reverse=True)]


def load_snapshot(master: JobMaster, number: str | None) -> tuple[Snapshot, CompletedCheckpoint]:
    """Load a retained checkpoint or savepoint.

    Args:
        master: The job's master.
        number: Its id, None for the newest checkpoint.

    Raises:
        HttpError: There is no such checkpoint.
        CorruptFileError: Its document is damaged.
    """
    if number is not None and not _ID.fullmatch(number):
        raise HttpError(400, f"A checkpoint id is a number, not {number!r:.40}.")
    found = list_snapshots(master)
    for snapshot in found:
        if snapshot.id == int(number) if number is not None else not snapshot.is_savepoint:
            try:
                return snapshot, read_by_path(snapshot.path)
            except NotExistError as error:
                raise HttpError(404, f"Checkpoint {snapshot.id} was deleted during the request. {error}") from error
    there = ", ".join(str(snapshot.id) for snapshot in found) or "none yet"
    raise HttpError(
        404,
        f"No completed checkpoint {number or ''} is retained. Retained are: {there} "
        "(execution.checkpointing.num-retained).",
    )


class StateApi:
    """The paths for the state of one job, read from completed checkpoints.

    Args:
        master: The job's master.
    """

    def __init__(self, master: JobMaster) -> None:
        self._master = master
        self._turns = threading.BoundedSemaphore(_READERS)

    @serves("GET", "/jobs/:jobid/state", SNAPSHOTS)
    def snapshots(self, request: Request) -> Response:
        """The checkpoints and savepoints whose state can be read."""
        return Response({"snapshots": [snapshot.to_json() for snapshot in list_snapshots(self._master)]})

    @serves("GET", "/jobs/:jobid/state/:snapshotid", STATES, query=STATES_QUERY)
    def states(self, request: Request) -> Response:
        """The states with their sizes; ?count=true also counts their entries."""
        with self._reading():
            snapshot, checkpoint = load_snapshot(self._master, _number(request.path["snapshotid"]))
            is_counted = request.query.get("count") == "true"
            found = [asdict(state) for state in (summaries(checkpoint) if is_counted else sizes(checkpoint))]
            names = {operator.uid: operator.name for operator in checkpoint.metadata.operators}
        return Response(
            {
                **snapshot.to_json(),
                "timestamp": checkpoint.metadata.completed_at,
                "epoch": checkpoint.metadata.epoch,
                "state_size": checkpoint.metadata.state_size,
                "counted": is_counted,
                "states": [{**state, "name": names.get(state["uid"], state["uid"])} for state in found],
            }
        )

    @serves("GET", "/jobs/:jobid/state/:snapshotid/difference/:otherid", DIFFERENCE)
    def difference(self, request: Request) -> Response:
        """The differences of operators and states between two snapshots."""
        with self._reading():
            first, before = load_snapshot(self._master, _number(request.path["snapshotid"]))
            second, after = load_snapshot(self._master, _number(request.path["otherid"]))
            found = [asdict(difference) for difference in differences(before, after)]
        return Response({"before": first.to_json(), "after": second.to_json(), "differences": found})

    @serves("GET", _STATE, ROWS, query=ROWS_QUERY)
    def rows(self, request: Request) -> Response:
        """The rows of a state, by ?key, or by ?where and ?contains.

        A scan returns about ?limit rows at most; `next` is the ?start of the next scan.
        """
        uid, name = request.path["uid"], request.path["state"]
        start, limit = request.query.get("start", 0), request.query.get("limit", 100)
        with self._reading():
            snapshot, checkpoint = load_snapshot(self._master, _number(request.path["snapshotid"]))
            reader = SavepointReader(None, checkpoint)
            kind = reader.states(uid).get(name)
            if kind in _OPERATOR_STATE:
                return Response({"checkpoint": snapshot.id, **_of_subtasks(reader, uid, name, kind)})
            if "key" in request.query:
                keys = parse_key_candidates(reader, uid, request.query["key"])
                found = StateRows(reader.state_table(uid, name, keys=keys))
                rows = found.all()
                result = {"columns": found.columns, "rows": rows, "read": len(rows), "cut": False, "next": None}
                return Response({"checkpoint": snapshot.id, **result})
            found = StateRows(reader.state_table(uid, name))
            conditions = parse_conditions(request.query.get("where", ""))
            scanned = found.scan(conditions, request.query.get("contains", ""), start, max(1, limit))
            return Response({"checkpoint": snapshot.id, "columns": found.columns, **scanned})

    @serves("GET", f"{_STATE}/largest", LARGEST_ROWS)
    def largest(self, request: Request) -> Response:
        """The largest keys and key groups."""
        uid, name = request.path["uid"], request.path["state"]
        with self._reading():
            snapshot, checkpoint = load_snapshot(self._master, _number(request.path["snapshotid"]))
            reader = SavepointReader(None, checkpoint)
            if reader.states(uid).get(name) in _OPERATOR_STATE:
                raise HttpError(400, f"State {name!r:.80} is operator state and has no keys.")
            return Response({"checkpoint": snapshot.id, **StateRows(reader.state_table(uid, name)).largest()})

    @contextmanager
    def _reading(self) -> Iterator[None]:
        if not self._turns.acquire(timeout=_WAIT_SECONDS):
            raise HttpError(503, f"{_READERS} other requests are reading state. Try again later.")
        try:
            yield
        except NotExistError as error:
            raise HttpError(404, str(error)) from error
        except (ConfigurationError, OutputTypeError, StateError) as error:
            raise HttpError(400, str(error)) from error
        finally:
            self._turns.release()


def _of_subtasks(reader: SavepointReader, uid: str, name: str, kind: str) -> dict[str, Any]:
    table = _OPERATOR_STATE[kind](reader, uid, name)
    rows = [{column: to_text(value) for column, value in row.items()} for row in table.slice(0, MOST_ROWS).to_pylist()]
    columns = [{"name": field.name, "type": str(field.type)} for field in table.schema]
    return {"columns": columns, "rows": rows, "read": table.num_rows, "cut": table.num_rows > MOST_ROWS, "next": None}


def _number(text: str) -> str | None:
    return None if text == "latest" else text
