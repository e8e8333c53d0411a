"""What users subclass to make state row by row, where columns are not enough."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from holdfast.runtime.function.user_function import CheckpointedFunction, KeyedProcessFunction, ProcessFunction

__all__ = ["BroadcastStateBootstrapFunction", "KeyedStateBootstrapFunction", "StateBootstrapFunction"]


class KeyedStateBootstrapFunction(KeyedProcessFunction, ABC):
    """Writes keyed state and timers for each row of its key.

    `open` gets the runtime context, from which it takes its states, as a `KeyedProcessFunction` does.
    """

    @abstractmethod
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        """Write state for one row.

        Args:
            value: The row.
            ctx: Has the current key and a timer service. Timers are written and do not fire here, however old.
        """


class StateBootstrapFunction(ProcessFunction, CheckpointedFunction, ABC):
    """Writes operator state: lists that are dealt out, unions, and broadcast maps.

    `initialize_state` takes states from the operator state store of its context, `snapshot_state` is called once after
    the last row.
    """

    @abstractmethod
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> None:
        """Write state for one row."""


class BroadcastStateBootstrapFunction(StateBootstrapFunction, ABC):
    """Writes broadcast state; `process_element` gets the states from the context that `initialize_state` was given.

    Each subtask of the job will have the whole of it.
    """

    def snapshot_state(self, context: Any) -> None:
        """Nothing is to be done: a broadcast state is written when it is put."""
