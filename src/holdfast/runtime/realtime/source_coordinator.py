"""`SourceCoordinator`: the sources of a real-time job, in the driver."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from holdfast.errors import ConfigurationError, EngineError, EngineUnavailableError, HoldfastError, RestoreError
from holdfast.kernel.secret import get_logger
from holdfast.runtime.function.bounded_sources import CollectionSource
from holdfast.runtime.function.source import EpochOffset, PositionFiles, SourceSplit, SplitSource, plain_copy
from holdfast.runtime.graph.input_matching import InputLeaf, InputMapping, InputRules, match_inputs
from holdfast.runtime.graph.plan import JobPlan, SourcePlan
from holdfast.runtime.graph.source_positions import (
    NO_OFFSET,
    JobInputs,
    OffsetLine,
    SplitPosition,
    log_changes,
    offset_entry,
    require_plain,
    require_positions,
    stored_files,
    stored_lines,
    stored_splits,
    stored_static,
)
from holdfast.runtime.graph.stream_graph import FrameTransformNode, SourceNode, input_of
from holdfast.storage.file_system import may_pass

logger = get_logger(__name__)

Assignments = dict[int, dict[str, list[SourceSplit]]]
"""Splits by task and uid of their source."""
Snapshot = Mapping[str, Mapping[str, Any]]
"""The state of splits by uid of their source and id; None for a split that was read to its end."""
Discover = Callable[[Callable[[], Sequence[SourceSplit]]], "Future[Sequence[SourceSplit]]"]
_ALTERNATIVES: Final = (
    "use KafkaSource or FileSource, or a SplitSource of your own, by from_source(); or run the job by epochs, with "
    "another execution.trigger"
)
_DISCOVERS: Final = "looked for splits"


def refuse_unsupported_inputs(plan: JobPlan) -> None:
    """Reject inputs that a real-time job cannot read.

    Raises:
        ConfigurationError: An input is a streaming DataFrame of Spark, or a function of frames reads a stream.
    """
    for source in plan.sources:
        node = _input_node(source)
        if node.is_streaming and node.split_source is None:
            raise ConfigurationError(
                f"input {source.uid!r} reads {node.reads or 'a streaming DataFrame'}, a stream of Spark's own, which a "
                f"real-time job cannot read: {_ALTERNATIVES}."
            )
        if node.is_streaming and isinstance(source.node, FrameTransformNode):
            raise ConfigurationError(
                f"transform() {source.node.name!r} of input {source.uid!r} is a function of streaming DataFrames, "
                "which a real-time job does not have: use map(), filter() or another operator, or run the job by "
                "epochs, with another execution.trigger."
            )


def is_written_by_engine(source: SourcePlan) -> bool:
    """Return whether an input is a static frame, which the engine has to write to files before tasks can read it."""
    node = _input_node(source)
    if node.is_streaming:
        return False
    return isinstance(source.node, FrameTransformNode) or (node.split_source is None and node.collection is None)


def split_sources(plan: JobPlan, written: Mapping[str, SplitSource] | None = None) -> dict[str, SplitSource]:
    """Return what tasks read of each input, by uid.

    Args:
        plan: The job.
        written: The static frames that the engine writes to files, by uid.
    """
    found: dict[str, SplitSource] = dict(written or {})
    for source in plan.sources:
        if source.uid not in found:
            node = _input_node(source)
            own = node.split_source
            if own is None:
                assert node.collection is not None, source.uid
                own = CollectionSource(node.collection)
            found[source.uid] = own
    return found


def _input_node(source: SourcePlan) -> SourceNode:
    assert source.node is not None
    node = input_of(source.node)
    assert isinstance(node, SourceNode)
    return node


def start_thread(discover: Callable[[], Sequence[SourceSplit]]) -> Future[Sequence[SourceSplit]]:
    """Run a function in a thread that does not keep the process alive."""
    future: Future[Sequence[SourceSplit]] = Future()

    def run() -> None:
        try:
            future.set_result(discover())
        except BaseException as error:  # noqa: BLE001 - the caller of the future gets it
            future.set_exception(error)

    threading.Thread(target=run, name="holdfast-discover", daemon=True).start()
    return future


@dataclass
class _OpenSplit:
    """A split that is not read to its end.

    Attributes:
        state: Its state at the last acknowledged barrier.
        task: The task that reads it; None if it is not assigned.
    """

    state: Any
    task: int | None = None


class _Input:
    """One source and its splits.

    Args:
        uid: The input.
        leaves: The parts of it that have positions in checkpoints.
        source: What tasks read.
        position: Position of the source in a checkpoint; None to begin at its start.
        tasks: Number of tasks.
    """

    def __init__(self, uid: str, leaves: Sequence[InputLeaf], source: SplitSource, position: Any, tasks: int) -> None:
        self.uid = uid
        self.leaves = tuple(leaves)
        self.source = source
        with _named(uid, "started"):
            self.enumerator = source.create_enumerator(position, tasks)
            self.is_begun = position is not None or self.enumerator.is_begun
        self.open: dict[str, _OpenSplit] = {}
        self.is_exhausted = False
        self.discovery: Future[Sequence[SourceSplit]] | None = None
        self.due = 0.0
        with _named(uid, _DISCOVERS):
            self.add(self.enumerator.discover())

    def discover_later(self, now: float) -> None:
        """Set the time of the next search for splits, which is not before the interval of the source has passed."""
        with _named(self.uid, "told how often to look for splits"):
            self.due = now + self.enumerator.discovery_seconds

    @property
    def is_streaming(self) -> bool:
        return any(leaf.streaming for leaf in self.leaves)

    def add(self, found: Sequence[SourceSplit]) -> None:
        for split in found:
            if split.split_id in self.open:
                raise ConfigurationError(
                    f"the enumerator of input {self.uid!r} returned the split {split.split_id!r} twice: return each "
                    "split once, under an id of its own"
                )
            if not isinstance(split.split_id, str) or split.state is None:
                raise ConfigurationError(
                    f"the enumerator of input {self.uid!r} returned the split {split.split_id!r} with the state "
                    f"{split.state!r}: the id must be text, and the state None is that of a split that was read to its "
                    "end"
                )
            what = f"the enumerator of input {self.uid!r} returned splits with states"
            self.open[split.split_id] = _OpenSplit(plain_copy(split.state, what))
        with _named(self.uid, "told whether all splits are found"):
            self.is_exhausted = self.enumerator.is_exhausted()

    def acknowledge(self, states: Mapping[str, Any]) -> None:
        for split_id, state in states.items():
            split = self.open.get(split_id)
            if state is None:
                # It is reported again until its task knows that the barrier was accepted.
                if self.open.pop(split_id, None) is not None:
                    self.is_begun = True
                    with _named(self.uid, f"noted the end of the split {split_id!r}"):
                        self.enumerator.split_finished(split_id)
            elif split is None:
                raise ValueError(f"a task reports the split {split_id!r} of {self.uid!r}, which it was not assigned")
            elif split.state != state:
                self.is_begun = True
                split.state = state

    def position(self) -> Any:
        with _named(self.uid, "took its snapshot"):
            return self.enumerator.snapshot({split_id: split.state for split_id, split in self.open.items()})

    def plain_position(self) -> Any:
        """Return the position as checkpoints have it.

        Raises:
            ConfigurationError: It is no JSON.
        """
        return plain_copy(self.position(), f"the enumerator of input {self.uid!r} took a snapshot of values")

    @property
    def is_finished(self) -> bool:
        return self.is_exhausted and not self.open


@contextmanager
def _named(uid: str, doing: str) -> Iterator[None]:
    """Name the input in an exception of its enumerator, which is a program's own; the job restarts after it."""
    try:
        yield
    except HoldfastError:
        raise
    except Exception as error:
        raise (EngineUnavailableError if may_pass(error) else EngineError)(
            f"the enumerator of input {uid!r} failed while it {doing}: {type(error).__name__}: {error}"
        ) from error


