"""Whether the engines give the answers of Nexmark: each query is run, and its result is compared with DuckDB's.

    python benchmarks/nexmark/check.py [--engine holdfast,flink-sql] [--query q4,q9] [--events 20000] [--in-order]

The events are slow enough for several windows, and half a second out of order. With `--in-order` they are those of the
benchmark, in the files of the benchmark: `--in-order --events 4000000 --epoch 1000000` judges what `run.py` measures.

q12 has no answer, because its windows are of the clock, and those that are open at the end do not fire in Flink or
here: no bidder may have more bids than there are. Flink SQL's q7 has the answer of its published text, which also takes
a bid at the end of a window.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # started by its path
    sys.path.insert(0, str(ROOT))

import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

from benchmarks.nexmark.answers import PUBLISHED, connect, difference  # noqa: E402
from benchmarks.nexmark.engine import Settings, engine_module  # noqa: E402
from benchmarks.nexmark.engines.flink_sql import CHANGING  # noqa: E402
from benchmarks.nexmark.events import TYPES, Rules  # noqa: E402
from benchmarks.nexmark.files import events_on_disk  # noqa: E402
from benchmarks.nexmark.queries import QUERIES  # noqa: E402
from benchmarks.nexmark.run import EngineProcess, names_of  # noqa: E402

RULES: Final = Rules(rate=200, shuffled=100)
ENGINES: Final = ("holdfast", "holdfast-real-time", "flink-sql", "flink-sql-without-keys", "pyflink")
_TIMED: Final = "* exclude (ts), epoch_ms(ts) as date_time"
OF_FLINK_SQL: Final = {
    **dict.fromkeys(("q0", "q1", "q7", "q14", "q18"), _TIMED),
    "q8": "* exclude (window_start), epoch_ms(window_start) as starts",
    "q11": "* replace (epoch_ms(window_start) as window_start, epoch_ms(window_end) as window_end)",
    "q19": f"{_TIMED}, place as rank_number",
}
"""Columns of Flink SQL's results that have other names or types than those of the answers."""


def show_result(connection: Any, engine: str, query: str, results: Path) -> None:
    """Create the view `result` of a directory of results, with `epoch_` and `row_`, the order of its rows.

    The files of Holdfast have the epoch in their names. In Flink keys do not change the file but where a checkpoint
    begins the next one of a subtask; its number is in the name.
    """
    of_holdfast, of_flink = ("part-([0-9]+)-", "part-*.parquet"), ("-([0-9]+)$", "part-*")
    pattern, files = of_holdfast if engine.startswith("holdfast") else of_flink
    rows = (
        f"select * exclude (filename, file_row_number), cast(regexp_extract(filename, '{pattern}', 1) as bigint) as "
        f"epoch_, file_row_number as row_ from read_parquet('{results}/{files}', filename = true, "
        "file_row_number = true, hive_partitioning = false)"
    )
    if engine.startswith("flink-sql"):
        if query in CHANGING:
            change = "case when op in ('INSERT', 'UPDATE_AFTER') then 1 else -1 end"
            counted = f"select * exclude (op), sum({change}) as n from ({_without_order(rows)}) group by all"
            rows = f"select * exclude (n), 0 as epoch_, unnest(range(n::bigint)) as row_ from ({counted})"
        if query in OF_FLINK_SQL:
            rows = f"select {OF_FLINK_SQL[query]} from ({rows})"
    connection.execute(f"create view result as {rows}")


def _without_order(rows: str) -> str:
    return f"select * exclude (epoch_, row_) from ({rows})"


def judged(engine: str, query: str, folder: Path, results: Path) -> tuple[int, str | None]:
    """How many rows an engine's result of a query has, and what is wrong with it; None if nothing is."""
    if not any(path.is_file() for path in results.glob("part-*")):
        return 0, None if query == "q12" else f"{query}: there is no result."
    connection = connect(folder)
    show_result(connection, engine, query, results)
    [rows] = connection.execute("select count(*) from result").fetchone()
    if query == "q12":
        [wrong] = connection.execute(
            "select count(*) from (select bidder, sum(bid_count) as n from result group by all) r "
            "left join (select bidder, count(*) as n from bid group by all) b using (bidder) "
            "where b.n is null or r.n > b.n"
        ).fetchone()
        return rows, f"{query}: {wrong} bidders have more bids than there are." if wrong else None
    is_changelog = engine.startswith("holdfast") or engine == "pyflink"
    answer = PUBLISHED.get(query) if engine.startswith("flink-sql") else None
    problem = difference(connection, query, QUERIES[query].keys if is_changelog else (), answer)
    return rows, problem or (None if rows else f"{query}: there is no row.")


def files_of(cache: Path, chosen: argparse.Namespace, workspace: Path) -> Path:
    """The events in a directory, as engines read them."""
    if chosen.in_order:
        return events_on_disk(cache / "nexmark", chosen.events, chosen.epoch or chosen.events)
    folder = events_on_disk(cache / "nexmark", chosen.events, chosen.epoch or chosen.events, RULES)
    # For Flink one file a kind: of two that are small one reader may take both, and what is in the second is late then.
    events = workspace / "events"
    for kind in TYPES:
        (events / "whole" / kind).mkdir(parents=True)
        tables = [pq.read_table(path) for path in sorted((folder / "epochs" / kind).glob("*.parquet"))]
        pq.write_table(pa.concat_tables(tables), events / "whole" / kind / "all.parquet")
    (events / "epochs").symlink_to(folder / "epochs")
    return events


def main(arguments: list[str] | None = None) -> int:
    """Runs and judges; the exit code says whether all is right."""
    parser = argparse.ArgumentParser(description="Judge the answers of engines to the queries of Nexmark.")
    parser.add_argument(
        "--engine",
        type=lambda text: names_of(text, ENGINES, "engine"),
        default=["holdfast", "flink-sql", "pyflink"],
        help=f"names, separated by commas, of {', '.join(ENGINES)} (default: holdfast,flink-sql,pyflink)",
    )
    parser.add_argument(
        "--query",
        type=lambda text: names_of(text, list(QUERIES), "query"),
        default=list(QUERIES),
        help="names, separated by commas (default: all)",
    )
    parser.add_argument("--events", type=int, default=20_000, help="of all kinds together (default: %(default)s)")
    parser.add_argument("--epoch", type=int, help="events an epoch (default: all)")
    parser.add_argument("--in-order", action="store_true", help="the events and files of the benchmark")
    parser.add_argument("--cache", type=Path, default=ROOT / ".bench", help="generated events and environments")
    chosen = parser.parse_args(arguments)
    cache = chosen.cache.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    is_right = True
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the engines are ended too
    with tempfile.TemporaryDirectory(prefix="nexmark-", dir=cache, ignore_cleanup_errors=True) as place:
        workspace = Path(place)
        events = files_of(cache, chosen, workspace)
        for name in chosen.engine:
            results = workspace / f"results-{name}"
            engine = EngineProcess(name, Settings(str(events), str(workspace / name), str(cache), str(results)))
            try:
                for query in chosen.query:
                    if query not in engine_module(name).QUERIES:
                        continue
                    engine.run(query)
                    rows, problem = judged(name, query, events, results / query)
                    is_right &= problem is None
                    print(f"{name}: {query}: {rows:,} rows: {problem or verdict(query)}", flush=True)
            finally:
                engine.close()
    return int(not is_right)


def verdict(query: str) -> str:
    """What is said of a result with which nothing is wrong."""
    return "no more bids than there are" if query == "q12" else "the answer of DuckDB"


if __name__ == "__main__":
    sys.exit(main())
