"""Whether PyFlink's programs give the answers of Nexmark: each is run over few events, and judged by DuckDB.

    python benchmarks/nexmark/check.py [--query q4,q9] [--events 20000]

Holdfast's programs are judged by the tests, killed and not. The events are slow enough for several windows, and half a
second out of order. q12 has no answer: its windows are of the clock, and Flink drops those that are open at the end.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # started by its path
    sys.path.insert(0, str(ROOT))

from benchmarks.nexmark.answers import connect, difference  # noqa: E402
from benchmarks.nexmark.engine import Settings, engine_module  # noqa: E402
from benchmarks.nexmark.events import Rules  # noqa: E402
from benchmarks.nexmark.files import events_on_disk  # noqa: E402
from benchmarks.nexmark.queries import QUERIES  # noqa: E402
from benchmarks.nexmark.run import EngineProcess, names_of  # noqa: E402

RULES: Final = Rules(rate=200, shuffled=100)
JUDGED: Final = [name for name in engine_module("pyflink").QUERIES if name != "q12"]


def judged(query: str, folder: Path, results: Path) -> tuple[int, str | None]:
    """How many rows are in a directory of results, and what is wrong with them; None if nothing is.

    Keys do not change the file, but where a checkpoint begins the next one of a subtask; its number is in the name.
    """
    connection = connect(folder)
    files = f"'{results}/**/part-*', filename = true, file_row_number = true"
    number = "cast(regexp_extract(filename, '-([0-9]+)$', 1) as bigint)"
    connection.execute(
        f"create view result as select * exclude (filename, file_row_number), {number} as epoch_, "
        f"file_row_number as row_ from read_parquet({files})"
    )
    [rows] = connection.execute("select count(*) from result").fetchone()
    return rows, difference(connection, query, QUERIES[query].keys)


def main(arguments: list[str] | None = None) -> int:
    """Runs and judges; the exit code says whether all is right."""
    parser = argparse.ArgumentParser(description="Judge the answers of PyFlink's programs of Nexmark.")
    parser.add_argument("--query", type=lambda text: names_of(text, JUDGED, "query"), default=JUDGED)
    parser.add_argument("--events", type=int, default=20_000, help="of all kinds together (default: %(default)s)")
    parser.add_argument("--cache", type=Path, default=ROOT / ".bench", help="generated events and environments")
    chosen = parser.parse_args(arguments)
    cache = chosen.cache.resolve()
    folder = events_on_disk(cache / "nexmark", chosen.events, chosen.events, RULES)
    is_right = True
    with tempfile.TemporaryDirectory(prefix="nexmark-", dir=cache, ignore_cleanup_errors=True) as workspace:
        events, results = Path(workspace, "events"), Path(workspace, "results")
        # One file a kind: of two that are small one reader may take both, and what is in the second is late then.
        events.mkdir()
        (events / "whole").symlink_to(folder / "epochs")
        engine = EngineProcess("pyflink", Settings(str(events), f"{workspace}/pyflink", str(cache), str(results)))
        try:
            for query in chosen.query:
                engine.run(query)
                rows, problem = judged(query, folder, results / query)
                is_right &= problem is None and rows > 0
                print(f"{query}: {rows:,} rows: {problem or 'the answer of DuckDB'}", flush=True)
        finally:
            engine.close()
    return int(not is_right)


if __name__ == "__main__":
    sys.exit(main())
