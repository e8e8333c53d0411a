"""Spark's checkpoint directory of a query: what a checkpoint keeps of it, and how a new one is seeded.

A job attempt owns a private directory on the driver's disk, which is scratch. A checkpoint has the offset-log entries
of its batch and of the one before, and handles of the sources' own metadata entries, each copied once into checkpoint
storage. A new private directory is written from these; Spark then continues with the batch after.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from holdfast.checkpoint.replay import AGAIN
from holdfast.errors import ConfigurationError, RestoreError
from holdfast.kernel.secret import get_logger
from holdfast.runtime.function.source import SourceStatistics
from holdfast.runtime.graph.input_matching import InputLeaf, InputMapping, InputRules, match_inputs
from holdfast.runtime.graph.plan import SourcePlan
from holdfast.runtime.graph.source_positions import (
    NO_OFFSET,
    JobInputs,
    OffsetLine,
    PlannedLine,
    lines_of,
    log_changes,
    rearranged,
    require_plain,
    require_positions,
    stored_lines,
    stored_splits,
    stored_static,
)
from holdfast.runtime.graph.stream_graph import SourceNode, input_of
from holdfast.runtime.job.position_files import JobPositionFiles
from holdfast.spark.input.description import ignores_missing_files, source_of, streaming_leaves, table_of
from holdfast.storage.file_system import translate
from holdfast.storage.job_directory import JobDirectory

logger = get_logger(__name__)

COMMIT_ENTRY = 'v1\n{"nextBatchWatermarkMs":0}'
"""What Spark writes into `commits/N` of a query without a watermark of its own."""
_NAMED_BY_SPARK = "spark.sql.streaming.queryEvolution.enableSourceEvolution"


class QueryDirectory:
    """The private Spark checkpoint directory of one job attempt.

    Args:
        path: An empty or absent local directory.
        job: The job's directory in checkpoint storage.
        token: The attempt's token, for the names of copied files.
    """

    def __init__(self, path: Path, job: JobDirectory, token: int) -> None:
        self.path = path
        self._files = JobPositionFiles(job, token)
        self._copied: dict[str, dict[str, Any]] = {}

    @property
    def uri(self) -> str:
        """The directory as Spark's option takes it, whatever its default file system is."""
        return self.path.absolute().as_uri()

    def seed(self, positions: Mapping[str, Any]) -> None:
        """Write what Spark needs to continue after the batch of a checkpoint.

        Raises:
            CorruptFileError: A copied source entry is damaged.
            StorageError: The directory cannot be written.
        """
        batch = positions["batch_id"]
        self._write("metadata", json.dumps({"id": str(uuid.uuid4())}).encode())
        for number, text in positions["offsets"].items():
            self._write(f"offsets/{number}", text.encode())
            # Spark runs a batch that it has planned and not committed once more, with exactly the same rows.
            if not (positions.get(AGAIN) and int(number) == batch):
                self._write(f"commits/{number}", COMMIT_ENTRY.encode())
        assert str(batch) in positions["offsets"]
        for name, handle in positions["sources"].items():
            self._write(f"sources/{name}", self._files.read(handle))
            self._copied[name] = dict(handle)

    def positions(self, batch_id: int, epoch: int) -> dict[str, Any]:
        """Return the positions of the sources after a planned batch; copies new source entries into storage.

        Raises:
            StorageError: An entry cannot be copied.
        """
        offsets = {str(n): text for n in (batch_id - 1, batch_id) if (text := self._entry("offsets", n)) is not None}
        sources = {name: self._handle(name, path, epoch) for name, path in self._source_entries()}
        self._copied = sources
        return {"batch_id": batch_id, "offsets": offsets, "sources": sources}

    def _handle(self, name: str, path: Path, epoch: int) -> dict[str, Any]:
        known = self._copied.get(name)
        if known is not None:
            return known
        self._files.epoch = epoch
        return self._files.write(path.read_bytes())

    def _source_entries(self) -> Iterator[tuple[str, Path]]:
        root = self.path / "sources"
        for folder, _, names in sorted(os.walk(root)):
            for name in sorted(names):
                if not name.startswith(".") and not name.endswith(".tmp"):
                    path = Path(folder) / name
                    yield str(path.relative_to(root)), path

    def _entry(self, kind: str, number: int) -> str | None:
        path = self.path / kind / str(number)
        return path.read_text() if path.exists() else None

    def _write(self, name: str, content: bytes) -> None:
        path = self.path / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except OSError as error:
            raise translate(error, "write", str(path)) from error


