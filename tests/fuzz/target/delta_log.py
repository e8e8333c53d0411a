"""The log of a Delta table, as anybody may write it who may write to the table; the sink's client is a library."""

from __future__ import annotations

import shutil

from holdfast.datastream.connectors import delta
from holdfast.datastream.connectors.delta import LOOK_BACK, DeltaSink, _make_durable
from holdfast.types.type_parser import to_type
from tests.fuzz.document import directory, replaced
from tests.fuzz.output import INCARNATION, context

TABLE = directory() / "logged"
PATH = str(TABLE)


def parse(data: bytes) -> None:
    shutil.rmtree(TABLE, ignore_errors=True)
    replaced(TABLE / "_delta_log" / f"{0:020d}.json", data)
    sink = DeltaSink(TABLE)
    sink.check_input(to_type("word string, n bigint"))
    sink.prepare(context("logged"), None)
    committer = sink.create_committer(context("logged"))
    try:
        committer.last_epoch(INCARNATION)
    finally:
        committer.close()
    _make_durable(PATH, delta.require_table(PATH, None).version() - LOOK_BACK)
