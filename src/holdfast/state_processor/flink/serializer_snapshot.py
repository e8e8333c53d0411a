"""What a savepoint says about a serializer: Flink's `TypeSerializerSnapshot`s."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from holdfast.errors import StateError
from holdfast.state_processor.flink.avro_serializer import avro_serializer
from holdfast.state_processor.flink.data_input import DataInput
from holdfast.state_processor.flink.serializer import (
    SIMPLE,
    FlinkSerializer,
    enum_of,
    list_of,
    map_of,
    nullable,
    pojo_of,
    row_of,
    tuple_of,
    unreadable,
)

TTL: Final = "TtlSerializer"
_COMPOSITE: Final = 911108
_NESTED: Final = 1333245
_OPTIONAL_MAP: Final = 0x4F2C69A3D70
_DEEPEST: Final = 60
_TYPEUTILS: Final = "org.apache.flink.api.common.typeutils."
_RUNTIME: Final = "org.apache.flink.api.java.typeutils.runtime."


def read_snapshot(source: DataInput) -> FlinkSerializer:
    """Read what stands in front of state: the version of the form, and a snapshot.

    Raises:
        StateError: This release does not know the serializer, so it cannot know where its snapshot ends.
        CorruptFileError: It is damaged.
    """
    version = source.int32()
    if version != 2:
        raise source.corrupt(f"the snapshot of a serializer is in version {version}, not in version 2.")
    return read_versioned(source)


def read_versioned(source: DataInput, depth: int = 0) -> FlinkSerializer:
    """Read a snapshot: the name of its class, its version and what it says; errors are those of `read_snapshot`."""
    if depth > _DEEPEST:
        raise source.corrupt(f"serializers are nested more than {_DEEPEST} times.")
    name = source.utf()
    version = source.int32()
    simple = SIMPLE.get(name)
    if simple is not None:
        if version not in (2, 3):
            raise source.corrupt(f"the snapshot {name} is in version {version}.")
        if version == 2:
            source.utf()
        return simple
    known = _SNAPSHOTS.get(name)
    if known is None:
        raise StateError(
            f"The serializer whose snapshot is {name!r:.300} is not known, so nothing behind it in file "
            f"{source.path!r} can be read."
        )
    return known(source, version, depth + 1)


def _composite(
    outer: Callable[[DataInput, int], Any], make: Callable[[Any, tuple[FlinkSerializer, ...]], FlinkSerializer]
) -> Callable[[DataInput, int, int], FlinkSerializer]:
    def read(source: DataInput, version: int, depth: int) -> FlinkSerializer:
        if version != 3 or source.int32() != _COMPOSITE:
            raise source.corrupt("the snapshot of a serializer of several parts does not begin as one.")
        found = outer(source, source.int32())
        if source.int32() != _NESTED or source.int32() != 1:
            raise source.corrupt("the snapshots of the parts of a serializer do not begin as such.")
        parts = tuple(read_versioned(source, depth) for _ in range(source.count(6)))
        try:
            return make(found, parts)
        except (TypeError, IndexError, ValueError) as error:  # not as many as it should have
            raise source.corrupt(f"a serializer has {len(parts)} parts.") from error

    return read


def _nothing(source: DataInput, version: int) -> None:
    return None


def _class(source: DataInput, version: int) -> str:
    return _short(source.utf())


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _row_kind(source: DataInput, version: int) -> bool:
    return source.boolean() if version > 3 else version == 3


def _pojo(source: DataInput, version: int, depth: int) -> FlinkSerializer:
    if version != 2:
        raise source.corrupt(f"the snapshot of a POJO is in version {version}.")
    name = _short(source.utf())
    fields = _optional_map(source, depth, has_keys=True)
    subclasses = [*_optional_map(source, depth, has_keys=False), *_optional_map(source, depth, has_keys=False)]
    missing = [field for field, serializer in fields if serializer is None]
    if missing:
        return unreadable(name, f"The savepoint does not tell how the fields {missing} of {name} are written.")
    del subclasses  # values of theirs say so themselves
    return pojo_of(name, [field for field, _ in fields], [one for _, one in fields if one is not None])


def _optional_map(source: DataInput, depth: int, has_keys: bool) -> list[tuple[str, FlinkSerializer | None]]:
    """Names and snapshots; a snapshot stands in a frame, so one that is not known ends nothing but itself."""
    found: list[tuple[str, FlinkSerializer | None]] = []
    for name, frame in _frames(source):
        serializer: FlinkSerializer | None = None
        if frame is not None:
            try:
                serializer = read_versioned(frame, depth)
            except StateError as error:
                serializer = unreadable(name, str(error))
        found.append((name, serializer))
    return found


def _frames(source: DataInput) -> list[tuple[str, DataInput | None]]:
    if source.long() != _OPTIONAL_MAP:
        raise source.corrupt("a map of serializers does not begin as one.")
    found: list[tuple[str, DataInput | None]] = []
    for _ in range(source.count(4)):
        name = source.utf()
        if source.boolean():
            source.take(source.int32())
        frame = DataInput(source.take(source.int32()), source.path, None) if source.boolean() else None
        found.append((name, frame))
    return found


def _kryo(source: DataInput, version: int, depth: int) -> FlinkSerializer:
    name = source.utf()
    for _ in range(3):
        _frames(source)
    return unreadable(
        "KryoSerializer",
        f"Values of {name} are written by Kryo, which only the classes of the Java program can read. Give the state "
        "a POJO, a tuple, a row or an Avro record before the savepoint, or leave the state out.",
    )


def _enum(source: DataInput, version: int, depth: int) -> FlinkSerializer:
    name = _short(source.utf())
    return enum_of(name, [source.utf() for _ in range(source.count(2))])


def _avro(source: DataInput, version: int, depth: int) -> FlinkSerializer:
    if version == 1:
        return avro_serializer(source.utf())
    if version == 2:
        source.utf()
        return avro_serializer(source.utf())
    if version == 3:
        source.string()
        return avro_serializer(source.string())
    raise source.corrupt(f"the snapshot of an Avro serializer is in version {version}.")


def _ttl_aware(source: DataInput, version: int, depth: int) -> FlinkSerializer:
    source.boolean()
    return read_versioned(source, depth)


def _ttl(outer: Any, parts: tuple[FlinkSerializer, ...]) -> FlinkSerializer:
    _, value = parts
    return replace(tuple_of(TTL, parts), name=TTL, problem=value.problem)


def _timers(outer: Any, parts: tuple[FlinkSerializer, ...]) -> FlinkSerializer:
    key, namespace = parts
    return FlinkSerializer("TimerSerializer", None, -1, lambda source: None, (key, namespace))


def _generic(source: DataInput, version: int, depth: int) -> FlinkSerializer:
    name = source.utf()
    return unreadable(_short(name), f"Values of {name} are written by the class itself, which only Java can read.")


_SNAPSHOTS: Final[dict[str, Callable[[DataInput, int, int], FlinkSerializer]]] = {
    f"{_TYPEUTILS}base.ListSerializerSnapshot": _composite(
        _nothing, lambda _, parts: list_of("ListSerializer", parts[0])
    ),
    f"{_TYPEUTILS}base.MapSerializerSnapshot": _composite(_nothing, lambda _, parts: map_of("MapSerializer", *parts)),
    f"{_TYPEUTILS}base.GenericArraySerializerSnapshot": _composite(
        _class, lambda _, parts: list_of("GenericArraySerializer", parts[0], has_nulls=True)
    ),
    f"{_TYPEUTILS}base.SetSerializerSnapshot": _composite(
        _nothing, lambda _, parts: unreadable("SetSerializer", "Sets have no counterpart here: keep a map or a list.")
    ),
    f"{_RUNTIME}TupleSerializerSnapshot": _composite(_class, tuple_of),
    f"{_RUNTIME}RowSerializer$RowSerializerSnapshot": _composite(_row_kind, lambda kind, parts: row_of(parts, kind)),
    f"{_RUNTIME}NullableSerializer$NullableSerializerSnapshot": _composite(
        lambda source, version: source.int32(), lambda padding, parts: nullable(parts[0], padding)
    ),
    f"{_RUNTIME}PojoSerializerSnapshot": _pojo,
    f"{_RUNTIME}kryo.KryoSerializerSnapshot": _kryo,
    f"{_RUNTIME}ValueSerializer$ValueSerializerSnapshot": _generic,
    f"{_TYPEUTILS}base.EnumSerializer$EnumSerializerSnapshot": _enum,
    "org.apache.flink.formats.avro.typeutils.AvroSerializerSnapshot": _avro,
    "org.apache.flink.runtime.state.ArrayListSerializerSnapshot": _composite(
        _nothing, lambda _, parts: list_of("ArrayListSerializer", parts[0])
    ),
    "org.apache.flink.runtime.state.ttl.TtlStateFactory$TtlSerializerSnapshot": _composite(_nothing, _ttl),
    "org.apache.flink.runtime.state.ttl.TtlAwareSerializerSnapshot": _ttl_aware,
    "org.apache.flink.streaming.api.operators.TimerSerializerSnapshot": _composite(_nothing, _timers),
}
