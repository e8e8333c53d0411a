"""The rows of an answer: an Arrow record batch without its schema, which both sides know from the description."""

from __future__ import annotations

import pyarrow as pa

from holdfast.queryable.wire.errors import ProtocolError


def answer_batch(body: bytes | memoryview, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of an answer, every offset of which lies in them: Arrow itself follows any.

    Raises:
        ProtocolError: There are none.
    """
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(body), schema)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        raise ProtocolError(f"The answer cannot be read: {error!r:.300}") from error
    return batch
