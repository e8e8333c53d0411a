"""Any bytes where a document should be; every kind of them begins with this."""

from holdfast.storage.state_handle import decode_document
from tests.fuzz.document import PATH


def parse(data: bytes) -> None:
    decode_document(data, PATH, "register", 2)
