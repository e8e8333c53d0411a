"""Which failures of Spark are away: they are retried without end, and never end a job for good."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pyspark
import pytest

from holdfast.errors import (
    ConfigurationError,
    EngineError,
    EngineLostError,
    EngineUnavailableError,
    HoldfastError,
    InputError,
    InputGoneError,
)
from holdfast.kernel.configuration import Configuration
from holdfast.runtime.master.failure_policy import RepeatedFailures
from holdfast.spark.failure import translate
from holdfast.spark.unavailable import CONDITIONS

TASK = (
    "Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, most recent failure: Lost task 0.3 in stage "
    "3.0 (TID 5) (10.0.0.7 executor 2): {}\n\nDriver stacktrace:\n\tat org.apache.spark.scheduler.DAGScheduler.x(D:1)"
)
CONNECT_BACK = (
    "org.apache.spark.SparkException: Python worker failed to connect back.\n"
    "\tat org.apache.spark.api.python.PythonWorkerFactory.createSimpleWorker(PythonWorkerFactory.scala:312)\n"
)
# Spark 4.3 in real time: the worker was killed while the JVM wrote to it.
WRITE_TO_A_WORKER = (
    "java.io.IOException: {}\n"
    "\tat java.base/sun.nio.ch.FileDispatcherImpl.write0(Native Method)\n"
    "\tat java.base/sun.nio.ch.SocketChannelImpl.write(SocketChannelImpl.java:532)\n"
    "\tat org.apache.spark.api.python.BasePythonRunner$PipelinedWriterRunnable.flushToSocket(PythonRunner.scala:1561)\n"
    "\tat org.apache.spark.api.python.BasePythonRunner$PipelinedWriterRunnable.run(PythonRunner.scala:1503)\n"
)


def _task(text: str) -> str:
    return TASK.format(text)


AWAY = [
    # Python on a busy host.
    "StreamingQueryException: Python worker failed to connect back.",
    _task(CONNECT_BACK),
    _task(CONNECT_BACK + "Caused by: java.net.SocketTimeoutException: Timed out while waiting for the Python worker"),
    _task(CONNECT_BACK + "Caused by: java.nio.channels.ClosedByInterruptException"),
    "org.apache.spark.SparkException: Python daemon failed to launch worker with code -1",
    'java.io.IOException: Cannot run program "/opt/python": error=12, Cannot allocate memory',
    'java.io.IOException: Cannot run program "/opt/python": error=11, Resource temporarily unavailable',
    "java.lang.OutOfMemoryError: unable to create native thread: possibly out of memory or process limits reached",
    "java.net.SocketException: Too many open files",
    "Python worker process terminated due to idle timeout (timeout: 60 seconds)",
    "[STREAMING_PYTHON_RUNNER_INITIALIZATION_TIMEOUT_FAILURE] Streaming Runner initialization failed.",
    "[STREAMING_PYTHON_RUNNER_INITIALIZATION_COMMUNICATION_FAILURE] Streaming Runner initialization failed",
    # Executors and their blocks.
    _task("ExecutorLostFailure (executor 2 exited unrelated to the running tasks) Reason: worker lost"),
    _task("ExecutorLostFailure (executor 2 exited caused by one of the running tasks) Reason: Command exited with 137"),
    _task("FetchFailed(BlockManagerId(2, host, 7337, None), shuffleId=0, mapIndex=0, mapId=0, reduceId=0, message=)"),
    _task("TaskResultLost (result lost from block manager)"),
    _task("org.apache.spark.SparkException: Failed to get broadcast_3_piece0 of broadcast_3"),
    "org.apache.spark.SparkException: Failed to fetch block after 1 fetch failures. Most recent failure cause:",
    "Executor heartbeat timed out after 131007 ms",
    "Remote RPC client disassociated. Likely due to containers exceeding thresholds, or network issues.",
    "A shuffle map stage with indeterminate output was failed and retried. However, Spark cannot rollback it",
    "[CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND] Checkpoint block rdd_3_1 not found!",
    "[CONCURRENT_SCHEDULER_INSUFFICIENT_SLOT] Cannot run the pipelined stage group: it needs 8 concurrent task slots",
    "[STREAMING_SHUFFLE_WRITER_CONNECTION_TIMEOUT] Streaming shuffle 3 writer 1 timed out after 100 ms",
    "[INTERNAL_ERROR_NETWORK] The channel was closed",
    # Connections, time-outs and storage.
    "org.apache.spark.rpc.RpcTimeoutException: Futures timed out after [120 seconds].",
    "org.apache.spark.SparkException: Could not execute broadcast in 300 secs. You can increase the timeout",
    "java.io.IOException: Failed to connect to host/10.0.0.7:40001",
    "java.io.IOException: Connection from host/10.0.0.7:40001 closed",
    "java.net.ConnectException: Connection refused",
    "java.nio.channels.ClosedChannelException",
    "TimeoutError: [Errno 110] Connection timed out",
    "socket.gaierror: [Errno -3] Temporary failure in name resolution",
    "OSError: [Errno 5] Input/output error",
    "org.apache.hadoop.ipc.RemoteException(org.apache.hadoop.ipc.StandbyException): Operation category READ",
    "org.apache.hadoop.hdfs.server.namenode.SafeModeException: Cannot create file. Name node is in safe mode.",
    "com.amazonaws.SdkClientException: Unable to execute HTTP request: Read timed out",
    "software.amazon.awssdk.services.s3.model.S3Exception: Please reduce your request rate. SlowDown",
    "org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment.",
    "org.apache.kafka.common.errors.DisconnectException",
    "org.apache.kafka.common.config.ConfigException: No resolvable bootstrap urls given in bootstrap.servers",
    "[FAILED_JDBC.CONNECTION] Failed JDBC jdbc:postgresql://db on the operation: Couldn't connect to the database",
]

NOT_AWAY = [
    # What the rows or the program do to a worker.
    (_task("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"), EngineError),
    (_task(WRITE_TO_A_WORKER.format("Connection reset by peer")), EngineError),
    (WRITE_TO_A_WORKER.format("Broken pipe"), EngineError),
    (_task("java.lang.OutOfMemoryError: Java heap space"), EngineError),
    ("[UNABLE_TO_ACQUIRE_MEMORY] Unable to acquire 65536 bytes of memory, got 0.", EngineError),
    ("[DIVIDE_BY_ZERO] Division by zero.", EngineError),
    ("java.lang.IllegalStateException: a column is called Connection", EngineError),
    # What has an error of its own.
    ('java.io.IOException: Cannot run program "/no/python": error=2, No such file or directory', ConfigurationError),
    ("[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file x. File does not exist.", InputError),
    ("[KAFKA_DATA_LOSS.START_OFFSET_RESET] Some data may have been lost", InputGoneError),
    ("Job 3 cancelled because SparkContext was shut down", EngineLostError),
    ("Exiting due to error from cluster scheduler: All masters are unresponsive! Giving up.", EngineLostError),
    ("Job aborted due to stage failure: Master removed our application: KILLED", EngineLostError),
]


@pytest.mark.parametrize("text", AWAY)
def test_what_is_away_is_retried_without_end(text: str) -> None:
    error = translate(Exception(text), "running epoch 3")
    assert type(error) is EngineUnavailableError
    failures = RepeatedFailures(Configuration())
    assert not any(failures.give_up_reason(error, 51) for _ in range(100))


def test_a_file_that_cannot_be_read_at_one_place_fails_the_job_whatever_checkpoints_complete() -> None:
    """An interval of milliseconds completes one before the place is reached again."""
    failures = RepeatedFailures(Configuration())
    line = "line {} of the file 'a.csv' cannot be read as CSV: it has 3 values, and the type 2"
    reasons = [failures.give_up_reason(InputError(line.format(number)), newest) for newest, number in enumerate("7989")]
    assert reasons == [None] * 4, "each time another line than before"
    assert failures.give_up_reason(InputError(line.format(9)), 17) is None
    assert "3 times in a row" in (failures.give_up_reason(InputError(line.format(9)), 18) or "")
    of_spark = RepeatedFailures(Configuration())
    texts = [f"Spark cannot read an input (while running epoch {epoch})" for epoch in range(3)]
    told = [of_spark.give_up_reason(InputError(text), 5) for text in texts]
    assert told[:2] == [None] * 2 and "3 times" in (told[2] or ""), "without a checkpoint in between the kind counts"


@pytest.mark.parametrize(("text", "kind"), NOT_AWAY)
def test_what_a_restart_does_not_cure_is_not_away(text: str, kind: type[HoldfastError]) -> None:
    assert type(translate(Exception(text), "running epoch 3")) is kind


SUSPECT = re.compile(
    r"time.?out|timed out|connect|network|unavailable|heartbeat|no longer alive|slots|communicat", re.I
)
OTHERWISE = (
    "AUTOCDC", "CHANGELOG", "CONNECT", "INVALID_", "SPARK_CONNECT", "UNSUPPORTED_", "CANNOT_USE_KRYO", "STDS_",
    "MISSING_TIMEOUT_CONFIGURATION", "_LEGACY_ERROR_TEMP_2203", "_LEGACY_ERROR_TEMP_2205", "_LEGACY_ERROR_TEMP_2097",
)  # fmt: skip
"""Spark Connect, wrong programs and options, Spark's own reader of state, and a time-out that is known by its text."""


def conditions_of_spark() -> dict[str, str]:
    """Name and message of each error condition of the installed Spark."""
    [jar] = Path(pyspark.__file__).parent.glob("jars/spark-common-utils_*.jar")
    with zipfile.ZipFile(jar) as archive:
        described: dict[str, Any] = json.loads(archive.read("error/error-conditions.json"))
    found = {}
    for name, condition in described.items():
        found[name] = " ".join(condition["message"])
        for part, nested in condition.get("subClass", {}).items():
            found[f"{name}.{part}"] = " ".join(nested["message"])
    return found


@pytest.mark.skipif(not pyspark.__version__.startswith("4.3"), reason="other versions have other conditions")
def test_each_condition_of_spark_about_time_outs_and_connections_is_classified() -> None:
    known = conditions_of_spark()
    assert known.keys() >= CONDITIONS
    suspect = {name for name, message in known.items() if SUSPECT.search(f"{name} {message}")}
    rest = {name for name in suspect - CONDITIONS if not name.startswith(OTHERWISE)}
    assert rest == set()
