"""The windows of a key that may merge, and where the contents of each are.

Contents are not moved when a window grows: it keeps the namespace in which it began, its *state window*. Only when
windows that both have contents become one, the contents of all but one are moved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from holdfast.errors import ConfigurationError, StateError
from holdfast.runtime.window.window_assigner import MergingWindowAssigner
from holdfast.state.declaration.api import MapState
from holdfast.state.declaration.descriptor import MapStateDescriptor
from holdfast.types.serializer import TypeSerializer

MERGING_WINDOWS: Final[MapStateDescriptor[bytes, bytes]] = MapStateDescriptor("merging-window-set", "binary", "binary")

Merge = Callable[[Any, list[Any], Any, list[Any]], None]
"""Is called with the window that others have become, these, its state window, and those whose contents move there."""


class _Results(MergingWindowAssigner.MergeCallback[Any]):
    def __init__(self) -> None:
        self.found: list[tuple[Any, set[Any]]] = []

    def merge(self, to_be_merged: Any, merge_result: Any) -> None:
        self.found.append((merge_result, set(to_be_merged)))


class MergingWindowSet:
    """The windows of the current key.

    Args:
        assigner: Knows which windows merge.
        serializer: Of windows.
        state: Where the state window of each window is kept.
    """

    def __init__(
        self,
        assigner: MergingWindowAssigner[Any, Any],
        serializer: TypeSerializer[Any],
        state: MapState[bytes, bytes],
    ) -> None:
        self._assigner = assigner
        self._serializer = serializer
        self._state = state
        # In the order of their bytes, so that what merges does not depend on which window was read first.
        self._stored = {window: of_state for window, of_state in sorted(state.items()) if of_state is not None}
        read = serializer.deserialize
        self._windows = {read(window): read(of_state) for window, of_state in self._stored.items()}

    def state_window(self, window: Any) -> Any:
        """Return where the contents of a window are, None if there is no such window."""
        return self._windows.get(window)

    def add(self, new: Any, merge: Merge) -> Any:
        """Add a window and return what it has become.

        Raises:
            ConfigurationError: The assigner merges windows that are not there.
        """
        if new in self._windows:
            return new
        results = _Results()
        self._assigner.merge_windows([*self._windows, new], results)
        became = new
        for result, parts in results.found:
            if new in parts:
                became = result
            merged = [window for window in self._windows if window in parts]
            if not merged:
                raise ConfigurationError(
                    f"{self._assigner!r} makes {result!r} of {parts!r}, which are no windows here."
                )
            of_state = [self._windows.pop(window) for window in merged]
            self._windows[result] = of_state[0]
            if merged != [result]:
                merge(result, merged, of_state[0], of_state[1:])
        if became not in self._windows:
            self._windows[became] = became
        return became

    def retire(self, window: Any) -> None:
        """Forget a window.

        Raises:
            StateError: There is no such window.
        """
        if window not in self._windows:
            raise StateError(f"The window {window!r} is none of those of the key.")
        del self._windows[window]

    def persist(self) -> None:
        """Write what has changed."""
        write = self._serializer.serialize
        windows = {write(window): write(of_state) for window, of_state in self._windows.items()}
        for gone in self._stored.keys() - windows.keys():
            self._state.remove(gone)
        for window, of_state in windows.items():
            if self._stored.get(window) != of_state:
                self._state.put(window, of_state)
        self._stored = windows

    def __len__(self) -> int:
        return len(self._windows)


def merged_too_late(window: Any, reached: int, what: str) -> StateError:
    """What is raised if windows become one that is over already."""
    return StateError(f"Windows were merged into {window!r}, which ends before the {what}, {reached}.")
