"""What a query returns: values, and where they are from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Generic, TypeVar

import pyarrow as pa

from holdfast.queryable.client.read_only import read_only_state
from holdfast.queryable.wire.description import StateDescription
from holdfast.state.declaration.descriptor import StateKind

T = TypeVar("T")


@dataclass(frozen=True)
class Origin:
    """The completed checkpoint that an answer is from.

    Attributes:
        checkpoint_id: The checkpoint.
        epoch: The epoch at whose end the state was.
        lineage: The line of checkpoints; another one than before says that the job was restored from an earlier state.
        completed_at: When the checkpoint completed, in milliseconds since 1970, by the job's clock.
    """

    checkpoint_id: int
    epoch: int
    lineage: str
    completed_at: int


@dataclass(frozen=True)
class StateResult(Generic[T]):
    """The state of one key.

    Attributes:
        value: A value, a list, a dict, or an accumulator (the result, where a descriptor was given).
        origin: Where it is from.
        description: What the state is.
        is_entry: Whether the value is that of one entry of a map; it may be None.
    """

    value: T
    origin: Origin
    description: StateDescription
    is_entry: bool = False

    @property
    def checkpoint_id(self) -> int:
        """The checkpoint that it is from."""
        return self.origin.checkpoint_id

    @property
    def lineage(self) -> str:
        """The line of checkpoints that it is from."""
        return self.origin.lineage

    @property
    def completed_at(self) -> int:
        """When the checkpoint completed, in milliseconds since 1970."""
        return self.origin.completed_at

    @property
    def state(self) -> Any:
        """The same as a state object (`ValueState`, `ListState` and so on) that refuses changes.

        That of one entry of a map is a `ValueState`.
        """
        return read_only_state(StateKind.VALUE if self.is_entry else self.description.kind, self.value)


@dataclass(frozen=True)
class ManyResult:
    """The state of several keys, all from one checkpoint.

    Attributes:
        keys: As they were asked for.
        values: In the same order; None where there is no state for the key.
        origin: Where they are from.
        there: For each whether there is state, which tells a map's entry that has the value None from one that is not
            there; None if there is for all.
    """

    keys: Sequence[Any]
    values: list[Any]
    origin: Origin
    there: Sequence[bool] | None = None

    @property
    def checkpoint_id(self) -> int:
        """The checkpoint that they are from."""
        return self.origin.checkpoint_id

    @property
    def lineage(self) -> str:
        """The line of checkpoints that they are from."""
        return self.origin.lineage

    @property
    def completed_at(self) -> int:
        """When the checkpoint completed, in milliseconds since 1970."""
        return self.origin.completed_at

    def as_dict(self) -> dict[Any, Any]:
        """Return the values by key, without keys that have none."""
        pairs = zip(self.keys, self.values, strict=True)
        return dict(pairs if self.there is None else compress(pairs, self.there))

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __getitem__(self, position: int) -> Any:
        return self.values[position]


@dataclass(frozen=True)
class ScanHead:
    """What is known when a scan begins.

    Attributes:
        origin: Where all rows are from.
        description: What the state is.
        schema: The columns: key, namespace and map key where the state has them, value.
    """

    origin: Origin
    description: StateDescription
    schema: pa.Schema
