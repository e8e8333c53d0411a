"""Records: dataclasses, and the dicts of Avro schemas. In files both are structs, which every tool reads.

What is stored names no class that has to be imported: a process that has only the file reads a dataclass as a `Row`.
"""

from __future__ import annotations

import dataclasses
import typing
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from holdfast.errors import ConfigurationError, OutputTypeError
from holdfast.types.changed_row import CHANGES, original
from holdfast.types.information.abstract_type import Compatibility, TypeInformation, nested_error, register_type
from holdfast.types.information.atom import with_nulls
from holdfast.types.information.field_migration import (
    Aliases,
    Defaults,
    adopted_defaults,
    fields_from_json,
    fields_to_json,
    migrate_fields,
    resolve_fields,
    sources,
)
from holdfast.types.information.opaque_type import PickledTypeInformation
from holdfast.types.information.struct_type import StructTypeInformation
from holdfast.types.row import row_class
from holdfast.types.serializer import TypeSerializerSchemaCompatibility


class RecordTypeInformation(StructTypeInformation):
    """Values with named fields that are no tuples.

    Args:
        name: Of the class or schema; state of another name is another record.
        names: Of the fields.
        types: Of the fields.
        defaults: What fields get in state that was written without them.
        aliases: Older names of fields.
    """

    def __init__(
        self,
        name: str,
        names: Iterable[str],
        types: Iterable[TypeInformation],
        defaults: Defaults | None = None,
        aliases: Aliases | None = None,
    ) -> None:
        super().__init__(names, types)
        self.name = name
        # Nobody looks for rows in a record, so each has its own: it is copied.
        self.is_immutable = self.is_immutable and not self.bears_rows
        self._owned = [part.adopt if part.bears_rows else part.copy for part in self.types]
        self.defaults = adopted_defaults(self.names, self.types, defaults)
        self.aliases = dict(aliases or {})

    @property
    def row_type(self) -> type[Any]:
        """The class of rows with the same fields."""
        return row_class(self.names)

    @abstractmethod
    def make(self, items: Sequence[Any]) -> Any:
        """Return a record with the values of its fields in order, which are adopted."""

    def check_equality(self) -> None:
        """See that two records are equal exactly if all of their fields are: only then they can be keys.

        Raises:
            ConfigurationError: They are not.
        """
        raise ConfigurationError(f"Keys cannot be {self}: key by its fields, or by a Row or tuple of them.")

    def is_in_order(self, kind: type) -> bool:
        """Records are no sequences."""
        return False

    def adopt(self, value: Any) -> Any:
        """Check one record and all of its fields."""
        if value is None:
            return None
        adopted = []
        for name, adopt, item in zip(self.names, self._adopts, self.arrange(value), strict=True):
            try:
                adopted.append(adopt(item))
            except OutputTypeError as error:
                raise nested_error(error, name) from None
        return self.make(adopted)

    def copy(self, value: Any) -> Any:
        """Return a record whose parts are copies."""
        if CHANGES and self.bears_rows:
            value = original(value)
        if value is None or self.is_immutable:
            return value
        return self.make([owned(item) for owned, item in zip(self._owned, self.arrange(value), strict=True)])

    def read(self, array: pa.Array) -> list[Any]:
        """Convert an array to Python."""
        columns = [part.to_list(column) for part, column in zip(self.types, array.flatten(), strict=True)]
        rows: Iterable[Sequence[Any]] = zip(*columns, strict=True) if columns else [()] * len(array)
        return with_nulls([self.make(items) for items in rows], array)

    def to_plain(self, value: Any) -> Any:
        """Return a plain tuple."""
        return None if value is None else super().to_plain(self.arrange(value))

    def from_plain(self, plain: Any) -> Any:
        """Make a record again."""
        if plain is None:
            return None
        if not isinstance(plain, tuple) or len(plain) != len(self.types):
            raise self.mismatch(plain)
        return self.make([part.from_plain(item) for part, item in zip(self.types, plain, strict=True)])

    def migrate(self, value: Any, old: TypeInformation) -> Any:
        """Take fields over by name; new ones have their default, or None, removed ones are dropped."""
        if value is None:
            return None
        assert isinstance(old, RecordTypeInformation)
        return self.make(migrate_fields(self, old, old.arrange(value)))

    def _resolve_other(self, old: TypeInformation) -> Compatibility:
        if type(old) is not type(self) or not isinstance(old, RecordTypeInformation) or not self._follows(old.name):
            return super()._resolve_other(old)
        return resolve_fields(self, old)

    def _follows(self, name: str) -> bool:
        return name == self.name

    def _from_mapping(self, value: Mapping[str, Any]) -> list[Any]:
        missing = [name for name in self.names if name not in value and name not in self.defaults]
        unknown = [name for name in value if name not in self.names]
        if missing or unknown:
            raise self.mismatch(value, f"missing are {missing!r}, unknown are {unknown!r}")
        return [value[name] if name in value else self.defaults[name] for name in self.names]

    def _document(self, kind: str, **more: Any) -> dict[str, Any]:
        return {"type": kind, "name": self.name, "fields": fields_to_json(self, self.defaults, self.aliases), **more}


