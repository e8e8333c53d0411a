import pytest
from hypothesis import given

from holdfast.errors import ConfigurationError
from holdfast.types.type_information import CharTypeInformation, CollatedStringTypeInformation
from holdfast.types.type_parser import parse_schema, parse_type, to_type
from holdfast.types.types import Types
from tests.unit.types.type_strategies import tables


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("string", Types.STRING()),
        (" BigInt ", Types.LONG()),
        ("long", Types.LONG()),
        ("integer", Types.INT()),
        ("short", Types.SHORT()),
        ("byte", Types.BYTE()),
        ("real", Types.FLOAT()),
        ("varchar(10)", Types.STRING()),
        ("decimal", Types.DECIMAL(10, 0)),
        ("DEC(5)", Types.DECIMAL(5, 0)),
        ("numeric(12, 3)", Types.DECIMAL(12, 3)),
        ("timestamp_ltz", Types.INSTANT()),
        ("timestamp_ntz", Types.TIMESTAMP_NTZ()),
        ("time", Types.SQL_TIME()),
        ("time(3)", Types.SQL_TIME()),
        ("interval day", Types.DURATION()),
        ("INTERVAL HOUR TO SECOND", Types.DURATION()),
        ("array<array<int>>", Types.LIST(Types.LIST(Types.INT()))),
        ("map<string,array<double>>", Types.MAP(Types.STRING(), Types.LIST(Types.DOUBLE()))),
        ("struct<a:int,b string>", Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.STRING()])),
        ("struct<>", Types.ROW_NAMED([], [])),
        ("char(4)", CharTypeInformation(4)),
        ("string collate utf8_lcase", CollatedStringTypeInformation("UTF8_LCASE")),
        ("string collate UTF8_BINARY", Types.STRING()),
    ],
)
def test_types_are_read_as_spark_reads_them(text, expected):
    assert parse_type(text) == expected


def test_a_schema_with_everything_around_the_types():
    found = parse_schema("""
        id BIGINT NOT NULL COMMENT 'it''s the "key", yes',
        `a b``c` array<struct<`x y`: int COMMENT "no", z: string NOT NULL>>,
        date date,
        ts: timestamp
    """)
    assert found.names == ("id", "a b`c", "date", "ts")
    assert found.types[1] == Types.LIST(Types.ROW_NAMED(["x y", "z"], [Types.INT(), Types.STRING()]))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "missing"),
        ("strin", "'strin' is not a type"),
        ("array<int", "'>' is expected"),
        ("array<int>>", "'>' is not expected"),
        ("map<int>", "',' is expected"),
        ("decimal(39,0)", "precision from 1 to 38"),
        ("decimal(5,6)", "scale"),
        ("decimal(x)", "a number is expected"),
        ("char(0)", "1 or more"),
        ("int int", "not expected"),
        ("struct<a int, a int>", "must differ"),
        ("array<;>", "not valid"),
        ("variant", "cast it"),
        ("void", "give it a type"),
        ("interval", "no form"),
        ("interval year to month", "'interval year to month' has no form"),
        ("geometry", "binary"),
        ("map<array<int>,int>", "hashable"),
    ],
)
def test_what_is_no_type_is_refused_with_the_place(text, words):
    with pytest.raises(ConfigurationError, match=words):
        parse_type(text)


@pytest.mark.parametrize("text", ["", "a", "a int,", "a int b int", ", a int", "a nothing", "a int, a string"])
def test_what_is_no_schema_is_refused(text):
    with pytest.raises(ConfigurationError):
        parse_schema(text)


@given(tables())
def test_the_ddl_of_a_type_is_read_back_to_the_same_columns(table):
    row_type, _ = table
    again = parse_schema(row_type.schema_ddl)
    assert again.arrow_schema == row_type.arrow_schema
    assert parse_type(row_type.ddl).ddl == row_type.ddl


@pytest.mark.parametrize("text", ["word: string", "word:string", "word string", "`word` : string"])
def test_a_colon_may_follow_a_name_as_in_pyspark_also_of_a_single_column(text):
    one = Types.ROW_NAMED(["word"], [Types.STRING()])
    assert to_type(text) == parse_schema(text) == one
    assert to_type(f"{text}, n: bigint") == Types.ROW_NAMED(["word", "n"], [Types.STRING(), Types.LONG()])
