"""Merge of runs. Compaction replaces several runs by one with the same content, so that lookups read few runs.

`holdfast.state.compaction_plan` chooses what to merge, and replaces the inputs by the result in a version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import StateMigrationError
from holdfast.kernel.key_group import KeyGroupRange, key_groups_of
from holdfast.state import batch
from holdfast.state.batch import ranks
from holdfast.state.compaction_plan import CompactionOutput, CompactionPlan, common_lineage, layers
from holdfast.state.descriptor import StateKind, last_expired_stamp
from holdfast.state.evolution import FORMER, SINCE, TTL, Conversion, Form, combine_forms, find_conversion
from holdfast.state.layout import MAP_KEY, NAMESPACE, OP, STAMP, TIME_TO_LIVE, VALUE, Op
from holdfast.state.probe import KEY, SegmentSlice
from holdfast.state.run_file import (
    HASH,
    Lineage,
    RunHandle,
    RunMeta,
    RunReader,
    Segment,
    SegmentData,
    open_run,
    write_run,
)
from holdfast.state.timer_service import TIMER_PREFIX
from holdfast.state.timers import MIN_TIME, TIMESTAMP, Times, raise_horizon
from holdfast.storage.file_system import FileSystem

Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_ROWS_AT_ONCE: Final = 256 * 1024


class SortedRows:
    """Rows of one state from several runs, sorted by the named columns; of equal rows the newest is first.

    Different keys hardly ever have the same hash. If none have, rows are not sorted by key: hashes distinguish the
    keys.

    Attributes:
        age: Number of the run of each row, 0 for the newest.
    """

    def __init__(self, tables: Sequence[pa.Table], by: Sequence[str]) -> None:
        joined = pa.concat_tables(tables)
        # Rows of one key are not cut, so they may exceed one array.
        self._joined = joined.combine_chunks() if joined.nbytes <= batch.BATCH_BYTES else joined
        age = np.repeat(np.arange(len(tables)), [table.num_rows for table in tables])
        names = [name for name in by if not (name == KEY and by[0] == HASH and self._hashes_tell_keys())]
        codes = [ranks(self._joined.column(name)) for name in names]
        # lexsort is stable, and sorts by its last key first.
        order = np.lexsort(codes[::-1]) if len(codes) > 1 else np.argsort(codes[0], kind="stable")
        self._order: Positions = order
        self.age: Positions = age[order]
        self._codes = {name: code[order] for name, code in zip(names, codes, strict=True)}

    def __len__(self) -> int:
        return len(self.age)

    def _hashes_tell_keys(self) -> bool:
        hashes = self._joined.column(HASH).to_numpy()
        order = np.argsort(hashes, kind="stable")
        again = np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]])
        keys = self._joined.column(KEY)
        same = pc.equal(keys.take(pa.array(order[again])), keys.take(pa.array(order[again + 1])))
        return pc.all(same, min_count=0).as_py() is True

    def first_of(self, names: Sequence[str]) -> Mask:
        """Mark the first row of each group that agrees in some columns, which are a prefix of the sort order."""
        first = np.zeros(len(self), bool)
        first[:1] = True
        for name in names:
            if name == KEY and KEY not in self._codes:
                continue  # hashes distinguish all keys
            code = self._codes[name]
            first[1:] |= code[1:] != code[:-1]
        return first

    def ops(self) -> npt.NDArray[np.int8]:
        ops: npt.NDArray[np.int8] = self._joined.column(OP).to_numpy()
        return ops[self._order]

    def column(self, name: str) -> pa.ChunkedArray:
        return self._joined.column(name).take(pa.array(self._order))

    def table(self, keep: Mask | None = None) -> pa.Table:
        """Return the rows, or the marked ones."""
        return batch.take_rows(self._joined, self._order if keep is None else self._order[keep])


def split_by_hash(segments: Sequence[tuple[Segment, slice]]) -> Iterator[list[pa.Table]]:
    """Yield the rows of segments, sorted by hash, in parts of bounded size; rows of one hash are in one part.

    Args:
        segments: Segments and their rows, newest first.
    """
    total = sum(rows.stop - rows.start for _, rows in segments)
    tables = [
        segment.table for segment, _ in segments
    ]  # before `hash`, which would read only one column: all are needed
    hashes = [segment.hash[rows] for segment, rows in segments]
    longest = max(hashes, key=len)
    size = max(1, sum(table.nbytes for table in tables))
    rows_at_once = min(_ROWS_AT_ONCE, total * (batch.BATCH_BYTES // 2) // size)
    step = max(1, len(longest) * rows_at_once // max(1, total))
    bounds = np.unique(longest[step::step])
    cuts = [np.concatenate([[0], np.searchsorted(part, bounds), [len(part)]]) for part in hashes]
    for at in range(len(bounds) + 1):
        yield from _small(
            [
                table.slice(rows.start + int(cut[at]), int(cut[at + 1] - cut[at]))
                for table, (_, rows), cut in zip(tables, segments, cuts, strict=True)
            ]
        )


def _small(tables: list[pa.Table]) -> Iterator[list[pa.Table]]:
    """Split parts again that are much larger than others."""
    if sum(table.nbytes for table in tables) <= batch.BATCH_BYTES:
        yield tables
        return
    hashes = [table.column(HASH).to_numpy() for table in tables]
    distinct = np.unique(np.concatenate(hashes))
    if len(distinct) < 2:
        yield tables
        return
    cuts = [int(np.searchsorted(part, distinct[len(distinct) // 2])) for part in hashes]
    yield from _small([table.slice(0, cut) for table, cut in zip(tables, cuts, strict=True)])
    yield from _small([table.slice(cut) for table, cut in zip(tables, cuts, strict=True)])


_MUST_AGREE: Final = ("kind", "map_key", "namespace")


def merge_state(
    segments: Sequence[tuple[Segment, slice]],
    is_oldest: bool,
    now: int | None,
    newest: Mapping[str, Any] | None = None,
    others: Iterable[Mapping[str, Any]] = (),
) -> SegmentData | None:
    """Merge the segments of one state.

    Args:
        segments: Segments and their rows, newest first.
        is_oldest: Whether there are no older runs, so that deletes can be dropped.
        now: Processing time in milliseconds; expired values are dropped if there are no older runs. None to drop none.
        newest: Schema of the newest run with this state, if it is not one of these: it determines the time to live.
        others: Schemas of other runs with this state, which may have more of its earlier forms.

    Returns:
        The merged segment, None if nothing is left.

    Raises:
        StateMigrationError: The runs have different kinds or incompatible types.
    """
    schema = segments[0][0].entry.schema
    for segment, _ in segments:
        for part in _MUST_AGREE:
            if segment.entry.schema.get(part) != schema.get(part):
                raise StateMigrationError(
                    f"The runs of state {segment.entry.name!r} were written with different types ({part}), so they "
                    "cannot be compacted. Take a savepoint in canonical form, and start from it."
                )
    forms = combine_forms(schema, [*(segment.entry.schema for segment, _ in segments), *others])
    schema = _with_forms(schema, forms)
    kind = StateKind(schema["kind"])
    conversions = [find_conversion(segment.entry.schema, forms, kind) for segment, _ in segments]
    merge = _MERGES.get(schema["kind"], _merge_scalars)
    lives = (schema if newest is None else newest).get(TIME_TO_LIVE) if schema[TTL] else None
    expired = last_expired_stamp(now, lives) if is_oldest and lives and now is not None else None
    merged = []
    for tables in split_by_hash(segments):
        merged.append(merge([_converted(*pair) for pair in zip(tables, conversions, strict=True)], is_oldest, expired))
    table = pa.concat_tables(merged)
    # Readers convert older runs to the newest schema, so it must be written even without rows.
    return SegmentData(table, schema) if table.num_rows or not is_oldest else None


def _with_forms(schema: Mapping[str, Any], forms: Sequence[Form]) -> Mapping[str, Any]:
    """Return a schema with earlier forms that it may lack: runs that are merged later need them."""
    if len(forms) == len(schema.get(FORMER, ())) + 1:
        return schema
    since = {} if forms[-1].since is None else {SINCE: forms[-1].since}
    return {**schema, **since, FORMER: [form.to_json() for form in forms[:-1]]}


def _converted(table: pa.Table, convert: Conversion | None) -> pa.Table:
    """Convert rows of an older form to that of the newest run."""
    if convert is None:
        return table
    one = table.combine_chunks()
    columns = {name: _joined(one, name) for name in one.column_names}
    value, stamp = convert.convert(columns[VALUE], columns.pop(STAMP, None), columns[OP])
    before = {name: array for name, array in columns.items() if name not in (VALUE, OP)}
    return pa.table(before | {VALUE: value} | ({} if stamp is None else {STAMP: stamp}) | {OP: columns[OP]})


def _joined(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _cell(table: pa.Table) -> list[str]:
    return [HASH, KEY, NAMESPACE] if NAMESPACE in table.column_names else [HASH, KEY]


def _merge_scalars(tables: Sequence[pa.Table], is_oldest: bool, expired: int | None) -> pa.Table:
    by = _cell(tables[0])
    rows = SortedRows(tables, by)
    keep = rows.first_of(by)
    if is_oldest:
        keep &= rows.ops() == Op.PUT
        keep &= _unexpired(rows, expired)
    return rows.table(keep)


def _merge_maps(tables: Sequence[pa.Table], is_oldest: bool, expired: int | None) -> pa.Table:
    by = _cell(tables[0])
    # The map key of a clear is null, so it is sorted before the entries.
    rows = SortedRows(tables, [*by, MAP_KEY])
    ops = rows.ops()
    first = rows.first_of([*by, MAP_KEY])
    starts = rows.first_of(by)
    cell = np.cumsum(starts) - 1
    is_clear = ops == Op.CLEAR
    cleared = np.where(is_clear[starts], rows.age[starts], len(tables))[cell]
    # Entries in the same run as a clear are newer than the clear.
    keep = first & (rows.age <= cleared)
    keep &= ~((ops == Op.DELETE) & (cleared < len(tables)))
    if is_oldest:
        keep &= ops == Op.PUT
        keep &= _unexpired(rows, expired)
    return rows.table(keep)


def _unexpired(rows: SortedRows, expired: int | None) -> Mask | bool:
    if expired is None:
        return True
    stamps = rows.column(STAMP).fill_null(expired + 1)
    alive: Mask = stamps.to_numpy() > expired
    return alive


def _merge_lists(tables: Sequence[pa.Table], is_oldest: bool, expired: int | None) -> pa.Table:
    by = _cell(tables[0])
    rows = SortedRows(tables, by)
    ops = rows.ops()
    starts = rows.first_of(by)
    cell = np.cumsum(starts) - 1
    # Rows count up to the newest one that does not append.
    ends = ops != Op.APPEND
    before = np.cumsum(ends) - ends
    counted = before == before[starts][cell]
    heads = np.flatnonzero(starts)
    used = np.flatnonzero(counted)
    # Oldest first within each cell, the cells in order.
    used = used[np.lexsort((-used, cell[used]))]
    replaced = np.zeros(len(heads), bool)
    replaced[cell[counted & ends]] = True
    table = rows.table()
    columns, lengths = _concatenated(table, used, cell[used], len(heads), expired)
    result = np.where(replaced | is_oldest, Op.PUT, Op.APPEND).astype(np.int8)
    result[replaced & (lengths == 0)] = Op.DELETE
    merged = table.select(by).take(pa.array(heads))
    for name in table.column_names:
        if name not in by:
            column = pa.array(result) if name == OP else columns[name]
            merged = merged.append_column(table.schema.field(name), column)
    return merged.filter(pa.array(lengths > 0)) if is_oldest else merged


def _concatenated(
    table: pa.Table, used: Positions, cell: Positions, cells: int, expired: int | None
) -> tuple[Mapping[str, pa.Array], Positions]:
    """Concatenate the lists of each cell's rows."""
    taken = {
        name: table.column(name).take(pa.array(used)).combine_chunks()
        for name in (VALUE, STAMP)
        if name in table.column_names
    }
    sizes = pc.list_value_length(taken[VALUE]).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    owner = np.repeat(cell, sizes)
    flat = {name: array.flatten() for name, array in taken.items()}
    if expired is not None and STAMP in flat:
        alive = flat[STAMP].to_numpy(zero_copy_only=False) > expired
        flat = {name: array.filter(pa.array(alive)) for name, array in flat.items()}
        owner = owner[alive]
    lengths = np.bincount(owner, minlength=cells).astype(np.int64)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    joined = {name: pa.ListArray.from_arrays(offsets, flat[name]).cast(table.schema.field(name).type) for name in taken}
    return joined, lengths


