"""Elements that a function of the program sends to subtasks by number.

An exchange places elements by the hash of their key. So each subtask has a key of its own here, the least whole number
whose hash leads to it, and choosing a subtask is choosing that key.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

from holdfast.kernel.key_group import key_group_of, subtask_of
from holdfast.runtime.function.user_function import KeySelector, RuntimeContext, close_owner, open_owner
from holdfast.types.information.type_information import TypeInformation, Types
from holdfast.types.key.key_codec import key_codec_for

CHOSEN_TYPE: Final[TypeInformation] = Types.LONG()


class ChosenSubtask(KeySelector):
    """Selects the key of the subtask that an element goes to.

    Args:
        partition: `(key, number of subtasks) -> subtask`.
        select: `element -> key`.
        keys: The key of each subtask; empty until the parallelism is known.
    """

    def __init__(
        self, partition: Callable[[Any, int], int], select: Callable[[Any], Any], keys: tuple[int, ...] = ()
    ) -> None:
        self._partition = partition
        self._select = select
        self._keys = keys

    def among(self, parallelism: int, max_parallelism: int) -> ChosenSubtask:
        """The same for so many subtasks."""
        return ChosenSubtask(self._partition, self._select, keys_of_subtasks(parallelism, max_parallelism))

    def open(self, runtime_context: RuntimeContext) -> None:
        """Opens partitioner and key selector, as far as they are function objects."""
        open_owner(self._partition, runtime_context)
        open_owner(self._select, runtime_context)

    def close(self) -> None:
        """Closes them."""
        close_owner(self._partition)
        close_owner(self._select)

    def get_key(self, element: Any) -> int:
        """Return the key of the subtask.

        Raises:
            ValueError: The function has named none.
        """
        keys = self._keys
        chosen = self._partition(self._select(element), len(keys))
        if isinstance(chosen, bool) or not isinstance(chosen, int) or not 0 <= chosen < len(keys):
            raise ValueError(
                f"the partitioner of partition_custom() returned {chosen!r} for {element!r:.200}: it names one of "
                f"{len(keys)} subtasks, from 0 to {len(keys) - 1}."
            )
        return keys[chosen]


@cache
def keys_of_subtasks(parallelism: int, max_parallelism: int) -> tuple[int, ...]:
    """The least whole number that goes to each of so many subtasks."""
    codec = key_codec_for(CHOSEN_TYPE)
    found: dict[int, int] = {}
    number = 0
    while len(found) < parallelism:
        group = key_group_of(codec.hash(number), max_parallelism)
        found.setdefault(subtask_of(group, max_parallelism, parallelism), number)
        number += 1
    return tuple(found[subtask] for subtask in range(parallelism))