class DataclassTypeInformation(RecordTypeInformation):
    """Instances of a dataclass.

    The class is known by its name without its module, so a script may become a module; where it is not known at all,
    in a query server say, records are Rows.
    """

    def __init__(
        self,
        name: str,
        names: Iterable[str],
        types: Iterable[TypeInformation],
        defaults: Defaults | None = None,
        dataclass: type[Any] | None = None,
    ) -> None:
        super().__init__(name, names, types, defaults)
        self.dataclass = dataclass
        if dataclass is None:  # records are Rows then
            self.is_immutable, self.bears_rows = all(part.is_immutable for part in self.types), True
        frozen = dataclass is None or bool(dataclass.__dataclass_params__.frozen)
        self.is_immutable = self.is_immutable and frozen

    def make(self, items: Sequence[Any]) -> Any:
        """Return an instance, as unpickling makes it: without calling the class."""
        if self.dataclass is None:
            return tuple.__new__(self.row_type, items)
        made = object.__new__(self.dataclass)
        for name, item in zip(self.names, items, strict=True):
            object.__setattr__(made, name, item)
        return made

    def arrange(self, value: Any) -> Sequence[Any]:
        """Return the values of the fields in order."""
        if self.dataclass is not None and type(value) is self.dataclass:
            return [getattr(value, name) for name in self.names]
        if isinstance(value, Mapping):
            return self._from_mapping(value)
        if isinstance(value, tuple) and len(value) == len(self.names):
            return value
        kind = type(value)
        # A class of the main module that was pickled by value may be there twice.
        same_name = dataclasses.is_dataclass(kind) and kind.__qualname__ == self.name
        if same_name and tuple(field.name for field in dataclasses.fields(kind)) == self.names:
            return [getattr(value, name) for name in self.names]
        raise self.mismatch(value, f"an instance of the dataclass {self.name!r} is needed")

    def check_equality(self) -> None:
        """See that the class compares all of its fields, and nothing else."""
        kind = self.dataclass
        if kind is None:
            return
        ignored = [field.name for field in dataclasses.fields(kind) if not field.compare]
        code = getattr(kind.__eq__, "__code__", None)
        if ignored or code is None or code.co_filename != _GENERATED.__code__.co_filename:
            raise ConfigurationError(
                f"Keys cannot be {kind.__qualname__}: "
                + (f"its fields {ignored!r} do not take part in ==. " if ignored else "it has an == of its own. ")
                + "Key by a tuple of what makes two of them equal."
            )

    def with_types(self, types: Sequence[TypeInformation]) -> DataclassTypeInformation:
        """Return the same with other types of the fields."""
        return DataclassTypeInformation(self.name, self.names, types, self.defaults, self.dataclass)

    def to_json(self) -> Any:
        """Return the name and the fields."""
        return self._document("dataclass")

    def __str__(self) -> str:
        return f"dataclass {self.name} {self.ddl}"

    def __reduce__(self) -> tuple[Any, ...]:
        return DataclassTypeInformation, (self.name, self.names, self.types, dict(self.defaults), self.dataclass)


