"""The processes of jobs: start, messages to the job manager, and end; and spare processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from holdfast.dispatcher.dispatcher_machine import ProcessOutcome
from holdfast.dispatcher.store import DispatcherStores, SubmittedProgram
from holdfast.errors import ConfigurationError, CorruptFileError
from holdfast.ha.execution_plan_store import ExecutionPlan
from holdfast.ha.job_result_store import FailureCause
from holdfast.ha.options import HA_LEADER_SESSION, HA_SUBMISSION
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.kernel.secret import get_logger
from holdfast.rest.client import RestClient, RestError, addresses
from holdfast.runtime.job.options import JOB_ID, JOB_NAME, PYTHON_FILES, REST_ENABLE, REST_PORT
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.scheme import file_system_for

logger = get_logger(__name__)

# The directory of a job in the working directory::
#
#     start.json      what to run; readable only for the job manager's user
#     program/        the submitted files; the working directory of the process
#     log, log.1      the output of its processes, and the log before the last rotation
#
# The process inherits a pipe, whose file descriptor is its second argument, and writes JSON objects into it, one a
# line: ``launched`` (job id, root, create_subdir, name) when the program has executed its job, and ``ended`` as the
# last one. A spare process writes ``ready`` first, and reads the directory of its job from standard input.

START: Final = "start.json"
PROGRAM: Final = "program"
LOG: Final = "log"
SPARE: Final = "-"
"""The argument of a spare process in place of the directory, which it gets later."""
_T = TypeVar("_T", "LaunchedJob", ProcessOutcome, FailureCause)
_DIRECTORY: Final = "spare"
_FENCED_CODE: Final = 3
_LONGEST_LOG: Final = 64 << 20
_LOG_SECONDS: Final = 60.0
_TAIL_BYTES: Final = 4000
_LINGER_SECONDS: Final = 5.0
_GRACE_SECONDS: Final = 60.0
_END_SECONDS: Final = 20.0
_CLUSTER_OPTIONS: Final = ("high-availability.", "kubernetes.", "s3.")
_JOB_MANAGER_OPTIONS: Final = (
    "rest.",
    "process.",
    "jobmanager.",
    "jobstore.",
    "job-result-store.",
    "cleanup-strategy.",
)
_MODULES: Final = (".py", ".zip", ".egg", ".whl")
_ADDRESS_SECONDS: Final = 30.0
_RETRY_SECONDS: Final = 0.2


@dataclass(frozen=True)
class ProcessStart:
    """The content of a process.

    Attributes:
        script: The file that is the program.
        arguments: The arguments of the program.
        options: Options that take precedence over those of the program.
        defaults: Options over which those of the program take precedence.
    """

    script: str
    arguments: tuple[str, ...]
    options: Mapping[str, str]
    defaults: Mapping[str, str]

    def write(self, directory: Path) -> None:
        """Write the file, readable only for the user of this process."""
        path = directory / START
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, directory: Path) -> ProcessStart:
        """Read the file.

        Raises:
            CorruptFileError: It is missing or malformed.
        """
        path = directory / START
        try:
            body = json.loads(path.read_text())
            script, arguments, options, defaults = map(body.get, ("script", "arguments", "options", "defaults"))
            texts = (script, *arguments, *options.values(), *defaults.values())
            if type(arguments) is not list or not all(type(text) is str for text in texts):
                raise TypeError("a field is of another type")
            return cls(script, tuple(arguments), options, defaults)
        except (OSError, *PARSE_ERRORS) as error:
            raise CorruptFileError(str(path), None, f"it names no program to run: {error!r:.300}.") from error


@dataclass(frozen=True)
class LaunchedJob:
    """The job of a process, and its directory.

    Attributes:
        job_id: The job.
        name: Its name.
        root: The checkpoint directory.
        create_subdir: Whether the job has a subdirectory in it.
    """

    job_id: str
    name: str
    root: str
    create_subdir: bool


def launched_line(job: LaunchedJob) -> bytes:
    return _line({"event": "launched", **asdict(job)})


def ended_line(outcome: ProcessOutcome) -> bytes:
    return _line({"event": "ended", **asdict(outcome)})


def ready_line() -> bytes:
    return _line({"event": "ready"})


def is_ready_line(line: bytes) -> bool:
    return line == ready_line()


def parse_line(line: bytes) -> LaunchedJob | ProcessOutcome | None:
    """Parse a line; None if it is incomplete, as the process died while it wrote it."""
    try:
        body: dict[str, Any] = json.loads(line)
        kind = body.pop("event")
        if kind == "launched":
            return _checked(LaunchedJob(**body))
        failure = body.pop("failure")
        return _checked(ProcessOutcome(**body, failure=None if failure is None else _checked(FailureCause(**failure))))
    except PARSE_ERRORS:
        return None


def _checked(found: _T) -> _T:
    """Check the types of all fields."""
    for field in fields(found):
        if type(getattr(found, field.name)).__name__.replace("NoneType", "None") not in str(field.type).split(" | "):
            raise TypeError(field.name)
    return found


def _line(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body).encode() + b"\n"


class SpareProcess:
    """A process that has imported everything and started a JVM, and waits for a job. Thread-safe.

    ::

        <working directory>/spare/<n>/log         its output; becomes the log of its job
        <working directory>/spare/<n>/program/    its working directory; becomes the directory of its program
        <working directory>/spare/<n>/start.json  default options of all jobs

    The first two are renamed when it gets a job, so that the process, its JVM and their children run in the same place
    as any process of a job.

    Args:
        command: The command that runs a job.
        directory: Its directory until it gets a job; it is created.
        environment: The environment of the process.
        defaults: Default options of its job.
    """

    def __init__(
        self, command: Sequence[str], directory: Path, environment: Mapping[str, str], defaults: Mapping[str, str]
    ) -> None:
        self._directory = directory
        (directory / PROGRAM).mkdir(parents=True, mode=0o700)
        ProcessStart("", (), {}, defaults).write(directory)
        reading, writing = os.pipe()
        self.lines: BinaryIO = os.fdopen(reading, "rb")
        try:
            with (directory / LOG).open("ab") as output:
                self.process = subprocess.Popen(
                    [*command, SPARE, str(writing)],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=directory / PROGRAM,
                    env=dict(environment),
                    pass_fds=(writing,),
                    start_new_session=True,
                )
        finally:
            os.close(writing)
        self._is_ready = threading.Event()
        threading.Thread(target=self._wait, name="holdfast-spare", daemon=True).start()

    def is_ready(self) -> bool:
        return self._is_ready.is_set() and self.process.poll() is None

    def move_to(self, directory: Path) -> None:
        """Move its directory to that of a job, which must have neither program nor log yet.

        Raises:
            OSError: It has one of them.
        """
        directory.mkdir(parents=True, exist_ok=True)
        (self._directory / PROGRAM).rename(directory / PROGRAM)
        (self._directory / LOG).rename(directory / LOG)
        shutil.rmtree(self._directory, ignore_errors=True)

    def start_job(self, directory: Path) -> None:
        """Run the program in a directory.

        Raises:
            OSError: The process has died.
        """
        assert self.process.stdin is not None
        self.process.stdin.write(f"{directory}\n".encode())
        self.process.stdin.flush()

    def end(self) -> None:
        """Kill the process with its JVM."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _wait(self) -> None:
        if is_ready_line(self.lines.readline()):
            self._is_ready.set()
            logger.info("a spare process is ready: %d", self.process.pid)
        else:
            logger.warning("a spare process has ended before it was ready; its output: %s", self._log_tail())

    def _log_tail(self) -> str:
        try:
            return (self._directory / LOG).read_text(errors="replace")[-1000:]
        except OSError:
            return ""


