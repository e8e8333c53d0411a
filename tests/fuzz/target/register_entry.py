"""An entry of the register with a checksum that is right: token, pointers, ids, history."""

from holdfast.storage.register import RegisterRecord
from tests.fuzz.document import PATH, sealed


def parse(data: bytes) -> None:
    record = RegisterRecord.decode(sealed("register", 2, data), PATH)
    record.successor(record.state, "nonce").encode()
    record.has_recorded(record)
    assert record.state.newest is None or record.state.newest.checkpoint_id < record.state.next_checkpoint_id
