"""Keys: their canonical form in dictionaries and files, and the hash that decides where they live.

A *dict key* is what a task's dictionaries use: hashable, and one for all values that are the same key. It is a str for
STRING and CHAR, an int for numbers, dates and timestamps (a float's bits, with one zero and one NaN; a decimal's
unscaled value), bytes for BINARY, a tuple of dict keys for composite keys, and for keys without a declared type the
bytes of `holdfast.types.information.tagged.encode_key`.

The hash is Spark's ``xxhash64`` of the key's columns: XXH64 with seed 42, where each column's hash is the seed of the
next and a null leaves it as it is.
"""

from __future__ import annotations

import reprlib
import struct
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from xxhash import xxh64_intdigest

from holdfast import errors
from holdfast.errors import ConfigurationError, CorruptFileError, NullKeyError, OutputTypeError
from holdfast.kernel.malformed import MALFORMED
from holdfast.types.information import tagged
from holdfast.types.information.atom import with_nulls
from holdfast.types.information.record_type import RecordTypeInformation
from holdfast.types.information.sealed_type import sealed
from holdfast.types.information.type_information import (
    CollatedStringTypeInformation,
    PickledTypeInformation,
    RowTypeInformation,
    StructTypeInformation,
    TypeInformation,
    type_from_json,
)
from holdfast.types.key.abstract_key_codec import SEED, KeyCodec
from holdfast.types.key.atom_key import AtomKey, atom_key_for
from holdfast.types.key.packed_parts import NULL_LENGTH, split_parts

_LENGTH: Final = struct.Struct(">I")

_AT_ONCE: Final = 1 << 16
"""Keys that are taken apart together: it takes eight bytes of memory for each of theirs."""


class AtomicKeyCodec(KeyCodec):
    """Keys of one column with a simple type."""

    def __init__(self, key_type: TypeInformation) -> None:
        self.key_type = key_type
        self._atom: AtomKey = atom_key_for(key_type)
        self.hash = self._atom.hash  # type: ignore[method-assign]  # one call less for each key

    @property
    def storage_type(self) -> pa.DataType:
        """The Arrow type of the key."""
        return self.key_type.arrow_type

    def dict_keys(self, columns: Sequence[pa.Array]) -> list[Any]:
        """Convert the key column of a batch."""
        column = _one(columns)
        _refuse_nulls(column)
        return self._atom.read(_as(column, self.storage_type))

    def telling_column(self, columns: Sequence[pa.Array]) -> pa.Array | None:
        """Return the column, unless its values have to be brought into a form first."""
        column = _one(columns)
        return _as(column, self.storage_type) if self._atom.is_plain and not column.null_count else None

    def storage_array(self, dict_keys: Sequence[Any]) -> pa.Array:
        """Convert dict keys to the key's Arrow type."""
        return self._atom.write(dict_keys)

    def from_storage(self, array: pa.Array) -> list[Any]:
        """Convert the key's Arrow type to dict keys."""
        return self.dict_keys([array])

    def user_key(self, dict_key: Any) -> Any:
        """Return the key as the type's Python value; OutputTypeError if it has none, as a day after the year 9999."""
        try:
            return self._atom.to_value(dict_key)
        except (ArithmeticError, ValueError) as error:
            raise OutputTypeError(None, f"The key {dict_key!r:.80} is no {self.key_type}: {error}.") from error

    def dict_key(self, user_value: Any) -> Any:
        """Check a key and convert it."""
        if user_value is None:
            raise NullKeyError
        return self._atom.from_value(self.key_type.adopt(user_value))

    def canonical_bytes(self, dict_key: Any) -> bytes:
        """Return the key's bytes, in the order of the dict keys."""
        return self._atom.to_bytes(dict_key)

    def from_bytes_column(self, column: pa.Array) -> list[Any]:
        """Convert canonical bytes to dict keys; ValueError if they are something else."""
        return self._atom.read_bytes(column)

    def read_nullable(self, column: pa.Array) -> list[Any]:
        """Convert a column of a composite key, where nulls are None."""
        filled = _as(column, self.storage_type)
        keys = self._atom.read(filled.fill_null(self._atom.filler) if filled.null_count else filled)
        return with_nulls(keys, column)

    def hash(self, dict_key: Any, seed: int = SEED) -> int:
        """Return the hash."""
        return self._atom.hash(dict_key, seed)

    def to_json(self) -> Any:
        """Return the type."""
        return {"kind": "atomic", "type": self.key_type.to_json()}

    def __reduce__(self) -> tuple[Any, ...]:
        return AtomicKeyCodec, (self.key_type,)


