"""What comes out of the harness: emitted elements, and snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.state.operator.operator_snapshot import OperatorSnapshot
from holdfast.state.run.run_file import RunHandle


@dataclass(frozen=True)
class HarnessSnapshot:
    """The state of one subtask, to be restored into harnesses of any parallelism; it can be pickled.

    Attributes:
        checkpoint_id: The id given to `snapshot`.
        epoch: The epoch that ended with it.
        max_parallelism: Number of key groups, fixed for the life of the state.
        runs: The state version, oldest first.
        files: Content of the run files by path.
        operator_state: Operator state of the subtask, with its elements; None if it has none.
    """

    checkpoint_id: int
    epoch: int
    max_parallelism: int
    runs: tuple[RunHandle, ...]
    files: Mapping[str, bytes] = field(repr=False)
    operator_state: OperatorSnapshot | None = None


class Emitted(list[Any]):
    """What was emitted so far; reads as a list, and may be called like a method."""

    def __call__(self) -> list[Any]:
        """The elements as a plain list."""
        return list(self)
