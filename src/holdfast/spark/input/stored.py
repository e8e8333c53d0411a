"""The positions of sources as a checkpoint holds them, checked as a whole before anything is made of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from holdfast.errors import RestoreError
from holdfast.kernel.malformed import MALFORMED
from holdfast.spark.input.offset_log import require_plain

_BATCH: Final = re.compile(r"[0-9]{1,19}")
_LEAF: Final = {"uid": str, "ordinal": int, "reads": str, "schema": str}


def require_positions(positions: Any) -> None:
    """Make sure that positions have the form that is written, and that no name in them leads elsewhere.

    Raises:
        RestoreError: They have another one.
        ConfigurationError: Spark wrote offsets in a form that names sources.
    """
    try:
        for leaf in positions.get("static") or ():
            _require_fields(leaf, _LEAF)
        streaming = positions.get("streaming")
        if streaming is not None:
            _require_streaming(streaming)
    except MALFORMED as error:
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