_Merge = Callable[[Sequence[pa.Table], bool, int | None], pa.Table]
_MERGES: Final[Mapping[str, _Merge]] = {StateKind.MAP.value: _merge_maps, StateKind.LIST.value: _merge_lists}


def tombstones(slices: Sequence[SegmentSlice]) -> SegmentData | None:
    """Return rows that delete the content of a state, None if it has none.

    Args:
        slices: All rows of the state in the range, newest first.
    """
    left = merge_state([(one.segment, one.rows) for one in slices], True, None) if slices else None
    if left is None:
        return None
    kind = StateKind(left.schema["kind"])
    cell = [name for name in (HASH, KEY, NAMESPACE) if name in left.table.column_names]
    rows = SortedRows([left.table], cell)
    table = rows.table(rows.first_of(cell))
    op = Op.CLEAR if kind is StateKind.MAP else Op.DELETE
    columns = [
        table.column(field.name)
        if field.name in cell
        else pa.array(np.full(len(table), op, np.int8))
        if field.name == OP
        else _nothing(len(table), field.type, in_lists=kind is StateKind.LIST and field.name != MAP_KEY)
        for field in table.schema
    ]
    return SegmentData(pa.table(columns, names=table.column_names), left.schema)


def _nothing(number: int, kind: pa.DataType, *, in_lists: bool) -> pa.Array:
    if not in_lists:
        return pa.nulls(number, kind)
    return pa.ListArray.from_arrays(pa.array(np.zeros(number + 1, np.int32)), pa.array([], kind.value_type)).cast(kind)