class SourceCoordinator:
    """Assigns the splits of all sources to tasks, and keeps the states that tasks report. Used by one thread.

    It is at the last barrier that was acknowledged: `positions` and `restart` are of that barrier, whether its
    checkpoint completes or not.

    Args:
        plan: The job.
        positions: Positions in a checkpoint of a real-time job or of a job by epochs; None to begin at the start.
        tasks: Number of tasks that read sources.
        rules: Decisions of the user about inputs that do not match the positions.
        inputs: The inputs as an engine describes them; None to take what the plan says.
        written: The static frames that the engine writes to files, by uid.
        files: Keeps files of positions in checkpoint storage.
        clock: Seconds of a monotonic clock.
        discover: Runs the search for splits beside this thread.

    Attributes:
        split_sources: What tasks read of each input, by uid.
        uids: Uids of all inputs, also of those that were read to their ends before a restore.
        on_discovered: Called, by another thread, when `assignments` may have more splits.

    Raises:
        RestoreError: Inputs do not match the positions, and no rule covers them.
        ConfigurationError: A rule names no input, or a source cannot be read as it is configured.
    """

    def __init__(
        self,
        plan: JobPlan,
        positions: Mapping[str, Any] | None,
        tasks: int,
        rules: InputRules,
        *,
        inputs: JobInputs | None = None,
        written: Mapping[str, SplitSource] | None = None,
        files: PositionFiles | None = None,
        clock: Callable[[], float] = time.monotonic,
        discover: Discover = start_thread,
    ) -> None:
        self._tasks = tasks
        self._clock = clock
        self._discover = discover
        self.on_discovered: Callable[[], object] = lambda: None
        self._job_inputs = inputs if inputs is not None else JobInputs.of(plan)
        self.split_sources = split_sources(plan, written)
        start = _Start.of(self._job_inputs, positions, rules)
        self._batch = start.batch
        self._inputs: dict[str, _Input] = {}
        self.uids = frozenset(source.uid for source in plan.sources)
        try:
            for plan_source in plan.sources:
                uid, leaves = plan_source.uid, self._job_inputs.leaves(_input_node(plan_source).identity)
                if not all(start.is_read(leaf) for leaf in leaves):
                    source = self.split_sources[uid]
                    source = source if files is None else source.with_files(files)
                    self._inputs[uid] = _Input(uid, leaves, source, start.position(uid, leaves, source), tasks)
            for one in self._inputs.values():
                one.discover_later(clock())
        except BaseException:
            self.close()
            raise
        self._before = self._entry = self._offset_entry()

    def assignments(self) -> Assignments:
        """Return the splits that were assigned since the last call. Does not block.

        Raises:
            HoldfastError: A source could not find its splits.
        """
        for one in self._inputs.values():
            self._discover_if_due(one)
        result: Assignments = {}
        total = Counter(split.task for one in self._inputs.values() for split in one.open.values())
        for uid, one in self._inputs.items():
            waiting = [(split_id, split) for split_id, split in one.open.items() if split.task is None]
            if waiting:
                own = Counter(split.task for split in one.open.values())
                for split_id, split in waiting:
                    task = min(range(self._tasks), key=lambda n: (own[n], total[n], n))
                    split.task = task
                    own[task] += 1
                    total[task] += 1
                    result.setdefault(task, {}).setdefault(uid, []).append(SourceSplit(split_id, split.state))
        return result

    def seconds_to_discovery(self) -> float:
        """Return the seconds after which `assignments` looks for splits again; infinity if it does not.

        They are 0 if splits were found since the last call.
        """
        if any(one.discovery is not None and one.discovery.done() for one in self._inputs.values()):
            return 0.0
        due = (one.due for one in self._inputs.values() if one.discovery is None and not one.is_exhausted)
        return max(0.0, min(due, default=math.inf) - self._clock())

    def acknowledge(self, snapshots: Sequence[Snapshot]) -> None:
        """Record what the tasks reported at a barrier that all of them have acknowledged.

        A split that no task reported keeps its state: it was assigned after the barrier.
        """
        for snapshot in snapshots:
            for uid, states in snapshot.items():
                self._inputs[uid].acknowledge(states)
        self._batch += 1
        self._before, self._entry = self._entry, self._offset_entry()

    def positions(self) -> dict[str, Any]:
        """Return the positions at the last acknowledged barrier, as JSON for the checkpoint.

        They have the form of jobs by epochs, which go on from them, except for what these cannot express: inputs that
        they read as a whole and of which a part was read, and sources that only real-time jobs read.
        """
        unread = {leaf for one in self._inputs.values() if not one.is_finished for leaf in one.leaves}
        static = [leaf for leaf in self._job_inputs.static if leaf not in unread]
        result: dict[str, Any] = {
            "static_consumed": len(static) == len(self._job_inputs.static),
            "static": [leaf.to_json() for leaf in static],
        }
        lines = self._entry[0]
        if lines:
            result["streaming"] = {
                "batch_id": self._batch,
                "offsets": self._offsets(),
                "sources": self._source_files(),
                "inputs": [line.to_json() for line in lines],
            }
        known = {line.leaf for line in lines}.union(static)
        splits = [
            SplitPosition(leaves, {one.uid: one.plain_position() for one in inputs}).to_json()
            for leaves, inputs in self._by_leaves().items()
            if known.isdisjoint(leaves) and any(one.is_streaming or one.is_begun for one in inputs)
        ]
        return {**result, "splits": splits} if splits else result

    def _offsets(self) -> dict[str, str]:
        """Return the entries of the last two barriers, so that a replay can read what was between them."""
        lines, text, _ = self._entry
        before = self._before[1] if self._before[0] == lines else text
        return {str(self._batch): text} | ({str(self._batch - 1): before} if self._batch else {})

    def _source_files(self) -> dict[str, Any]:
        """Return the files that sources remember, in the folders of Spark's."""
        lines, _, files = self._entry
        return {
            f"{line.folder}/{name}": handle
            for line, own in zip(lines, files, strict=True)
            for name, handle in own.items()
        }

    def _by_leaves(self) -> dict[tuple[InputLeaf, ...], list[_Input]]:
        found: dict[tuple[InputLeaf, ...], list[_Input]] = {}
        for one in self._inputs.values():
            found.setdefault(one.leaves, []).append(one)
        return found

    @property
    def is_exhausted(self) -> bool:
        """Whether all sources are bounded, and all splits are finished as acknowledged."""
        return self.finished == self.uids

    @property
    def fully_assigned(self) -> frozenset[str]:
        """Uids of the sources of which tasks get no more splits than those that were assigned."""
        return self.uids - {
            uid
            for uid, one in self._inputs.items()
            if not one.is_exhausted or any(split.task is None for split in one.open.values())
        }

    @property
    def finished(self) -> frozenset[str]:
        """Uids of the sources that are bounded, and whose splits are finished as acknowledged."""
        return self.uids - {uid for uid, one in self._inputs.items() if not one.is_finished}

    def restart(self) -> None:
        """Assign all splits again, to a new group of tasks, which begins at the last acknowledged barrier."""
        for one in self._inputs.values():
            for split in one.open.values():
                split.task = None

    def close(self) -> None:
        """Release the connections of sources. Never raises."""
        for one in self._inputs.values():
            with suppress(Exception):
                one.enumerator.close()

    def _discover_if_due(self, one: _Input) -> None:
        if one.discovery is not None and one.discovery.done():
            found, one.discovery = one.discovery, None
            with _named(one.uid, _DISCOVERS):
                one.add(found.result())
        now = self._clock()
        if one.discovery is None and not one.is_exhausted and now >= one.due:
            one.discover_later(now)
            one.discovery = self._discover(one.enumerator.discover)
            one.discovery.add_done_callback(lambda _: self.on_discovered())

    def _offset_entry(self) -> tuple[tuple[OffsetLine, ...], str, tuple[Mapping[str, Any], ...]]:
        """Return the lines of streams that jobs by epochs can read on, the entry of Spark's log, and their files."""
        offsets: dict[OffsetLine, EpochOffset] = {}
        for one in self._inputs.values():
            lines = [line for line in self._job_inputs.lines if line.leaf in one.leaves]
            found = one.source.to_epoch_offsets(one.position()) if lines else None
            if found is not None:
                offsets.update(zip(lines, found, strict=True))
        present = tuple(line for line in self._job_inputs.lines if line in offsets)
        text = offset_entry([offsets[line].offset for line in present])
        return present, text, tuple(offsets[line].files for line in present)


