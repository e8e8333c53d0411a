"""The description of a queryable state: its name, operator, kind and types.

Descriptions are made from the footers of runs and sent to clients as JSON. A description never loads a class: pickled
values and values of custom serializers are opaque bytes on both sides.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from holdfast.kernel.key_group import MAX_PARALLELISM
from holdfast.kernel.parsing import PARSE_ERRORS, check_nesting
from holdfast.queryable.wire.errors import BadRequestError, ProtocolError
from holdfast.state.descriptor import StateKind
from holdfast.types.key_codec import KeyCodec, codec_from_json
from holdfast.types.opaque import is_opaque
from holdfast.types.type_information import TypeInformation, type_from_json

VALUE = "value"


class OpaqueValue(bytes):
    """The bytes of a value without a declared type; only the program that wrote it can read them.

    They are never unpickled here. Declare a type in the state's descriptor to query it as values.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"OpaqueValue({len(self)} bytes of a value without a declared type)"

    __str__ = __repr__


@dataclass(frozen=True)
class StateDescription:
    """One queryable state of a job.

    Attributes:
        name: The name under which it is queried.
        state: The name in its descriptor.
        uid: The operator's uid.
        operator_id: The operator, 32 hexadecimal digits.
        kind: The kind of state.
        max_parallelism: Number of key groups.
        key: Key codec as JSON.
        type: Type of values, list elements, map values or accumulators as JSON.
        map_key: Codec of map keys as JSON.
        namespaced: Whether the state has namespaces.
        arrow: Serialized Arrow schema of answers, which have one column `value`.
    """

    name: str
    state: str
    uid: str
    operator_id: str
    kind: StateKind
    max_parallelism: int
    key: Any
    type: Any
    map_key: Any
    namespaced: bool
    arrow: bytes

    @cached_property
    def key_codec(self) -> KeyCodec:
        return codec_from_json(without_classes(self.key))

    @cached_property
    def map_key_codec(self) -> KeyCodec:
        return codec_from_json(without_classes(self.map_key))

    @cached_property
    def value_type(self) -> TypeInformation:
        """The type of values; opaque parts are bytes."""
        return type_from_json(without_classes(self.type))

    @property
    def is_opaque(self) -> bool:
        """Whether values as a whole are opaque bytes."""
        return is_opaque(self.type)

    @cached_property
    def explanation(self) -> str | None:
        """The reason why values or parts of them are opaque bytes; None if all types are declared."""
        assert self.value_type is not None  # parses the type, and raises if it is invalid
        if self.is_opaque:
            return "The values have no declared type: only the program that wrote them can read these bytes."
        parts = list(_opaque_parts(self.type, VALUE))
        if parts:
            return (
                f"Of the values {', '.join(parts)} has no declared type: only the program that wrote these bytes can "
                "read them."
            )
        return None

    @cached_property
    def reads_directly(self) -> bool:
        """Whether Arrow's own conversion to Python is the right one for the values."""
        return self.kind is StateKind.VALUE and self.type in ("string", "bigint", "int", "double", "boolean", "binary")

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.arrow))

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the description; every answer has it."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:12]

    def check_namespace(self, namespace: bytes | None) -> None:
        """Check that a query has a namespace if the state has namespaces, and none otherwise.

        Raises:
            BadRequestError: It does not.
        """
        if self.namespaced != (namespace is not None):
            has = "has namespaces: pass one" if self.namespaced else "has no namespaces: pass none"
            raise BadRequestError(f"State {self.name!r} {has}.")

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "state": self.state,
            "uid": self.uid,
            "operator_id": self.operator_id,
            "kind": self.kind.value,
            "max_parallelism": self.max_parallelism,
            "key": self.key,
            "type": self.type,
            "map_key": self.map_key,
            "namespaced": self.namespaced,
            "arrow": base64.b64encode(self.arrow).decode(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StateDescription:
        """Parse a description.

        Raises:
            ProtocolError: It is malformed.
        """
        try:
            check_nesting(value)
            fields = dict(value)
            fields["kind"] = StateKind(fields["kind"])
            fields["arrow"] = base64.b64decode(fields["arrow"])
            made = cls(**fields)
            made._check()
            return made
        except (*PARSE_ERRORS, pa.ArrowException, OSError) as error:
            raise ProtocolError(f"Malformed description of a state: {error!r:.300}") from error

    def _check(self) -> None:
        texts = (self.name, self.state, self.uid, self.operator_id)
        if any(type(text) is not str for text in texts) or type(self.namespaced) is not bool:
            raise TypeError(f"{texts!r:.80}")
        if type(self.max_parallelism) is not int or not 1 <= self.max_parallelism <= MAX_PARALLELISM:
            raise ValueError(f"{self.max_parallelism!r:.40} key groups")
        list(_opaque_parts(self.type, VALUE))  # visits all parts of the type
        answers = self.arrow_schema.field(VALUE).type
        expected = {StateKind.LIST: pa.types.is_list, StateKind.MAP: pa.types.is_map}.get(self.kind)
        if expected is not None and not expected(answers):
            raise TypeError(f"{self.kind.value} state is answered as {answers}")

    def __hash__(self) -> int:
        return hash(self.fingerprint)


def _opaque_parts(document: Any, path: str) -> Iterator[str]:
    """Yield the opaque parts of a type by the column names of a scan."""
    if is_opaque(document):
        yield path
    elif isinstance(document, Mapping):
        for field in document.get("fields", ()):
            yield from _opaque_parts(field["type"], f"{path}.{field['name']}")
        for number, part in enumerate(document.get("types", ())):
            yield from _opaque_parts(part, f"{path}[{number}]")
        for name in ("element", "key", "value"):
            yield from _opaque_parts(document.get(name), f"{path}[{name}]")


def without_classes(document: Any) -> Any:
    """Replace the parts of a type's JSON that would load a class or a pickle by bytes."""
    if is_opaque(document):
        return "binary"
    if isinstance(document, dict):
        return {name: without_classes(part) for name, part in document.items()}
    if isinstance(document, list):
        return [without_classes(part) for part in document]
    return document


def scan_schema(description: StateDescription) -> pa.Schema:
    """Return the columns of a scan: key, namespace and map key where the state has them, value."""
    fields = [("key", description.key_codec.storage_type)]
    if description.namespaced:
        fields.append(("namespace", pa.binary()))
    value = description.arrow_schema.field(VALUE).type
    if description.kind is StateKind.MAP:
        fields.append(("map_key", value.key_type))
        value = value.item_type
    return pa.schema([*fields, (VALUE, value)])
