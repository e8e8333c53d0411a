"""A query as a real-time job of Holdfast over the files of a directory."""

from __future__ import annotations

from typing import Final

from benchmarks.nexmark.engine import Engine, Settings
from benchmarks.nexmark.engines.holdfast import HoldfastEngine
from benchmarks.nexmark.queries import QUERIES as ALL
from holdfast.spark.session import REAL_TIME_DEFAULTS

QUERIES: Final = [name for name, query in ALL.items() if not query.needs_spark]
SLOTS: Final = 16
"""Each task of a real-time job holds a slot, and all of them share the same two cores."""


def make_engine(settings: Settings) -> Engine:
    spark = {**REAL_TIME_DEFAULTS, "spark.master": f"local[{SLOTS}]"}
    return HoldfastEngine(settings, spark, {"execution.trigger": "real-time"})
