"""The generated input: one or several Parquet files an epoch, the same for every engine."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness.workload import Workload

DDL = "key string, value long, ts long"
LINES = "line string"
FIRST_FILE_TIME = 1_700_000_000


def epoch_files(workload: Workload, epoch: int) -> list[Path]:
    """The files of an epoch, generated if they are not there: a string key, uniform over all keys, and two longs.

    If the state is to be filled, the first epochs have all keys in their order instead. Lines of text are made of the
    same keys.
    """
    filled = f"-{workload.fill}-fill" if workload.fill else ""
    lines = f"-{workload.words}-a-line" if workload.words else ""
    several = f"-{workload.files}-files" if workload.files > 1 else ""
    folder = Path(workload.inputs) / f"{workload.rows}-rows-{workload.keys}-keys{filled}{lines}{several}"
    parts = [f"-{part}" for part in range(workload.files)] if several else [""]
    paths = [folder / f"epoch-{epoch:06d}{part}.parquet" for part in parts]
    if not all(path.exists() for path in paths):
        folder.mkdir(parents=True, exist_ok=True)
        table = _rows_of(workload, epoch)
        size = -(-table.num_rows // len(paths))
        for number, path in enumerate(paths):
            unfinished = path.with_suffix(f".{os.getpid()}")
            pq.write_table(table.slice(number * size, size), unfinished)
            # Spark's file source goes by modification time; a second apart, so that the order is certain.
            os.utime(unfinished, (FIRST_FILE_TIME + epoch, FIRST_FILE_TIME + epoch))
            unfinished.replace(path)
    return paths


def _rows_of(workload: Workload, epoch: int) -> pa.Table:
    random = np.random.default_rng([7, epoch])
    if epoch < workload.fill_epochs:
        numbers = np.arange(epoch * workload.fill, min(workload.keys, (epoch + 1) * workload.fill))
    else:
        numbers = random.integers(0, workload.keys, workload.rows)
    rows = len(numbers)
    keys = [f"key-{number:09d}" for number in numbers.tolist()]
    if workload.words:
        starts = range(0, rows, workload.words)
        return pa.table({"line": [" ".join(keys[at : at + workload.words]) for at in starts]})
    values = random.integers(0, 1_000_000, rows)
    return pa.table({"key": keys, "value": values, "ts": np.arange(rows, dtype=np.int64) + epoch * workload.rows})


class Source:
    """The directory that an engine reads: files of further epochs are linked into it before each run.

    Attributes:
        directory: It.
        ddl: Of its columns.
        files: How many of them are an epoch.
        epochs: How many epochs were made available, by engines that used the workspace before as well.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self.directory = Path(workload.workspace) / "source"
        self.ddl = LINES if workload.words else DDL
        self.directory.mkdir(parents=True, exist_ok=True)
        self.files = workload.files
        self.epochs = len(list(self.directory.glob("epoch-*.parquet"))) // self.files

    def add(self, epochs: int) -> None:
        """Makes so many more epochs available."""
        for epoch in range(self.epochs, self.epochs + epochs):
            for path in epoch_files(self._workload, epoch):
                os.link(path, self.directory / path.name)
        self.epochs += epochs
