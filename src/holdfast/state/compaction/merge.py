"""Carrying out a compaction: reading its inputs and writing its outputs, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from holdfast.kernel.key_group import KeyGroupRange
from holdfast.state.compaction.layer import common_lineage, layers
from holdfast.state.compaction.merge_state import merge_state
from holdfast.state.compaction.merge_timer import fired_through, merge_timers
from holdfast.state.compaction.plan import CompactionPlan, Output
from holdfast.state.run.lineage import Lineage
from holdfast.state.run.run_file import RunHandle, RunReader, open_run
from holdfast.state.run.run_footer import RunMeta
from holdfast.state.run.run_writer import SegmentData, write_run
from holdfast.state.timer.timer_service import TIMER_PREFIX
from holdfast.storage.file_system.scheme import FileSystem

COMPRESSED_UP_TO: Final = 4 * 1024 * 1024
"""Up to which size in memory the result of a merge is compressed.

Rows are merged again and again while runs are small, and most of what compaction writes is small runs: compressed they
are half the size. Large ones are mapped, so that what is not asked for costs no memory, and are not compressed.
"""


def compact(plan: CompactionPlan, fs: FileSystem) -> list[RunHandle]:
    """Write the outputs of a compaction.

    Blocks. It may be given up at any point: nothing knows of its outputs until they are swapped in.

    Raises:
        CorruptFileError, NotExistError: An input is damaged or gone.
        StateMigrationError: The inputs cannot be put together.
        StorageError: An output could not be written.
    """
    opened = [(run, open_run(fs, plan.root, run)) for run in plan.inputs]
    newer = [open_run(fs, plan.root, run) for run in reversed(plan.newer)] if plan.is_oldest else []
    lineage = common_lineage(layers(plan.inputs))
    written = []
    for output in plan.outputs:
        part = [(run, reader) for run, reader in opened if run.range.intersection(output.key_groups)]
        if part:
            written.append(_write(plan, output, part, newer, lineage, fs))
    return written


def _write(
    plan: CompactionPlan,
    output: Output,
    part: Sequence[tuple[RunHandle, RunReader]],
    newer: Sequence[RunReader],
    lineage: Lineage | None,
    fs: FileSystem,
) -> RunHandle:
    handles = [run for run, _ in part]
    newest_first = [reader for _, reader in reversed(part)]
    segments: dict[str, SegmentData] = {}
    for name in _names(newest_first):
        merged = _merged(name, newest_first, newer, output.key_groups, plan)
        if merged is not None:
            segments[name] = merged
    latest = newest_first[0].meta
    fired = {} if plan.is_oldest else _fired(newest_first, output.key_groups)
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
    return write_run(fs, plan.root, output.path, segments, meta, compressed_up_to=COMPRESSED_UP_TO)


def _names(runs: Iterable[RunReader]) -> list[str]:
    return sorted({name for run in runs for name in run.segment_names()})


def _merged(
    name: str, runs: Sequence[RunReader], newer: Sequence[RunReader], key_groups: KeyGroupRange, plan: CompactionPlan
) -> SegmentData | None:
    if name.startswith(TIMER_PREFIX):
        return merge_timers(name, runs, key_groups, plan.is_oldest)
    found = [segment for run in runs for segment in run.newest_first(name)]
    parts = [(segment, segment.range(key_groups)) for segment in found]
    # The newest segment says in which form the result is, also where it has no rows.
    parts = [(segment, rows) for at, (segment, rows) in enumerate(parts) if not at or rows.stop > rows.start]
    if not parts or (plan.is_oldest and all(rows.stop <= rows.start for _, rows in parts)):
        return None
    above = (run.segment(name) for run in newer if run.meta.key_groups.intersection(key_groups))
    newest = next((segment.entry.schema for segment in above if segment is not None), None)
    return merge_state(parts, plan.is_oldest, plan.now, newest)


def _fired(runs: Sequence[RunReader], key_groups: KeyGroupRange) -> dict[str, int]:
    names = {name for run in runs for name in run.meta.fired_through}
    times = {name: fired_through(name, runs, key_groups) for name in names}
    return {name: time for name, time in times.items() if time is not None}


def _least(runs: Sequence[RunReader], key_groups: KeyGroupRange) -> dict[str, int | None]:
    """Return the least timers left: what the newest run of each key group says, the least of several such runs."""
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
