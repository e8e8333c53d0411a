"""Types for those who must not load a class or a pickle: query servers, clients and commands.

What only the program can read is sealed: a column of bytes that may be handed on, and that cannot become anything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.types.information.abstract_type import Compatibility, register_type
from holdfast.types.information.atomic_type import AtomicTypeInformation
from holdfast.types.serializer import TypeSerializerSchemaCompatibility


class SealedTypeInformation(AtomicTypeInformation):
    """Bytes of values that are pickled, or that a user's serializer has written.

    Args:
        document: Their type as JSON.
    """

    def __init__(self, document: Any) -> None:
        super().__init__("binary")
        self.document = document

    def to_json(self) -> Any:
        """Return what is sealed."""
        return {"type": "sealed", "of": self.document}

    def _resolve_other(self, old: Any) -> Compatibility:
        return TypeSerializerSchemaCompatibility.incompatible(
            f"only the program can turn {old} into {self}; compaction does, some epochs after the change"
        )

    def __str__(self) -> str:
        if not isinstance(self.document, Mapping):
            return str(self.document)
        return f"serializer ({self.document['snapshot']['class']})"

    def __reduce__(self) -> tuple[Any, ...]:
        return SealedTypeInformation, (self.document,)


def is_opaque(document: Any) -> bool:
    """Whether a type's JSON as a whole is one that only the program can read."""
    return document == "pickled" or (isinstance(document, Mapping) and document.get("type") == "serializer")


def sealed(document: Any) -> Any:
    """Return a type's JSON, or that of a segment's schema, with all that only the program can read sealed."""
    if is_opaque(document):
        return {"type": "sealed", "of": document}
    if isinstance(document, Mapping):
        return {name: part if name == "default" else sealed(part) for name, part in document.items()}
    return [sealed(part) for part in document] if isinstance(document, list) else document


register_type("sealed", lambda document: SealedTypeInformation(document["of"]))