class _Start:
    """The starting positions of the inputs of a job.

    Args:
        mapping: From the inputs of the program to those of a checkpoint; None without one.
        static: The inputs that were read to their end.
        lines: The offsets of streams.
        splits: The positions of other inputs.
        batch: Number of the batch of the offsets.
        files: Handles of the files that the sources of streams remember, by name.
    """

    def __init__(
        self,
        mapping: InputMapping | None,
        static: Sequence[InputLeaf],
        lines: Mapping[InputLeaf, str],
        splits: Mapping[InputLeaf, SplitPosition],
        batch: int,
        files: Mapping[InputLeaf, Mapping[str, Any]],
    ) -> None:
        self._mapping = mapping
        self._files = files
        self._static = static
        self._lines = lines
        self._splits = splits
        self.batch = batch

    @classmethod
    def of(cls, inputs: JobInputs, positions: Mapping[str, Any] | None, rules: InputRules) -> _Start:
        wanted = inputs.all_leaves()
        rules.check(leaf.uid for leaf in wanted)
        if not positions:
            return cls(None, [], {}, {}, 0, {})
        require_positions(positions)
        static = stored_static(positions, inputs.static)
        splits = {leaf: position for position in stored_splits(positions) for leaf in position.leaves}
        lines, batch = _newest_offsets(positions.get("streaming"))
        mapping = match_inputs([*lines, *static, *splits], wanted, rules)
        log_changes(mapping)
        return cls(mapping, static, lines, splits, batch, stored_files(positions))

    def is_read(self, leaf: InputLeaf) -> bool:
        """Return whether a static input was read to its end."""
        return self._origin(leaf) in self._static

    def position(self, uid: str, leaves: Sequence[InputLeaf], source: SplitSource) -> Any:
        """Return the position of a source; None to begin at its start.

        Raises:
            RestoreError: It is one from which the source cannot go on.
        """
        origins = [self._origin(leaf) for leaf in leaves]
        if all(origin is None for origin in origins):
            return None
        splits = [self._splits[origin] for origin in origins if origin is not None and origin in self._splits]
        if splits:
            if len(splits) < len(origins) or any(one is not splits[0] for one in splits):
                raise _refusal(uid, "its parts do not continue from one position")
            return _of_source(uid, splits[0].positions)
        texts = [NO_OFFSET if origin is None else self._lines[origin] for origin in origins]
        if all(text == NO_OFFSET for text in texts):
            return None
        position = source.from_epoch_offsets(
            [
                EpochOffset(
                    None if text == NO_OFFSET else json.loads(text), {} if origin is None else self._files[origin]
                )
                for text, origin in zip(texts, origins, strict=True)
            ]
        )
        if position is None:
            raise _refusal(uid, "its position was written by a job by epochs, in a form that its source cannot read")
        return position

    def _origin(self, leaf: InputLeaf) -> InputLeaf | None:
        return None if self._mapping is None else self._mapping.origin(leaf)


