"""The processes of the jobs that one term leads, on this host."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from holdfast.dispatcher.process.job_process import JobProcess
from holdfast.dispatcher.process.process_start import LOG, PROGRAM, LaunchedJob, ProcessStart
from holdfast.dispatcher.process.spare_process import SpareProcesses
from holdfast.dispatcher.protocol.event import ProcessOutcome
from holdfast.dispatcher.store.dispatcher_stores import DispatcherStores
from holdfast.dispatcher.store.submitted_program import SubmittedProgram
from holdfast.errors import ConfigurationError
from holdfast.ha.job_manager_store.execution_plan import ExecutionPlan
from holdfast.ha.services.options import HA_LEADER_SESSION, HA_SUBMISSION
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.kernel.secret import get_logger
from holdfast.rest.address import addresses
from holdfast.rest.client import RestClient, RestError
from holdfast.runtime.job.options import JOB_ID, JOB_NAME, PYTHON_FILES
from holdfast.runtime.job.rest_options import REST_ENABLE, REST_PORT
from holdfast.storage.file_system.scheme import file_system_for
from holdfast.storage.job.job_directory import JobDirectory

_log = get_logger(__name__)
_OF_THE_CLUSTER: Final = ("high-availability.", "kubernetes.", "s3.")
_OF_THE_JOB_MANAGER: Final = ("rest.", "process.", "jobmanager.", "jobstore.", "job-result-store.", "cleanup-strategy.")
_MODULES: Final = (".py", ".zip", ".egg", ".whl")
_ADDRESS_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.2


class LocalProcesses:
    """Starts, finds and ends the processes of jobs; safe to use from several threads.

    Args:
        configuration: Of the job manager. What it says of the cluster wins over programs, the rest are their defaults.
        stores: Where the files of programs are.
        directory: The working directory; each job has one of its own in it.
        session: The session in which the job manager leads.
        command: What runs a job.
        spares: Processes that are ready for a job.
    """

    def __init__(
        self,
        configuration: Configuration,
        stores: DispatcherStores,
        directory: Path,
        session: str,
        command: Sequence[str],
        spares: SpareProcesses,
    ) -> None:
        self._configuration = configuration
        self._stores = stores
        self._directory = directory / "jobs"
        self._session = session
        self._command = command
        self._spares = spares
        self._lock = threading.Lock()
        self._processes: dict[JobID, JobProcess] = {}
        self._callbacks: dict[JobID, Callable[[str], None]] = {}

    def prepare(self, plan: ExecutionPlan, start: int) -> None:
        """Note that a process is about to be started, so that it can be ended."""
        directory = self.directory_of(plan.job_id)
        process = JobProcess(
            self._command,
            directory,
            process_environment(),
            lambda job: self._launched(plan.job_id, job),
        )
        with self._lock:
            self._processes[plan.job_id] = process

    def run(self, plan: ExecutionPlan, start: int, on_launched: Callable[[str], None]) -> ProcessOutcome:
        """Run a prepared process to its end. Blocks.

        Raises:
            ConfigurationError: An option of the program does not fit, as by another release that had taken it.
            HoldfastError: The files of the program are not there.
            OSError: The process cannot be started.
        """
        self._callbacks[plan.job_id] = on_launched
        directory = self.directory_of(plan.job_id)
        told = self._start_of(plan, directory)
        program = directory / PROGRAM
        if program.exists():
            shutil.rmtree(program)
        # The log of an earlier process goes on in one that is started for it.
        spare = None if (directory / LOG).exists() else self._spares.take()
        try:
            if spare is not None:
                spare.enter(directory)
            self._stores.fetch(plan, program)
        except BaseException:
            if spare is not None:
                spare.end()
            raise
        return self._processes[plan.job_id].run(told, spare)

    def cancel(self, job_id: JobID) -> None:
        """Have the job of a running process cancelled.

        Raises:
            RestError: It cannot be told.
        """
        self.client_of(job_id, _ADDRESS_SECONDS).cancel()

    def end(self, job_id: JobID, *, at_once: bool) -> None:
        """End a process, also one that is only prepared."""
        process = self._processes.get(job_id)
        if process is not None:
            process.end(at_once=at_once)

    def forget(self, job_id: JobID) -> None:
        """Remove the program of a job; its log stays."""
        shutil.rmtree(self.directory_of(job_id) / PROGRAM, ignore_errors=True)

    def directory_of(self, job_id: JobID) -> Path:
        """The directory of a job in the working directory."""
        return self._directory / str(job_id)

    def log_of(self, job_id: JobID) -> Path:
        """What the processes of a job have written."""
        return self.directory_of(job_id) / LOG

    def client_of(self, job_id: JobID, patience: float = 0.0) -> RestClient:
        """Return a client of the process that runs a job.

        Args:
            job_id: The job.
            patience: Seconds for which a process may take to say where it listens.

        Raises:
            RestError: None runs, or it does not say where it listens.
        """
        process = self._processes.get(job_id)
        waiting = threading.Event()
        while True:
            client = None if process is None else _client(process)
            if client is not None:
                return client
            if patience <= 0 or process is None:
                raise RestError(f"The process of job {job_id} does not answer yet; try again.", 503)
            waiting.wait(_LOOK_SECONDS)
            patience -= _LOOK_SECONDS

    def _launched(self, job_id: JobID, job: LaunchedJob) -> None:
        if job.job_id != str(job_id):
            _log.error("The program of job %s has executed job %s; only its own is led here.", job_id, job.job_id)
        self._callbacks[job_id](job.name)

    def _start_of(self, plan: ExecutionPlan, directory: Path) -> ProcessStart:
        program = SubmittedProgram.of(plan)
        given = self._configuration.to_texts()
        own = Configuration(program.options)
        for key in sorted(own.key_set()):
            if key.startswith(_OF_THE_CLUSTER) and key in given and given[key] != program.options[key]:
                _log.warning("job %s: option %s is the job manager's to set", plan.job_id, key)
        forced: dict[str, Any] = {
            **{key: value for key, value in given.items() if key.startswith(_OF_THE_CLUSTER)},
            JOB_ID.key: str(plan.job_id),
            HA_LEADER_SESSION.key: self._session,
            HA_SUBMISSION.key: program.submission,
            REST_ENABLE.key: "true",
            REST_PORT.key: "0",
        }
        modules = [name for name in program.files if name != program.script and name.endswith(_MODULES)]
        if modules:
            own.set(PYTHON_FILES.key, [*own.get(PYTHON_FILES), *(str(directory / PROGRAM / name) for name in modules)])
        combined, _ = Configuration(forced).overriding(own)
        return ProcessStart(
            program.script, program.arguments, combined.to_texts(), default_options(self._configuration)
        )


def default_options(configuration: Configuration) -> dict[str, str]:
    """What holds for the jobs of a job manager with these options, unless they say something else."""
    not_for_jobs = (*_OF_THE_CLUSTER, *_OF_THE_JOB_MANAGER)
    defaults = {
        key: value
        for key, value in configuration.to_texts().items()
        if not key.startswith(not_for_jobs) and key not in (JOB_ID.key, JOB_NAME.key)
    }
    defaults.setdefault("spark.ui.showConsoleProgress", "false")  # its output is a log
    return defaults


def process_environment() -> dict[str, str]:
    """The environment of a process of a job."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    # Spark starts its workers by this name; the program's own choice is in its options.
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    return environment


def check_options(options: Mapping[str, str]) -> None:
    """Check the options of a program before it is accepted.

    Raises:
        ConfigurationError: One is not known, or does not fit.
    """
    import holdfast.datastream.environment.stream_execution_environment  # noqa: F401 - it knows all options

    Configuration(options).validate()
    taken = [option.key for option in (HA_LEADER_SESSION, HA_SUBMISSION) if option.key in options]
    if taken:
        raise ConfigurationError(f"Option {taken[0]!r} is the job manager's to set.")


def _client(process: JobProcess) -> RestClient | None:
    job = process.launched
    if job is None:
        return None
    place = JobDirectory(
        file_system_for(job.root), job.root, JobID.from_hex(job.job_id), create_subdir=job.create_subdir
    )
    for address in addresses(place):
        if address.is_here and address.pid == process.pid:
            return RestClient(address)
    return None
