"""How queries of a job write their logs: plainly, and without a trace in the user's session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.spark.session import start_with_plain_logs

KEY = "spark.sql.streaming.checkpointFileManagerClass"

pytestmark = pytest.mark.spark


@pytest.fixture
def writer(spark: Any, tmp_path: Path) -> Iterator[Callable[[], Any]]:
    """Starts a query with two batches that writes nothing."""
    rows = spark.range(10).coalesce(1).write
    for name in ("a", "b"):
        rows.parquet(str(tmp_path / "in" / name))
    stream = spark.readStream.schema("id bigint").option("recursiveFileLookup", True).option("maxFilesPerTrigger", 1)
    frame = stream.parquet(str(tmp_path / "in"))
    started = []

    def start() -> Any:
        query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "logs"))
        started.append(query.trigger(availableNow=True).start())
        return started[-1]

    yield start
    for query in started:
        query.stop()


def manager_of(query: Any, log: str) -> str:
    """The class through which a log of a running query writes."""
    execution = query._jsq.streamingQuery()
    owner = getattr(execution, log)()
    field = next(
        field
        for kind in ancestors(owner.getClass())
        for field in kind.getDeclaredFields()
        if field.getName().endswith("fileManager")
    )
    field.setAccessible(True)
    return str(field.get(owner).getClass().getSimpleName())


def ancestors(kind: Any) -> Iterator[Any]:
    while kind is not None:
        yield kind
        kind = kind.getSuperclass()


def test_a_query_writes_plainly_and_the_session_is_as_before(spark: Any, writer: Any, tmp_path: Path) -> None:
    query = start_with_plain_logs(spark, writer)
    assert spark.conf.get(KEY, None) is None
    query.awaitTermination()
    assert sorted(path.name for path in (tmp_path / "logs" / "commits").iterdir() if "." not in path.name) == ["0", "1"]
    assert "FileSystemBased" in manager_of(query, "offsetLog")


def test_settings_of_the_user_are_kept(spark: Any, writer: Any) -> None:
    plain: list[str] = []
    start_with_plain_logs(spark, lambda: plain.append(spark.conf.get(KEY)) or writer()).awaitTermination()
    users_own = plain[0].replace("FileSystemBased", "FileContextBased")
    spark.conf.set(KEY, users_own)
    try:
        query = start_with_plain_logs(spark, writer)
        assert spark.conf.get(KEY) == users_own
        query.awaitTermination()
        assert "FileContextBased" in manager_of(query, "offsetLog")
    finally:
        spark.conf.unset(KEY)


def test_a_query_that_does_not_start_leaves_nothing(spark: Any) -> None:
    seen = []

    def start() -> Any:
        seen.append(spark.conf.get(KEY))
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        start_with_plain_logs(spark, start)
    assert seen[0].endswith("FileSystemBasedCheckpointFileManager")
    assert spark.conf.get(KEY, None) is None
