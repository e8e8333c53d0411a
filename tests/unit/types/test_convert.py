import typing
from datetime import date, datetime, time, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given

from holdfast.errors import ConfigurationError
from holdfast.types.opaque import PickledTypeInformation, SerializerTypeInformation
from holdfast.types.serializer import TypeSerializer
from holdfast.types.type_information import CharTypeInformation, CollatedStringTypeInformation
from holdfast.types.type_parser import parse_type, to_row_type, to_type
from holdfast.types.types import Types
from tests.unit.types.type_strategies import tables


class Price(TypeSerializer):
    def serialize(self, value):
        return str(value).encode()

    def deserialize(self, data):
        return Decimal(data.decode())


class Mine:
    pass


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        (None, PickledTypeInformation()),
        (Types.LONG(), Types.LONG()),
        ("array<bigint>", Types.LIST(Types.LONG())),
        ("a bigint, b string", Types.ROW_NAMED(["a", "b"], [Types.LONG(), Types.STRING()])),
        ("date date", Types.ROW_NAMED(["date"], [Types.SQL_DATE()])),
        (pa.int16(), Types.SHORT()),
        (pa.schema({"a": pa.int64()}), Types.ROW_NAMED(["a"], [Types.LONG()])),
        (pa.timestamp("ns", tz="Asia/Tokyo"), Types.INSTANT()),
        (pa.timestamp("ms"), Types.TIMESTAMP_NTZ()),
        (pa.large_list(pa.large_string()), Types.LIST(Types.STRING())),
        (pa.dictionary(pa.int8(), pa.string()), Types.STRING()),
        (str, Types.STRING()),
        (bool, Types.BOOLEAN()),
        (int, Types.LONG()),
        (float, Types.DOUBLE()),
        (bytes, Types.BINARY()),
        (Decimal, Types.BIG_DEC()),
        (date, Types.SQL_DATE()),
        (datetime, Types.INSTANT()),
        (time, Types.SQL_TIME()),
        (timedelta, Types.DURATION()),
        (list[int], Types.LIST(Types.LONG())),
        (typing.Dict[str, list[float]], Types.MAP(Types.STRING(), Types.LIST(Types.DOUBLE()))),  # noqa: UP006
        (tuple[int, str], Types.TUPLE([Types.LONG(), Types.STRING()])),
        (int | None, Types.LONG()),
        (typing.Optional[str], Types.STRING()),  # noqa: UP045
        (int | str, PickledTypeInformation()),
        (tuple[int, ...], PickledTypeInformation()),
        (dict, PickledTypeInformation()),
        (list, PickledTypeInformation()),
        (Mine, PickledTypeInformation()),
        (Types.LONG().create_serializer(), Types.LONG()),
    ],
    ids=lambda value: str(value).split(" at 0x")[0],
)
def test_almost_anything_describes_a_type(described, expected):
    assert to_type(described) == expected


def test_a_users_serializer_is_a_type():
    kind = to_type(Price())
    assert isinstance(kind, SerializerTypeInformation)
    assert kind.arrow_type == pa.binary()


@pytest.mark.parametrize(
    "described", [5, object(), Mine(), "nonsense", pa.uint8(), pa.null(), pa.time32("s").__class__]
)
def test_the_rest_is_refused(described):
    if isinstance(described, type):
        assert to_type(described) == PickledTypeInformation()
        return
    with pytest.raises(ConfigurationError):
        to_type(described)


@given(tables())
def test_the_arrow_schema_of_a_row_describes_it(table):
    row_type, _ = table
    assert to_type(row_type.arrow_schema).arrow_schema == row_type.arrow_schema


def test_row_types():
    assert to_row_type("a int, b string", ["x", "y"]).names == ("x", "y")
    assert to_row_type(tuple[int, str]).names == ("f0", "f1")
    assert to_row_type("struct<a: int>").names == ("a",)
    with pytest.raises(ConfigurationError, match="row type is needed"):
        to_row_type(int)
    with pytest.raises(ConfigurationError):
        to_row_type("a int", ["x", "y"])


def test_types_of_pyspark():
    spark = pytest.importorskip("pyspark.sql.types")
    schema = spark.StructType(
        [
            spark.StructField("a", spark.LongType(), False),
            spark.StructField(
                "b", spark.ArrayType(spark.StructType([spark.StructField("c", spark.DecimalType(5, 2))]))
            ),
            spark.StructField("d", spark.MapType(spark.StringType(), spark.TimestampNTZType())),
            spark.StructField("e", spark.DayTimeIntervalType()),
            spark.StructField("f", spark.TimeType(6)),
            spark.StructField("g", spark.StringType("UTF8_LCASE")),
            spark.StructField("h", spark.StringType(), True, {"__CHAR_VARCHAR_TYPE_STRING": "char(7)"}),
            spark.StructField("i", spark.BinaryType()),
            spark.StructField("j", spark.ArrayType(spark.StringType("UNICODE"))),
        ]
    )
    found = to_type(schema)
    assert found.names == tuple("abcdefghij".replace("c", ""))
    assert found.types == (
        Types.LONG(),
        parse_type("array<struct<c: decimal(5,2)>>"),
        parse_type("map<string, timestamp_ntz>"),
        Types.DURATION(),
        Types.SQL_TIME(),
        CollatedStringTypeInformation("UTF8_LCASE"),
        CharTypeInformation(7),
        Types.BINARY(),
        Types.LIST(CollatedStringTypeInformation("UNICODE")),
    )
    assert to_type(spark.StringType()) == Types.STRING()


@pytest.mark.parametrize("name", ["VariantType", "YearMonthIntervalType", "CalendarIntervalType", "NullType"])
def test_types_of_pyspark_without_an_arrow_form_are_refused_by_name(name):
    spark = pytest.importorskip("pyspark.sql.types")
    with pytest.raises(ConfigurationError, match="form"):
        to_type(getattr(spark, name)())
