"""Columns of older types become columns of newer ones, as single values do."""

import dataclasses
import inspect
import json
import subprocess
import sys
import textwrap
from decimal import Decimal

import cloudpickle
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigurationError, MissingClassError, OutputTypeError
from holdfast.testing.state_contract.state_evolution_contract import CodeSerializer, PriceSerializer
from holdfast.types.avro import avro_type
from holdfast.types.collection import ListTypeInformation, MapTypeInformation
from holdfast.types.composite import RowTypeInformation, TupleTypeInformation
from holdfast.types.key_codec import key_codec_for
from holdfast.types.migration import migrate_column, reconfigure
from holdfast.types.opaque import SerializerTypeInformation
from holdfast.types.program_classes import unpickle_program, use_own_classes
from holdfast.types.row import Row
from holdfast.types.serializer import load_class, snapshot_from_json
from holdfast.types.type_information import TypeInformation, type_from_json
from holdfast.types.type_parser import to_type
from holdfast.types.types import Types
from tests.examples import examples
from tests.unit.types.type_strategies import ATOMIC, FIELD_NAMES, typed_columns

WIDER = {
    "tinyint": ["smallint", "int", "bigint", "float", "double", "decimal(10,2)"],
    "smallint": ["int", "bigint", "float", "double"],
    "int": ["bigint", "double", "decimal(38,18)"],
    "bigint": ["decimal(19,0)", "decimal(38,0)"],
    "float": ["double"],
}


@st.composite
def later(draw, kind: TypeInformation) -> TypeInformation:
    """A type that may follow another one."""
    if isinstance(kind, ListTypeInformation):
        return Types.LIST(draw(later(kind.element_type)))
    if isinstance(kind, MapTypeInformation):
        return Types.MAP(draw(later(kind.key_type)), draw(later(kind.value_type)))
    if isinstance(kind, TupleTypeInformation):
        return Types.TUPLE([draw(later(part)) for part in kind.types])
    if isinstance(kind, RowTypeInformation):
        fields = {name: draw(later(part)) for name, part in zip(kind.names, kind.types, strict=True)}
        kept = draw(st.lists(st.sampled_from(kind.names), min_size=1, unique=True))
        names = draw(
            st.permutations([*kept, *draw(st.lists(FIELD_NAMES.filter(lambda n: n not in fields), unique=True))])
        )
        added = {name: draw(st.sampled_from([None, 7])) for name in names if name not in fields}
        return Types.ROW_NAMED(
            names,
            [fields[name] if name in fields else Types.LONG() for name in names],
            defaults={name: value for name, value in added.items() if value is not None},
        )
    if str(kind) == "decimal(10,2)":
        return draw(st.sampled_from([kind, Types.DECIMAL(12, 4)]))
    if str(kind) == "char(5)":
        return draw(st.sampled_from([kind, Types.CHAR(7), Types.STRING()]))
    return draw(st.sampled_from([kind, *map(to_type, WIDER.get(str(kind), []))]))


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_column_is_migrated_as_its_values_are(data):
    old, values = data.draw(typed_columns())
    new = data.draw(later(old))
    assert not new.resolve_compatibility(old).is_incompatible()
    adopted = [old.adopt(value) for value in values]
    expected = [new.migrate(value, old) for value in adopted]
    array = old.to_array(adopted)
    start = data.draw(st.integers(0, len(values)))
    migrated = migrate_column(array, old, new)
    assert migrated.type == new.arrow_type
    assert repr(new.to_list(migrated)) == repr(expected)
    assert repr(new.to_list(migrate_column(array.slice(start), old, new))) == repr(expected[start:])
    assert type_from_json(json.loads(json.dumps(new.to_json()))) == new


@settings(deadline=None, max_examples=examples(300))
@given(st.sampled_from(ATOMIC), st.sampled_from(ATOMIC), st.data())
def test_of_any_two_simple_types_one_follows_the_other_only_if_every_value_is_kept(before, after, data):
    (old, values), (new, _) = before, after
    answer = new.resolve_compatibility(old)
    if answer.is_incompatible():
        assert answer.reason and old != new
        return
    value = data.draw(values)
    [migrated] = new.to_list(migrate_column(old.to_array([value]), old, new))
    assert migrated == value or str(migrated).rstrip() == str(value).rstrip()
    assert new.adopt(migrated) == migrated


