"""The generated input: one Parquet file an epoch, the same for every engine."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.workload import Workload

DDL = "key string, value long, ts long"
FIRST_FILE_TIME = 1_700_000_000


def epoch_file(workload: Workload, epoch: int) -> Path:
    """The file of an epoch, generated if it is not there: a string key, uniform over all keys, and two longs."""
    folder = Path(workload.inputs) / f"{workload.rows}-rows-{workload.keys}-keys"
    path = folder / f"epoch-{epoch:06d}.parquet"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng([7, epoch])
        names = pa.array([f"key-{number:09d}" for number in range(workload.keys)])
        table = pa.table(
            {
                "key": names.take(pa.array(random.integers(0, workload.keys, workload.rows))),
                "value": random.integers(0, 1_000_000, workload.rows),
                "ts": np.arange(workload.rows, dtype=np.int64) + epoch * workload.rows,
            }
        )
        unfinished = path.with_suffix(f".{os.getpid()}")
        pq.write_table(table, unfinished)
        # Spark's file source goes by modification time; a second apart, so that the order is certain.
        os.utime(unfinished, (FIRST_FILE_TIME + epoch, FIRST_FILE_TIME + epoch))
        unfinished.replace(path)
    return path


class Source:
    """The directory that an engine reads: files of further epochs are linked into it before each run."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._epochs = 0
        self.directory = Path(workload.workspace) / "source"
        self.directory.mkdir(parents=True, exist_ok=True)

    def add(self, epochs: int) -> None:
        """Makes so many more epochs available."""
        for epoch in range(self._epochs, self._epochs + epochs):
            path = epoch_file(self._workload, epoch)
            os.link(path, self.directory / path.name)
        self._epochs += epochs
