"""Random types with random values of them, in the form in which they are read back."""

from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal

from hypothesis import strategies as st

from holdfast.types.composite import RowTypeInformation
from holdfast.types.row import row_class
from holdfast.types.type_information import TypeInformation
from holdfast.types.types import Types

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
FIELD_NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)
INSTANTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))
DURATIONS = st.timedeltas(timedelta(days=-100_000_000), timedelta(days=100_000_000))
WIDE = Context(prec=60)


def whole(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    largest = 10**precision - 1
    return st.integers(-largest, largest).map(lambda unscaled: WIDE.scaleb(Decimal(unscaled), -scale))


ATOMIC: list[tuple[TypeInformation, st.SearchStrategy]] = [
    (Types.STRING(), TEXTS),
    (Types.CHAR(5), st.text("aé ", max_size=5).map(lambda text: text.ljust(5))),
    (Types.BOOLEAN(), st.booleans()),
    (Types.BYTE(), whole(8)),
    (Types.SHORT(), whole(16)),
    (Types.INT(), whole(32)),
    (Types.LONG(), whole(64)),
    (Types.FLOAT(), st.floats(width=32, allow_nan=False)),
    (Types.DOUBLE(), st.floats(allow_nan=False)),
    (Types.BINARY(), st.binary(max_size=12)),
    (Types.SQL_DATE(), st.dates()),
    (Types.INSTANT(), INSTANTS),
    (Types.TIMESTAMP_NTZ(), st.datetimes()),
    (Types.SQL_TIME(), st.times()),
    (Types.DURATION(), DURATIONS),
    (Types.DECIMAL(10, 2), decimals(10, 2)),
    (Types.DECIMAL(18, 18), decimals(18, 18)),
    (Types.DECIMAL(38, 10), decimals(38, 10)),
    (Types.BIG_INT(), st.integers(-(10**38) + 1, 10**38 - 1)),
]
PICKLED = (
    Types.PICKLED_BYTE_ARRAY(),
    # Numbers below eight share no place in a set, so that equal sets print alike: some tests compare what is printed.
    st.one_of(
        st.integers(), TEXTS, st.dictionaries(TEXTS, st.integers(), max_size=3), st.sets(st.integers(0, 7), max_size=3)
    ),
)


def _nested(inner):
    """Lists, maps, rows and tuples of what there is."""

    def as_list(pair):
        kind, values = pair
        return Types.LIST(kind), st.lists(st.one_of(st.none(), values), max_size=4)

    def as_struct(pairs_and_names, make):
        pairs, names = pairs_and_names
        names = names[: len(pairs)]
        row_type = make(names, [kind for kind, _ in pairs])
        return row_type, st.tuples(*[st.one_of(st.none(), values) for _, values in pairs]).map(
            lambda items: tuple.__new__(row_type.row_type, items)
        )

    structs = st.tuples(
        st.lists(inner, min_size=1, max_size=3), st.lists(FIELD_NAMES, min_size=3, max_size=3, unique=True)
    )
    maps = st.tuples(st.sampled_from(ATOMIC), inner).map(
        lambda both: (
            Types.MAP(both[0][0], both[1][0]),
            st.dictionaries(both[0][1], st.one_of(st.none(), both[1][1]), max_size=3),
        )
    )
    return st.one_of(
        inner.map(as_list),
        maps,
        structs.map(lambda both: as_struct(both, Types.ROW_NAMED)),
        structs.map(lambda both: as_struct(both, lambda names, kinds: Types.TUPLE(kinds))),
    )


TYPES = st.recursive(st.sampled_from([*ATOMIC, PICKLED]), _nested, max_leaves=5)


@st.composite
def typed_columns(draw, types=TYPES, max_size=8):
    """A type and a column of values of it, nulls among them."""
    kind, values = draw(types)
    return kind, draw(st.lists(st.one_of(st.none(), values), max_size=max_size))


@st.composite
def tables(draw):
    """A row type and rows of it."""
    pairs = draw(st.lists(TYPES, min_size=1, max_size=4))
    names = draw(st.lists(FIELD_NAMES, min_size=len(pairs), max_size=len(pairs), unique=True))
    row_type = RowTypeInformation(names, [kind for kind, _ in pairs])
    rows = draw(st.lists(st.tuples(*[st.one_of(st.none(), values) for _, values in pairs]), max_size=8))
    return row_type, [row_class(names).make(row) for row in rows]