class SpareProcesses:
    """Keeps a number of spare processes. Thread-safe.

    Args:
        number: Number of spare processes.
        command: The command that runs a job.
        directory: The working directory of the job manager.
    """

    def __init__(self, number: int, command: Sequence[str], directory: Path) -> None:
        self._number = number
        self._command = command
        self._directory = directory / _DIRECTORY
        self._lock = threading.Lock()
        self._spares: list[SpareProcess] = []
        self._made = 0
        shutil.rmtree(self._directory, ignore_errors=True)

    def fill(self, environment: Mapping[str, str], defaults: Mapping[str, str]) -> None:
        """Start the missing processes. Does not wait until they are ready.

        Args:
            environment: The environment of the processes.
            defaults: Default options of all jobs.
        """
        with self._lock:
            self._spares = [spare for spare in self._spares if spare.process.poll() is None]
            while len(self._spares) < self._number:
                self._made += 1
                try:
                    spare = SpareProcess(self._command, self._directory / str(self._made), environment, defaults)
                except OSError as error:
                    logger.warning("a spare process cannot be started: %s", error)
                    return
                self._spares.append(spare)

    def take(self) -> SpareProcess | None:
        """Return a ready process, which the caller owns from now on; None if there is none."""
        with self._lock:
            for spare in self._spares:
                if spare.is_ready():
                    self._spares.remove(spare)
                    return spare
        return None

    def close(self) -> None:
        """End the spare processes."""
        with self._lock:
            spares, self._spares = self._spares, []
        for spare in spares:
            spare.end()