class CompositeKeyCodec(KeyCodec):
    """Keys of several columns; parts may be null, also all of them."""

    storage_type = pa.binary()

    def __init__(self, key_type: StructTypeInformation) -> None:
        self.key_type = key_type
        self._parts: list[AtomicKeyCodec | CompositeKeyCodec] = []
        for name, part in zip(key_type.names, key_type.types, strict=True):
            try:
                self._parts.append(_declared(part))
            except ConfigurationError as error:
                raise ConfigurationError(f"Field {name!r} of the key: {error}") from None
        if not self._parts:
            raise ConfigurationError("A key needs at least one column.")

    def dict_keys(self, columns: Sequence[pa.Array]) -> list[Any]:
        """Convert the key columns of a batch, or one struct column."""
        return list(zip(*self._columns(self.part_columns(columns)), strict=True))

    def part_columns(self, columns: Sequence[pa.Array]) -> Sequence[pa.Array]:
        """Return a column for each part of the key.

        Args:
            columns: Those, or one column of structs that are whole keys. Where the only part is a struct itself, the
                depth of the structs tells which of both it is.
        """
        if len(columns) != 1 or not pa.types.is_struct(columns[0].type):
            return columns
        if len(self._parts) == 1 and _depth(columns[0].type) < _depth(self.key_type.arrow_type):
            return columns
        _refuse_nulls(columns[0])
        parts: list[pa.Array] = columns[0].flatten()
        return parts

    def read_nullable(self, column: pa.Array) -> list[Any]:
        """Convert a struct column of another composite key, where nulls are None."""
        return with_nulls(list(zip(*self._columns(column.flatten()), strict=True)), column)

    def _columns(self, columns: Sequence[pa.Array]) -> list[list[Any]]:
        if len(columns) != len(self._parts):
            raise ConfigurationError(f"A key of {len(self._parts)} columns got {len(columns)}.")
        return [part.read_nullable(column) for part, column in zip(self._parts, columns, strict=True)]

    def storage_array(self, dict_keys: Sequence[Any]) -> pa.Array:
        """Convert dict keys to their canonical bytes."""
        return pa.array([self.canonical_bytes(key) for key in dict_keys], pa.binary())

    def telling_stored(self, stored: pa.Array) -> pa.Array | None:
        """Return them: a key has only one form."""
        return stored

    def from_storage(self, array: pa.Array) -> list[Any]:
        """Convert canonical bytes to dict keys.

        Raises:
            CorruptFileError: They are something else.
        """
        try:
            return self._read(array)
        except ValueError as error:
            wrong = next(data for data in array.to_pylist() if not self._is_key(data))
            raise CorruptFileError("key column", None, f"{wrong[:64]!r} is not a key of {self.key_type}") from error

    def from_bytes_column(self, column: pa.Array) -> list[Any]:
        """Convert the bytes of keys within other keys to dict keys."""
        return self._read(column)

    def _read(self, stored: pa.Array) -> list[Any]:
        keys: list[Any] = []
        for start in range(0, len(stored), _AT_ONCE):
            columns = split_parts(stored.slice(start, _AT_ONCE), len(self._parts))
            keys += zip(*map(_from_bytes, self._parts, columns), strict=True)
        return keys

    def _is_key(self, data: bytes) -> bool:
        try:
            return bool(self._read(pa.array([data], pa.binary())))
        except ValueError:
            return False

    def user_key(self, dict_key: Any) -> Any:
        """Return a Row, a tuple or an instance of the dataclass."""
        values = [None if key is None else part.user_key(key) for part, key in zip(self._parts, dict_key, strict=True)]
        kind = self.key_type
        return kind.make(values) if isinstance(kind, RecordTypeInformation) else tuple.__new__(kind.row_type, values)

    def dict_key(self, user_value: Any) -> Any:
        """Check a Row, tuple, list, dict or instance of the dataclass and convert it."""
        if user_value is None:
            raise NullKeyError
        values = self.key_type.arrange(user_value)
        return tuple(
            None if value is None else part.dict_key(value) for part, value in zip(self._parts, values, strict=True)
        )

    def canonical_bytes(self, dict_key: Any) -> bytes:
        """Return the parts' bytes, each after its length."""
        out = []
        for part, key in zip(self._parts, dict_key, strict=True):
            if key is None:
                out.append(_LENGTH.pack(NULL_LENGTH))
            else:
                content = part.canonical_bytes(key)
                out += [_LENGTH.pack(len(content)), content]
        return b"".join(out)

    def hash(self, dict_key: Any, seed: int = SEED) -> int:
        """Return the hash, from part to part."""
        for part, key in zip(self._parts, dict_key, strict=True):
            if key is not None:
                seed = part.hash(key, seed)
        return seed

    def to_json(self) -> Any:
        """Return the type."""
        return {"kind": "composite", "type": self.key_type.to_json()}

    def __reduce__(self) -> tuple[Any, ...]:
        return CompositeKeyCodec, (self.key_type,)


