"""Inputs whose rows tasks read: what Spark lists becomes splits, before each epoch, in the driver.

Spark's own frame of such an input only lists: nobody runs it. What an epoch has of it is planned from the log of the
listing source, and recorded beside it, so that a checkpoint keeps it as it keeps that log. An epoch that is planned
again is planned as it was recorded, and files that have changed since are told by their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from holdfast.runtime.function.source_numbers import SourceNumbers
from holdfast.runtime.function.splits import SplitInput
from holdfast.runtime.graph.plan import SourcePlan
from holdfast.runtime.graph.stream_graph import SPLITS_COLUMN, SourceNode
from holdfast.spark.input.file_listing import listed_in_log
from holdfast.spark.input.fitting import Line, uid_of
from holdfast.spark.input.offset_log import log_offset, require_plain
from holdfast.spark.input.waiting_files import WaitingFiles

_RECORDS: Final = "splits"
"""The folder beside the log of a source: Spark takes no note of what is not named by a number."""

Union = Callable[[Sequence[tuple[SourcePlan, DataFrame]]], DataFrame | None]


def splits_of(source: SourcePlan) -> SplitInput | None:
    """What plans the splits of an input; None for one whose rows Spark reads."""
    return source.node.splits if isinstance(source.node, SourceNode) else None


def split_frame(session: SparkSession, tasks: Sequence[str]) -> DataFrame:
    """A frame with the splits of each task in a row, and in a partition.

    It is one SQL text, because `createDataFrame` makes dozens of calls into the JVM.
    """
    if not tasks:
        return session.createDataFrame([], f"{SPLITS_COLUMN} string")
    texts = ", ".join(f"X'{task.encode().hex()}'" for task in tasks)
    own = f"cast(element_at(array({texts}), cast(id as int) + 1) as string)"
    return session.sql(f"select {own} as {SPLITS_COLUMN} from range(0, {len(tasks)}, 1, {len(tasks)})")


class StreamedSplits:
    """The inputs among the streaming ones of a job whose rows tasks read.

    Args:
        streams: The streaming inputs of the job.
        lines: Of its offset log.
        union: Puts frames of sources into one.
        column: From a source to its column, where it is one of several.
    """

    def __init__(
        self,
        streams: Sequence[SourcePlan],
        lines: Sequence[Line],
        union: Union,
        column: Callable[[SourcePlan], str],
    ) -> None:
        self._inputs = [(source, own) for source in streams if (own := splits_of(source)) is not None]
        self._are_all = len(self._inputs) == len(streams)
        self._lines = lines
        self._union = union
        self._column = column
        self._query: Path | None = None
        self._waiting: dict[str, list[WaitingFiles]] = {}

    @property
    def interval(self) -> float | None:
        """Seconds between two looks for new files, if all inputs are files and one asks for it."""
        intervals = [own.interval() for _, own in self._inputs] if self._are_all else []
        return min((interval for interval in intervals if interval is not None), default=None)

    def waiting(self, query: Path) -> dict[str, SourceNumbers]:
        """What waits to be read in each input, by uid; those are left out that nobody can count. Blocks.

        Args:
            query: Directory of the query.
        """
        if query != self._query:
            self._query, self._waiting = query, dict(self._places(query))
        found: dict[str, SourceNumbers] = {}
        for uid, places in self._waiting.items():
            counted = [place.count() for place in places]
            if all(numbers.files is not None for numbers in counted):
                found[uid] = sum(counted, SourceNumbers())
        return found

    def _places(self, query: Path) -> Iterator[tuple[str, list[WaitingFiles]]]:
        for source, own in self._inputs:
            uid = uid_of(source)
            folders = dict.fromkeys(str(line.folder) for line in self._lines if line.leaf.uid == uid)
            logs = (query / "sources" / folder for folder in folders)
            yield uid, [WaitingFiles(own, place, log) for place, log in enumerate(logs)]

    def in_place_of_listings(self, batch: DataFrame, query: Path, number: int) -> DataFrame:
        """A batch with splits where it has listed files.

        Args:
            batch: The batch.
            query: Directory of the query.
            number: Of the batch.

        Raises:
            InputGoneError: A file is gone, or has changed since the same batch was planned first.
        """
        if not self._inputs:
            return batch
        session = batch.sparkSession
        members = [(source, self._planned(source, own, session, query, number)) for source, own in self._inputs]
        splits = self._union(members)
        assert splits is not None
        if self._are_all:
            return splits
        listed = " and ".join(f"{self._column(source)} is null" for source, _ in self._inputs)
        return batch.where(listed).union(splits)

    def _planned(
        self, source: SourcePlan, own: SplitInput, session: SparkSession, query: Path, number: int
    ) -> DataFrame:
        tasks: list[str] = []
        folders = set()
        for position, line in enumerate(self._lines):
            if line.leaf.uid == uid_of(source) and line.folder not in folders:
                folders.add(line.folder)
                after, until = (_offset(query, n, position) for n in (number - 1, number))
                paths = listed_in_log(query / "sources" / str(line.folder), after, until)
                tasks += _recorded(own, query / "sources" / str(line.folder) / _RECORDS, number, paths, session)
        return split_frame(session, tasks)


def _offset(query: Path, number: int, position: int) -> int:
    entry = query / "offsets" / str(number)
    return log_offset(require_plain(entry.read_text("utf-8"))[position]) if entry.exists() else -1


def _recorded(own: SplitInput, folder: Path, number: int, paths: Sequence[str], session: SparkSession) -> Sequence[str]:
    record = folder / str(number)
    known = record.read_text("utf-8") if record.exists() else None
    plan = own.plan(paths, known, session.sparkContext.defaultParallelism)
    if known is None:
        folder.mkdir(parents=True, exist_ok=True)
        record.write_text(plan.record, "utf-8")
        for other in folder.iterdir():
            if other.name != record.name:
                other.unlink()
    return plan.tasks
