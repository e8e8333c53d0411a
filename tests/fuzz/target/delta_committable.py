"""What a checkpoint says that a DeltaSink has staged: one table gets one version with one file of it, or none."""

from __future__ import annotations

import shutil
from functools import cache

from deltalake import DeltaTable, Schema

from holdfast.datastream.connectors.delta import DeltaSink
from holdfast.datastream.connectors.table_files import FOLDER, parse_target
from tests.fuzz.document import directory
from tests.fuzz.output import ROWS, STAGED_NAME, commit, committable_of, context, request_of, stage

ROOT = directory() / "delta"
MINE = ROOT / "mine"
STAGED = f"{FOLDER}/line-sink/{STAGED_NAME}.staged"


@cache
def before() -> tuple[str, int]:
    """A table as it was before, and one of others; returns the identity of the first, and the size of a file."""
    shutil.rmtree(ROOT, ignore_errors=True)
    for name in ("before", "others"):
        DeltaTable.create(ROOT / name, Schema.from_arrow(ROWS.schema))
        size = stage(ROOT / name / STAGED)
    stage(ROOT / "staging" / f"{STAGED_NAME}.parquet")
    return DeltaTable(ROOT / "before").metadata().id, size


def parse(data: bytes) -> None:
    identity, size = before()
    try:
        committable = committable_of(data, root=str(ROOT), identity=identity, size=str(size))
    except (ValueError, RecursionError):
        return
    parse_target("DeltaSink", [request_of(committable)])  # as the committer does first
    shutil.rmtree(MINE, ignore_errors=True)
    shutil.copytree(ROOT / "before", MINE)
    sink = DeltaSink(MINE, key=() if "staged" in committable else "word")
    others = sorted((ROOT / "others").rglob("*"))
    try:
        commit(sink.create_committer(context("delta")), committable)
    finally:
        assert sorted((ROOT / "others").rglob("*")) == others, "something happened to the table of others"
        table = DeltaTable(MINE)
        assert table.version() in (0, 1)
        assert table.to_pyarrow_table().to_pylist() == (ROWS.to_pylist() if table.version() else [])
