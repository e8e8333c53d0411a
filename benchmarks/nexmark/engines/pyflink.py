"""PyFlink 2.3's DataStream in thread mode, for queries with state: what its documentation would have one write.

The rows come from Flink's reader of Parquet and go to Flink's sink that drops them; the functions are Python's. The
programs are in modules of their own, which import PyFlink: only its own environment has it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

from benchmarks.nexmark.engine import Engine, Settings
from benchmarks.nexmark.engines import flink_sql

QUERIES: Final = [
    *("q1", "q4", "q5", "q7", "q8", "q9", "q11", "q12", "q15", "q16", "q17", "q18", "q19", "q20"),
]
"""Without state one is as good as all (q1); q3 is a join as q20, and q6 needs what Flink SQL cannot say either."""


def interpreter(cache: Path) -> str:
    return flink_sql.interpreter(cache)


class PyFlinkEngine:
    """One job a run, in a JVM that stays."""

    def __init__(self, settings: Settings) -> None:
        from benchmarks.nexmark.engines import pyflink_changing, pyflink_joined, pyflink_windows

        self._programs = {**pyflink_changing.PROGRAMS, **pyflink_joined.PROGRAMS, **pyflink_windows.PROGRAMS}
        options = {
            "python.execution-mode": "thread",
            "python.executable": sys.executable,
            # Checkpoints of session windows fail there (q11); the job goes on without them, which costs it nothing.
            "execution.checkpointing.tolerable-failed-checkpoints": "1000000",
        }
        self._settings = settings
        self._tables = flink_sql.table_environment(settings, options)
        self._runs = 0

    def run(self, query: str) -> None:
        self._runs += 1
        build, names = self._programs[query]
        found = self._tables.from_data_stream(build(self._events)).alias(*names.split(", "))
        sink = f"sink_{self._runs}"
        if self._settings.results is None:
            flink_sql.into_nowhere(self._tables, found, sink)
        else:
            place = Path(self._settings.results, query).resolve().as_uri()
            options = f"'connector' = 'filesystem', 'path' = '{place}', 'format' = 'parquet'"
            flink_sql.into(self._tables, found, sink, options)

    def _events(self, kind: str) -> Any:
        """A stream of all columns of a kind of event."""
        names = ", ".join(column.split()[0] for column in flink_sql.TYPES[kind].split(", "))
        return self._tables.to_data_stream(self._tables.sql_query(f"select {names} from {kind}"))

    def close(self) -> None:
        pass


def make_engine(settings: Settings) -> Engine:
    flink_sql.show_environment()
    return PyFlinkEngine(settings)
