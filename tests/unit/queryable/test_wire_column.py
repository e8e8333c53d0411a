"""Columns of keys on the wire: they come back as they were, and bytes that are none are refused."""

import datetime
import decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.queryable.wire.errors import BadRequestError
from holdfast.queryable.wire.request import ColumnReader, encode_column

TYPES = {
    pa.string(): st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    pa.binary(): st.binary(max_size=20),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.bool_(): st.booleans(),
    pa.float64(): st.floats(allow_nan=False),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1)),
    pa.decimal128(10, 2): st.decimals(-99999, 99999, places=2),
}


@pytest.mark.parametrize("kind", TYPES, ids=str)
@given(data=st.data())
def test_a_column_comes_back(kind, data):
    values = data.draw(st.lists(TYPES[kind], min_size=1, max_size=30))
    start = data.draw(st.integers(0, len(values) - 1))
    column = pa.array([decimal.Decimal(v) if pa.types.is_decimal(kind) else v for v in values], kind).slice(start)

    body = b"".join(encode_column(column) + encode_column(column))
    reader = ColumnReader(body)

    assert reader.column(kind, len(column)).equals(column)
    assert reader.column(kind, len(column)).equals(column)
    reader.end()


@pytest.mark.parametrize("kind", TYPES, ids=str)
@given(body=st.binary(max_size=300), count=st.integers(1, 40))
def test_other_bytes_are_a_column_or_are_refused(kind, body, count):
    try:
        found = ColumnReader(body).column(kind, count)
        found.validate(full=True)
        assert len(found.to_pylist() if not pa.types.is_temporal(kind) else found) == count
    except BadRequestError:
        pass


def test_bytes_that_are_left_over_say_that_the_types_differ():
    reader = ColumnReader(b"123456789")
    reader.column(pa.int64(), 1)
    with pytest.raises(BadRequestError, match="Unconsumed bytes in the key: 1 of 9"):
        reader.end()
