"""Serializers, and whether state written by one may be read by another."""

import json
import pickle
from decimal import Decimal

import pytest
from hypothesis import given

from holdfast.errors import CorruptFileError, OutputTypeError, StateError, StateMigrationError, UserFunctionError
from holdfast.types.composite import TupleTypeInformation
from holdfast.types.opaque import SerializerTypeInformation
from holdfast.types.row import Row
from holdfast.types.serializer import (
    CompositeTypeSerializerSnapshot,
    SimpleTypeSerializerSnapshot,
    TypeSerializer,
    TypeSerializerSchemaCompatibility,
    TypeSerializerSnapshot,
    snapshot_from_json,
)
from holdfast.types.type_parser import parse_type, to_type
from holdfast.types.types import Types
from tests.unit.types.type_strategies import typed_columns

Compatibility = TypeSerializerSchemaCompatibility
AS_IS, RECONFIGURED, MIGRATE, NEVER = "as is", "reconfigured", "after migration", "incompatible"


def kind_of(answer) -> str:
    kinds = {
        AS_IS: answer.is_compatible_as_is(),
        RECONFIGURED: answer.is_compatible_with_reconfigured_serializer(),
        MIGRATE: answer.is_compatible_after_migration(),
        NEVER: answer.is_incompatible(),
    }
    [kind] = [name for name, holds in kinds.items() if holds]
    return kind


def through_json(snapshot):
    return snapshot_from_json(json.loads(json.dumps(snapshot.to_json())))


class PriceSerializer(TypeSerializer):
    def serialize(self, value):
        return str(value).encode()

    def deserialize(self, data):
        return Decimal(data.decode())


class VersionedSerializer(TypeSerializer):
    """A user's serializer with a snapshot of its own that knows its older formats."""

    def __init__(self, version=2):
        self.version = version

    def serialize(self, value):
        return f"{self.version}:{value}".encode()

    def deserialize(self, data):
        version, _, text = data.decode().partition(":")
        assert int(version) == self.version
        return text

    def snapshot_configuration(self):
        return VersionedSnapshot(self.version)


class VersionedSnapshot(TypeSerializerSnapshot):
    def __init__(self, version=0):
        self.version = version

    def get_current_version(self):
        return 1

    def write_snapshot(self):
        return {"version": self.version}

    def read_snapshot(self, read_version, content):
        self.version = content["version"]

    def restore_serializer(self):
        return VersionedSerializer(self.version)

    def resolve_schema_compatibility(self, old_serializer_snapshot):
        if not isinstance(old_serializer_snapshot, VersionedSnapshot):
            return Compatibility.incompatible("another serializer")
        old = old_serializer_snapshot.version
        if old == self.version:
            return Compatibility.compatible_as_is()
        if old == 9:
            return Compatibility.compatible_with_reconfigured_serializer(VersionedSerializer(9))
        return Compatibility.compatible_after_migration() if old < self.version else Compatibility.incompatible("older")


class PairSerializer(TypeSerializer):
    def __init__(self, first, second):
        self.parts = (first, second)

    def serialize(self, value):
        return b"|".join(part.serialize(item) for part, item in zip(self.parts, value, strict=True))

    def deserialize(self, data):
        return tuple(part.deserialize(item) for part, item in zip(self.parts, data.split(b"|"), strict=True))

    def snapshot_configuration(self):
        return PairSnapshot(self.parts)


class PairSnapshot(CompositeTypeSerializerSnapshot):
    def get_current_version(self):
        return 1

    def create_outer_serializer_with_nested_serializers(self, nested):
        return PairSerializer(*nested)


class FailingSerializer(PriceSerializer):
    def serialize(self, value):
        raise RuntimeError("no room")


@given(typed_columns())
def test_single_values_are_written_and_read_back(column):
    kind, values = column
    serializer = pickle.loads(pickle.dumps(kind.create_serializer()))
    for value in values:
        assert serializer.deserialize(serializer.serialize(value)) == value
        assert type(serializer.deserialize(serializer.serialize(value))) is type(value)


@given(typed_columns())
def test_a_copy_is_equal_and_shares_nothing_that_can_change(column):
    kind, values = column
    serializer = kind.create_serializer()
    for value in values:
        copied = serializer.copy(value)
        assert copied == value
        assert type(copied) is type(value)
        if serializer.is_immutable_type():
            assert copied is value
            hash(value)


def test_changing_a_copy_changes_nothing_else():
    for ddl, value, change in [
        ("array<array<int>>", [[1], [2]], lambda v: v[0].append(3)),
        ("map<string, array<int>>", {"a": [1]}, lambda v: v["a"].append(2)),
        ("struct<a: array<int>>", Row(a=[1]), lambda v: v.a.append(2)),
    ]:
        serializer = parse_type(ddl).create_serializer()
        copied = serializer.copy(value)
        change(copied)
        assert copied != value
    pickled = Types.PICKLED_BYTE_ARRAY().create_serializer()
    original = {"a": {1}}
    pickled.copy(original)["a"].add(2)
    assert original == {"a": {1}}


