"""Positions of sources in `_metadata`, and the directory of Spark that is made of them: nothing leaves it."""

import json
import shutil
from collections.abc import Mapping
from typing import Any

from holdfast.kernel.ids import JobID
from holdfast.runtime.graph.input_matching import InputLeaf, InputRules, match_inputs
from holdfast.runtime.graph.source_positions import PlannedLine, rearranged, require_positions
from holdfast.spark.input.positions import QueryDirectory
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.local import LocalFileSystem
from tests.fuzz.document import directory, replaced

ROOT = directory() / "positions"
JOB = JobDirectory(LocalFileSystem(), str(ROOT), JobID("0" * 32))


def parse(data: bytes) -> None:
    try:
        positions: Any = json.loads(data)
    except (ValueError, RecursionError):
        return  # it was JSON when its checkpoint was read
    if not isinstance(positions, Mapping):
        return  # a checkpoint says nothing else
    shutil.rmtree(ROOT, ignore_errors=True)
    replaced(ROOT / ("0" * 32) / "shared" / "a.src", b"{}")
    before = sorted(path for path in directory().rglob("*"))
    try:
        _seed(positions)
    finally:
        seeded = ROOT / "spark"
        outside = [path for path in directory().rglob("*") if seeded not in (path, *path.parents)]
        assert sorted(outside) == before, "something was written beside Spark's directory"


def _seed(positions: Mapping[str, Any]) -> None:
    require_positions(positions)
    streaming = positions.get("streaming")
    lines = [] if streaming is None else streaming.get("inputs", ())
    leaves = [InputLeaf.from_json(value, streaming=True) for value in lines]
    static = [InputLeaf.from_json(value, streaming=False) for value in positions.get("static") or ()]
    match_inputs([*leaves, *static], [InputLeaf("in", 0, "parquet /data/in", "a string")], InputRules(True))
    if streaming is not None:
        QueryDirectory(ROOT / "spark", JOB, 1).seed(streaming)
        plan = [PlannedLine("in", number, number) for number in range(len(leaves))]
        rearranged(streaming, [value["source"] for value in lines], plan)
