r"""Positions of the inputs of a job in a checkpoint: their form, which all engines share. No I/O.

A stream has a line in entries of Spark's offset log, also where no Spark has read it. An input that is read once is
listed when it was read to its end::

    {
        "static": [{"uid": "cities", "ordinal": 0, "reads": "...", "schema": "..."}],
        "streaming": {
            "batch_id": 7,
            "offsets": {"6": "v1\n{...}\n{...}", "7": "v1\n{...}\n{...}"},
            "sources": {"0/3": {"path": "shared/...", "size": 120, "digest": "..."}},
            "inputs": [{"uid": "words", "ordinal": 0, "reads": "...", "schema": "...", "source": 0}],
        },
    }

Real-time jobs write the same, with a number of their own as batch. What jobs by epochs cannot express is under
`splits`: an input of which a part was read, although epochs read it as a whole, and one that only real-time jobs read::

        "splits": [{"leaves": [{"uid": "numbers", ..., "streaming": false}], "positions": {"numbers": ...}}]
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.checkpoint.replay import AGAIN
from holdfast.errors import ConfigurationError, RestoreError
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.kernel.secret import get_logger
from holdfast.runtime.graph.input_matching import ANEW, KEEP, InputLeaf, InputMapping
from holdfast.runtime.graph.plan import JobPlan
from holdfast.runtime.graph.stream_graph import SourceNode, input_of

logger = get_logger(__name__)

NO_OFFSET: Final = "-"
"""The line of a source that has no offset yet."""
_VERSION: Final = "v1"
_HEADER: Final = 2
_BATCH: Final = re.compile(r"[0-9]{1,19}")
_LEAF: Final = {"uid": str, "ordinal": int, "reads": str, "schema": str}
_SETTINGS: Final = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'
"""The line of settings in an entry that Spark has not written. Spark takes the settings of its session then."""


# Entries of Spark's offset log, rewritten for other sources. An entry has a line with its version, one with settings,
# and one for each source of the plan, in its order: its offset, or `-` if it has none yet, which makes Spark
# begin at the start of the source. A source keeps its files in a folder `sources/<n>`; equal frames share one.


def require_plain(text: str) -> list[str]:
    """Return the lines of the sources in an entry of the offset log.

    Raises:
        ConfigurationError: Spark wrote it in another form, which names sources.
    """
    version, *rest = text.split("\n")
    if version != _VERSION:
        raise ConfigurationError(
            f"Spark writes the offsets of this job in the form {version!r}, but Holdfast reads {_VERSION!r}: unset "
            "spark.sql.streaming.queryEvolution.enableSourceEvolution and call no DataStreamReader.name(); .uid() "
            "gives an input its name"
        )
    return rest[_HEADER - 1 :]


def lines_of(streaming: Mapping[str, Any]) -> int:
    return len(require_plain(streaming["offsets"][str(streaming["batch_id"])]))


def offsets_of(streaming: Mapping[str, Any]) -> list[int]:
    """Return for each line the number of the last entry that its source of files read; -1 for none or other sources."""
    return [log_offset(line) for line in require_plain(streaming["offsets"][str(streaming["batch_id"])])]


def log_offset(line: str) -> int:
    """Return the number of the last entry that a source of files has read; -1 for none or other sources."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return -1
    offset = said.get("logOffset", -1) if isinstance(said, dict) else said
    return offset if type(offset) is int else -1


@dataclass(frozen=True)
class PlannedLine:
    """A line of the plan for which positions are made.

    Attributes:
        uid: Uid of its input.
        folder: Folder of its source.
        origin: The line whose position it takes, None for a source that begins at its start.
        elsewhere: Whether it reads something else than that line did. Spark plans the last batch of some sources once
            more when it continues, which must not find what was read there; so it has no position for them.
    """

    uid: str
    folder: int
    origin: int | None
    elsewhere: bool = False


