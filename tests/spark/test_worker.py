"""What tasks are told of an epoch, by a property of Spark's job or with their function, and what is left behind."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from holdfast.datastream import ParquetFileSink
from holdfast.spark import worker
from tests.spark.test_shapes import Numbered, environment, name, stream, words

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SEEN = "word string, n bigint, frozen bigint, told bigint"


def looked(row: Any) -> tuple[Any, ...]:
    """A word with what its worker has out of the collector's sight, and the length of the property of its job."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    told = context.getLocalProperty(worker.EPOCH_PROPERTY)
    return row.word, row.n, gc.get_freeze_count(), len(told or "")


@pytest.mark.parametrize("longest", [0, 32 * 1024])
@pytest.mark.parametrize("packed", [False, True])
def test_epoch_messages_reach_workers_by_broadcast_or_file(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longest: int, packed: bool
) -> None:
    monkeypatch.setattr(worker, "_LONGEST_TEXT", longest)
    env = environment(spark, tmp_path, execution_trigger="available-now", execution_exchange_packed=packed)
    folder = words(tmp_path, ["kelp", "rock"], ["kelp"], ["kelp", "sand"])
    numbered = env.from_dataframe(stream(spark, folder)).key_by("word").process(Numbered(), "word string, n bigint")
    seen = numbered.uid("first").key_by("n").process(Again(), "word string, n bigint").uid("second")
    seen.map(looked, output_type=SEEN).sink_to(ParquetFileSink(str(tmp_path / "out"))).uid("out")
    env.execute(name())
    rows = ds.dataset(tmp_path / "out").to_table().to_pylist()
    assert sorted((row["word"], row["n"]) for row in rows) == [
        ("kelp", 1), ("kelp", 2), ("kelp", 3), ("rock", 1), ("sand", 1),
    ]  # fmt: skip
    assert {row["told"] > 0 for row in rows} == {longest > 0}
    assert any(row["frozen"] for row in rows)
    assert spark.sparkContext.getLocalProperty(worker.EPOCH_PROPERTY) is None


class Again(Numbered):
    """Hands on what it gets."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value.word, value.n
