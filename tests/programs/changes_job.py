"""A table that changes, into three tables with a key, in one process without a JVM: for stories that kill it."""

from __future__ import annotations

import argparse
import logging
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from holdfast.common import Row, RowKind
from holdfast.datastream.connectors.database import DatabaseSink
from holdfast.datastream.connectors.delta import DeltaSink
from holdfast.datastream.connectors.iceberg import IcebergSink
from holdfast.testing import EpochProgram

EPOCHS, ROWS = 5, 30


def history() -> tuple[list[list[Row]], dict[int, str]]:
    """Changes of a table as a log has them, epoch by epoch, and the table in the end."""
    chance = random.Random(5)
    table: dict[int, str] = {}
    epochs: list[list[Row]] = []
    for epoch in range(EPOCHS):
        rows: list[Row] = []
        for number in range(ROWS):
            key, name = chance.randrange(20), f"{epoch}-{number}"
            if key not in table:
                rows.append(Row.of_kind(RowKind.INSERT, id=key, name=name))
            elif chance.random() < 0.4:
                rows.append(Row.of_kind(RowKind.DELETE, id=key, name=table.pop(key)))
                continue
            else:
                rows.append(Row.of_kind(RowKind.UPDATE_BEFORE, id=key, name=table.pop(key)))
                key += chance.choice((0, 0, 100))  # some get another key
                rows.append(Row.of_kind(RowKind.UPDATE_AFTER, id=key, name=name))
            table[key] = name
        epochs.append(rows)
    return epochs, table


def catalog(place: Path) -> dict[str, str]:
    """Of the Iceberg table."""
    return {"type": "sql", "uri": f"sqlite:///{place}/catalog.db", "warehouse": f"file://{place}/warehouse"}


def program(place: Path) -> EpochProgram:
    """The job."""
    made = EpochProgram()
    clean = made.source("log", "changelog<id: bigint, name: string>").key_by("id").normalize_changes().uid("clean")
    sinks: dict[str, Any] = {
        "database": DatabaseSink(f"sqlite:///{place}/table.db", "t", key="id", create_table=True),
        "delta": DeltaSink(f"{place}/delta", key="id", create_table=True),
        "iceberg": IcebergSink("test", "db.t", properties=catalog(place), key="id", create_table=True),
    }
    for name, sink in sinks.items():
        clean.sink_to(sink).uid(name)
    return made


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("place", type=Path)
    place = parser.parse_args().place
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    print(program(place).run(place / "job", [{"log": rows} for rows in history()[0]]).value)


if __name__ == "__main__":
    main()
