"""Which execution of which task something was made by."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.kernel.ids import new_nonce


@dataclass(frozen=True)
class TaskIdentity:
    """Which task of the stage this is; `attempt` is unique to this execution of it."""

    stage: int
    partition: int
    attempt: str

    @classmethod
    def fresh(cls, stage: int, partition: int) -> TaskIdentity:
        """An identity that no other execution has."""
        return cls(stage, partition, new_nonce())