class JobProcess:
    """A process of a job. Thread-safe; `run` is called once.

    The process leads a process group, so that its JVM ends with it. Its standard input is a pipe that the job manager
    holds
    open: when the job manager ends for any reason, the pipe is closed, and the process kills itself and its group.

    Args:
        command: The command that runs a job; the directory and the file descriptor of the pipe are appended.
        directory: The directory of the job, with its program.
        environment: The environment of the process.
        on_launched: Called when the program has executed its job.
    """

    def __init__(
        self,
        command: Sequence[str],
        directory: Path,
        environment: Mapping[str, str],
        on_launched: Callable[[LaunchedJob], None],
    ) -> None:
        self._command = command
        self._directory = directory
        self._environment = environment
        self._on_launched = on_launched
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_over = False
        self._is_end_requested = False
        self._outcome: ProcessOutcome | None = None
        self.launched: LaunchedJob | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def run(self, start: ProcessStart, spare: SpareProcess | None = None) -> ProcessOutcome:
        """Run the process to its end and return the outcome. Blocks.

        Args:
            start: The program to run.
            spare: A spare process that was moved to the directory; None to start a process.

        Raises:
            OSError: The process cannot be started.
        """
        with self._lock:
            if self._is_end_requested:
                if spare is not None:
                    spare.end()
                return ProcessOutcome(None, was_interrupted=True)
            start.write(self._directory)
            lines, process = self._start_process() if spare is None else self._start_in_spare(spare)
            self._process = process
        reader = threading.Thread(target=self._read, args=(lines,), name="holdfast-job-process", daemon=True)
        reader.start()
        ended = threading.Event()
        threading.Thread(target=self._limit_log, args=(ended,), name="holdfast-job-log", daemon=True).start()
        code = process.wait()
        ended.set()
        self._signal(signal.SIGKILL)  # its remaining children
        with self._lock:
            self._is_over = True
        reader.join(_LINGER_SECONDS)
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it did not read its input
            process.stdin.close()
        return self._outcome_of(code)

    def end(self, *, at_once: bool) -> None:
        """End the process after the current epoch, if that ends soon, or kill it. Does not block."""
        with self._lock:
            self._is_end_requested = True
        if at_once:
            self._signal(signal.SIGKILL)
            return
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGTERM)  # the process only: Spark ends with the program
        self._signal_later(_GRACE_SECONDS)

    def _start_in_spare(self, spare: SpareProcess) -> tuple[BinaryIO, subprocess.Popen[bytes]]:
        with suppress(BrokenPipeError):  # it has died meanwhile; `run` detects that
            spare.start_job(self._directory)
        return spare.lines, spare.process

    def _limit_log(self, ended: threading.Event) -> None:
        while not ended.wait(_LOG_SECONDS):
            self._rotate_log()

    def _rotate_log(self) -> None:
        """Copy a long log to ``log.1`` and truncate it. Output during the copy may be lost.

        It stays the same file, as the process has it open for appending.
        """
        log, before = self._directory / LOG, self._directory / f"{LOG}.1"
        try:
            if log.exists() and log.stat().st_size > _LONGEST_LOG:
                before.unlink(missing_ok=True)  # a full disk may have no space for both
                shutil.copyfile(log, before)
                os.truncate(log, 0)
        except OSError as error:
            logger.warning("the long log %s cannot be rotated: %s", log, error)

    def _start_process(self) -> tuple[BinaryIO, subprocess.Popen[bytes]]:
        self._rotate_log()
        log = self._directory / LOG
        reading, writing = os.pipe()
        lines = os.fdopen(reading, "rb")
        try:
            with log.open("ab") as output:
                process = subprocess.Popen(
                    [*self._command, str(self._directory), str(writing)],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=self._directory / PROGRAM,
                    env=dict(self._environment),
                    pass_fds=(writing,),
                    start_new_session=True,
                )
        except OSError:
            lines.close()
            raise
        finally:
            os.close(writing)
        return lines, process

    def _read(self, lines: BinaryIO) -> None:
        with lines:
            for line in lines:
                found = parse_line(line)
                if isinstance(found, ProcessOutcome):
                    self._outcome = found
                    self._signal_later(_END_SECONDS)  # threads of the program may keep the process alive
                elif found is not None:
                    self.launched = found
                    self._on_launched(found)

    def _signal_later(self, seconds: float) -> None:
        timer = threading.Timer(seconds, self._signal, (signal.SIGKILL,))
        timer.daemon = True
        timer.start()

    def _signal(self, number: int) -> None:
        with self._lock:
            if self._process is not None and not self._is_over:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, number)

    def _outcome_of(self, code: int) -> ProcessOutcome:
        if self._outcome is not None:
            outcome = self._outcome
            return replace(outcome, was_interrupted=True) if self._is_end_requested else outcome
        if code == _FENCED_CODE:
            return ProcessOutcome(None, was_fenced=True)
        has_run = self.launched is not None
        # A process that exits by itself without a job would do so each time; after a signal a restart may help.
        has_exited_itself = code >= 0 and not has_run
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        when = " before it had executed a job" if has_exited_itself else ""
        return ProcessOutcome(
            "FAILED" if has_exited_itself else None,
            has_run=has_run,
            was_interrupted=self._is_end_requested,
            failure=FailureCause("ProcessDied", f"The process of the job died with {how}{when}.", self._log_tail()),
        )

    def _log_tail(self) -> str:
        try:
            with (self._directory / LOG).open("rb") as log:
                log.seek(0, os.SEEK_END)
                log.seek(max(0, log.tell() - _TAIL_BYTES))
                return log.read().decode(errors="replace")
        except OSError:
            return ""


