"""One job of `large_state.py`, in a process that knows nothing: it resumes, runs some epochs, and is watched doing it.

python -m benchmarks.harness.large_state_process ENGINE WORKLOAD_AS_JSON EPOCHS
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.harness.input_files import epoch_files
from benchmarks.harness.workload import Workload, engine_module
from holdfast.state.run_file import handle_of
from holdfast.storage.local import LocalFileSystem

EVERY = 0.2  # seconds
KEY_BYTES = len("key-000000000")
ENTRY_BYTES = 8 + 4 + KEY_BYTES + 8 + 1  # hash, offset and bytes of the key, value, operation
MEBIBYTE = 1 << 20


class Watch(threading.Thread):
    """Looks several times a second at the memory of Spark's Python workers, and at the files of runs.

    Attributes:
        anonymous: The most anonymous memory of each worker, in MiB, by process.
        written: Bytes of the runs that epochs have written since it was started.
        compacted: Bytes of those that compaction has written.
    """

    def __init__(self, checkpoints: Path) -> None:
        super().__init__(daemon=True)
        self.anonymous: dict[int, float] = {}
        self.written = self.compacted = 0
        self._checkpoints = checkpoints
        self._known = set(self.runs())
        self._ended = threading.Event()

    def runs(self) -> Iterator[Path]:
        """The files of runs that are there."""
        return self._checkpoints.glob("*/shared/*.run")

    def run(self) -> None:
        """Look until it is ended."""
        while not self._ended.wait(EVERY):
            self._look()

    def end(self) -> None:
        """Look a last time."""
        self._ended.set()
        self.join()
        self._look()

    def _look(self) -> None:
        for pid in python_workers():
            self.anonymous[pid] = max(self.anonymous.get(pid, 0.0), anonymous_memory(pid))
        for path in set(self.runs()) - self._known:
            self._known.add(path)
            run = handle_of(LocalFileSystem(), str(path.parent.parent), f"shared/{path.name}")
            if run.compacted is None:
                self.written += run.size
            else:
                self.compacted += run.size


def python_workers() -> list[int]:
    """The processes that Spark's daemons have forked for tasks of this process."""
    parents, daemons = {}, set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if b"pyspark.daemon" in (folder / "cmdline").read_bytes():
                daemons.add(int(folder.name))
        except OSError:  # it has ended
            continue
    own = os.getpid()
    workers = [pid for pid in daemons if parents.get(pid) in daemons]
    return [pid for pid in workers if own in _ancestors(pid, parents)]


def _ancestors(pid: int, parents: dict[int, int]) -> Iterator[int]:
    while pid := parents.get(pid, 0):
        yield pid


def anonymous_memory(pid: int) -> float:
    """The anonymous memory of a process in MiB, 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon:"))


def changed_entries(workload: Workload, first: int, after: int) -> int:
    """How many entries some epochs change: the distinct keys of each."""
    epochs = (epoch_files(workload, epoch) for epoch in range(first, after))
    return sum(len(pq.read_table(file, columns=["key"]).column("key").unique()) for (file,) in epochs)


def main() -> int:
    name, workload, epochs = sys.argv[1], Workload.from_json(sys.argv[2]), int(sys.argv[3])
    # The chatter of the engine and of the JVM must not mix with the answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    before = len(list(Path(workload.workspace, "source").glob("*.parquet")))
    for epoch in range(before, before + epochs):
        epoch_files(workload, epoch)
    engine: Any = engine_module(name).make_engine(workload)
    watch = Watch(Path(workload.workspace, "checkpoints"))
    watch.start()
    try:
        started = time.time()
        seconds = list(engine.run(epochs))
        resumed = engine.clock.ends[0] - started
    finally:
        watch.end()
        engine.close()
    runs = [path.stat().st_size for path in watch.runs()]
    encoded = changed_entries(workload, before, before + epochs) * ENTRY_BYTES
    result = {
        "seconds": seconds,
        "resume_seconds": resumed,
        "anonymous_megabytes": max(watch.anonymous.values(), default=None),
        "written_by_encoded": watch.written / encoded if watch.written else None,
        "state_megabytes": sum(runs) / MEBIBYTE if runs else None,
        "state_files": len(runs) or None,
    }
    answers.write(json.dumps(result) + "\n")
    answers.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
