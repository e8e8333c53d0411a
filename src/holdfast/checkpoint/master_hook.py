"""Master hooks: user code in the driver that takes part in checkpoints."""

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

logger = get_logger(__name__)

T = TypeVar("T")
_END: Final = None


class SilentHookError(Exception):
    """A hook has not answered in time; its call may still be running."""


class HookThread:
    """Makes the calls of one hook in order, in one thread, each with a timeout.

    A thread cannot be stopped from outside. A hook that hangs does not keep the process alive, and further calls fail
    until it returns.

    Args:
        name: Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._last: Future[Any] | None = None
        self._name = name
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[[], T], timeout: float | None) -> T:
        """Return the result of a function, or raise its error. Blocks for at most `timeout` seconds.

        Raises:
            SilentHookError: It has not returned in time, or an earlier call has not returned yet.
        """
        if self._last is not None and not self._last.done():
            raise SilentHookError("it has not returned from an earlier call")
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
                raise  # the function itself raised it
        raise SilentHookError(f"it has not answered in {timeout:g} s")

    def end(self) -> None:
        """End the thread after the current call."""
        self._calls.put(_END)

    def _run(self) -> None:
        while (call := self._calls.get()) is not _END:
            answer, function = call
            try:
                answer.set_result(function())
            except BaseException as error:  # noqa: BLE001 - the caller of the future gets it
                answer.set_exception(error)


class MasterTriggerRestoreHook(ABC, Generic[T]):
    """Hook that is triggered before the tasks and whose state is part of the checkpoint."""

    @abstractmethod
    def get_identifier(self) -> str:
        """Return the name of the hook, by which its state is restored."""

    @abstractmethod
    def trigger_checkpoint(self, checkpoint_id: int, timestamp: int, executor: Executor | None) -> Future[T] | T | None:
        """Prepare a checkpoint; return the hook's state, a future of it, or None for no state.

        Called in a thread of the hook. In a job a slow hook delays the next epoch.

        Args:
            checkpoint_id: The checkpoint, or savepoint.
            timestamp: Time of the trigger, in milliseconds since 1970.
            executor: The executor of a coordinator that was given one; None in a job.
        """

    @abstractmethod
    def restore_checkpoint(self, checkpoint_id: int, state: T | None) -> None:
        """Restore the state of a checkpoint; None if it has no state of this hook."""

    def create_checkpoint_data_serializer(self) -> StateSerializer[T] | None:
        """Return the serializer of the hook's state; None for a hook without state."""
        return None

    def reset(self) -> None:
        """Reset the hook: the job starts without a checkpoint."""

    def close(self) -> None:
        """Release resources."""


class WithMasterCheckpointHook(ABC, Generic[T]):
    """Base of functions and sinks that have a master hook."""

    @abstractmethod
    def create_master_trigger_restore_hook(self) -> MasterTriggerRestoreHook[T]:
        """Create the hook. Called in the driver, once in each attempt of the job."""


class MasterHooks:
    """The hooks of one job, in the order in which they were added.

    Each hook is called in its own thread, so a hook that hangs blocks nothing for longer than the checkpoint timeout.

    Attributes:
        timeout: Timeout of restore, reset and close, in seconds; None for no timeout.
    """

    def __init__(self) -> None:
        self._hooks: dict[str, MasterTriggerRestoreHook[Any]] = {}
        self._threads: dict[str, HookThread] = {}
        self.timeout: float | None = None

    @property
    def identifiers(self) -> list[str]:
        """Names of the hooks."""
        return list(self._hooks)

    def add(self, hook: MasterTriggerRestoreHook[Any]) -> bool:
        """Add a hook; returns False, and keeps the first one, if its name is taken.

        Raises:
            TypeError: The hook is None.
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
        """Trigger one hook and return its state as JSON; None for no state. Blocks until it has answered.

        Raises:
            CheckpointError: It failed, has not answered in time, or its state cannot be serialized.
        """
        hook = self._hooks[identifier]

        thread = self._threads[identifier]
        try:
            answer = thread.call(partial(hook.trigger_checkpoint, checkpoint_id, timestamp, executor), timeout)
            # Wait here: a future that is never completed must not occupy the hook's thread.
            state = _result_of(answer, timeout) if isinstance(answer, Future) else answer
            return None if state is None else thread.call(partial(_as_json, hook, state), timeout)
        except SilentHookError as error:
            # Not `from` the timeout, which would count as an infrastructure error.
            raise CheckpointError(
                CheckpointFailureReason.CHECKPOINT_DECLINED_TIME_OUT,
                f"Master hook {identifier!r}: {error} (execution.checkpointing.timeout). Repair what it waits for, "
                "or remove the function or sink that adds it.",
            ) from None
        except Exception as error:
            raise CheckpointError(
                CheckpointFailureReason.MASTER_HOOK_FAILURE,
                f"Master hook {identifier!r}: {str(error) or type(error).__name__}",
                error,
            ) from error

    def restore(self, checkpoint_id: int, states: Mapping[str, Any], *, allow_unmatched: bool, path: str = "") -> None:
        """Restore the state of each hook, None for those without.

        Raises:
            StateError: There is state of an unknown hook, and that is not allowed.
        """
        unmatched = sorted(set(states) - set(self._hooks))
        if unmatched and not allow_unmatched:
            raise StateError(
                f"Checkpoint {checkpoint_id} has state of the master hooks {unmatched!r}, which were not added. Add "
                "them, or allow non-restored state."
            )
        for identifier, hook in self._hooks.items():
            stored = states.get(identifier)
            state = None if stored is None else _state_of(hook, stored, path)
            self._call(identifier, "restore_checkpoint", partial(hook.restore_checkpoint, checkpoint_id, state))

    def reset(self) -> None:
        """Reset all hooks."""
        for identifier, hook in self._hooks.items():
            self._call(identifier, "reset", hook.reset)

    def close(self) -> None:
        """Close all hooks; errors are logged."""
        for identifier, hook in self._hooks.items():
            try:
                self._call(identifier, "close", hook.close)
            except SilentHookError as error:
                logger.warning("%s; it was not closed.", error)
            except Exception:
                logger.exception("Master hook %r could not be closed.", identifier)
            self._threads[identifier].end()

    def _call(self, identifier: str, method: str, function: Callable[[], object]) -> None:
        try:
            self._threads[identifier].call(function, self.timeout)
        except SilentHookError as error:
            raise SilentHookError(f"Master hook {identifier!r}, {method}(): {error}") from None


def _result_of(answer: Future[T], timeout: float | None) -> T:
    try:
        return answer.result(timeout)
    except FutureTimeoutError:
        if answer.done():
            raise  # the hook itself failed with it
    raise SilentHookError(f"it has not answered in {timeout:g} s")


def _as_json(hook: MasterTriggerRestoreHook[T], state: T) -> dict[str, Any]:
    serializer = hook.create_checkpoint_data_serializer()
    if serializer is None:
        raise StateError("it returned state, but has no serializer for it.")
    return {"data": base64.b64encode(serializer.to_bytes(state)).decode("ascii")}


def _state_of(hook: MasterTriggerRestoreHook[T], stored: Any, path: str) -> T:
    identifier = hook.get_identifier()
    serializer = hook.create_checkpoint_data_serializer()
    if serializer is None:
        raise StateError(f"Master hook {identifier!r} has stored state but no serializer for it.")
    try:
        data = base64.b64decode(stored["data"], validate=True)
    except (TypeError, KeyError, ValueError) as error:
        raise CorruptFileError(
            path, None, f"the state of master hook {identifier!r} is not base64: {error}."
        ) from error
    return serializer.from_bytes(data, path)
