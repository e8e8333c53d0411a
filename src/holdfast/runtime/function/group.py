"""Functions that get all elements that a key has in an epoch at once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.runtime.function.user_function import KeyedProcessFunction, RichFunction


class GroupFunction(RichFunction):
    """A function of all elements of a key in an epoch; it has state and timers for the key.

    Attributes:
        given_up: Names of states that it had once and that are to be deleted.
    """

    given_up: tuple[str, ...] = ()

    @abstractmethod
    def process_group(self, values: Sequence[Any], ctx: KeyedProcessFunction.Context) -> Iterable[Any] | None:
        """Process the elements of the current key.

        Args:
            values: All of them, at least one, in the order in which they came. The timers of the epoch fire afterwards.
            ctx: As for `KeyedProcessFunction.process_element`; there is no timestamp.

        Returns:
            What to emit, any number.
        """

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any] | None:
        """Called when a timer of the current key fires; returns what to emit."""
        return ()
