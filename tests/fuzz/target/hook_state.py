"""The state of master hooks, as a checkpoint holds it: it is given to them, or refused with the checkpoint's path."""

import json
from functools import cache
from typing import Any

from holdfast.checkpoint.master_hook import MasterHooks, MasterTriggerRestoreHook
from holdfast.errors import CorruptFileError, HoldfastError
from holdfast.storage.state_handle import StateSerializer
from tests.fuzz.document import PATH as PLACE


class _Bytes(StateSerializer[bytes]):
    """State is what its bytes are."""

    def to_bytes(self, state: bytes) -> bytes:
        return state

    def from_bytes(self, data: bytes, path: str) -> bytes:
        return data


class Hook(MasterTriggerRestoreHook[bytes]):
    """Remembers what it gets back."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state: bytes | None = None

    def get_identifier(self) -> str:
        return self.name

    def trigger_checkpoint(self, checkpoint_id: int, timestamp: int, executor: Any) -> bytes | None:
        return self.state

    def restore_checkpoint(self, checkpoint_id: int, state: bytes | None) -> None:
        assert state is None or type(state) is bytes
        self.state = state

    def create_checkpoint_data_serializer(self) -> StateSerializer[bytes]:
        return _Bytes()


@cache
def hooks() -> MasterHooks:
    """Two of them."""
    made = MasterHooks()
    for name in ("first", "second"):
        made.add(Hook(name))
    return made


def parse(data: bytes) -> None:
    try:
        states = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise HoldfastError("the checkpoint is none") from error
    if not isinstance(states, dict):
        raise HoldfastError("the checkpoint is refused as a whole")
    for allowed in (True, False):
        try:
            hooks().restore(7, states, allow_unmatched=allowed, path=PLACE)
        except CorruptFileError as error:
            assert PLACE in str(error)
            raise
        for name in ("first", "second"):
            again = hooks().trigger(name, 8, 0, None, 60)
            assert (again is None) == (states.get(name) is None)
