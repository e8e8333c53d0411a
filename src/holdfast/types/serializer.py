"""Serializers, their snapshots, and whether state written by one can be read by another.

With every state goes the *snapshot* of the serializer that wrote it. When a program registers the state again, the
snapshot of its new serializer is asked whether it can take over from the old one::

    as is  <  reconfigured  <  after migration  <  incompatible

The worst answer among the parts of a composite decides. Snapshots are JSON documents, never pickles.
"""

from __future__ import annotations

import copy
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any, Generic, TypeVar, cast

from holdfast.errors import MissingClassError, StateError, StateMigrationError
from holdfast.types.former_names import current_module

T = TypeVar("T")


class _Kind(IntEnum):
    AS_IS = 0
    RECONFIGURED = 1
    AFTER_MIGRATION = 2
    INCOMPATIBLE = 3


class TypeSerializerSchemaCompatibility(Generic[T]):
    """The answer to whether a new serializer can take over from an old one."""

    __slots__ = ("_kind", "_reason", "_reconfigured")

    def __init__(self, kind: _Kind, reason: str = "", reconfigured: TypeSerializer[T] | None = None) -> None:
        self._kind = kind
        self._reason = reason
        self._reconfigured = reconfigured

    @classmethod
    def compatible_as_is(cls) -> TypeSerializerSchemaCompatibility[T]:
        """The new serializer reads what the old one wrote."""
        return cls(_Kind.AS_IS)

    @classmethod
    def compatible_after_migration(cls, reason: str = "") -> TypeSerializerSchemaCompatibility[T]:
        """The old serializer must read and the new one write again."""
        return cls(_Kind.AFTER_MIGRATION, reason)

    @classmethod
    def compatible_with_reconfigured_serializer(
        cls, serializer: TypeSerializer[T]
    ) -> TypeSerializerSchemaCompatibility[T]:
        """Another serializer, given here, must be used instead of the new one."""
        return cls(_Kind.RECONFIGURED, "", serializer)

    @classmethod
    def incompatible(cls, reason: str = "") -> TypeSerializerSchemaCompatibility[T]:
        """The new serializer cannot take over."""
        return cls(_Kind.INCOMPATIBLE, reason)

    def is_compatible_as_is(self) -> bool:
        """Whether nothing needs to be done."""
        return self._kind is _Kind.AS_IS

    def is_compatible_after_migration(self) -> bool:
        """Whether values must be rewritten."""
        return self._kind is _Kind.AFTER_MIGRATION

    def is_compatible_with_reconfigured_serializer(self) -> bool:
        """Whether another serializer must be used from now on."""
        return self._kind is _Kind.RECONFIGURED

    def is_incompatible(self) -> bool:
        """Whether the new serializer cannot take over."""
        return self._kind is _Kind.INCOMPATIBLE

    @property
    def reason(self) -> str:
        """Why it is not compatible as is, in words; may be empty."""
        return self._reason

    def get_reconfigured_serializer(self) -> TypeSerializer[T]:
        """Return the serializer that must be used from now on.

        Raises:
            StateError: The answer is another one, which has no such serializer.
        """
        if self._reconfigured is None:
            raise StateError(f"{self!r} has no reconfigured serializer; use the new serializer itself.")
        return self._reconfigured

    @staticmethod
    def worst(answers: Iterable[TypeSerializerSchemaCompatibility[Any]]) -> TypeSerializerSchemaCompatibility[Any]:
        """Return the worst of the answers about the parts of a composite; as is if there are none."""
        worst: TypeSerializerSchemaCompatibility[Any] = TypeSerializerSchemaCompatibility(_Kind.AS_IS)
        for answer in answers:
            if answer._kind > worst._kind:
                worst = answer
        return worst

    def __repr__(self) -> str:
        reason = f": {self._reason}" if self._reason else ""
        return f"<{self._kind.name.lower().replace('_', ' ')}{reason}>"


class TypeSerializer(ABC, Generic[T]):
    """Turns values into bytes and back.

    A user's own serializer needs only `serialize` and `deserialize`, and a class that can be imported wherever the
    job runs. Its state is then a column of bytes. If its format changes, `snapshot_configuration` must return a
    snapshot that knows about the older formats.
    """

    @abstractmethod
    def serialize(self, value: T) -> bytes:
        """Return the bytes of a value."""

    @abstractmethod
    def deserialize(self, data: bytes) -> T:
        """Return the value of bytes that `serialize` returned."""

    def is_immutable_type(self) -> bool:
        """Whether values can never change, so that they may be shared without a copy."""
        return False

    def copy(self, value: T) -> T:
        """Return a value that shares nothing mutable with the given one."""
        return value if self.is_immutable_type() else self.deserialize(self.serialize(value))

    def duplicate(self) -> TypeSerializer[T]:
        """Return a serializer that another thread may use at the same time."""
        return copy.deepcopy(self)

    def snapshot_configuration(self) -> TypeSerializerSnapshot[T]:
        """Return what must be known later to read what this serializer writes."""
        return SimpleTypeSerializerSnapshot(type(self))

    def snapshot(self) -> TypeSerializerSnapshot[T]:
        """Return what must be known later to read what this serializer writes."""
        return self.snapshot_configuration()

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(type(self))


