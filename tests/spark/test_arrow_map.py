"""A function over Arrow batches needs no pandas, although Spark's own way to apply one asks for it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from holdfast.spark.frame import map_in_arrow

pytestmark = pytest.mark.spark


def doubled(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.record_batch({"twice": pc.multiply(batch.column("id"), 2)})


@pytest.mark.parametrize("has_pandas", [True, False])
def test_batches_are_mapped(spark: Any, monkeypatch: pytest.MonkeyPatch, has_pandas: bool) -> None:
    if not has_pandas:
        monkeypatch.setitem(sys.modules, "pandas", None)  # importing it raises
    frame = map_in_arrow(spark.range(4), doubled, "twice bigint")
    assert sorted(row.twice for row in frame.collect()) == [0, 2, 4, 6]
    assert frame.sparkSession is spark
