"""What Spark fails with, in our terms: what no restart can cure, what may come again, what was only away."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import (
    ConfigurationError,
    EngineError,
    EngineUnavailableError,
    HoldfastError,
    InputGoneError,
    RestoreError,
)
from holdfast.spark.failure import translate, translate_fatal

pytestmark = pytest.mark.spark


def told(action: Callable[[], Any]) -> HoldfastError:
    try:
        action()
    except Exception as failure:
        return translate(failure, "trying")
    raise AssertionError("nothing failed")


def raising(spark: Any, text: str) -> Callable[[], Any]:
    """An action whose task fails with a text of Java."""
    return lambda: spark.range(1).selectExpr(f"raise_error('{text}')").collect()


def test_a_java_failure_is_reported_by_its_root_cause_in_one_line(spark: Any) -> None:
    error = told(lambda: spark.sparkContext._jvm.java.lang.Integer.parseInt("kelp"))
    assert type(error) is EngineError
    assert str(error) == ('Spark failed while trying: java.lang.NumberFormatException: For input string: "kelp"')
    task = told(raising(spark, "the reef is closed"))
    assert type(task) is EngineError
    assert "the reef is closed" in str(task)
    assert "\n" not in str(task)


def missing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import a_package_that_nobody_has  # noqa: F401

    yield from batches


def test_a_package_that_a_worker_lacks_is_final(spark: Any) -> None:
    error = told(lambda: spark.range(1).mapInArrow(missing, "id bigint").collect())
    assert isinstance(error, ConfigurationError)
    assert "ModuleNotFoundError: No module named 'a_package_that_nobody_has'" in str(error)


def as_it_is(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


@pytest.mark.parametrize(
    ("attribute", "value", "named"),
    [("pythonExec", "/there/is/no/python", '"/there/is/no/python"'), ("pythonVer", "2.7", "2.7")],
)
def test_workers_without_the_python_of_the_driver_are_final(
    spark: Any, monkeypatch: pytest.MonkeyPatch, attribute: str, value: str, named: str
) -> None:
    """What is innermost says of a Python that is not there: `error=2, No such file or directory`, and not which."""
    monkeypatch.setattr(spark.sparkContext, attribute, value)
    error = told(lambda: spark.range(1).mapInArrow(as_it_is, "id bigint").collect())
    assert isinstance(error, ConfigurationError)
    assert named in str(error)
    assert "PYSPARK_PYTHON" in str(error)
    assert "\n" not in str(error)


def test_a_package_that_the_driver_lacks_is_final() -> None:
    with pytest.raises(ConfigurationError, match="a package is missing"), translate_fatal("preparing the job"):
        import a_package_that_nobody_has  # noqa: F401


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('Cannot fetch offset 7. ... set the source option "failOnDataLoss" to "false".', InputGoneError),
        ("org.apache.kafka.clients.consumer.OffsetOutOfRangeException", InputGoneError),
        ("java.net.ConnectException: Connection refused", EngineUnavailableError),
    ],
)
def test_the_error_class_of_spark_decides_about_a_restart(spark: Any, text: str, kind: type[HoldfastError]) -> None:
    assert type(told(raising(spark, text))) is kind


def test_positions_of_other_inputs_fail_the_restore(spark: Any, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.txt").write_text(f"{name}\n")

    def run(*names: str) -> None:
        frames = [spark.readStream.text(str(tmp_path / name)) for name in names]
        frame = frames[0]
        for other in frames[1:]:
            frame = frame.union(other)
        query = (
            frame.writeStream.foreachBatch(lambda batch, number: None)
            .option("checkpointLocation", str(tmp_path / "positions"))
            .trigger(availableNow=True)
            .start()
        )
        with contextlib.suppress(Exception):
            query.awaitTermination()
        if query.exception() is not None:
            raise query.exception()

    run("a", "b")
    error = told(lambda: run("a"))
    assert isinstance(error, RestoreError)
    assert "the checkpoint has positions of other inputs than the program has" in str(error)
