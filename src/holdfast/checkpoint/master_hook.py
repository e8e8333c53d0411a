"""Hooks that take part in checkpoints on the job master's side."""

from __future__ import annotations

import base64
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import Any, Final, Generic, TypeVar

from holdfast.errors import CheckpointError, CheckpointFailureReason, CorruptFileError, StateError
from holdfast.kernel.secret import get_logger
from holdfast.storage.state_handle import StateSerializer

# Calls into code of users that may never return, made in a thread of their own.

T = TypeVar("T")
_END: Final = None


class SilentHookError(Exception):
    """A call has not returned in time; it may still be at it."""


class HookThread:
    """Makes the calls of one hook in order, in one thread, and waits for each no longer than it is told to.

    A thread cannot be ended from outside. So one that is stuck is given up: it does not keep the process alive, and
    further calls are refused until it has come back.

    Args:
        name: Of the thread.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._last: Future[Any] | None = None
        self._name = name
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[[], T], timeout: float | None) -> T:
        """Return what a function returns, or raise what it raises; blocks for at most `timeout` seconds.

        Raises:
            SilentHookError: It has not returned in time, or an earlier call has not returned yet.
        """
        if self._last is not None and not self._last.done():
            raise SilentHookError("it has not come back from an earlier call")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        answer: Future[T] = Future()
        self._last = answer
        self._calls.put((answer, function))
        try:
            return answer.result(timeout)
        except FutureTimeoutError:
            if answer.done():
                raise  # it was the function's own
        raise SilentHookError(f"it has not answered in {timeout:g} s")

    def end(self) -> None:
        """Let the thread end when it has come back."""
        self._calls.put(_END)

    def _run(self) -> None:
        while (call := self._calls.get()) is not _END:
            answer, function = call
            try:
                answer.set_result(function())
            except BaseException as error:
                answer.set_exception(error)


_log = get_logger(__name__)


class MasterTriggerRestoreHook(ABC, Generic[T]):
    """Something that is told before the tasks are, and whose state is part of the checkpoint."""

    @abstractmethod
    def get_identifier(self) -> str:
        """Return its name, under which its state is found again."""

    @abstractmethod
    def trigger_checkpoint(self, checkpoint_id: int, timestamp: int, executor: Executor | None) -> Future[T] | T | None:
        """Prepare a checkpoint; return its state, a future of it, or None.

        Args:
            checkpoint_id: The checkpoint, or savepoint.
            timestamp: When it was triggered, in milliseconds since 1970.
            executor: That of a coordinator which was given one; None in a job, where what takes long holds up the
                next epoch. Called in a thread that is the hook's own.
        """

    @abstractmethod
    def restore_checkpoint(self, checkpoint_id: int, state: T | None) -> None:
        """Take back the state of a checkpoint; None if it had none."""

    def create_checkpoint_data_serializer(self) -> StateSerializer[T] | None:
        """Return what makes bytes of its state; None for a hook that never has any."""
        return None

    def reset(self) -> None:
        """Begin anew: there is no checkpoint to go back to."""

    def close(self) -> None:
        """Let go of everything."""


class WithMasterCheckpointHook(ABC, Generic[T]):
    """Extended by functions and sinks that bring a hook."""

    @abstractmethod
    def create_master_trigger_restore_hook(self) -> MasterTriggerRestoreHook[T]:
        """Make the hook; called in the driver, once in each attempt of the job."""


class MasterHooks:
    """The hooks of one job, in the order in which they were added.

    Each is called in a thread of its own, so that one that never answers holds up nobody for longer than a checkpoint
    may take.

    Attributes:
        timeout: How long a hook may take to restore, to reset and to close, in seconds; None for any time.
    """

    def __init__(self) -> None:
        self._hooks: dict[str, MasterTriggerRestoreHook[Any]] = {}
        self._threads: dict[str, HookThread] = {}
        self.timeout: float | None = None

    @property
    def identifiers(self) -> list[str]:
        """The names of the hooks."""
        return list(self._hooks)

    def add(self, hook: MasterTriggerRestoreHook[Any]) -> bool:
        """Add a hook; returns False, and keeps the first one, if its name is taken.

        Raises:
            ValueError: It has no name.
        """
        if hook is None:
            raise TypeError("A master hook cannot be None.")
        identifier = hook.get_identifier()
        if not isinstance(identifier, str) or not identifier.strip():
            raise ValueError(f"A master hook needs a name, not {identifier!r}.")
        if identifier in self._hooks:
            return False
        self._hooks[identifier] = hook
        self._threads[identifier] = HookThread(f"holdfast-hook-{identifier}")
        return True

    def trigger(
        self, identifier: str, checkpoint_id: int, timestamp: int, executor: Executor | None, timeout: float | None
    ) -> dict[str, Any] | None:
        """Trigger one hook and return its state as JSON, None if it has none; blocks until it has answered.

        Raises:
            CheckpointError: It failed, has not answered in time, or its state cannot be made bytes.
        """
        hook = self._hooks[identifier]

        thread = self._threads[identifier]
        try:
            answer = thread.call(partial(hook.trigger_checkpoint, checkpoint_id, timestamp, executor), timeout)
            # Waited for here: a future that nobody completes does not occupy the hook's thread.
            state = _result_of(answer, timeout) if isinstance(answer, Future) else answer
            return None if state is None else thread.call(partial(_as_json, hook, state), timeout)
        except SilentHookError as error:
            # Not `from` the time-out: what a hook does not answer is no machine that was away.
            raise CheckpointError(
                CheckpointFailureReason.CHECKPOINT_DECLINED_TIME_OUT,
                f"Master hook {identifier!r}: {error} (execution.checkpointing.timeout). Mend what it waits for, or "
                "remove the function or sink that brings it.",
            ) from None
        except Exception as error:
            raise CheckpointError(
                CheckpointFailureReason.MASTER_HOOK_FAILURE,
                f"Master hook {identifier!r}: {str(error) or type(error).__name__}",
                error,
            ) from error

    def restore(self, checkpoint_id: int, states: Mapping[str, Any], *, allow_unmatched: bool, path: str = "") -> None:
        """Give each hook its state, None to those without.

        Raises:
            StateError: There is state of a hook that was not added, and that is not allowed.
        """
        unmatched = sorted(set(states) - set(self._hooks))
        if unmatched and not allow_unmatched:
            raise StateError(
                f"Checkpoint {checkpoint_id} holds state of the master hooks {unmatched!r}, which were not added. Add "
                "them, or allow state that is not restored."
            )
        for identifier, hook in self._hooks.items():
            stored = states.get(identifier)
            state = None if stored is None else _state_of(hook, stored, path)
            self._call(identifier, "restore_checkpoint", partial(hook.restore_checkpoint, checkpoint_id, state))

    def reset(self) -> None:
        """Tell all hooks that there is no checkpoint to go back to."""
        for identifier, hook in self._hooks.items():
            self._call(identifier, "reset", hook.reset)

    def close(self) -> None:
        """Close all hooks; what goes wrong is logged."""
        for identifier, hook in self._hooks.items():
            try:
                self._call(identifier, "close", hook.close)
            except SilentHookError as error:
                _log.warning("%s; it is left alone.", error)
            except Exception:
                _log.exception("Master hook %r could not be closed.", identifier)
            self._threads[identifier].end()

    def _call(self, identifier: str, method: str, function: Callable[[], object]) -> None:
        try:
            self._threads[identifier].call(function, self.timeout)
        except SilentHookError as error:
            raise SilentHookError(f"Master hook {identifier!r}, {method}(): {error}") from None


def _result_of(answer: Future[T], timeout: float | None) -> T:
    """The result of a future that a hook returned."""
    try:
        return answer.result(timeout)
    except FutureTimeoutError:
        if answer.done():
            raise  # it is what the hook failed with
    raise SilentHookError(f"it has not answered in {timeout:g} s")


def _as_json(hook: MasterTriggerRestoreHook[T], state: T) -> dict[str, Any]:
    serializer = hook.create_checkpoint_data_serializer()
    if serializer is None:
        raise StateError("it returned state but has no serializer for it.")
    return {"data": base64.b64encode(serializer.to_bytes(state)).decode("ascii")}


def _state_of(hook: MasterTriggerRestoreHook[T], stored: Any, path: str) -> T:
    identifier = hook.get_identifier()
    serializer = hook.create_checkpoint_data_serializer()
    if serializer is None:
        raise StateError(f"Master hook {identifier!r} has stored state but no serializer for it.")
    try:
        data = base64.b64decode(stored["data"], validate=True)
    except (TypeError, KeyError, ValueError) as error:
        raise CorruptFileError(path, None, f"the state of master hook {identifier!r} is no base64: {error}.") from error
    return serializer.from_bytes(data, path)