class TypeSerializerSnapshot(ABC, Generic[T]):
    """What must be known about a serializer to read later what it wrote.

    A user's snapshot class needs a constructor without arguments.
    """

    @abstractmethod
    def get_current_version(self) -> int:
        """Return the version of what `write_snapshot` returns."""

    @abstractmethod
    def write_snapshot(self) -> Any:
        """Return the snapshot's content as a JSON value."""

    @abstractmethod
    def read_snapshot(self, read_version: int, content: Any) -> None:
        """Take over the content that a snapshot of this class and that version wrote."""

    @abstractmethod
    def restore_serializer(self) -> TypeSerializer[T]:
        """Return a serializer that reads what the described one wrote."""

    @abstractmethod
    def resolve_schema_compatibility(
        self, old_serializer_snapshot: TypeSerializerSnapshot[T]
    ) -> TypeSerializerSchemaCompatibility[T]:
        """Say whether the serializer described here, the new one, can take over from the old one."""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON value from which `snapshot_from_json` makes this snapshot again."""
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
    """The snapshot of a serializer whose class says everything."""

    def __init__(self, serializer_class: type[TypeSerializer[T]] | None = None) -> None:
        self._path = class_path(serializer_class) if serializer_class is not None else ""

    def get_current_version(self) -> int:
        """Return the version of the content."""
        return 1

    def write_snapshot(self) -> Any:
        """Return the path of the serializer's class."""
        return self._path

    def read_snapshot(self, read_version: int, content: Any) -> None:
        """Take over the path of the serializer's class."""
        self._path = str(content)

    def restore_serializer(self) -> TypeSerializer[T]:
        """Return a serializer of the same class; its constructor must need no arguments."""
        made = load_class(self._path, TypeSerializer)()
        assert isinstance(made, TypeSerializer)
        return made

    def resolve_schema_compatibility(
        self, old_serializer_snapshot: TypeSerializerSnapshot[T]
    ) -> TypeSerializerSchemaCompatibility[T]:
        """As is if the class is the same, else incompatible."""
        if self == old_serializer_snapshot:
            return TypeSerializerSchemaCompatibility.compatible_as_is()
        return TypeSerializerSchemaCompatibility.incompatible(
            f"written by {old_serializer_snapshot.to_json()!r}, now read by {self._path!r}"
        )


class CompositeTypeSerializerSnapshot(TypeSerializerSnapshot[T]):
    """The snapshot of a serializer that is made of others; subclass it for a serializer of your own.

    Another number of nested serializers, or another class of one, is incompatible; otherwise the worst answer of the
    nested ones and of `resolve_outer_schema_compatibility` decides.
    """

    def __init__(self, nested: Sequence[TypeSerializer[Any]] = ()) -> None:
        self._nested: tuple[TypeSerializerSnapshot[Any], ...] = tuple(item.snapshot() for item in nested)

    @abstractmethod
    def create_outer_serializer_with_nested_serializers(
        self, nested: Sequence[TypeSerializer[Any]]
    ) -> TypeSerializer[T]:
        """Make the whole serializer from its parts."""

    def resolve_outer_schema_compatibility(
        self, old_serializer_snapshot: TypeSerializerSnapshot[T]
    ) -> TypeSerializerSchemaCompatibility[T]:
        """Say what the outer part alone has to say; as is unless overridden."""
        return TypeSerializerSchemaCompatibility.compatible_as_is()

    def write_outer_snapshot(self) -> Any:
        """Return the outer part's own content as a JSON value; None unless overridden."""
        return None

    def read_outer_snapshot(self, read_version: int, content: Any) -> None:
        """Take over the outer part's own content."""

    def write_snapshot(self) -> Any:
        """Return the outer content and the nested snapshots."""
        return {"outer": self.write_outer_snapshot(), "nested": [item.to_json() for item in self._nested]}

    def read_snapshot(self, read_version: int, content: Any) -> None:
        """Take over the outer content and the nested snapshots."""
        self.read_outer_snapshot(read_version, content["outer"])
        self._nested = tuple(snapshot_from_json(item) for item in content["nested"])

    def restore_serializer(self) -> TypeSerializer[T]:
        """Return the whole serializer, made of restored parts."""
        return self.create_outer_serializer_with_nested_serializers(
            [item.restore_serializer() for item in self._nested]
        )

    def resolve_schema_compatibility(
        self, old_serializer_snapshot: TypeSerializerSnapshot[T]
    ) -> TypeSerializerSchemaCompatibility[T]:
        """Return the worst answer of the outer part and the nested ones."""
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
    """Return the path by which `load_class` finds a class again."""
    return f"{cls.__module__}:{cls.__qualname__}"


def load_class(path: str, base: type) -> Callable[[], Any]:
    """Import a class that must be a subclass of `base`.

    Raises:
        MissingClassError: There is no such class.
        StateMigrationError: It is another kind of class.
    """
    module, _, name = path.partition(":")
    try:
        found: Any = importlib.import_module(current_module(module))
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        found = _shipped_class(module, name)
        if found is None:
            raise MissingClassError(
                f"State was written with {path!r}, which cannot be imported here. Keep the class importable under that "
                "name in every process, also after it was replaced."
            ) from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise StateMigrationError(f"{path!r} is not a subclass of {base.__name__}.")
    return found


def remember_class(shipped: type) -> None:
    """Let `load_class` find a class of the main module, and those that it mentions, where that is another module.

    Such a class is shipped to workers by value, together with what its methods mention.
    """
    if shipped.__module__ == "__main__":
        _shipped[shipped.__qualname__] = shipped


def _shipped_class(module: str, name: str) -> type | None:
    if module != "__main__":
        return None
    found = _shipped.get(name)
    for other in [] if found is not None else list(_shipped.values()):
        for member in vars(other).values():
            scope = getattr(getattr(member, "__func__", member), "__globals__", {})
            if isinstance(scope.get(name), type):
                return cast("type", scope[name])
    return found


_shipped: dict[str, type] = {}


def snapshot_from_json(document: dict[str, Any]) -> TypeSerializerSnapshot[Any]:
    """Make a snapshot again from what `TypeSerializerSnapshot.to_json` returned.

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