_GROUP = "key_group"


def merge_timers(
    name: str, runs: Sequence[RunReader], key_groups: KeyGroupRange, is_oldest: bool
) -> SegmentData | None:
    """Merge the timers of one service and time domain.

    Args:
        name: Name of the segment.
        runs: Newest first.
        key_groups: The range to merge.
        is_oldest: Whether there are no older runs.

    Returns:
        The merged segment, None if nothing is left.

    Raises:
        StateMigrationError: The runs have different namespaces.
    """
    horizon = np.full(key_groups.size, MIN_TIME, np.int64)
    tables: list[pa.Table] = []
    schema = None
    for run in runs:
        for segment in run.newest_first(name):
            if schema is not None and schema != segment.entry.schema:
                raise StateMigrationError(f"The runs of timers {name!r} have different namespaces; see {run.path!r}.")
            schema = segment.entry.schema
            rows = segment.range(key_groups)
            tables.append(
                _alive(run, name, segment.table.slice(rows.start, rows.stop - rows.start), horizon, key_groups)
            )
        raise_horizon(run, name, horizon, key_groups)
    tables = [table for table in tables if table.num_rows]
    if not tables or schema is None:
        return None
    merged = SortedRows(tables, [_GROUP, TIMESTAMP, KEY, NAMESPACE, HASH])
    keep = merged.first_of([_GROUP, TIMESTAMP, KEY, NAMESPACE])
    if is_oldest:
        keep &= merged.ops() == Op.PUT
    table = merged.table(keep).drop_columns([_GROUP])
    return SegmentData(table, schema) if table.num_rows else None


