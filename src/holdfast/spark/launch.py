"""Start a job on Spark."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

from pyspark.sql import SparkSession

from holdfast.checkpoint.options import CHECKPOINTS_DIRECTORY
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.ha.options import ha_type
from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.kernel.secret import get_logger, redacted_message
from holdfast.runtime.graph.stream_graph import StreamGraph
from holdfast.runtime.job.engine import Engine, Job, checkpoint_root, job_directory
from holdfast.runtime.job.leadership import open_register
from holdfast.runtime.job.options import DEFAULT_PARALLELISM, EXECUTION_TRIGGER, JOB_ID, PYTHON_FILES
from holdfast.runtime.master.job_client import JobClient, is_notebook
from holdfast.runtime.master.job_master import JobMaster
from holdfast.spark.engine import SparkEngine
from holdfast.spark.failure import translate_fatal
from holdfast.spark.quiet_logs import hide_task_failures
from holdfast.spark.realtime_engine import SparkRealTimeEngine
from holdfast.spark.session import EpochTrigger, get_or_create, warn_ignored_options
from holdfast.storage.object_store import use_s3_options
from holdfast.storage.scheme import file_system_for

logger = get_logger(__name__)

_STAGES: Final = 4
"""Stages of a real-time job whose tasks find slots with the default parallelism."""
_CORES_OF_A_TASK: Final = 2

_of_this_process: WeakValueDictionary[tuple[str | None, JobID], JobClient] = WeakValueDictionary()
"""The newest run of each job; one that runs is held by its thread."""


def launch(
    graph: StreamGraph,
    job_name: str,
    configuration: Configuration,
    session: SparkSession | None = None,
    *,
    is_once: bool = False,
) -> JobClient:
    """Start a job in a thread of this process and return its handle. Does not block.

    Args:
        graph: The program.
        job_name: Name of the job.
        configuration: Its options.
        session: The session; None for the present one.
        is_once: Whether no later job has this name, so that nobody misses its state.

    Raises:
        ConfigurationError: An option does not fit, or the session cannot run jobs.
        EngineLostError: The session's JVM is gone.
    """
    key = (configuration.get(CHECKPOINTS_DIRECTORY), _id_of(job_name, configuration))
    if is_notebook() and ha_type(configuration) == "none":
        _end_earlier_run(_of_this_process.get(key))
    with translate_fatal("starting the job"):
        client = JobClient(JobMaster(job_on_spark(graph, job_name, configuration, session, is_once=is_once)))
    _of_this_process[key] = client
    return client


def _end_earlier_run(client: JobClient | None) -> None:
    """Stop the earlier run of a notebook cell after its epoch, so that the new run resumes from there. Blocks.

    Otherwise they would fence each other, or write twice where no directory tells them apart.
    """
    if client is None or client.get_job_status().is_terminal_state():
        return
    logger.warning(
        "job %r already runs here: that run is stopped after its epoch, and the new one resumes from there", client.name
    )
    client.stop()
    try:
        client.await_termination()
    except HoldfastError as error:
        logger.warning("the earlier run of job %r failed: %s", client.name, redacted_message(error))


def _id_of(job_name: str, configuration: Configuration) -> JobID:
    given = configuration.get(JOB_ID)
    return JobID.from_hex(given) if given else JobID.from_name(job_name)


def job_on_spark(
    graph: StreamGraph,
    job_name: str,
    configuration: Configuration,
    session: SparkSession | None = None,
    clock: Clock | None = None,
    *,
    is_once: bool = False,
) -> Job:
    """Return a job on Spark, ready to be run by a job master; see `launch`.

    Raises:
        ConfigurationError: An option does not fit, or the session cannot run jobs.
    """
    configuration.validate()
    use_s3_options(configuration)
    directory_set = checkpoint_root(configuration)
    session = session or get_or_create(configuration)
    warn_ignored_options(session, configuration)
    for path in configuration.get(PYTHON_FILES):
        if not Path(path).is_file():
            raise ConfigurationError(f"Option {PYTHON_FILES.key!r}: there is no file {path!r} on this host.")
        session.sparkContext.addPyFile(path)
    trigger = EpochTrigger.parse(configuration.get(EXECUTION_TRIGGER))
    hide_task_failures(session, is_real_time=trigger.is_real_time)
    parallelism = configuration.get(DEFAULT_PARALLELISM)
    if parallelism is not None and parallelism < 1:
        raise ConfigurationError(f"Option 'parallelism.default': {parallelism} is not 1 or more.")
    root = directory_set or _temporary_directory(job_name, is_once=is_once)
    job_id = _id_of(job_name, configuration)
    directory = job_directory(file_system_for(root), root, job_id, configuration)
    directory.create()
    clock = clock or SystemClock()
    parallelism = parallelism or _default_parallelism(session, trigger)
    engine: Engine = (
        SparkRealTimeEngine(session, configuration, parallelism)
        if trigger.is_real_time
        else SparkEngine(session, directory, trigger, clock)
    )
    register, leadership = open_register(directory, configuration)
    return Job(
        job_id=job_id,
        name=job_name,
        graph=graph,
        configuration=configuration,
        directory=directory,
        register=register,
        engine=engine,
        default_parallelism=parallelism,
        owner=f"{socket.gethostname()}:{os.getpid()}",
        leadership=leadership,
        clock=clock,
    )


def _default_parallelism(session: SparkSession, trigger: EpochTrigger) -> int:
    """Return the parallelism of a job that sets none.

    In real time four stages have a slot for each task, and a local master has two cores for each task of a stage: on
    two cores, one task has a fifth of the latency of two.
    """
    context: Any = session.sparkContext
    slots: int = context.defaultParallelism
    if not trigger.is_real_time:
        return slots
    most = slots // _STAGES
    if context._jsc.sc().isLocal():
        most = min(most, context._jvm.java.lang.Runtime.getRuntime().availableProcessors() // _CORES_OF_A_TASK)
    return max(1, most)


def _temporary_directory(job_name: str, *, is_once: bool) -> str:
    root = tempfile.mkdtemp(prefix="holdfast-checkpoints-")
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    logger.log(
        logging.DEBUG if is_once else logging.WARNING,
        "execution.checkpointing.dir is not set: job %r keeps its state in %r, which is removed when this process "
        "ends, so it cannot be resumed",
        job_name,
        root,
    )
    return root
