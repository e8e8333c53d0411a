"""The pieces of the latency benchmark that need no engine: what is paced, and what counts as readable."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.latency import EVERY, Observer, Pacer, split


def test_files_come_with_events_of_the_time_between_them(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    pacer = Pacer(source, 1000)
    pacer.start()
    while len(list(source.iterdir())) < 3:
        time.sleep(0.01)
    pacer.stop()
    created = [at for path in sorted(source.iterdir()) for at in pq.read_table(path)["created"].to_pylist()]
    assert created == sorted(created)
    assert len(created) == round(1000 * EVERY) * len(list(source.iterdir()))
    steps = {later - earlier for earlier, later in pairwise(created)}
    assert all(abs(step - 1000) <= 1 for step in steps), "one event a millisecond, across files too"


def test_rows_of_an_epoch_count_when_all_of_it_is_there_and_once(tmp_path: Path) -> None:
    now = int(time.time() * 1e6)
    observer = Observer(tmp_path)
    pq.write_table(pa.table({"created": [now - 50_000]}), tmp_path / "part-1.parquet")
    pq.write_table(pa.table({"created": [now]}), tmp_path / ".unfinished.parquet")
    epoch = tmp_path / "epoch=0"
    epoch.mkdir()
    pq.write_table(pa.table({"created": [now - 70_000]}), epoch / "part-1.parquet")
    observer.look()
    assert len(observer.since(0)) == 1
    (epoch / "_SUCCESS").touch()
    observer.look()
    observer.look()
    ages = observer.since((now - 80_000) / 1e6)
    assert len(ages) == 2
    assert 50 <= min(ages) <= max(ages) < 60_000
    assert len(observer.since((now - 60_000) / 1e6)) == 1


def test_parts_of_an_epoch_are_medians_after_the_warm_up() -> None:
    told = [
        {"at": at, "spark": {"addBatch": at}, "holdfast": {"epoch": 1, "task_ms": 2.0 * at}} for at in (1, 10, 11, 15)
    ]
    assert split(told, 9) == {"spark addBatch": 11, "holdfast task": 22.0}
