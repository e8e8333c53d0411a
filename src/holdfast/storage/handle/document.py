r"""Documents: small JSON files with a version and a checksum.

A document is one JSON object whose first field is the checksum: the SHA-256, in hexadecimal, of every byte after the
closing quote of that field::

    {"checksum":"sha256:<64 digits>","format_version":1,"kind":"...", ... }\n

Python's ``json``, jq and every other JSON reader reads it; nothing in it is ever executed.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from holdfast.errors import CorruptFileError, FormatVersionError
from holdfast.kernel.malformed import strict_json

_HEAD: Final = b'{"checksum":"sha256:'
_DIGITS: Final = 64
_BODY: Final = len(_HEAD) + _DIGITS + 1


def encode_document(kind: str, format_version: int, body: dict[str, Any]) -> bytes:
    """Return a document as bytes: the same for equal bodies.

    Args:
        kind: What it is, such as ``"checkpoint"``; a reader of another kind refuses it.
        format_version: Version of the form of this kind.
        body: Fields with JSON values; the names checksum, format_version and kind are taken.

    Raises:
        ValueError: A number is NaN or infinite.
        TypeError: A value is not of JSON.
    """
    fields = {**body, "format_version": format_version, "kind": kind}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
    rest = b"," + text.encode("ascii")[1:] + b"\n"
    return _HEAD + hashlib.sha256(rest).hexdigest().encode() + b'"' + rest


def decode_document(data: bytes | memoryview, path: str, kind: str, supported: int) -> dict[str, Any]:
    """Return the body of a document after checking every byte of it.

    Args:
        data: The whole file.
        path: Where it came from, for errors.
        kind: What it must be.
        supported: The newest format version that the caller reads.

    Raises:
        CorruptFileError: Truncated, changed, or not a document of this kind.
        FormatVersionError: Written by a newer version.
    """
    data = bytes(data)
    if not data:
        raise CorruptFileError(path, 0, "the file is empty.")
    if not data.startswith(_HEAD) or len(data) <= _BODY or data[_BODY - 1 : _BODY] != b'"':
        raise CorruptFileError(path, 0, f"it does not begin as a {kind} document does.")
    if hashlib.sha256(data[_BODY:]).hexdigest().encode() != data[len(_HEAD) : _BODY - 1]:
        raise CorruptFileError(path, None, f"its checksum does not match its {len(data)} bytes (cut off or changed).")
    try:
        fields = strict_json(data)
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(path, None, f"it is not JSON: {error}.") from error
    if not isinstance(fields, dict) or fields.pop("kind", None) != kind:
        raise CorruptFileError(path, None, f"it is not a {kind} document.")
    version = fields.pop("format_version", None)
    if type(version) is not int or version < 1:
        raise CorruptFileError(path, None, f"its format version is {version!r}, not a whole number from 1.")
    if version > supported:
        raise FormatVersionError(path, version, supported)
    del fields["checksum"]
    return fields
