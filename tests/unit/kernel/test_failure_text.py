"""The one line that lists and logs show of a failure: what happened, and the root cause of its stack traces."""

from __future__ import annotations

import traceback

import pytest

from holdfast.kernel.failure_text import summary

PY4J = """\
An error occurred while calling o1027.save.
: org.apache.spark.SparkException: Job aborted.
\tat scala.Foo.bar(Foo.scala:3)
"""
CAUSED = f"""{PY4J}Caused by: java.net.ConnectException: Connection refused (db:5432)
\tat scala.Foo.bar(Foo.scala:5)
"""
METHOD = """\
An error occurred while calling o55.nothing. Trace:
py4j.Py4JException: Method nothing([]) does not exist
\tat py4j.reflection.ReflectionEngine.getMethod(ReflectionEngine.java:321)
"""
FLIPPED = "org.apache.parquet.io.ParquetDecodingException: CRC checksum verification failed"
READ = f"""\
An error occurred while calling o31.collectToPython.
: org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///a.parquet. \
 SQLSTATE: KD001
\tat scala.Foo.bar(Foo.scala:3)
Caused by: {FLIPPED}
\t... 1 more
"""
STAGE = READ.replace(
    "org.apache.spark.SparkException: [",
    "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most "
    "recent failure: Lost task 0.3 in stage 1.0 (TID 7) (10.0.0.7 executor 1): org.apache.spark.SparkException: [",
)
REFUSED = "java.net.ConnectException: Connection refused (db:5432)"
SINK = "Failed to commit 2 committables of the sink 'out' from epoch 3 (checkpoint 3): Py4JJavaError: "


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("the disk is on fire\nand more", "the disk is on fire"),
        (PY4J, "org.apache.spark.SparkException: Job aborted."),
        (CAUSED, REFUSED),
        (METHOD, "py4j.Py4JException: Method nothing([]) does not exist"),
        (f"{SINK}{CAUSED}. The checkpoint is complete.", f"{SINK.removesuffix(' Py4JJavaError: ')} {REFUSED}"),
        (f"Spark failed while reading: {REFUSED}\n{CAUSED}", f"Spark failed while reading: {REFUSED}"),
        (READ, f"[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///a.parquet: {FLIPPED}"),
        (STAGE, f"[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///a.parquet: {FLIPPED}"),
        ("x" * 600, "x" * 500 + "..."),
    ],
)
def test_a_message_with_a_stack_trace_of_java_names_its_root_cause(message: str, line: str) -> None:
    assert summary(message) == line


def test_a_message_with_a_traceback_names_the_error_that_was_raised() -> None:
    try:
        raise ValueError("this word is poison\nreally")
    except ValueError as error:
        text = "".join(traceback.format_exception(error))
    message = f"the function of operator 'count' raised ValueError in epoch 3\n{text}"
    assert summary(message) == (
        "the function of operator 'count' raised ValueError in epoch 3: ValueError: this word is poison"
    )


def test_a_traceback_that_ends_in_a_call_of_java_names_the_cause_in_java() -> None:
    text = f"Traceback (most recent call last):\n  File 'job.py', line 3, in f\npy4j.protocol.Py4JJavaError: {CAUSED}"
    assert summary(f"the function of operator 'out' raised Py4JJavaError\n{text}") == (
        f"the function of operator 'out' raised Py4JJavaError: {REFUSED}"
    )