def fired_through(name: str, runs: Sequence[RunReader], key_groups: KeyGroupRange) -> int | None:
    """Return the time up to which all timers of a range have fired according to some runs, None if no run has one.

    Every run that has one must cover the whole range.
    """
    times = [
        run.meta.fired_through[name]
        for run in runs
        if name in run.meta.fired_through and run.meta.key_groups.intersection(key_groups)
    ]
    return max(times, default=None)


def _alive(run: RunReader, name: str, rows: pa.Table, horizon: Times, key_groups: KeyGroupRange) -> pa.Table:
    """Return the rows of a run that newer runs have not fired, with their key groups."""
    groups = key_groups_of(rows.column(HASH).to_numpy(), run.meta.max_parallelism)
    times = rows.column(TIMESTAMP).to_numpy()
    keep = times > horizon[groups - key_groups.start]
    fired = run.meta.fired_through.get(name)
    if fired is not None:
        # A delete up to the fired time removes a timer that is obsolete anyway.
        keep &= (rows.column(OP).to_numpy() != Op.DELETE) | (times > fired)
    return rows.append_column(_GROUP, pa.array(groups)).filter(pa.array(keep))


COMPRESSED_UP_TO: Final = 4 * 1024 * 1024
"""Size in memory up to which the result of a merge is compressed.

Most bytes that compaction writes are small runs, which are merged repeatedly; compression halves them. Large runs are
not compressed, so that they can be mapped and unused parts need no memory.
"""


