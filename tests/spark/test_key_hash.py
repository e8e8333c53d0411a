"""Spark itself judges our hash of keys, and takes the batches that we make for every type."""

import pyarrow as pa
import pyspark
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from holdfast.spark.frame import frame_with
from holdfast.types.arrow import batch_to_elements, element_ddl, rows_to_batch
from holdfast.types.composite import RowTypeInformation
from holdfast.types.key_codec import KeyCodec, key_codec_for
from holdfast.types.type_parser import to_row_type
from holdfast.types.types import Types
from tests.unit.types import type_strategies

pytestmark = pytest.mark.spark

SPARK = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
# Spark has a type for times of day since 4.1.
ATOMIC = [pair for pair in type_strategies.ATOMIC if SPARK >= (4, 1) or str(pair[0]) != str(Types.SQL_TIME())]
ROWS = 25
NAMES = [f"c{position}" for position in range(len(ATOMIC))]
TABLE = RowTypeInformation(NAMES, [kind for kind, _ in ATOMIC])
# A wide key, also one whose parts are nested.
NESTED = Types.ROW_NAMED(["s", "d"], [Types.ROW_NAMED(["a", "b"], [Types.STRING(), Types.DOUBLE()]), Types.SQL_DATE()])
EDGES = {
    "double": [0.0, -0.0, float("nan"), -float("nan"), float("inf"), -float("inf"), 5e-324, 1.7976931348623157e308],
    "float": [0.0, -0.0, float("nan"), float("inf"), -float("inf"), 2.0**-149],
    "string": ["", "a", "é", "日本", "\U0001f600", "x" * 31, "x" * 32, "x" * 33, "x" * 1000, "\x00", " "],
    "binary": [b"", b"\x00", b"\xff" * 7, bytes(range(256))],
    "tinyint": [-128, -1, 0, 127],
    "smallint": [-(2**15), -1, 2**15 - 1],
    "int": [-(2**31), -1, 0, 1, 2**31 - 1],
    "bigint": [-(2**63), -1, 0, 2**63 - 1],
}


def quickly(examples: int) -> settings:
    """A few examples and no shrinking, because each one is several Spark jobs."""
    return settings(
        max_examples=examples,
        phases=[Phase.generate],
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture(scope="module")
def zoned(spark):
    """A session with another time zone than the one in our batches."""
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "1")
    session.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
    session.conf.set("spark.sql.timeType.enabled", "true")
    return session


@st.composite
def table_of_all_types(draw):
    columns = []
    for kind, values in ATOMIC:
        edges = EDGES.get(str(kind), [])
        column = [*edges, *draw(st.lists(st.one_of(st.none(), values), min_size=ROWS, max_size=ROWS))]
        columns.append(draw(st.permutations(column))[:ROWS] if edges else column)
    return list(zip(*columns, strict=True))


def frame_of(zoned, rows: list, row_type: RowTypeInformation):
    # Without a schema Spark would take timestamps without a zone for instants.
    return frame_with(rows_to_batch(rows, row_type), element_ddl(row_type), zoned)


def collected(frame) -> pa.Table:
    if SPARK >= (4, 0):
        return frame.toArrow()
    from pyspark.sql.pandas.types import to_arrow_schema

    batches = frame._collect_as_arrow()
    return pa.Table.from_batches(batches, batches[0].schema if batches else to_arrow_schema(frame.schema))


def hashes_of_spark(frame, columns: list[str]) -> list[int]:
    from pyspark.sql import functions as f

    rows = collected(frame.select(f.xxhash64(*columns).alias("hash")))["hash"].to_pylist()
    return [value % 2**64 for value in rows]


def check_hashes(codec: KeyCodec, frame, columns: list[str], values: list) -> None:
    expected = hashes_of_spark(frame, columns)
    found = [codec.hash(codec.dict_key(value)) for value in values]
    wrong = [(v, ours, theirs) for v, ours, theirs in zip(values, found, expected, strict=True) if ours != theirs]
    assert not wrong


@quickly(4)
@given(table_of_all_types())
def test_every_simple_type_and_their_composites_hash_as_in_spark(zoned, rows):
    frame = frame_of(zoned, rows, TABLE).cache()
    for position, (kind, _) in enumerate(ATOMIC):
        codec = key_codec_for(kind)
        name = NAMES[position]
        present = [row[position] for row in rows if row[position] is not None]
        check_hashes(codec, frame.where(f"{name} is not null"), [name], present)
    check_hashes(key_codec_for(TABLE), frame, NAMES, rows)
    backwards = RowTypeInformation(NAMES[::-1], TABLE.types[::-1])
    check_hashes(key_codec_for(backwards), frame, NAMES[::-1], [row[::-1] for row in rows])
    frame.unpersist()


def test_edges_hash_as_in_spark(zoned):
    for name, values in EDGES.items():
        kind = to_row_type(f"k {name}")
        frame = frame_of(zoned, [(value,) for value in values], kind)
        check_hashes(key_codec_for(kind.types[0]), frame, ["k"], values)


def test_nested_rows_hash_as_in_spark(zoned):
    import datetime

    rows = [(("a", -0.0), datetime.date(1969, 12, 31)), (("", None), None), (None, datetime.date(2020, 1, 1))]
    frame = frame_of(zoned, rows, NESTED)
    check_hashes(key_codec_for(NESTED), frame, ["s", "d"], rows)


@quickly(2)
@given(table_of_all_types())
def test_spark_returns_batches_of_every_type_unchanged(zoned, rows):
    kinds = [*TABLE.types, Types.LIST(Types.LONG()), Types.MAP(Types.STRING(), Types.DOUBLE()), NESTED]
    row_type = RowTypeInformation([*NAMES, "li", "ma", "ro"], kinds)
    more = [([1, None], {"k": 1.5, "n": None}, (("x", 0.5), None)), (None, None, None), ([], {}, None)]
    wide = [(*row, *more[position % 3]) for position, row in enumerate(rows)]
    frame = frame_of(zoned, wide, row_type)
    assert to_row_type(frame.schema).arrow_schema == row_type.arrow_schema

    def through_python(batches):
        for batch in batches:
            yield rows_to_batch(batch_to_elements(batch, row_type), row_type, "op")

    result = collected(frame.mapInArrow(through_python, element_ddl(row_type)))
    again = [row for batch in result.to_batches() for row in batch_to_elements(batch, row_type)]
    expected = [row_type.adopt(row) for row in wide]
    assert [repr(row) for row in again] == [repr(row) for row in expected]


@pytest.mark.skipif(SPARK < (4, 0), reason="Spark has collations since 4.0")
def test_a_collation_is_read_from_the_schema_and_rejected_as_a_key(zoned):
    from holdfast.errors import ConfigurationError

    frame = zoned.sql("SELECT 'A' COLLATE UTF8_LCASE AS k, array('A' COLLATE UNICODE) AS l, 'b' AS s")
    found = to_row_type(frame.schema)
    assert [str(kind) for kind in found.types] == [
        "string collate UTF8_LCASE",
        "array<string collate UNICODE>",
        "string",
    ]
    with pytest.raises(ConfigurationError, match="collation"):
        key_codec_for(found.types[0])
