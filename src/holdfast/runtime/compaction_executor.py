"""Where compactions run: in a process of low priority beside the driver, or in a thread of it.

The process is started when it is first needed, gets plans as lines of JSON and answers with lines of JSON. It ends
when its input ends, so it does not outlive the driver. It is not made by `multiprocessing`, which would run the
user's script again in it. If it dies, what it had to do fails, and it is started again for what comes next.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any, Final

from holdfast.errors import ConfigurationError, HoldfastError, StorageError
from holdfast.state.compaction.merge import compact
from holdfast.state.compaction.plan import CompactionPlan
from holdfast.state.run import RunHandle
from holdfast.storage.file_system import file_system_for
from holdfast.storage.s3_options import s3_environment

logger = logging.getLogger(__name__)

_WORKER: Final = "holdfast.runtime.compaction_worker"
_PATIENCE: Final = 5.0


class CompactionExecutor(ABC):
    """Carries out compactions."""

    def prepare(self) -> None:  # noqa: B027 - a thread needs no time to start
        """Something will be submitted soon."""

    @abstractmethod
    def submit(self, plan: CompactionPlan) -> Future[list[RunHandle]]:
        """Carry out a plan some time; does not block."""

    @abstractmethod
    def close(self) -> None:
        """Give up what is under way."""


def compaction_executor(name: str) -> CompactionExecutor:
    """Return the executor that an option names.

    Raises:
        ConfigurationError: There is none of that name.
    """
    if name == "process":
        return ProcessExecutor()
    if name == "thread":
        return ThreadExecutor()
    raise ConfigurationError(f"state.compaction.executor is 'process' or 'thread', not {name!r}.")


class ThreadExecutor(CompactionExecutor):
    """A thread of this process."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "holdfast-compaction")

    def submit(self, plan: CompactionPlan) -> Future[list[RunHandle]]:
        """Carry out a plan after those before it."""
        return self._pool.submit(lambda: compact(plan, file_system_for(plan.root)))

    def close(self) -> None:
        """Give up what has not begun."""
        self._pool.shutdown(wait=True, cancel_futures=True)


class ProcessExecutor(CompactionExecutor):
    """A process of low priority."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: dict[int, tuple[Future[list[RunHandle]], CompactionPlan]] = {}
        self._next = 0
        self._here: ThreadExecutor | None = None

    def prepare(self) -> None:
        """Start the process if it does not run."""
        with self._lock:
            self._running()

    def submit(self, plan: CompactionPlan) -> Future[list[RunHandle]]:
        """Carry out a plan after those before it."""
        future: Future[list[RunHandle]] = Future()
        with self._lock:
            try:
                process = self._running()
                assert process.stdin is not None
                number, self._next = self._next, self._next + 1
                self._waiting[number] = future, plan
                process.stdin.write(json.dumps({"id": number, "plan": plan.to_json()}).encode() + b"\n")
                process.stdin.flush()
            except OSError as error:
                self._waiting.pop(self._next - 1, None)
                future.set_exception(StorageError(f"The process that compacts cannot be reached: {error}."))
        return future

    def close(self) -> None:
        """End the process; what it has not written whole was never there."""
        with self._lock:
            process, self._process = self._process, None
            here, self._here = self._here, None
        if process is not None:
            _end(process)
        if here is not None:
            here.close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            environment = {
                **os.environ,
                **s3_environment(),
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            }
            self._process = subprocess.Popen(
                [sys.executable, "-m", _WORKER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                # A signal for the driver's group, such as that of Ctrl-C, is the driver's to answer.
                start_new_session=True,
            )
            threading.Thread(
                target=self._read, args=(self._process,), name="holdfast-compaction-results", daemon=True
            ).start()
        return self._process

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        """Hand on answers until there are no more; then what the process still had to do has failed."""
        assert process.stdout is not None
        for line in process.stdout:
            answer = json.loads(line)
            with self._lock:
                waiting = self._waiting.pop(answer["id"], None)
            if waiting is not None and answer.get("missing"):
                self._submit_here(*waiting)
            elif waiting is not None:
                _resolve(waiting[0], answer)
        code = process.wait()
        with self._lock:
            if self._process not in (process, None):
                return
            lost, self._waiting = list(self._waiting.values()), {}
        for future, _ in lost:
            future.set_exception(StorageError(f"The process that compacts has ended with code {code}."))

    def _submit_here(self, future: Future[list[RunHandle]], plan: CompactionPlan) -> None:
        """Carry out a plan for which classes of the user's script are needed, which only this process has."""
        with self._lock:
            if self._process is None:
                future.set_exception(StorageError("The job has ended, nothing is compacted any more."))
                return
            if self._here is None:
                self._here = ThreadExecutor()
            done = self._here.submit(plan)
        done.add_done_callback(lambda one: _hand_on(one, future))


def _hand_on(done: Future[list[RunHandle]], future: Future[list[RunHandle]]) -> None:
    if done.cancelled():
        future.set_exception(StorageError("The job has ended, nothing is compacted any more."))
    elif (error := done.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(done.result())


def _resolve(future: Future[list[RunHandle]], answer: dict[str, Any]) -> None:
    if "error" in answer:
        future.set_exception(HoldfastError(answer["error"]))
    else:
        future.set_result([RunHandle.from_json(run) for run in answer["runs"]])


def _end(process: subprocess.Popen[bytes]) -> None:
    streams: tuple[IO[bytes] | None, ...] = (process.stdin,)
    for stream in streams:
        if stream is not None:
            try:
                stream.close()
            except OSError as error:
                logger.debug("the process that compacts had gone: %s", error)
    process.kill()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        logger.warning("the process that compacts (pid %d) does not end", process.pid)