def compact(plan: CompactionPlan, fs: FileSystem, check: Callable[[], None] = lambda: None) -> list[RunHandle]:
    """Write the outputs of a compaction. Blocks.

    It may be interrupted at any time: the outputs are unused until they replace the inputs in a version.

    Args:
        plan: The compaction.
        fs: The file system of the job.
        check: Called before each state and each output; raises an error to cancel the compaction.

    Raises:
        CorruptFileError, NotExistError: An input is damaged or missing.
        StateMigrationError: The inputs cannot be merged.
        StorageError: An output could not be written.
    """
    opened = [(run, open_run(fs, plan.root, run)) for run in plan.inputs]
    newer = [open_run(fs, plan.root, run) for run in reversed(plan.newer)] if plan.is_oldest else []
    written = []
    for output in plan.outputs:
        part = [(run, reader) for run, reader in opened if run.range.intersection(output.key_groups)]
        if part:
            segments, meta = _merge_output(plan, output, part, newer, check)
            written.append(write_run(fs, plan.root, output.path, segments, meta, compressed_up_to=COMPRESSED_UP_TO))
    return written


def _merge_output(
    plan: CompactionPlan,
    output: CompactionOutput,
    part: Sequence[tuple[RunHandle, RunReader]],
    newer: Sequence[RunReader],
    check: Callable[[], None],
) -> tuple[dict[str, SegmentData], RunMeta]:
    """Return the content of an output, merged from the inputs that intersect it."""
    handles = [run for run, _ in part]
    newest_first = [reader for _, reader in reversed(part)]
    segments: dict[str, SegmentData] = {}
    for name in _names(newest_first):
        check()
        merged = _merged(name, newest_first, newer, output.key_groups, plan)
        if merged is not None:
            segments[name] = merged
    latest = newest_first[0].meta
    fired = {} if plan.is_oldest else _fired(newest_first, output.key_groups)
    lineage = common_lineage(layers(plan.inputs))
    meta = RunMeta(
        output.key_groups,
        latest.max_parallelism,
        plan.token,
        max(run.epoch for run in handles),
        latest.key,
        _least(newest_first, output.key_groups),
        fired,
        lineage or Lineage.unknown(sum(layer.weight for layer in layers(handles)), output.path),
    )
    check()
    return segments, meta


def _names(runs: Iterable[RunReader]) -> list[str]:
    return sorted({name for run in runs for name in run.segment_names()})


def _merged(
    name: str, runs: Sequence[RunReader], newer: Sequence[RunReader], key_groups: KeyGroupRange, plan: CompactionPlan
) -> SegmentData | None:
    if name.startswith(TIMER_PREFIX):
        return merge_timers(name, runs, key_groups, plan.is_oldest)
    found = [segment for run in runs for segment in run.newest_first(name)]
    parts = [(segment, segment.range(key_groups)) for segment in found]
    # The newest segment determines the form of the result, even without rows.
    parts = [(segment, rows) for at, (segment, rows) in enumerate(parts) if not at or rows.stop > rows.start]
    if not parts or (plan.is_oldest and all(rows.stop <= rows.start for _, rows in parts)):
        return None
    above = (run.segment(name) for run in newer if run.meta.key_groups.intersection(key_groups))
    schemas = [segment.entry.schema for segment in above if segment is not None]
    others = [*schemas, *(segment.entry.schema for segment in found)]
    return merge_state(parts, plan.is_oldest, plan.now, next(iter(schemas), None), others)


def _fired(runs: Sequence[RunReader], key_groups: KeyGroupRange) -> dict[str, int]:
    names = {name for run in runs for name in run.meta.fired_through}
    times = {name: fired_through(name, runs, key_groups) for name in names}
    return {name: time for name, time in times.items() if time is not None}


def _least(runs: Sequence[RunReader], key_groups: KeyGroupRange) -> dict[str, int | None]:
    """Return the earliest remaining timers: the minimum over the newest run of each key group."""
    least: dict[str, int | None] = {}
    covered: list[KeyGroupRange] = []
    for run in runs:
        own = run.meta.key_groups
        if any(other.start <= own.start and own.end <= other.end for other in covered):
            continue
        covered.append(own)
        for domain, time in run.meta.least_timers.items():
            before = least.get(domain)
            least[domain] = time if before is None else before if time is None else min(before, time)
    return least