class AvroRecordTypeInformation(RecordTypeInformation):
    """Records of an Avro schema, which are dicts.

    A new field needs a default, as Avro says, and `aliases` of fields and of the record are older names.
    """

    def __init__(
        self,
        name: str,
        names: Iterable[str],
        types: Iterable[TypeInformation],
        defaults: Defaults | None = None,
        aliases: Aliases | None = None,
        former_names: Iterable[str] = (),
    ) -> None:
        super().__init__(name, names, types, defaults, aliases)
        self.former_names = tuple(former_names)
        self.is_immutable = False

    def make(self, items: Sequence[Any]) -> dict[str, Any]:
        """Return a dict."""
        return dict(zip(self.names, items, strict=True))

    def arrange(self, value: Any) -> Sequence[Any]:
        """Return the values of the fields in order."""
        if not isinstance(value, Mapping):
            raise self.mismatch(value, "a dict is needed")
        return self._from_mapping(value)

    def with_types(self, types: Sequence[TypeInformation]) -> AvroRecordTypeInformation:
        """Return the same with other types of the fields."""
        return AvroRecordTypeInformation(self.name, self.names, types, self.defaults, self.aliases, self.former_names)

    def to_json(self) -> Any:
        """Return the name and the fields."""
        return self._document("avro", **({"former_names": list(self.former_names)} if self.former_names else {}))

    def _follows(self, name: str) -> bool:
        return name == self.name or name in self.former_names

    def _resolve_other(self, old: TypeInformation) -> Compatibility:
        answer = super()._resolve_other(old)
        if answer.is_incompatible() or not isinstance(old, AvroRecordTypeInformation):
            return answer
        added = [name for name, place in zip(self.names, sources(self, old), strict=True) if place is None]
        without = [name for name in added if name not in self.defaults]
        if not without:
            return answer
        return TypeSerializerSchemaCompatibility.incompatible(
            f"the new fields {without!r} of {self.name!r} have no default in the schema"
        )

    def __str__(self) -> str:
        return f"avro {self.name} {self.ddl}"

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.name, self.names, self.types, dict(self.defaults), dict(self.aliases), self.former_names)
        return AvroRecordTypeInformation, fields


_GENERATED: Final = dataclasses.make_dataclass("_Plain", ["field"]).__eq__
"""An == that was made for a dataclass; where its code is from tells it from one that a program has written."""

_under_way: Final[list[type[Any]]] = []


def dataclass_type(described: type[Any], to_type: Callable[[Any], TypeInformation]) -> TypeInformation:
    """Return the type of a dataclass; fields whose annotation says nothing are pickled.

    Args:
        described: The class.
        to_type: Returns the type that an annotation describes.
    """
    if described in _under_way:
        # A class that contains itself has no struct.
        return PickledTypeInformation()
    _under_way.append(described)
    try:
        fields = dataclasses.fields(described)
        hints = _hints(described)
        types = [to_type(hints[field.name]) for field in fields]
    finally:
        _under_way.pop()
    defaults = {}
    for field in fields:
        # A class of the main module is shipped by value, and its markers with it: they are not the same object then.
        if not isinstance(field.default, type(dataclasses.MISSING)):
            defaults[field.name] = field.default
            continue
        factory: Any = field.default_factory
        if not isinstance(factory, type(dataclasses.MISSING)):
            defaults[field.name] = factory()
    return DataclassTypeInformation(
        described.__qualname__, [field.name for field in fields], types, defaults, described
    )


def _hints(described: type[Any]) -> Mapping[str, Any]:
    try:
        return typing.get_type_hints(described)
    except NameError:
        # A name that is known only where the class was made: such fields are pickled.
        return {
            field.name: None if isinstance(field.type, str) else field.type for field in dataclasses.fields(described)
        }


def _read_dataclass(document: dict[str, Any]) -> TypeInformation:
    names, types, defaults, _ = fields_from_json(document["fields"])
    return DataclassTypeInformation(document["name"], names, types, defaults)


def _read_avro(document: dict[str, Any]) -> TypeInformation:
    fields = fields_from_json(document["fields"])
    return AvroRecordTypeInformation(document["name"], *fields, document.get("former_names", ()))


register_type("dataclass", _read_dataclass)
register_type("avro", _read_avro)