def _newest_offsets(streaming: Mapping[str, Any] | None) -> tuple[dict[InputLeaf, str], int]:
    """Return the newest offset of each stream in a checkpoint, and the number of its batch."""
    if not streaming:
        return {}, 0
    batch = int(streaming["batch_id"])
    texts = require_plain(streaming["offsets"][str(batch)])
    if "inputs" not in streaming:
        raise RestoreError(
            message=f"the checkpoint knows the positions of {len(texts)} inputs by their places only, because it was "
            "written before inputs had uids: run the job by epochs once, with another execution.trigger; after its "
            "next checkpoint it can run in real time"
        )
    lines = stored_lines({"streaming": streaming})
    return {line.leaf: text for line, text in zip(lines, texts, strict=True)}, batch


def _of_source(uid: str, positions: Mapping[str, Any]) -> Any:
    """Return the position of one source of an input. One that is alone is the same source under any uid."""
    if len(positions) == 1:
        return next(iter(positions.values()))
    if uid not in positions:
        raise _refusal(uid, f"the checkpoint has positions of {sorted(positions)}, which were made of the same input")
    return positions[uid]


def _refusal(uid: str, reason: str) -> RestoreError:
    return RestoreError(
        message=f"a real-time job cannot continue input {uid!r} from this checkpoint: {reason}. Run the job by epochs, "
        "with another execution.trigger, or give the input another uid and start with -n, so that it begins at its "
        "start"
    )
