"""The events as Parquet files, made once for all engines: by epoch, and the same row groups as two files a kind.

    python benchmarks/nexmark/files.py DIRECTORY [--events 1000000] [--epoch 500000] [--json]

Engines that read one file an epoch take `epochs/KIND/`. Flink's file source takes files in no particular order, so it
reads `whole/KIND/`: two files, one for each of its readers, each in the order of the events. Both places have the same
row groups; `whole` shares them out between its two files.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # started by its path
    sys.path.insert(0, str(ROOT))

from benchmarks.nexmark.events import TYPES, Rules, chunk_of_events  # noqa: E402

READERS = 2
GROUP = 100_000
"""Rows of a row group, so that all cores can read the file of an epoch."""
FORM = 2
"""Version of the events and their files; it is in the name of the directory, so that older ones are not read."""
SIDE_ROWS = 10_000
FIRST_FILE_TIME = 1_700_000_000


def events_on_disk(cache: Path, events: int, epoch: int, rules: Rules | None = None) -> Path:
    """The directory with so many events, made if it is not there.

    Args:
        cache: Where such directories are kept.
        events: How many, of all kinds together; a multiple of `epoch`.
        epoch: Events an epoch.
        rules: By which they are made; those of the benchmark unless given.

    Raises:
        ValueError: The events are no whole number of epochs.
    """
    if epoch < 1 or events % epoch:
        raise ValueError(f"{events} events are not a whole number of epochs of {epoch} events.")
    rules = rules or Rules()
    name = f"events-{events}-epoch-{epoch}-rate-{rules.rate}-shuffled-{rules.shuffled}-seed-{rules.seed}-form-{FORM}"
    folder = cache / name
    if folder.exists():
        return folder
    unfinished = cache / f"{name}.{os.getpid()}"
    if unfinished.exists():
        shutil.rmtree(unfinished)
    for place in ("epochs", "whole"):
        for kind in TYPES:
            (unfinished / place / kind).mkdir(parents=True)
    wholes = [Wholes(unfinished / "whole" / kind) for kind in TYPES]
    for number, tables in enumerate(_epochs(rules, events, epoch)):
        for (kind, table), whole in zip(tables.items(), wholes, strict=True):
            path = unfinished / "epochs" / kind / f"epoch-{number:06d}.parquet"
            pq.write_table(table, path, row_group_size=GROUP)
            # Spark's file source goes by modification time; a second apart, so that the order is certain.
            os.utime(path, (FIRST_FILE_TIME + number, FIRST_FILE_TIME + number))
            whole.write(table)
    for whole in wholes:
        whole.close()
    side = pa.table({"key": range(SIDE_ROWS), "value": [str(key) for key in range(SIDE_ROWS)]})
    (unfinished / "side").mkdir()
    pq.write_table(side, unfinished / "side" / "side.parquet")
    unfinished.rename(folder)
    return folder


class Wholes:
    """The two files of a kind; each row group goes to the file with fewer rows, so that both are at the same time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: list[pq.ParquetWriter] = []
        self._rows = [0] * READERS

    def write(self, table: pa.Table) -> None:
        if not self._writers:
            paths = [self._folder / f"part-{reader}.parquet" for reader in range(READERS)]
            self._writers = [pq.ParquetWriter(path, table.schema) for path in paths]
        for begin in range(0, len(table), GROUP):
            group = table.slice(begin, GROUP)
            reader = self._rows.index(min(self._rows))
            self._rows[reader] += len(group)
            self._writers[reader].write_table(group, row_group_size=GROUP)

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


def rows_of(folder: Path, kinds: tuple[str, ...]) -> int:
    """How many events of some kinds a directory has."""
    paths = [path for kind in kinds for path in (folder / "epochs" / kind).glob("*.parquet")]
    return sum(pq.read_metadata(path).num_rows for path in paths)


def _epochs(rules: Rules, events: int, epoch: int) -> Iterator[dict[str, pa.Table]]:
    """The events, epoch by epoch, whatever the size of a chunk."""
    chunk = Rules(rules.seed, rules.rate, rules.shuffled, epoch)
    for number in range(events // epoch):
        yield chunk_of_events(chunk, number)


def main(arguments: list[str] | None = None) -> int:
    """Makes the files and says where they are."""
    parser = argparse.ArgumentParser(description="Make the events of Nexmark as Parquet files.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--epoch", type=int, default=500_000, help="events an epoch")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    started = time.monotonic()
    try:
        folder = events_on_disk(chosen.directory, chosen.events, chosen.epoch)
    except ValueError as error:
        parser.error(str(error))
    facts = {"directory": str(folder), "events": chosen.events, "seconds": round(time.monotonic() - started, 2)}
    print(json.dumps(facts) if chosen.json else "{events:,} events in {seconds} s: {directory}".format(**facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
