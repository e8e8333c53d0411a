"""What a checkpoint says that an IcebergSink has staged: one table gets one snapshot with one file of it, or none."""

from __future__ import annotations

import logging
import shutil
from functools import cache

from pyiceberg.catalog import Catalog, load_catalog

from holdfast.datastream.connectors.iceberg import IcebergSink
from holdfast.datastream.connectors.table_files import FOLDER, parse_target
from tests.fuzz.document import directory
from tests.fuzz.output import ROWS, STAGED_NAME, commit, committable_of, context, request_of, stage

ROOT = directory() / "iceberg"
MINE, BEFORE = ROOT / "mine", ROOT / "before"
STAGED = f"{FOLDER}/line-sink/{STAGED_NAME}.staged"
PROPERTIES = {"type": "sql", "uri": f"sqlite:///{MINE}/catalog.db", "warehouse": f"file://{MINE}"}


def catalog() -> Catalog:
    return load_catalog("fuzzed", **PROPERTIES)


@cache
def before() -> dict[str, str]:
    """A warehouse as it was before; returns what stands for what in inputs."""
    logging.getLogger("pyiceberg").setLevel(logging.CRITICAL)
    shutil.rmtree(ROOT, ignore_errors=True)
    MINE.mkdir(parents=True)
    catalog().create_namespace("db")
    table = catalog().create_table("db.t", ROWS.schema)
    place = table.location().removeprefix("file://")
    size = stage(MINE / place / STAGED)
    shutil.move(MINE, BEFORE)
    stage(ROOT / "staging" / f"{STAGED_NAME}.parquet")
    return {"table": place, "identity": str(table.metadata.table_uuid), "size": str(size)}


def parse(data: bytes) -> None:
    try:
        committable = committable_of(data, **before())
    except (ValueError, RecursionError):
        return
    parse_target("IcebergSink", [request_of(committable)])  # as the committer does first
    shutil.rmtree(MINE, ignore_errors=True)
    shutil.copytree(BEFORE, MINE)
    key = () if "staged" in committable else "word"
    sink = IcebergSink("fuzzed", "db.t", properties=PROPERTIES, key=key)
    try:
        commit(sink.create_committer(context("iceberg")), committable)
    finally:
        table = catalog().load_table("db.t")
        rows = table.scan().to_arrow().to_pylist()
        assert rows == (ROWS.to_pylist() if table.current_snapshot() else []), "other rows than those of the file"