@given(typed_columns())
def test_a_snapshot_survives_json_and_its_serializer_reads_old_bytes(column):
    kind, values = column
    snapshot = through_json(kind.create_serializer().snapshot())
    old = snapshot.restore_serializer()
    new = kind.create_serializer()
    assert kind_of(new.snapshot().resolve_schema_compatibility(snapshot)) == AS_IS
    for value in values:
        assert old.deserialize(new.serialize(value)) == value


def test_a_wrong_value_or_damaged_bytes_are_refused():
    serializer = Types.LONG().create_serializer()
    with pytest.raises(OutputTypeError):
        serializer.serialize("x")
    with pytest.raises(CorruptFileError):
        serializer.deserialize(b"s\x01x")
    with pytest.raises(CorruptFileError):
        serializer.deserialize(b"?")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("bigint", "bigint", AS_IS),
        ("tinyint", "smallint", MIGRATE),
        ("smallint", "int", MIGRATE),
        ("int", "bigint", MIGRATE),
        ("float", "double", MIGRATE),
        ("int", "double", MIGRATE),
        ("smallint", "float", MIGRATE),
        ("bigint", "int", NEVER),
        ("bigint", "double", NEVER),
        ("int", "float", NEVER),
        ("double", "float", NEVER),
        ("bigint", "string", NEVER),
        ("string", "bigint", NEVER),
        ("decimal(10,2)", "decimal(12,4)", MIGRATE),
        ("decimal(10,2)", "decimal(10,4)", NEVER),
        ("decimal(10,2)", "decimal(12,1)", NEVER),
        ("int", "decimal(10,0)", MIGRATE),
        ("bigint", "decimal(10,0)", NEVER),
        ("char(3)", "string", AS_IS),
        ("char(3)", "char(5)", MIGRATE),
        ("char(5)", "char(3)", NEVER),
        ("timestamp", "timestamp_ntz", NEVER),
        ("date", "timestamp", NEVER),
        ("array<int>", "array<bigint>", MIGRATE),
        ("array<int>", "array<string>", NEVER),
        ("map<string, int>", "map<string, bigint>", MIGRATE),
        ("map<int, int>", "map<bigint, int>", MIGRATE),
        ("map<string, int>", "array<int>", NEVER),
        ("struct<a: int, b: string>", "struct<a: int, b: string>", AS_IS),
        ("struct<a: int>", "struct<a: int, b: string>", MIGRATE),
        ("struct<a: int, b: string>", "struct<a: int>", MIGRATE),
        ("struct<a: int, b: string>", "struct<b: string, a: int>", MIGRATE),
        ("struct<a: int>", "struct<a: bigint>", MIGRATE),
        ("struct<a: int>", "struct<a: string>", NEVER),
        ("struct<a: int, b: int>", "struct<a: string, b: bigint>", NEVER),
        ("struct<a: int>", "struct<b: int>", NEVER),
        ("struct<a: struct<x: int>>", "struct<a: struct<x: int, y: int>>", MIGRATE),
        ("struct<a: int>", "array<int>", NEVER),
    ],
)
def test_which_types_may_follow_which(old, new, expected):
    before, after = parse_type(old), parse_type(new)
    answer = (
        after.create_serializer()
        .snapshot()
        .resolve_schema_compatibility(through_json(before.create_serializer().snapshot()))
    )
    assert kind_of(answer) == expected
    if expected == NEVER:
        assert answer.reason


@pytest.mark.parametrize(
    ("old", "new", "value", "expected"),
    [
        ("int", "double", 3, 3.0),
        ("decimal(4,1)", "decimal(6,3)", Decimal("1.5"), Decimal("1.500")),
        ("char(2)", "char(4)", "ab", "ab  "),
        ("array<int>", "array<double>", [1, None], [1.0, None]),
        ("map<string, int>", "map<string, double>", {"a": 1}, {"a": 1.0}),
        (
            "struct<a: int, b: string>",
            "struct<c: date, b: string, a: double>",
            Row(a=1, b="x"),
            Row(c=None, b="x", a=1.0),
        ),
        ("struct<a: struct<x: int>>", "struct<a: struct<x: int, y: int>>", Row(a=Row(x=1)), Row(a=Row(x=1, y=None))),
    ],
)
def test_values_are_migrated(old, new, value, expected):
    before, after = parse_type(old), parse_type(new)
    migrated = after.migrate(before.adopt(value), before)
    assert migrated == expected
    assert repr(migrated) == repr(after.adopt(expected))
    assert after.migrate(None, before) is None