@dataclass(frozen=True)
class InputStart:
    """The starting positions of the inputs.

    Attributes:
        streaming: The initial content of Spark's directory; None for the start of all streams.
        unread: Uids of the static inputs that have not been read.
    """

    streaming: Mapping[str, Any] | None
    unread: frozenset[str]


class InputIdentities(JobInputs):
    """The input of each position of a job.

    Args:
        streaming: The streaming inputs and their frames, in the order of the plan.
        static: The static ones.
        union: The plan of the streaming inputs, None if there are none.
        session: Session of the job.

    Raises:
        ConfigurationError: Sources have names of Spark's own.
    """

    def __init__(
        self,
        streaming: Sequence[tuple[SourcePlan, DataFrame]],
        static: Sequence[tuple[SourcePlan, DataFrame]],
        union: DataFrame | None,
        session: SparkSession,
    ) -> None:
        if union is not None and union.sparkSession.conf.get(_NAMED_BY_SPARK, "false") == "true":
            raise ConfigurationError(
                f"{_NAMED_BY_SPARK} is set, by which Spark keeps positions in a form that Holdfast does not read: "
                "unset it, and call no DataStreamReader.name(); .uid() gives an input its name"
            )
        lines = () if union is None else tuple(_lines(streaming, union, session))
        tables: dict[str, InputLeaf] = {}
        for source, frame in static:
            uid, elements = uid_of(source), _elements_of(source)
            tables.setdefault(uid, InputLeaf(uid, 0, *table_of(frame, session), streaming=False, elements=elements))
        super().__init__(lines, tuple(tables.values()))

    def to_json(self, text: str) -> list[dict[str, Any]]:
        """Return the inputs of the lines of an entry of the offset log.

        Raises:
            ConfigurationError: Spark has written it in another form, or for other sources.
        """
        found = len(require_plain(text))
        if found != len(self.lines):
            raise ConfigurationError(
                f"Spark keeps {found} positions for this job, but {len(self.lines)} sources were found in its inputs: "
                "give each source an input of its own, by from_dataframe(), and join them by union()"
            )
        return [line.to_json() for line in self.lines]

    def begin(self, positions: Mapping[str, Any] | None, rules: InputRules) -> InputStart:
        """Return the starting positions of the inputs, by the positions of a checkpoint.

        Raises:
            RestoreError: They do not fit, and no option says what to do.
            ConfigurationError: An option names no input.
        """
        rules.check(leaf.uid for leaf in self.all_leaves())
        if not positions:
            return InputStart(None, frozenset(leaf.uid for leaf in self.static))
        require_positions(positions)
        streaming = positions.get("streaming")
        before = self._before(streaming) if streaming else []
        read = stored_static(positions, self.static)
        splits = [leaf for position in stored_splits(positions) for leaf in position.leaves]
        stored = [*dict.fromkeys(line.leaf for line in before), *read, *splits]
        fitting = match_inputs(stored, self.all_leaves(), rules)
        for leaf in self.all_leaves():
            if fitting.origin(leaf) in splits:
                raise _read_in_part(leaf)
        log_changes(fitting)
        unread = frozenset(leaf.uid for leaf in self.static if fitting.origin(leaf) is None)
        return InputStart(self._rearranged(streaming, before, fitting) if streaming else None, unread)

    def _before(self, streaming: Mapping[str, Any]) -> list[OffsetLine]:
        """Return the lines of a checkpoint. One that was written before inputs had uids is taken by place."""
        if "inputs" in streaming:
            return stored_lines({"streaming": streaming})
        found = lines_of(streaming)
        if found != len(self.lines):
            raise RestoreError(
                message=f"the checkpoint knows the positions of {found} inputs by their places only, because it was "
                f"written before inputs had uids, but this job has {len(self.lines)}: run it once with the inputs that "
                "it had, in their order; after its next checkpoint it can be changed"
            )
        logger.warning(
            "the checkpoint knows its inputs by their places only: they must be what they were, in the same order. The "
            "next checkpoint knows them by their uids"
        )
        return list(self.lines)

    def _rearranged(
        self, streaming: Mapping[str, Any], before: Sequence[OffsetLine], fitting: InputMapping
    ) -> Mapping[str, Any] | None:
        places: dict[InputLeaf, int] = {}
        for number, line in enumerate(before):
            places.setdefault(line.leaf, number)
        plan = []
        for line in self.lines:
            origin = fitting.origin(line.leaf)
            taken = None if origin is None else places[origin]
            elsewhere = origin is not None and origin.place != line.leaf.place
            plan.append(PlannedLine(line.leaf.uid, line.folder, taken, elsewhere))
        return rearranged(streaming, [line.folder for line in before], plan)


