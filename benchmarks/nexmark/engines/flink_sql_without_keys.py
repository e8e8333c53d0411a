"""Flink SQL that does not know that the ids of persons and auctions are unique, as in the published definition.

Only queries that join by an id differ from those of `flink_sql`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmarks.nexmark.engine import Engine, Settings
from benchmarks.nexmark.engines import flink_sql

QUERIES: Final = ["q3", "q4", "q9", "q20"]


def interpreter(cache: Path) -> str:
    return flink_sql.interpreter(cache)


def make_engine(settings: Settings) -> Engine:
    return flink_sql.FlinkSqlEngine(settings, has_keys=False)
