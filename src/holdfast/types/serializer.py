"""Serializers, their snapshots, and the compatibility of state.

Every state is stored with the *snapshot* of the serializer that wrote it. When a program registers the state again, the
snapshot of its new serializer decides whether it is compatible with the old one. In ascending order::

    as is  <  reconfigured  <  after migration  <  incompatible

The worst result among the parts of a composite decides. Snapshots are JSON documents, never pickles.
"""

from __future__ import annotations

import copy
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any, Generic, TypeVar

from holdfast.errors import MissingClassError, StateError, StateMigrationError
from holdfast.types.program_classes import current_module, find_object

T = TypeVar("T")


class _Kind(IntEnum):
    AS_IS = 0
    RECONFIGURED = 1
    AFTER_MIGRATION = 2
    INCOMPATIBLE = 3


class TypeSerializerSchemaCompatibility(Generic[T]):
    """Whether a new serializer is compatible with an old one."""

    __slots__ = ("_kind", "_reason", "_reconfigured")

    def __init__(self, kind: _Kind, reason: str = "", reconfigured: TypeSerializer[T] | None = None) -> None:
        self._kind = kind
        self._reason = reason
        self._reconfigured = reconfigured

    @classmethod
    def compatible_as_is(cls) -> TypeSerializerSchemaCompatibility[T]:
        """Return the result that the new serializer reads what the old one wrote."""
        return cls(_Kind.AS_IS)

    @classmethod
    def compatible_after_migration(cls, reason: str = "") -> TypeSerializerSchemaCompatibility[T]:
        """Return the result that state must be read by the old serializer and written by the new one.

        Args:
            reason: Why, for messages.
        """
        return cls(_Kind.AFTER_MIGRATION, reason)

    @classmethod
    def compatible_with_reconfigured_serializer(
        cls, serializer: TypeSerializer[T]
    ) -> TypeSerializerSchemaCompatibility[T]:
        """Return the result that another serializer must be used in place of the new one.

        Args:
            serializer: That serializer.
        """
        return cls(_Kind.RECONFIGURED, "", serializer)

    @classmethod
    def incompatible(cls, reason: str = "") -> TypeSerializerSchemaCompatibility[T]:
        """Return the result that the new serializer cannot read old state.

        Args:
            reason: Why, for messages.
        """
        return cls(_Kind.INCOMPATIBLE, reason)

    def is_compatible_as_is(self) -> bool:
        """Return whether the new serializer reads what the old one wrote."""
        return self._kind is _Kind.AS_IS

    def is_compatible_after_migration(self) -> bool:
        """Return whether values must be rewritten."""
        return self._kind is _Kind.AFTER_MIGRATION

    def is_compatible_with_reconfigured_serializer(self) -> bool:
        """Return whether another serializer must be used."""
        return self._kind is _Kind.RECONFIGURED

    def is_incompatible(self) -> bool:
        """Return whether the new serializer cannot read old state."""
        return self._kind is _Kind.INCOMPATIBLE

    @property
    def reason(self) -> str:
        """Why it is not compatible as is; may be empty."""
        return self._reason

    def get_reconfigured_serializer(self) -> TypeSerializer[T]:
        """Return the serializer that must be used.

        Raises:
            StateError: The result is another one, which has no such serializer.
        """
        if self._reconfigured is None:
            raise StateError(f"{self!r} has no reconfigured serializer; use the new serializer itself.")
        return self._reconfigured

    @staticmethod
    def worst(answers: Iterable[TypeSerializerSchemaCompatibility[Any]]) -> TypeSerializerSchemaCompatibility[Any]:
        """Return the worst of the results for the parts of a composite; as is if there are none."""
        worst: TypeSerializerSchemaCompatibility[Any] = TypeSerializerSchemaCompatibility(_Kind.AS_IS)
        for answer in answers:
            if answer._kind > worst._kind:
                worst = answer
        return worst

    def __repr__(self) -> str:
        reason = f": {self._reason}" if self._reason else ""
        return f"<{self._kind.name.lower().replace('_', ' ')}{reason}>"