def _from_bytes(part: AtomicKeyCodec | CompositeKeyCodec, column: pa.Array) -> list[Any]:
    if not column.null_count:
        return part.from_bytes_column(column)
    present = iter(part.from_bytes_column(column.drop_null()))
    return [None if is_null else next(present) for is_null in column.is_null().to_pylist()]


class TaggedKeyCodec(KeyCodec):
    """Keys without a declared type: one column of tagged bytes."""

    storage_type = pa.binary()

    def dict_keys(self, columns: Sequence[pa.Array]) -> list[Any]:
        """Return the bytes of the key column."""
        column = _one(columns)
        _refuse_nulls(column)
        return _as(column, self.storage_type).to_pylist()  # type: ignore[no-any-return]

    def telling_column(self, columns: Sequence[pa.Array]) -> pa.Array | None:
        """Return the column."""
        column = _one(columns)
        return None if column.null_count else _as(column, self.storage_type)

    def storage_array(self, dict_keys: Sequence[Any]) -> pa.Array:
        """Return the bytes as a column."""
        return pa.array(dict_keys, pa.binary())

    def from_storage(self, array: pa.Array) -> list[Any]:
        """Return the bytes of a file's key column."""
        return array.to_pylist()  # type: ignore[no-any-return]

    def user_key(self, dict_key: Any) -> Any:
        """Return the Python value."""
        return tagged.decode(dict_key)

    def dict_key(self, user_value: Any) -> Any:
        """Return the tagged bytes of a value."""
        if user_value is None:
            raise NullKeyError
        try:
            return tagged.encode_key(user_value)
        except tagged.TaggedValueError as error:
            raise OutputTypeError(None, f"A key is not usable: {error}") from error

    def canonical_bytes(self, dict_key: Any) -> bytes:
        """Return the tagged bytes."""
        result: bytes = dict_key
        return result

    def hash(self, dict_key: Any, seed: int = SEED) -> int:
        """Return the hash of the tagged bytes."""
        return xxh64_intdigest(dict_key, seed)

    def to_json(self) -> Any:
        """Return the kind."""
        return {"kind": "tagged"}


def key_codec_for(key_type: TypeInformation | None, names: tuple[str, ...] = ()) -> KeyCodec:
    """Return the codec of keys.

    Args:
        key_type: The type of the key: a row or tuple for several columns; None, or pickled, if it is not declared.
        names: Names of the key's columns, which a user sees in the Row of a composite key; those of the type if empty.

    Raises:
        ConfigurationError: Keys cannot have this type; the message says why.
    """
    if key_type is None or isinstance(key_type, PickledTypeInformation):
        return TaggedKeyCodec()
    if isinstance(key_type, RowTypeInformation) and names and tuple(names) != key_type.names:
        key_type = RowTypeInformation(names, key_type.types)
    return _declared(key_type)


def shown_key_type(document: Any) -> str:
    """Return for people what `to_json` returned."""
    return str(type_from_json(sealed(document["type"]))) if "type" in document else str(document["kind"])


def codec_from_json(document: Any) -> KeyCodec:
    """Make a codec again from what `to_json` returned; StateMigrationError if this release knows no such one."""
    try:
        return TaggedKeyCodec() if document["kind"] == "tagged" else _declared(type_from_json(document["type"]))
    except (*MALFORMED, ConfigurationError) as error:
        raise errors.StateMigrationError(
            f"{reprlib.repr(document)} is no form of keys that this release knows. Upgrade, or check the file."
        ) from error


def _declared(key_type: TypeInformation) -> AtomicKeyCodec | CompositeKeyCodec:
    if isinstance(key_type, CollatedStringTypeInformation):
        raise ConfigurationError(
            f"Keys cannot be {key_type}: texts that are equal under this collation have different hashes. "
            "Key by a normalised text, for instance lower(column), or cast it to STRING COLLATE UTF8_BINARY."
        )
    if isinstance(key_type, RecordTypeInformation):
        key_type.check_equality()
    if isinstance(key_type, StructTypeInformation):
        return CompositeKeyCodec(key_type)
    return AtomicKeyCodec(key_type)


def _depth(kind: pa.DataType) -> int:
    """How many structs are inside each other."""
    if not pa.types.is_struct(kind):
        return 0
    return 1 + max((_depth(kind.field(at).type) for at in range(kind.num_fields)), default=0)


def _one(columns: Sequence[pa.Array]) -> pa.Array:
    if len(columns) != 1:
        raise ConfigurationError(f"A key of one column got {len(columns)}.")
    return columns[0]


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return column if column.type == kind else column.cast(kind)


def _refuse_nulls(column: pa.Array) -> None:
    if column.null_count:
        raise NullKeyError(row=column.is_null().index(pa.scalar(True)).as_py())
