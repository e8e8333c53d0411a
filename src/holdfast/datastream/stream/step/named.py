"""What streams and the ends of streams have in common, as PyFlink says it: they stand for one step of the program."""

from __future__ import annotations

from typing import Any, NoReturn, Self

from holdfast.errors import ConfigurationError
from holdfast.kernel.key_group import MAX_PARALLELISM
from holdfast.runtime.graph.stream_graph import Node


class Placed:
    """What is said of the place of one step; the stream, or the sink, stays as it is."""

    def set_uid_hash(self, uid_hash: str) -> NoReturn:
        """Refused: state is found by uid, never by a hash of it."""
        raise ConfigurationError(
            f"set_uid_hash({uid_hash!r}): a checkpoint of Flink cannot be restored here, and in Holdfast's own a step "
            "is known by its uid: call uid()."
        )

    def disable_chaining(self) -> Self:
        """Accepted: what shares a task shares it without queues, so nothing is gained by parting it."""
        return self

    def start_new_chain(self) -> Self:
        """Accepted: what shares a task shares it without queues, so nothing is gained by parting it."""
        return self

    def slot_sharing_group(self, slot_sharing_group: Any) -> Self:
        """Accepted: there are no slots; resources are those of Spark's executors."""
        return self

    def set_buffer_timeout(self, timeout_millis: int) -> Self:
        """Accepted: elements cross an exchange when the epoch's stage has ended, and no buffer waits for a timeout."""
        return self


class Named:
    """What streams and sinks have in common: they stand for one step of the program."""

    _node: Node

    def name(self, name: str) -> Self:
        """Names the step for logs and messages."""
        self._node.name = name
        return self

    def set_description(self, description: str) -> Self:
        """Names the step for logs and messages, as `name` does."""
        return self.name(description)

    def get_name(self) -> str:
        """The step's name."""
        return self._node.name

    def uid(self, uid: str) -> Self:
        """Identifies the step in checkpoints. State is found again under this uid, wherever the step then stands.

        Raises:
            ConfigurationError: It is empty.
        """
        if not uid:
            raise ConfigurationError("a uid must not be empty: it names the operator in checkpoints.")
        self._node.uid = uid
        return self


def checked_parallelism(value: int, what: str) -> int:
    """A number of subtasks.

    Raises:
        ConfigurationError: It is none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_PARALLELISM:
        raise ConfigurationError(f"{what} must be a whole number from 1 to {MAX_PARALLELISM}, not {value!r}.")
    return value