class TypeSerializer(ABC, Generic[T]):
    """Serializes values to bytes and back.

    A custom serializer needs only `serialize` and `deserialize`, and a class that can be imported wherever the job
    runs. Its state is a column of bytes. If its format changes, `snapshot_configuration` must return a snapshot that
    supports the older formats.
    """

    @abstractmethod
    def serialize(self, value: T) -> bytes:
        """Return the bytes of a value."""

    @abstractmethod
    def deserialize(self, data: bytes) -> T:
        """Return the value from bytes that `serialize` returned."""

    def is_immutable_type(self) -> bool:
        """Return whether values never change, so that they may be shared without a copy; default: False."""
        return False

    def copy(self, value: T) -> T:
        """Return a value that shares nothing mutable with this one."""
        return value if self.is_immutable_type() else self.deserialize(self.serialize(value))

    def duplicate(self) -> TypeSerializer[T]:
        """Return a serializer that another thread may use at the same time."""
        return copy.deepcopy(self)

    def snapshot_configuration(self) -> TypeSerializerSnapshot[T]:
        """Return the snapshot that is stored with state."""
        return SimpleTypeSerializerSnapshot(type(self))

    def snapshot(self) -> TypeSerializerSnapshot[T]:
        """Return the result of `snapshot_configuration`."""
        return self.snapshot_configuration()

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(type(self))


class TypeSerializerSnapshot(ABC, Generic[T]):
    """The description of a serializer, by which its output can be read later.

    A custom snapshot class needs a constructor without arguments.
    """

    @abstractmethod
    def get_current_version(self) -> int:
        """Return the version of the content that `write_snapshot` returns."""

    @abstractmethod
    def write_snapshot(self) -> Any:
        """Return the content of the snapshot as a JSON value."""

    @abstractmethod
    def read_snapshot(self, read_version: int, content: Any) -> None:
        """Restore the content that a snapshot of this class wrote.

        Args:
            read_version: The version that wrote it.
            content: The JSON value.
        """

    @abstractmethod
    def restore_serializer(self) -> TypeSerializer[T]:
        """Return a serializer that reads what the described serializer wrote."""

    @abstractmethod
    def resolve_schema_compatibility(
        self, old_serializer_snapshot: TypeSerializerSnapshot[T]
    ) -> TypeSerializerSchemaCompatibility[T]:
        """Return whether this, the new serializer, is compatible with the old one.

        Args:
            old_serializer_snapshot: The snapshot stored with the state.
        """

    def to_json(self) -> dict[str, Any]:
        """Return a JSON value from which `snapshot_from_json` restores this snapshot."""
        return {
            "class": class_path(type(self)),
            "version": self.get_current_version(),
            "content": self.write_snapshot(),
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TypeSerializerSnapshot) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(type(self))


class SimpleTypeSerializerSnapshot(TypeSerializerSnapshot[T]):
    """The snapshot of a serializer that has no configuration but its class.

    Args:
        serializer_class: The class; None before `read_snapshot`.
    """

    def __init__(self, serializer_class: type[TypeSerializer[T]] | None = None) -> None:
        self._path = class_path(serializer_class) if serializer_class is not None else ""

    def get_current_version(self) -> int:
        """Return 1."""
        return 1

    def write_snapshot(self) -> Any:
        """Return the path of the serializer's class."""
        return self._path

    def read_snapshot(self, read_version: int, content: Any) -> None:
        """Restore the path of the serializer's class."""
        self._path = str(content)

    def restore_serializer(self) -> TypeSerializer[T]:
        """Return a serializer of the same class, whose constructor must need no arguments.

        Raises:
            MissingClassError: The class cannot be imported.
        """
        made = load_class(self._path, TypeSerializer)()
        assert isinstance(made, TypeSerializer)
        return made

    def resolve_schema_compatibility(
        self, old_serializer_snapshot: TypeSerializerSnapshot[T]
    ) -> TypeSerializerSchemaCompatibility[T]:
        """Return compatible as is if the class is the same, else incompatible."""
        if self == old_serializer_snapshot:
            return TypeSerializerSchemaCompatibility.compatible_as_is()
        return TypeSerializerSchemaCompatibility.incompatible(
            f"written by {old_serializer_snapshot.to_json()!r}, now read by {self._path!r}"
        )


