"""Which checkpoint a read is answered from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from holdfast.errors import ConfigurationError
from holdfast.queryable.wire.errors import BadRequestError

DEFAULT_DEADLINE: Final = 10.0


class ConsistencyKind(Enum):
    """How a read chooses its checkpoint."""

    NEWEST = "newest"
    AT_LEAST = "at_least"
    EXACTLY = "exactly"


@dataclass(frozen=True)
class Consistency:
    """Which checkpoint a read is answered from; made by `newest`, `at_least` or `exactly`."""

    kind: ConsistencyKind = ConsistencyKind.NEWEST
    checkpoint_id: int = 0

    def to_json(self) -> Any:
        """Return the consistency as it stands in a request; None for the newest."""
        return None if self.kind is ConsistencyKind.NEWEST else [self.kind.value, self.checkpoint_id]

    @classmethod
    def from_json(cls, value: Any) -> Consistency:
        """Read a consistency from a request.

        Raises:
            BadRequestError: It is none.
        """
        if value is None:
            return NEWEST
        try:
            kind, checkpoint_id = value
            if type(checkpoint_id) is not int or checkpoint_id < 1:
                raise ValueError(checkpoint_id)
            return cls(ConsistencyKind(kind), checkpoint_id)
        except (TypeError, ValueError) as error:
            raise BadRequestError(f"{value!r:.80} says nothing about a checkpoint.") from error

    def __str__(self) -> str:
        return self.kind.value if self.kind is ConsistencyKind.NEWEST else f"{self.kind.value}({self.checkpoint_id})"


NEWEST: Final = Consistency()


def newest() -> Consistency:
    """The newest completed checkpoint that the server has seen."""
    return NEWEST


def at_least(checkpoint_id: int) -> Consistency:
    """The newest one, but not before this checkpoint: waits until it has completed, or for the deadline."""
    return _checked(ConsistencyKind.AT_LEAST, checkpoint_id)


def exactly(checkpoint_id: int) -> Consistency:
    """This checkpoint, for as long as the job retains it."""
    return _checked(ConsistencyKind.EXACTLY, checkpoint_id)


def _checked(kind: ConsistencyKind, checkpoint_id: int) -> Consistency:
    if type(checkpoint_id) is not int or checkpoint_id < 1:
        raise ConfigurationError(f"A checkpoint id is a whole number from 1, not {checkpoint_id!r}.")
    return Consistency(kind, checkpoint_id)