def test_the_reason_names_the_field_whose_type_does_not_fit():
    old, new = to_type("a struct<cents: bigint, at: int>"), to_type("a struct<cents: double, at: int>")
    assert new.resolve_compatibility(old).reason == "field 'a': field 'cents': bigint cannot become double"


def test_a_dataclass_with_another_name_is_another_type():
    old = to_type(dataclasses.make_dataclass("Account", [("cents", int)]))
    new = to_type(dataclasses.make_dataclass("Wallet", [("cents", int)]))
    reason = new.resolve_compatibility(old).reason
    assert reason == "its class or schema was 'Account' and is 'Wallet' now; keep the name"


def every_type():
    parts = {"element_type": Types.LONG(), "element_type_info": Types.LONG()}
    more = {
        "CHANGELOG": (["a"], [Types.INT()]),
        "ROW": ([Types.INT()],),
        "ROW_NAMED": (["a"], [Types.INT()]),
        "TUPLE": ([Types.INT()],),
        "MAP": (Types.STRING(), Types.INT()),
    }
    for name in sorted(vars(Types)):
        if not name.startswith("_"):
            made = getattr(Types, name)
            given_ = more.get(name) or [parts[one] for one in inspect.signature(made).parameters if one in parts]
            yield pytest.param(made(*given_), id=name)


@pytest.mark.parametrize("kind", list(every_type()))
def test_every_type_is_compatible_with_itself_as_its_snapshot_tells_it(kind):
    snapshot = kind.create_serializer().snapshot()
    again = snapshot_from_json(json.loads(json.dumps(snapshot.to_json())))
    assert snapshot.resolve_schema_compatibility(again).is_compatible_as_is()
    assert again.restore_serializer().snapshot() == snapshot
    other = Types.BOOLEAN() if kind != Types.BOOLEAN() else Types.STRING()
    answer = snapshot.resolve_schema_compatibility(other.create_serializer().snapshot())
    assert answer.is_compatible_after_migration() if str(kind) == "pickled" else answer.is_incompatible()
    assert not Types.PICKLED_BYTE_ARRAY().resolve_compatibility(kind).is_incompatible()


def test_defaults_are_checked_and_copied():
    with pytest.raises(ConfigurationError, match="'b'"):
        Types.ROW_NAMED(["a"], [Types.INT()], defaults={"b": 1})
    with pytest.raises(ConfigurationError, match="'a'"):
        Types.ROW_NAMED(["a"], [Types.INT()], defaults={"a": "text"})
    new = Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.LIST(Types.INT())], defaults={"b": [1]})
    old = Types.ROW_NAMED(["a"], [Types.INT()])
    first, second = (new.migrate(Row(a=1), old) for _ in range(2))
    first.b.append(2)
    assert second.b == [1]
    assert cloudpickle.loads(cloudpickle.dumps(new)) == new


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: float = 0.5


@dataclasses.dataclass
class Drawing:
    name: str | None
    points: list[Point]
    by_name: dict[str, Point]
    anything: object = None
    parent: "Drawing | None" = None


def test_a_dataclass_is_a_struct_and_comes_back_as_an_instance():
    kind = to_type(Drawing)
    assert pa.types.is_struct(kind.arrow_type)
    drawing = Drawing("d", [Point(1, 2.0)], {"p": Point(3)}, {"any"}, Drawing(None, [], {}))
    [found, nothing] = kind.to_list(kind.to_array([drawing, None]))
    assert (found, nothing) == (drawing, None)
    assert type(found.points[0]) is Point
    copied = kind.copy(drawing)
    copied.points.clear()
    assert drawing.points
    assert to_type(Point).is_immutable and not kind.is_immutable
    assert kind.create_serializer().deserialize(kind.create_serializer().serialize(drawing)) == drawing
    with pytest.raises(OutputTypeError) as wrong:
        kind.adopt(Drawing("d", [Point("far")], {}))
    assert wrong.value.field == "points[0].x"
    with pytest.raises(OutputTypeError, match="instance of the dataclass"):
        kind.adopt(5)
    assert cloudpickle.loads(cloudpickle.dumps(kind)) == kind
    unknown = type_from_json(json.loads(json.dumps(to_type(Point).to_json())))
    assert unknown.to_list(to_type(Point).to_array([Point(1)])) == [Row(x=1, y=0.5)]
    assert key_codec_for(to_type(Point)).dict_key(Point(1)) == key_codec_for(to_type(Point)).dict_key((1, 0.5))


