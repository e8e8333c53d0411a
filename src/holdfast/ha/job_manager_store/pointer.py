"""Pointers to state as stores keep them: small documents with a mark for deletion."""

from __future__ import annotations

from typing import Final, TypeVar

from holdfast.errors import StorageError
from holdfast.storage.handle.state_handle import (
    RetrievableStateHandle,
    RetrievableStateStorageHelper,
    decode_pointer,
    encode_pointer,
)

T = TypeVar("T")
POINTER_LIMIT: Final = 1024
_MARK: Final = "marked_for_deletion"


def encode_marked(name: str, handle: RetrievableStateHandle[T], *, is_marked: bool) -> bytes:
    """Return the pointer to a state as bytes.

    Raises:
        StorageError: It is larger than a coordination store should keep.
    """
    content = encode_pointer(handle, **{_MARK: is_marked})
    if len(content) > POINTER_LIMIT:
        raise StorageError(
            f"The pointer of {name!r} has {len(content)} bytes, more than {POINTER_LIMIT}: choose a shorter "
            "high-availability.storageDir."
        )
    return content


def decode_marked(
    content: bytes, where: str, storage: RetrievableStateStorageHelper[T]
) -> tuple[RetrievableStateHandle[T], bool]:
    """Return the handle of a pointer and whether it is marked for deletion.

    Raises:
        CorruptFileError: It cannot be read.
        FormatVersionError: It was written by a newer version.
    """
    handle, marks = decode_pointer(content, where, storage)
    return handle, marks.get(_MARK, False)
