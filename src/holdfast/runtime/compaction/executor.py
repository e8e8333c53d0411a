"""Where compactions run: in a process of low priority beside the driver, or in a thread of it.

The process is started when it is first needed, gets plans as lines of JSON and answers with lines of JSON, in a pipe of
their own, because anything may be printed in a process. It ends when its input ends, so it does not outlive the driver.
It is not made by `multiprocessing`, which would run the user's script again in it. If it dies, what it had to do fails,
and it is started again for what comes next.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

from holdfast.errors import ConfigurationError, HoldfastError, StorageError
from holdfast.kernel.secret import get_logger
from holdfast.state.compaction.merge import compact
from holdfast.state.compaction.plan import CompactionPlan
from holdfast.state.run.run_file import RunHandle
from holdfast.storage.file_system.s3_options import s3_environment
from holdfast.storage.file_system.scheme import file_system_for

logger = get_logger(__name__)

_WORKER: Final = "holdfast.runtime.compaction.worker"
_PATIENCE: Final = 5.0
_IDLE: Final = 60.0
_STANDARD_ERROR: Final = 2

_Elsewhere = Callable[[Future[list[RunHandle]], CompactionPlan], None]


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
    """A process of low priority. One that has nothing to do is left to the next executor, because starting costs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self._here: ThreadExecutor | None = None

    @property
    def pid(self) -> int | None:
        """Of the process, None if none runs."""
        worker = self._worker
        return worker.pid if worker is not None and worker.is_alive() else None

    def prepare(self) -> None:
        """Start the process if it does not run; if it cannot be started, `submit` tells it."""
        with self._lock, suppress(OSError):
            self._running()

    def submit(self, plan: CompactionPlan) -> Future[list[RunHandle]]:
        """Carry out a plan after those before it."""
        with self._lock:
            try:
                return self._running().submit(plan, self._submit_here)
            except OSError as error:
                failed: Future[list[RunHandle]] = Future()
                failed.set_exception(StorageError(f"The process that compacts cannot be started: {error}."))
                return failed

    def close(self) -> None:
        """End the process if it is busy; what it has not written whole was never there."""
        with self._lock:
            worker, self._worker = self._worker, None
            here, self._here = self._here, None
        if worker is not None:
            _idle.give(worker)
        if here is not None:
            here.close()

    def _running(self) -> _Worker:
        if self._worker is None or not self._worker.is_alive():
            settings = s3_environment()
            self._worker = _idle.take(settings) or _Worker(settings)
        return self._worker

    def _submit_here(self, future: Future[list[RunHandle]], plan: CompactionPlan) -> None:
        """Carry out a plan for which classes of the user's script are needed, which only this process has."""
        with self._lock:
            if self._worker is None:
                future.set_exception(StorageError("The job has ended, nothing is compacted any more."))
                return
            if self._here is None:
                self._here = ThreadExecutor()
            done = self._here.submit(plan)
        done.add_done_callback(lambda one: _hand_on(one, future))


class _Worker:
    """One process that compacts, and the thread that reads its answers.

    Args:
        settings: What is added to the environment.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.settings = dict(settings)
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[Future[list[RunHandle]], CompactionPlan, _Elsewhere]] = {}
        self._next = 0
        reading, writing = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _WORKER, str(writing)],
                stdin=subprocess.PIPE,
                stdout=_STANDARD_ERROR,
                pass_fds=(writing,),
                env={**os.environ, **settings, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                # A signal for the driver's group, such as that of Ctrl-C, is the driver's to answer.
                start_new_session=True,
            )
        except OSError:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        threading.Thread(target=self._read, args=[reading], name="holdfast-compaction-results", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def is_busy(self) -> bool:
        with self._lock:
            return bool(self._waiting)

    def submit(self, plan: CompactionPlan, elsewhere: _Elsewhere) -> Future[list[RunHandle]]:
        """Carry out a plan after those before it, or hand it on if the process cannot."""
        future: Future[list[RunHandle]] = Future()
        with self._lock:
            number, self._next = self._next, self._next + 1
            self._waiting[number] = future, plan, elsewhere
            try:
                assert self._process.stdin is not None
                self._process.stdin.write(json.dumps({"id": number, "plan": plan.to_json()}).encode() + b"\n")
                self._process.stdin.flush()
            except OSError as error:
                del self._waiting[number]
                future.set_exception(StorageError(f"The process that compacts cannot be reached: {error}."))
        return future

    def end(self) -> None:
        """Kill the process; whoever waits for it is not told."""
        with self._lock:
            self._waiting.clear()
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except OSError as error:
            logger.debug("the process that compacts had gone: %s", error)
        self._process.kill()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            logger.warning("the process that compacts (pid %d) does not end", self._process.pid)

    def _read(self, reading: int) -> None:
        """Hand on answers until there are no more; then what the process still had to do has failed."""
        with os.fdopen(reading, "rb") as answers:
            for line in answers:
                if line.endswith(b"\n"):  # it may have been killed in the middle of one
                    self._hand_on(json.loads(line))
        code = self._process.wait()
        with self._lock:
            lost, self._waiting = list(self._waiting.values()), {}
        for future, _, _ in lost:
            future.set_exception(StorageError(f"The process that compacts has ended with code {code}."))

    def _hand_on(self, answer: dict[str, Any]) -> None:
        with self._lock:
            waiting = self._waiting.pop(answer["id"], None)
        if waiting is None:
            return
        future, plan, elsewhere = waiting
        if answer.get("missing"):
            elsewhere(future, plan)
        else:
            _resolve(future, answer)


class _Idle:
    """The process, at most one, that its executor has left; it ends when nobody takes it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self._timer: threading.Timer | None = None

    def give(self, worker: _Worker) -> None:
        """Keep a process that has nothing to do and is the only one, end any other."""
        with self._lock:
            if self._worker is None and worker.is_alive() and not worker.is_busy():
                self._worker = worker
                self._timer = threading.Timer(_IDLE, self._expire, [worker])
                self._timer.daemon = True
                self._timer.start()
                return
        worker.end()

    def take(self, settings: Mapping[str, str]) -> _Worker | None:
        """Return the process if it is there, alive, and has these settings."""
        with self._lock:
            worker, self._worker = self._worker, None
            if self._timer is not None:
                self._timer.cancel()
        if worker is None:
            return None
        if worker.is_alive() and worker.settings == settings:
            return worker
        worker.end()
        return None

    def _expire(self, worker: _Worker) -> None:
        with self._lock:
            if self._worker is not worker:
                return
            self._worker = None
        worker.end()


_idle: Final = _Idle()


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