def _read_in_part(leaf: InputLeaf) -> RestoreError:
    return RestoreError(
        message=f"input {leaf.uid!r}, {leaf}, was read in part by a real-time job, from where a job by epochs cannot "
        "go on: run the job with execution.trigger=real-time until it has read this input, and restore a checkpoint of "
        "then; a source that only real-time jobs read needs that trigger always"
    )


def uid_of(source: SourcePlan) -> str:
    """Return the uid of the input that a source of the plan is made of: transforms do not change it."""
    assert source.node is not None
    return input_of(source.node).identity


def _elements_of(source: SourcePlan) -> str:
    assert source.node is not None
    node = input_of(source.node)
    return node.elements if isinstance(node, SourceNode) else ""


def _lines(
    streaming: Sequence[tuple[SourcePlan, DataFrame]], union: DataFrame, session: SparkSession
) -> Sequence[OffsetLine]:
    """Return the lines of the offset log: one for each leaf of the plan, where equal leaves are one source."""
    leaves = streaming_leaves(union)
    owners = [source for source, frame in streaming for _ in streaming_leaves(frame)]
    if len(owners) != len(leaves):
        raise ConfigurationError(
            f"the inputs have {len(owners)} sources, but their union has {len(leaves)}: give each source an input of "
            "its own, by from_dataframe(), and join them by union()"
        )
    lines = lines_of_leaves(zip(map(uid_of, owners), leaves, strict=True), session)
    return [
        replace(line, leaf=replace(line.leaf, elements=_elements_of(source)))
        for line, source in zip(lines, owners, strict=True)
    ]


def lines_of_leaves(leaves: Iterable[tuple[str, Any]], session: SparkSession) -> list[OffsetLine]:
    """Return the lines of the offset log for the leaves of a plan in their order, each with the uid of its input."""
    folders: list[Any] = []
    ordinals: dict[str, list[int]] = {}
    lines = []
    for uid, leaf in leaves:
        folder = next((n for n, other in enumerate(folders) if leaf.equals(other)), len(folders))
        if folder == len(folders):
            folders.append(leaf)
        known = ordinals.setdefault(uid, [])
        if folder not in known:
            known.append(folder)
        named = InputLeaf(uid, known.index(folder), *source_of(leaf, session))
        lines.append(OffsetLine(named, folder, ignores_missing_files(leaf)))
    return lines


class SourceListeners:
    """The sources of a job that are notified of completed checkpoints. Their errors never fail the job.

    Args:
        sources: The inputs of the job.
    """

    def __init__(self, sources: Iterable[SourcePlan] = ()) -> None:
        inputs = [input_of(source.node) for source in sources if source.node is not None]
        self._listeners = {
            node.identity: node.listener
            for node in inputs
            if isinstance(node, SourceNode) and node.listener is not None
        }

    def notify_completed(self, positions: Mapping[str, Any]) -> None:
        """Notify the sources of their positions in a completed checkpoint."""
        if not self._listeners:
            return
        try:
            for uid, offset in _offsets_of(positions):
                if uid in self._listeners:
                    self._listeners[uid].checkpoint_completed(offset)
        except Exception:
            logger.warning("a source could not be notified of a completed checkpoint; the job goes on", exc_info=True)

    def numbers(self) -> dict[str, SourceStatistics]:
        """Return their counts, by uid of their input."""
        return {uid: listener.numbers() for uid, listener in self._listeners.items()}

    def close(self) -> None:
        """End what they have begun."""
        try:
            for listener in self._listeners.values():
                listener.close()
        except Exception:
            logger.warning("a source could not be closed", exc_info=True)


def _offsets_of(positions: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the position of each input; None for one that was read as a whole."""
    streaming = positions.get("streaming")
    found: list[tuple[str, Any]] = [(leaf["uid"], None) for leaf in positions.get("static") or ()]
    if streaming and "inputs" in streaming:
        offsets = require_plain(streaming["offsets"][str(streaming["batch_id"])])
        lines = zip(streaming["inputs"], offsets, strict=True)
        found += [(line["uid"], json.loads(text)) for line, text in lines if text != NO_OFFSET]
    return found