def rearranged(
    streaming: Mapping[str, Any], before: Sequence[int], plan: Sequence[PlannedLine]
) -> dict[str, Any] | None:
    """Return the positions of a checkpoint, for the sources of another plan.

    Args:
        streaming: Positions as `QueryDirectory.positions` gives them.
        before: The folder of each line.
        plan: The lines of the plan.

    Returns:
        None if no source continues from anywhere.

    Raises:
        RestoreError: Lines that share a source are to begin at different places.
    """
    if all(line.origin is None for line in plan):
        return None
    batch, texts = int(streaming["batch_id"]), dict(streaming["offsets"])
    if any(line.elsewhere for line in plan) and len(texts) == 1:
        texts = {str(batch): texts[str(batch)], str(batch + 1): texts[str(batch)]}
        batch += 1
    newest = require_plain(texts[str(batch)])
    entries: dict[str, list[str]] = {}
    for number, text in texts.items():
        lines = require_plain(text)
        entries[number] = [
            NO_OFFSET if line.origin is None else (newest if line.elsewhere else lines)[line.origin] for line in plan
        ]
    _require_shared(before, plan, [tuple(entry[n] for entry in entries.values()) for n in range(len(plan))])
    sources: dict[str, Any] = {}
    for line in plan:
        if line.origin is not None:
            old = f"{before[line.origin]}/"
            inside = ((name, handle) for name, handle in streaming["sources"].items() if name.startswith(old))
            sources |= {f"{line.folder}/{name.removeprefix(old)}": handle for name, handle in inside}
    header = {number: text.split("\n")[:_HEADER] for number, text in texts.items()}
    offsets = {number: "\n".join([*header[number], *entry]) for number, entry in entries.items()}
    again = {AGAIN: True} if streaming.get(AGAIN) else {}
    return {"batch_id": batch, "offsets": offsets, "sources": sources, **again}


def _require_shared(before: Sequence[int], plan: Sequence[PlannedLine], positions: Sequence[tuple[str, ...]]) -> None:
    """Reject lines that share a source and do not begin at one place."""
    first: dict[int, tuple[str, Any]] = {}
    for line, position in zip(plan, positions, strict=True):
        place = (None if line.origin is None else before[line.origin], position)
        uid, other = first.setdefault(line.folder, (line.uid, place))
        if place != other:
            raise _different_places(uid, line.uid)


def _different_places(uid: str, other: str) -> RestoreError:
    return RestoreError(
        message=f"the inputs {uid!r} and {other!r} are one frame of Spark, which reads it once, but they do not begin "
        "at the same place (one may be new): give each a frame of its own, by calling spark.readStream for each"
    )


def require_positions(positions: Any) -> None:
    """Check that positions have the written form, and that no name in them leads elsewhere.

    Raises:
        RestoreError: They have another one.
        ConfigurationError: Spark wrote offsets in a form that names sources.
    """
    try:
        for leaf in positions.get("static") or ():
            _require_fields(leaf, _LEAF)
        for entry in positions.get("splits") or ():
            _require_fields(entry, {"leaves": list, "positions": dict})
            _require(entry["leaves"] != [] and entry["positions"] != {}, "splits are of no input")
            for leaf in entry["leaves"]:
                _require_fields(leaf, _LEAF | {"streaming": bool})
        streaming = positions.get("streaming")
        if streaming is not None:
            _require_streaming(streaming)
    except PARSE_ERRORS as error:
        raise RestoreError(
            message=f"the positions of sources in the checkpoint are not what was written: {error!r:.300}. Start from "
            "another checkpoint or savepoint (-s PATH), or without state (--fresh)"
        ) from error


def _require_streaming(streaming: Mapping[str, Any]) -> None:
    _require_fields(streaming, {"batch_id": int, "offsets": dict, "sources": dict})
    batch, offsets = streaming["batch_id"], streaming["offsets"]
    _require(str(batch) in offsets, f"there is no entry for batch {batch}")
    counts = {len(require_plain(text)) for text in offsets.values()}
    _require(len(counts) == 1 and all(map(_BATCH.fullmatch, offsets)), "the entries are not of one plan")
    if "inputs" in streaming:
        inputs = streaming["inputs"]
        _require(type(inputs) is list and {len(inputs)} == counts, "the entries have another number of lines")
        for leaf in inputs:
            _require_fields(leaf, _LEAF | {"source": int})
            _require(leaf["source"] >= 0, "a source has no folder")
    "".join([*offsets.values(), *streaming["sources"]]).encode()
    for name, handle in streaming["sources"].items():
        # It becomes a path below a directory of ours, and may not lead out of it.
        _require(
            {"", ".", ".."}.isdisjoint(name.split("/")) and "\0" not in name, f"{name!r:.80} is no file of a source"
        )
        _require_fields(handle, {"path": str, "size": int, "digest": str})
        _require(handle["size"] >= 0, f"{name!r:.80} has no size")


def _require_fields(value: Mapping[str, Any], kinds: Mapping[str, type]) -> None:
    _require(type(value.get("elements", "")) is str, "'elements' is no text")
    for name, kind in kinds.items():
        _require(type(value[name]) is kind, f"{name!r} is {value[name]!r:.80}")
        if kind is str:
            value[name].encode()


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise ValueError(problem)


@dataclass(frozen=True)
class OffsetLine:
    """One line of Spark's offset log.

    Attributes:
        leaf: The input whose position it is.
        folder: Number of the folder of its source.
        ignores_missing: Whether the input skips missing files.
    """

    leaf: InputLeaf
    folder: int
    ignores_missing: bool = False

    def to_json(self) -> dict[str, Any]:
        return {**self.leaf.to_json(), "source": self.folder}


