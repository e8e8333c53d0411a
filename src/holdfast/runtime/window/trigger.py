"""Triggers: when the contents of a window are evaluated, and when they are thrown away.

Timers fire at the end of an epoch, in the order of their times; see `docs/guide/time.md`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Any, Generic, TypeVar

from holdfast.state.declaration.descriptor import StateDescriptor

T = TypeVar("T")
W = TypeVar("W")


class TriggerResult(Enum):
    """What is to be done with a window."""

    CONTINUE = (False, False)
    FIRE_AND_PURGE = (True, True)
    FIRE = (True, False)
    PURGE = (False, True)

    def is_fire(self) -> bool:
        """Whether its contents are evaluated; nothing happens if it has none."""
        return self.value[0]

    def is_purge(self) -> bool:
        """Whether its contents are thrown away, after they were evaluated."""
        return self.value[1]


class Trigger(ABC, Generic[T, W]):
    """Decides about the windows of each key.

    A trigger keeps nothing in fields of `self`: one object serves all keys and windows. What it must remember is state
    that it asks its context for.
    """

    class TriggerContext(ABC):
        """Times, timers and state of the window at hand."""

        @abstractmethod
        def get_current_processing_time(self) -> int:
            """The epoch's processing time in milliseconds since 1970."""

        @abstractmethod
        def get_metric_group(self) -> Any:
            """The metrics of the operator."""

        @abstractmethod
        def get_current_watermark(self) -> int:
            """The event-time watermark; the smallest 64-bit number before there is one."""

        @abstractmethod
        def register_processing_time_timer(self, time: int) -> None:
            """Asks for `on_processing_time` when the processing time reaches `time`; again is no change."""

        @abstractmethod
        def register_event_time_timer(self, time: int) -> None:
            """Asks for `on_event_time` when the watermark reaches `time`; again is no change."""

        @abstractmethod
        def delete_processing_time_timer(self, time: int) -> None:
            """Takes back a timer; no such timer is no error."""

        @abstractmethod
        def delete_event_time_timer(self, time: int) -> None:
            """Takes back a timer; no such timer is no error."""

        @abstractmethod
        def get_partitioned_state(self, state_descriptor: StateDescriptor[Any]) -> Any:
            """State of the key and the window at hand."""

    class OnMergeContext(TriggerContext):
        """What is known when windows have merged."""

        @abstractmethod
        def merge_partitioned_state(self, state_descriptor: StateDescriptor[Any]) -> None:
            """Moves the state of the windows that were merged to the one that they have become.

            Raises:
                StateError: State of this kind cannot be merged.
            """

    @abstractmethod
    def on_element(self, element: T, timestamp: int, window: W, ctx: TriggerContext) -> TriggerResult:
        """An element was added to a window."""

    @abstractmethod
    def on_processing_time(self, time: int, window: W, ctx: TriggerContext) -> TriggerResult:
        """A processing-time timer of a window has fired."""

    @abstractmethod
    def on_event_time(self, time: int, window: W, ctx: TriggerContext) -> TriggerResult:
        """An event-time timer of a window has fired."""

    def can_merge(self) -> bool:
        """Whether it has `on_merge`, so that it goes with windows that merge."""
        return False

    @abstractmethod
    def on_merge(self, window: W, ctx: OnMergeContext) -> None:
        """Windows were merged into `window`."""

    @abstractmethod
    def clear(self, window: W, ctx: TriggerContext) -> None:
        """A window has gone: takes back its timers and clears its state."""
