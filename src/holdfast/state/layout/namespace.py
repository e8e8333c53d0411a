"""Namespaces: what state of one key is told apart by, such as the windows of a key."""

from __future__ import annotations

from typing import Any, Final

from holdfast.errors import StateError
from holdfast.types.serializer import TypeSerializer


class VoidNamespace:
    """The one namespace of state that is not in windows."""

    INSTANCE: VoidNamespace

    def __repr__(self) -> str:
        return "VoidNamespace"


VoidNamespace.INSTANCE = VoidNamespace()


class VoidNamespaceSerializer(TypeSerializer[VoidNamespace]):
    """Writes the one namespace as nothing."""

    def serialize(self, value: VoidNamespace) -> bytes:
        """Return no bytes."""
        return b""

    def deserialize(self, data: bytes) -> VoidNamespace:
        """Return the one namespace."""
        return VoidNamespace.INSTANCE

    def is_immutable_type(self) -> bool:
        """It cannot change."""
        return True


VOID: Final = VoidNamespace.INSTANCE


def is_void(namespace: Any, serializer: Any) -> bool:
    """Whether state is without namespaces; None for both says so as well.

    Raises:
        StateError: One of both is missing.
    """
    if isinstance(serializer, VoidNamespaceSerializer) or (serializer is None and namespace in (None, VOID)):
        return True
    if namespace is None or serializer is None:
        raise StateError(
            f"State in namespaces needs a namespace and its serializer, not {namespace!r} and {serializer!r}."
        )
    return False