def test_tuples_may_widen_but_not_change_their_length():
    old = Types.TUPLE([Types.INT(), Types.STRING()])
    wider = Types.TUPLE([Types.LONG(), Types.STRING()])
    assert kind_of(wider.resolve_compatibility(old)) == MIGRATE
    assert wider.migrate((1, "x"), old) == (1, "x")
    longer = TupleTypeInformation([Types.INT(), Types.STRING(), Types.INT()])
    assert kind_of(longer.resolve_compatibility(old)) == NEVER


def test_anything_may_become_pickled_but_nothing_comes_back():
    pickled = Types.PICKLED_BYTE_ARRAY()
    assert kind_of(pickled.resolve_compatibility(Types.LONG())) == MIGRATE
    assert pickled.migrate(5, Types.LONG()) == 5
    assert kind_of(Types.LONG().resolve_compatibility(pickled)) == NEVER


def test_a_users_serializer_makes_a_column_of_bytes():
    kind = to_type(PriceSerializer())
    values = [Decimal("1.50"), None]
    array = kind.to_array(values)
    assert array.to_pylist() == [b"1.50", None]
    assert kind.to_list(array) == values
    assert kind.create_serializer() == PriceSerializer()
    again = through_json(kind.create_serializer().snapshot()).restore_serializer()
    assert again.deserialize(b"2.5") == Decimal("2.5")
    with pytest.raises(UserFunctionError, match="no room"):
        to_type(FailingSerializer()).to_array([Decimal(1)])


def test_a_users_snapshot_decides_over_its_versions():
    def answer(new, old):
        return (
            VersionedSerializer(new)
            .snapshot()
            .resolve_schema_compatibility(through_json(VersionedSerializer(old).snapshot()))
        )

    assert kind_of(answer(2, 2)) == AS_IS
    assert kind_of(answer(2, 1)) == MIGRATE
    assert kind_of(answer(1, 2)) == NEVER
    assert kind_of(answer(2, 9)) == RECONFIGURED
    assert answer(2, 9).get_reconfigured_serializer().version == 9
    with pytest.raises(StateError, match="no reconfigured serializer"):
        answer(2, 1).get_reconfigured_serializer()
    old, new = (SerializerTypeInformation(VersionedSerializer(version)) for version in (1, 2))
    assert kind_of(new.resolve_compatibility(old)) == MIGRATE
    assert kind_of(new.resolve_compatibility(Types.LONG())) == NEVER
    assert kind_of(Types.LONG().resolve_compatibility(new)) == NEVER


def test_the_worst_part_of_a_composite_decides():
    def answer(new, old):
        return (
            PairSerializer(*new).snapshot().resolve_schema_compatibility(through_json(PairSerializer(*old).snapshot()))
        )

    v1, v2, v9 = VersionedSerializer(1), VersionedSerializer(2), VersionedSerializer(9)
    assert kind_of(answer((v2, v2), (v2, v2))) == AS_IS
    assert kind_of(answer((v2, v2), (v2, v9))) == RECONFIGURED
    assert kind_of(answer((v2, v2), (v1, v9))) == MIGRATE
    assert kind_of(answer((v1, v2), (v2, v1))) == NEVER
    assert kind_of(answer((v2, v2), (v2, PriceSerializer()))) == NEVER
    whole = answer((v2, v2), (v2, v9)).get_reconfigured_serializer()
    assert [part.version for part in whole.parts] == [2, 9]
    restored = through_json(PairSerializer(v1, v2).snapshot()).restore_serializer()
    assert restored.deserialize(b"1:a|2:b") == ("a", "b")


def test_the_lattice_is_ordered():
    answers = [
        Compatibility.compatible_as_is(),
        Compatibility.compatible_with_reconfigured_serializer(PriceSerializer()),
        Compatibility.compatible_after_migration(),
        Compatibility.incompatible(),
    ]
    assert kind_of(Compatibility.worst([])) == AS_IS
    for position in range(1, 5):
        assert kind_of(Compatibility.worst(answers[:position])) == kind_of(answers[position - 1])
        assert kind_of(Compatibility.worst(reversed(answers[:position]))) == kind_of(answers[position - 1])


def test_a_snapshot_whose_class_is_gone_or_newer_says_what_to_do():
    document = SimpleTypeSerializerSnapshot(PriceSerializer).to_json()
    with pytest.raises(StateMigrationError, match="cannot be imported"):
        snapshot_from_json(document | {"class": "no.such.module:Thing"})
    with pytest.raises(StateMigrationError, match="not a subclass"):
        snapshot_from_json(document | {"class": "decimal:Decimal"})
    with pytest.raises(StateMigrationError, match="Upgrade"):
        snapshot_from_json(document | {"version": 99})
    gone = snapshot_from_json(document | {"content": "no.such.module:Thing"})
    with pytest.raises(StateMigrationError, match="cannot be imported"):
        gone.restore_serializer()
    with pytest.raises(StateMigrationError, match="not a type that this release knows"):
        snapshot_from_json(Types.LONG().create_serializer().snapshot().to_json() | {"content": "uuid"})