class CompositeTypeSerializerSnapshot(TypeSerializerSnapshot[T]):
    """The snapshot of a serializer that has nested ones. Subclass it for a composite serializer of your own.

    Another number of nested serializers, or another class of one, is incompatible. Otherwise the worst result of the
    nested ones and of `resolve_outer_schema_compatibility` decides.

    Args:
        nested: The nested serializers.
    """

    def __init__(self, nested: Sequence[TypeSerializer[Any]] = ()) -> None:
        self._nested: tuple[TypeSerializerSnapshot[Any], ...] = tuple(item.snapshot() for item in nested)

    @abstractmethod
    def create_outer_serializer_with_nested_serializers(
        self, nested: Sequence[TypeSerializer[Any]]
    ) -> TypeSerializer[T]:
        """Return the composite serializer with these nested ones."""

    def resolve_outer_schema_compatibility(
        self, old_serializer_snapshot: TypeSerializerSnapshot[T]
    ) -> TypeSerializerSchemaCompatibility[T]:
        """Return the compatibility of the outer part alone; default: as is."""
        return TypeSerializerSchemaCompatibility.compatible_as_is()

    def write_outer_snapshot(self) -> Any:
        """Return the content of the outer part as a JSON value; default: None."""
        return None

    def read_outer_snapshot(self, read_version: int, content: Any) -> None:
        """Restore the content of the outer part."""

    def write_snapshot(self) -> Any:
        """Return the outer content and the nested snapshots."""
        return {"outer": self.write_outer_snapshot(), "nested": [item.to_json() for item in self._nested]}

    def read_snapshot(self, read_version: int, content: Any) -> None:
        """Restore the outer content and the nested snapshots."""
        self.read_outer_snapshot(read_version, content["outer"])
        self._nested = tuple(snapshot_from_json(item) for item in content["nested"])

    def restore_serializer(self) -> TypeSerializer[T]:
        """Return the composite serializer with restored nested ones."""
        return self.create_outer_serializer_with_nested_serializers(
            [item.restore_serializer() for item in self._nested]
        )

    def resolve_schema_compatibility(
        self, old_serializer_snapshot: TypeSerializerSnapshot[T]
    ) -> TypeSerializerSchemaCompatibility[T]:
        """Return the worst result of the outer part and the nested ones."""
        old = old_serializer_snapshot
        if not isinstance(old, CompositeTypeSerializerSnapshot) or type(old) is not type(self):
            return TypeSerializerSchemaCompatibility.incompatible(f"{class_path(type(old))} is not {type(self)}")
        if len(old._nested) != len(self._nested):
            return TypeSerializerSchemaCompatibility.incompatible(
                f"{len(old._nested)} parts became {len(self._nested)}"
            )
        answers: list[TypeSerializerSchemaCompatibility[Any]] = []
        for new_part, old_part in zip(self._nested, old._nested, strict=True):
            if type(new_part) is not type(old_part):
                return TypeSerializerSchemaCompatibility.incompatible(
                    f"a part written by {old_part.to_json()!r} became {new_part.to_json()!r}"
                )
            answers.append(new_part.resolve_schema_compatibility(old_part))
        worst = TypeSerializerSchemaCompatibility.worst([self.resolve_outer_schema_compatibility(old), *answers])
        if not worst.is_compatible_with_reconfigured_serializer():
            return worst
        nested = [
            answer.get_reconfigured_serializer()
            if answer.is_compatible_with_reconfigured_serializer()
            else part.restore_serializer()
            for answer, part in zip(answers, self._nested, strict=True)
        ]
        whole = self.create_outer_serializer_with_nested_serializers(nested)
        return TypeSerializerSchemaCompatibility.compatible_with_reconfigured_serializer(whole)


def class_path(cls: type) -> str:
    """Return the path by which `load_class` finds a class."""
    return f"{cls.__module__}:{cls.__qualname__}"


def load_class(path: str, base: type) -> Callable[[], Any]:
    """Import a class that must be a subclass of `base`, also from a former module of its (see `current_module`).

    Raises:
        MissingClassError: There is no such class.
        StateMigrationError: It is not a subclass.
    """
    module, _, name = path.partition(":")
    try:
        found: Any = importlib.import_module(current_module(module))
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        found = find_object(path)
        if found is None:
            raise MissingClassError(
                f"State was written with {path!r}, which cannot be imported here. Keep the class importable under that "
                "name in every process, also after it was replaced."
            ) from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise StateMigrationError(f"{path!r} is not a subclass of {base.__name__}.")
    return found


def snapshot_from_json(document: dict[str, Any]) -> TypeSerializerSnapshot[Any]:
    """Restore a snapshot from the result of `TypeSerializerSnapshot.to_json`.

    Raises:
        StateMigrationError: Its class cannot be imported, or its version is newer than this class.
    """
    made: TypeSerializerSnapshot[Any] = load_class(document["class"], TypeSerializerSnapshot)()
    version = document["version"]
    if version > made.get_current_version():
        raise StateMigrationError(
            f"A snapshot of {document['class']!r} has version {version}, this release reads versions up to "
            f"{made.get_current_version()}. Upgrade."
        )
    made.read_snapshot(version, document["content"])
    return made
