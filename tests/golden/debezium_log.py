"""What a real Debezium told of two tables of a real Postgres, as `scripts/record_debezium.py` has recorded it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

RECORDING = Path(__file__).with_name("debezium.jsonl.gz")
END = {1: ("rock", 7), 4: (None, 1), 5: ("sea again", 3), 6: ('é漢"\\', 3), 7: ("short", 3), 99: (None, 3)}
"""What was in both tables in the end: name and steps by id."""


def records(topic: str) -> list[tuple[str, bytes | None]]:
    """Keys and values of a topic; there is no value behind a deletion."""
    with gzip.open(RECORDING, "rt", encoding="utf-8") as lines:
        found = [record for record in map(json.loads, lines) if record["topic"] == topic]
    return [(record["key"], None if record["value"] is None else record["value"].encode()) for record in found]
