"""The innermost cause in what Spark says, in one line. The texts are those of Spark 4.3 and 3.5."""

from __future__ import annotations

import pytest

from holdfast.kernel.failure_text import innermost_cause
from holdfast.spark.failure import root_cause

TASK = """\
org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most recent \
failure: Lost task 0.0 in stage 3.0 (TID 5) (10.0.0.7 executor driver): {}

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:2856)
"""
PYTHON = """\
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1830, in main
    process()
  File "stage.py", line 3, in run
    import polars
ModuleNotFoundError: No module named 'polars'

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:572)
"""
NESTED = """\
An error occurred while calling o1027.start.
: java.lang.RuntimeException: it failed
\tat scala.Foo.bar(Foo.scala:3)
Caused by: java.io.IOException: one level down
\tat scala.Foo.bar(Foo.scala:4)
Caused by: java.lang.IllegalStateException: Cannot fetch offset 7 (TopicPartition: rows-0).
\tat scala.Foo.bar(Foo.scala:5)
"""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (TASK.format(PYTHON), "ModuleNotFoundError: No module named 'polars'"),
        (TASK.format("java.lang.OutOfMemoryError: Java heap space"), "java.lang.OutOfMemoryError: Java heap space"),
        (NESTED, "java.lang.IllegalStateException: Cannot fetch offset 7 (TopicPartition: rows-0)."),
        ("one line", "one line"),
        ("\n\n  after empty ones\nmore", "after empty ones"),
        ("", "the exception has no text"),
        ("Traceback (most recent call last):\n  cut off", "Traceback (most recent call last):"),
    ],
)
def test_the_innermost_cause_is_found_in_a_text(text: str, cause: str) -> None:
    assert innermost_cause(text) == cause


def test_an_exception_of_python_is_told_with_its_kind() -> None:
    assert root_cause(ValueError("not in the mood\nmore")) == "ValueError: not in the mood"


def test_an_exception_whose_jvm_is_ending_is_told_all_the_same() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise ConnectionError("the JVM answers no more")

    assert root_cause(Silent()) == "Silent: the exception has no text"