class LocalProcesses:
    """The processes of the jobs of one term, on this host. Thread-safe.

    Args:
        configuration: The options of the job manager. Options of the cluster take precedence over programs; all others
            are defaults for programs.
        stores: The stores with the files of programs.
        directory: The working directory, in which each job has a directory.
        session: The leader session of the job manager.
        command: The command that runs a job.
        spares: Spare processes.
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
        """Register a process that will be started, so that it can be ended."""
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
            ConfigurationError: An option of the program is invalid, for example as another release had accepted it.
            HoldfastError: The files of the program are missing.
            OSError: The process cannot be started.
        """
        self._callbacks[plan.job_id] = on_launched
        directory = self.directory_of(plan.job_id)
        start_file = self._make_start(plan, directory)
        program = directory / PROGRAM
        if program.exists():
            shutil.rmtree(program)
        # A job with a log of earlier processes gets a new process, which appends to it.
        spare = None if (directory / LOG).exists() else self._spares.take()
        try:
            if spare is not None:
                spare.move_to(directory)
            self._stores.fetch_files(plan, program)
        except BaseException:
            if spare is not None:
                spare.end()
            raise
        return self._processes[plan.job_id].run(start_file, spare)

    def cancel(self, job_id: JobID) -> None:
        """Send a running process the request to cancel its job.

        Raises:
            RestError: The process cannot be reached.
        """
        self.client_of(job_id, _ADDRESS_SECONDS).cancel()

    def end(self, job_id: JobID, *, at_once: bool) -> None:
        """End a process, also one that was only prepared."""
        process = self._processes.get(job_id)
        if process is not None:
            process.end(at_once=at_once)

    def forget(self, job_id: JobID) -> None:
        """Delete the program of a job; its log stays."""
        shutil.rmtree(self.directory_of(job_id) / PROGRAM, ignore_errors=True)

    def directory_of(self, job_id: JobID) -> Path:
        return self._directory / str(job_id)

    def log_of(self, job_id: JobID) -> Path:
        return self.directory_of(job_id) / LOG

    def client_of(self, job_id: JobID, patience: float = 0.0) -> RestClient:
        """Return a client of the process that runs a job.

        Args:
            job_id: The job.
            patience: Seconds to wait until the process has published its address.

        Raises:
            RestError: No process runs, or it has not published its address.
        """
        process = self._processes.get(job_id)
        waiting = threading.Event()
        while True:
            client = None if process is None else _client(process)
            if client is not None:
                return client
            if patience <= 0 or process is None:
                raise RestError(f"The process of job {job_id} does not answer yet; try again.", 503)
            waiting.wait(_RETRY_SECONDS)
            patience -= _RETRY_SECONDS

    def _launched(self, job_id: JobID, job: LaunchedJob) -> None:
        if job.job_id != str(job_id):
            logger.error(
                "The program of job %s has executed another job, %s, which is not led here.", job_id, job.job_id
            )
        self._callbacks[job_id](job.name)

    def _make_start(self, plan: ExecutionPlan, directory: Path) -> ProcessStart:
        program = SubmittedProgram.of(plan)
        given = self._configuration.to_texts()
        own = Configuration(program.options)
        for key in sorted(own.key_set()):
            if key.startswith(_CLUSTER_OPTIONS) and key in given and given[key] != program.options[key]:
                logger.warning("job %s: option %s of the program is ignored; the job manager sets it", plan.job_id, key)
        forced: dict[str, Any] = {
            **{key: value for key, value in given.items() if key.startswith(_CLUSTER_OPTIONS)},
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
    """Return the default options of jobs from the options of their job manager."""
    not_for_jobs = (*_CLUSTER_OPTIONS, *_JOB_MANAGER_OPTIONS)
    defaults = {
        key: value
        for key, value in configuration.to_texts().items()
        if not key.startswith(not_for_jobs) and key not in (JOB_ID.key, JOB_NAME.key)
    }
    defaults.setdefault("spark.ui.showConsoleProgress", "false")  # progress bars would fill the log
    return defaults


def process_environment() -> dict[str, str]:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    # Spark starts Python workers with this interpreter; programs can choose another one by option.
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    return environment


def check_options(options: Mapping[str, str]) -> None:
    """Check the options of a submitted program.

    Raises:
        ConfigurationError: An option is unknown or invalid.
    """
    import holdfast.datastream.environment.stream_execution_environment  # noqa: F401 - declares all options

    Configuration(options).validate()
    taken = [option.key for option in (HA_LEADER_SESSION, HA_SUBMISSION) if option.key in options]
    if taken:
        raise ConfigurationError(f"Option {taken[0]!r} is set by the job manager. Remove it.")


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
