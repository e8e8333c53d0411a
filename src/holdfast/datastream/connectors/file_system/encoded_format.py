"""Files of the bytes that an encoder makes of each element.

Elements are encoded as they come, before anything is kept of their batch: one that cannot be encoded is refused alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final

import numpy as np
import pyarrow as pa

from holdfast.datastream.formats.bulk_writer import ClosingWriter, compressed
from holdfast.errors import HoldfastError
from holdfast.runtime.function.sink import BatchSinkWriter, RefusedElementError
from holdfast.runtime.function.staging import FormatWriter
from holdfast.types.conversion.arrow import batch_to_elements
from holdfast.types.conversion.flink_text import text_of
from holdfast.types.encoder import Encoder
from holdfast.types.information.type_information import ChangelogTypeInformation, TypeInformation

_ENCODED: Final = "__encoded"


@dataclass(frozen=True)
class EncodedFormat:
    """Files of the bytes that an encoder makes of each element.

    Attributes:
        encoder: Makes them.
        compression: `none` or `gzip`.
    """

    encoder: Encoder
    compression: str = "none"

    @property
    def keeps_columns(self) -> bool:
        """An encoder is given whole elements."""
        return True

    def open_writer(self, file: BinaryIO, schema: pa.Schema) -> FormatWriter:
        """A writer of one file, of what `EncodingWriter` has made."""
        sink, end = compressed(file, self.compression)

        def write(table: pa.Table) -> None:
            for encoded in table[_ENCODED].chunks:
                sink.write(_content(encoded))

        return ClosingWriter(write, end)


class EncodingWriter(BatchSinkWriter):
    """Encodes elements, and hands on their bytes.

    Args:
        writer: Takes them.
        encoder: Of the elements.
        element_type: Their type.
        kept: Columns that the writer needs beside the bytes, because directories are named by them.
    """

    def __init__(
        self, writer: BatchSinkWriter, encoder: Encoder, element_type: TypeInformation, kept: Sequence[str]
    ) -> None:
        self._writer = writer
        if isinstance(element_type, ChangelogTypeInformation):
            encoder = encoder.with_kinds()
        self._encode = encoder.with_text(text_of(element_type)).encode
        self._type = element_type
        self._kept = list(kept)
        self.flush, self.prepare_commit = writer.flush, writer.prepare_commit  # type: ignore[method-assign]
        self.close, self.abort = writer.close, writer.abort  # type: ignore[method-assign]

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Encodes and hands on a batch.

        Raises:
            RefusedElementError: An element cannot be encoded.
        """
        try:
            encoded = _column(list(map(self._encode, batch_to_elements(batch, self._type))))
        except (HoldfastError, OSError):
            raise
        except Exception as error:
            raise RefusedElementError(f"its bytes cannot be made: {type(error).__name__}: {error}") from error
        columns = [*(batch.column(name) for name in self._kept), encoded]
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, names=[*self._kept, _ENCODED]))


def _column(parts: Sequence[bytes]) -> pa.LargeBinaryArray:
    """A column of texts.

    Raises:
        TypeError: One is none of bytes.
    """
    offsets = np.zeros(len(parts) + 1, np.int64)
    content = b"".join(parts)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(parts), [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    )


def _content(column: pa.LargeBinaryArray) -> memoryview:
    """All texts of a column, one behind the other, as they lie in memory."""
    _, offsets, content = column.buffers()
    ends = np.frombuffer(offsets, np.int64)
    return memoryview(content)[int(ends[column.offset]) : int(ends[column.offset + len(column)])]