@dataclass(frozen=True)
class JobInputs:
    """The inputs of a job, as positions know them.

    Attributes:
        lines: The lines of streaming inputs in Spark's offset log.
        static: The inputs that are read once, as a whole.
    """

    lines: tuple[OffsetLine, ...]
    static: tuple[InputLeaf, ...]

    @classmethod
    def of(cls, plan: JobPlan) -> JobInputs:
        """Return what a plan says of its inputs, each with one leaf."""
        nodes = dict.fromkeys(input_of(source.node) for source in plan.sources if source.node is not None)
        leaves = []
        for node in nodes:
            assert isinstance(node, SourceNode)
            schema = node.element_type.ddl
            leaves.append(InputLeaf(node.identity, 0, node.reads, schema, node.is_streaming, node.elements))
        streams = [leaf for leaf in leaves if leaf.streaming]
        lines = tuple(OffsetLine(leaf, folder) for folder, leaf in enumerate(streams))
        return cls(lines, tuple(leaf for leaf in leaves if not leaf.streaming))

    def all_leaves(self) -> list[InputLeaf]:
        """Return the leaves of all inputs: equal lines are one leaf."""
        return [*dict.fromkeys(line.leaf for line in self.lines), *self.static]

    def leaves(self, uid: str) -> list[InputLeaf]:
        """Return the leaves of one input."""
        return [leaf for leaf in self.all_leaves() if leaf.uid == uid]


@dataclass(frozen=True)
class SplitPosition:
    """The position of an input that only a real-time job can continue.

    Attributes:
        leaves: The input.
        positions: Positions of its sources, by uid: frames that functions make of one input are read by themselves.
    """

    leaves: tuple[InputLeaf, ...]
    positions: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        leaves = [{**leaf.to_json(), "streaming": leaf.streaming} for leaf in self.leaves]
        return {"leaves": leaves, "positions": dict(self.positions)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SplitPosition:
        leaves = (InputLeaf.from_json(leaf, streaming=leaf["streaming"]) for leaf in value["leaves"])
        return cls(tuple(leaves), value["positions"])


def stored_lines(positions: Mapping[str, Any]) -> list[OffsetLine]:
    """Return the streaming inputs of a checkpoint, in the order of their lines."""
    streaming = positions.get("streaming") or {}
    found = streaming.get("inputs", ())
    return [OffsetLine(InputLeaf.from_json(value, streaming=True), int(value["source"])) for value in found]


def stored_files(positions: Mapping[str, Any]) -> dict[InputLeaf, dict[str, Any]]:
    """Return the handles of the files that each stream remembers, by name."""
    sources = (positions.get("streaming") or {}).get("sources", {})
    found: dict[InputLeaf, dict[str, Any]] = {}
    for line in stored_lines(positions):
        inside = f"{line.folder}/"
        found[line.leaf] = {name.removeprefix(inside): sources[name] for name in sources if name.startswith(inside)}
    return found


def stored_static(positions: Mapping[str, Any], present: Sequence[InputLeaf]) -> list[InputLeaf]:
    """Return the static inputs that were read to their end.

    Args:
        positions: The positions.
        present: The static inputs that the program has: before checkpoints knew them by uid, all or none were read.
    """
    static = positions.get("static")
    if static is None:
        return list(present) if positions.get("static_consumed") else []
    return [InputLeaf.from_json(value, streaming=False) for value in static]


def stored_splits(positions: Mapping[str, Any]) -> list[SplitPosition]:
    """Return the positions that only a real-time job can continue."""
    return [SplitPosition.from_json(value) for value in positions.get("splits") or ()]


def offset_entry(offsets: Sequence[Any]) -> str:
    """Return an entry of Spark's offset log with these offsets; None for a source that has none yet."""
    lines = [NO_OFFSET if offset is None else json.dumps(offset, separators=(",", ":")) for offset in offsets]
    return "\n".join([_VERSION, _SETTINGS, *lines])


def log_changes(mapping: InputMapping) -> None:
    """Log the inputs that begin at their start, edited collections, and the dropped positions."""
    new = sorted({uid for (uid, _, _), origin in mapping.origins.items() if origin is None})
    if new:
        logger.info("inputs that begin at their start: %s", ", ".join(map(repr, new)))
    for leaf in mapping.edited:
        logger.warning(
            "the elements of input %r, a from_collection(), have changed. The job continues at its position in the old "
            "elements, and does not read elements again. To read the new ones, set %s: %s, or start with --fresh. To "
            "keep the position without this warning, set %s: %s",
            leaf.uid,
            ANEW,
            leaf.uid,
            KEEP,
            leaf.uid,
        )
    for leaf in mapping.dropped:
        logger.warning("the position of input %r, %s, is dropped, as configured", leaf.uid, leaf)