def test_avro_schemas_are_understood_or_refused():
    schema = {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
            {"name": "other", "type": ["null", "Kind"]},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
            {"name": "lines", "type": {"type": "array", "items": {"type": "map", "values": "double"}}},
            {"name": "raw", "type": {"type": "fixed", "name": "Raw", "size": 2}, "default": "\u00ff\u0000"},
        ],
    }
    kind = avro_type(json.dumps(schema))
    assert kind.name == "Order"
    assert kind.ddl == (
        "struct<id: bigint, kind: string, other: string, day: date, price: decimal(6,2), "
        "lines: array<map<string, double>>, raw: binary>"
    )
    assert kind.defaults == {"raw": b"\xff\x00"}
    row = {"id": 1, "kind": "A", "other": None, "day": None, "price": Decimal("1.50"), "lines": [{"a": 1.0}]}
    assert kind.to_list(kind.to_array([kind.adopt(row)])) == [{**row, "raw": b"\xff\x00"}]
    for wrong in (
        "no json",
        '"string"',
        '["int", "string"]',
        '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "Odd"}]}',
    ):
        with pytest.raises(ConfigurationError):
            avro_type(wrong)
    with pytest.raises(OutputTypeError, match="unknown are \\['odd'\\]"):
        kind.adopt({**row, "odd": 1})


def test_parts_are_replaced_by_their_reconfigured_serializers():
    def of(words):
        own = SerializerTypeInformation(CodeSerializer(words))
        return Types.ROW_NAMED(["l", "n"], [Types.LIST(own), Types.INT() if words == ["a"] else Types.LONG()])

    old, new = of(["a"]), of(["b", "a"])
    kept = reconfigure(new, old)
    assert kept.types[0].element_type.serializer.words == ["a", "b"]
    array = old.to_array([Row(l=["a", None], n=1)])
    assert kept.to_list(migrate_column(array, old, kept)) == [Row(l=["a", None], n=1)]
    assert reconfigure(old, old) is old


def test_a_class_of_the_script_is_found_where_the_script_is_not(tmp_path):
    """Workers get the classes of the main module with the job, also those that no function mentions."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys
            from holdfast.types.program_classes import pickle_program
            from holdfast.types.serializer import *
            from holdfast.types.type_parser import to_type

            class Old(TypeSerializer):
                def serialize(self, value): return b"old" + value.encode()
                def deserialize(self, data): return data[3:].decode()

            class New(TypeSerializer):
                def serialize(self, value): return b"n" + value.encode()
                def deserialize(self, data): return data[1:].decode()
                def snapshot_configuration(self): return NewSnapshot()

            class NewSnapshot(TypeSerializerSnapshot):
                def get_current_version(self): return 1
                def write_snapshot(self): return None
                def read_snapshot(self, version, content): pass
                def restore_serializer(self): return New()
                def resolve_schema_compatibility(self, old):
                    if isinstance(old.restore_serializer(), Old):
                        return TypeSerializerSchemaCompatibility.compatible_after_migration()
                    return TypeSerializerSchemaCompatibility.incompatible()

            old = to_type(Old())
            shipped = to_type(New()), old.to_json(), old.to_array(["x"])
            sys.stdout.buffer.write(pickle_program(shipped))
            """
        )
    )
    data = subprocess.run([sys.executable, str(script)], check=True, capture_output=True).stdout
    (new, document, array), classes = unpickle_program(data)
    classes.use()
    assert new.to_list(migrate_column(array, type_from_json(document), new)) == ["x"]
    with pytest.raises(MissingClassError, match="cannot be imported here"):
        load_class("__main__:NobodyKnowsIt", PriceSerializer)
    use_own_classes()
