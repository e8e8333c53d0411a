"""Where the inputs of a job on Spark begin: a checkpoint's positions, fitted to the frames of the program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import ConfigurationError, RestoreError
from holdfast.kernel.secret import get_logger
from holdfast.runtime.graph.input_fitting import Fitting, InputLeaf, InputRules, fit_inputs
from holdfast.runtime.graph.plan import SourcePlan
from holdfast.runtime.graph.stream_graph import SourceNode, input_of
from holdfast.spark.input.description import ignores_missing_files, source_of, streaming_leaves, table_of
from holdfast.spark.input.offset_log import PlannedLine, lines_of, rearranged, require_plain
from holdfast.spark.input.stored import require_positions

logger = get_logger(__name__)

_NAMED_BY_SPARK = "spark.sql.streaming.queryEvolution.enableSourceEvolution"


@dataclass(frozen=True)
class Line:
    """One line of Spark's offset log: whose position it is, and in which folder its source keeps what it knows.

    `ignores_missing` says that the input was told to go on without files that are gone.
    """

    leaf: InputLeaf
    folder: int
    ignores_missing: bool = False

    def to_json(self) -> dict[str, Any]:
        """As a checkpoint has it."""
        return {**self.leaf.to_json(), "source": self.folder}


@dataclass(frozen=True)
class InputBeginning:
    """Where the inputs begin.

    Attributes:
        streaming: What Spark's directory is seeded with, None for the start of all streams.
        unread: Uids of the static inputs that have not been read.
    """

    streaming: Mapping[str, Any] | None
    unread: frozenset[str]


class InputIdentities:
    """What each position of a job belongs to.

    Args:
        streaming: The streaming inputs and their frames, in the order in which they are one plan.
        static: The static ones.
        union: The plan of the streaming inputs, None if there are none.
        session: Of the job.

    Raises:
        ConfigurationError: Sources have names by Spark's own way.
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
        self.lines = () if union is None else tuple(_lines(streaming, union, session))
        tables: dict[str, InputLeaf] = {}
        for source, frame in static:
            uid, elements = uid_of(source), _elements_of(source)
            tables.setdefault(uid, InputLeaf(uid, 0, *table_of(frame, session), streaming=False, elements=elements))
        self.static = tuple(tables.values())

    def to_json(self, text: str) -> list[dict[str, Any]]:
        """What the lines of an entry of the offset log belong to.

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

    def begin(self, positions: Mapping[str, Any] | None, rules: InputRules) -> InputBeginning:
        """Where the inputs begin, by the positions of a checkpoint.

        Raises:
            RestoreError: They do not fit, and the user has not said what is to be done.
            ConfigurationError: What the user has said means no input.
        """
        rules.check(leaf.uid for leaf in self._leaves())
        if not positions:
            return InputBeginning(None, frozenset(leaf.uid for leaf in self.static))
        require_positions(positions)
        streaming, static = positions.get("streaming"), positions.get("static")
        before = self._before(streaming) if streaming else []
        if static is None:
            # Written before static inputs were kept by uid: all that there were had been read, or none.
            read = list(self.static) if positions.get("static_consumed") else []
        else:
            read = [InputLeaf.from_json(value, streaming=False) for value in static]
        fitting = fit_inputs([*dict.fromkeys(line.leaf for line in before), *read], list(self._leaves()), rules)
        _tell(fitting)
        unread = frozenset(leaf.uid for leaf in self.static if fitting.origin(leaf) is None)
        return InputBeginning(self._rearranged(streaming, before, fitting) if streaming else None, unread)

    def _leaves(self) -> Sequence[InputLeaf]:
        return [*dict.fromkeys(line.leaf for line in self.lines), *self.static]

    def _before(self, streaming: Mapping[str, Any]) -> list[Line]:
        """The lines of a checkpoint. One that was written before inputs had uids is taken by place."""
        if "inputs" in streaming:
            return [Line(InputLeaf.from_json(v, streaming=True), int(v["source"])) for v in streaming["inputs"]]
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
        self, streaming: Mapping[str, Any], before: Sequence[Line], fitting: Fitting
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


def uid_of(source: SourcePlan) -> str:
    """The uid of the input that a source of the plan is made of: transforms do not change it."""
    assert source.node is not None
    return input_of(source.node).identity


def _elements_of(source: SourcePlan) -> str:
    assert source.node is not None
    node = input_of(source.node)
    return node.elements if isinstance(node, SourceNode) else ""


def _lines(
    streaming: Sequence[tuple[SourcePlan, DataFrame]], union: DataFrame, session: SparkSession
) -> Sequence[Line]:
    """The lines of the offset log, as Spark counts: by the leaves of the plan, where equal ones are one source."""
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


def lines_of_leaves(leaves: Iterable[tuple[str, Any]], session: SparkSession) -> list[Line]:
    """The lines of the offset log for the leaves of a plan in their order, each with the uid of its input."""
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
        lines.append(Line(named, folder, ignores_missing_files(leaf)))
    return lines


def _tell(fitting: Fitting) -> None:
    new = sorted({uid for (uid, _, _), origin in fitting.origins.items() if origin is None})
    if new:
        logger.info("these inputs begin at their start: %s", ", ".join(map(repr, new)))
    for leaf in fitting.dropped:
        logger.warning("the position of input %r, %s, is dropped, as asked for", leaf.uid, leaf)
