"""Mistakes in a program fail where it is written, with a message that says what to write instead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.common import Types
from holdfast.datastream import (
    BroadcastProcessFunction,
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    ProcessFunction,
    ReduceFunction,
    RichMapFunction,
)
from holdfast.datastream.stream.operation import check_function, declared_type, key_spec, operator_spec
from holdfast.errors import ConfigurationError
from holdfast.types.opaque import PickledTypeInformation
from holdfast.types.type_information import TypeInformation

ROWS = declared_type("word string, n bigint", "test")


class Doubled(MapFunction):
    def map(self, value: Any) -> Any:
        return value * 2


class Rich(RichMapFunction):
    def map(self, value: Any) -> Any:
        return value


class Words(FlatMapFunction):
    def flat_map(self, value: Any) -> Iterator[Any]:
        yield from value.split()


class Short(FilterFunction):
    def filter(self, value: Any) -> bool:
        return len(value) < 3


class Sum(ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return value1 + value2


class Narrow(ProcessFunction):
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterator[Any]:
        yield value


class Keyed(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        yield value


class FirstLetter(KeySelector):
    def get_key(self, value: Any) -> Any:
        return value[0]


class Duck:
    """No subclass of ours, but with the method."""

    def map(self, value: Any) -> Any:
        return value


@pytest.mark.parametrize(
    ("shape", "function", "keyed"),
    [
        ("map", Doubled(), False),
        ("map", Rich(), True),
        ("map", Duck(), False),
        ("map", str.upper, False),
        ("map", len, False),
        ("map", lambda value: value, True),
        ("flat_map", Words(), False),
        ("flat_map", str.split, False),
        ("filter", Short(), False),
        ("filter", lambda value: True, False),
        ("reduce", Sum(), True),
        ("reduce", lambda a, b: a, True),
        ("reduce", max, True),
        ("process", Narrow(), False),
        ("process", Keyed(), True),
        ("process", lambda value, ctx: [value], True),
    ],
)
def test_whatever_pyflink_accepts_is_accepted(shape: Any, function: Any, keyed: bool) -> None:
    check_function(shape, function, keyed)


@pytest.mark.parametrize(
    ("shape", "function", "keyed", "message"),
    [
        ("map", Doubled, False, r"map\(\) takes an instance, not the class: write Doubled\(\)"),
        ("map", Words(), False, "map.. takes a MapFunction, or a function value -> value, not a Words"),
        ("map", 7, False, "map.. takes a MapFunction.*not a int"),
        ("map", lambda: 1, False, "is called with 1 argument, which it does not take"),
        ("reduce", lambda a: a, True, "is called with 2 arguments"),
        ("process", Keyed(), False, r"Keyed is a KeyedProcessFunction: call key_by\(\) before process\(\)"),
        ("process", Doubled(), True, "takes a KeyedProcessFunction"),
        ("filter", Sum(), False, "filter.. takes a FilterFunction"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(shape: Any, function: Any, keyed: bool, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_function(shape, function, keyed)


def test_a_function_of_two_streams_needs_two() -> None:
    class Rules(BroadcastProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Any:
            raise AssertionError("not reached")

        def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
            raise AssertionError("not reached")

    with pytest.raises(ConfigurationError, match="connect the stream"):
        check_function("process", Rules(), keyed=False)


@pytest.mark.parametrize(
    ("described", "ddl"),
    [
        ("bigint", "BIGINT"),
        ("word string, n bigint", "STRUCT<WORD: STRING, N: BIGINT>"),
        (Types.LONG(), "BIGINT"),
        (Types.ROW_NAMED(["a"], [Types.STRING()]), "STRUCT<A: STRING>"),
        (int, "BIGINT"),
        (None, "BINARY"),
    ],
)
def test_a_type_may_be_written_in_many_ways(described: Any, ddl: str) -> None:
    assert declared_type(described, "map").ddl.upper() == ddl


def test_a_type_that_cannot_be_understood_is_refused_with_both_ways_to_write_one() -> None:
    with pytest.raises(ConfigurationError, match=r"map\(\).*A type is written as 'bigint', columns as"):
        declared_type("strnig", "map")


def test_filter_and_reduce_keep_the_type_and_an_undeclared_map_pickles() -> None:
    def type_of(shape: Any, function: Any, keyed: bool = False) -> TypeInformation:
        return operator_spec(shape, function, ROWS, None, keyed=keyed).output_type

    assert type_of("filter", Short()) == ROWS
    assert type_of("reduce", Sum(), keyed=True) == ROWS
    assert isinstance(type_of("map", Doubled()), PickledTypeInformation)


def test_a_key_is_a_column_several_columns_or_a_selector() -> None:
    assert key_spec("word", None, (), ROWS).columns == ("word",)
    assert key_spec(["n", "word"], None, "n", ROWS).columns == ("n", "word")
    assert key_spec(["n", "word"], None, "n", ROWS).order_by == ("n",)
    assert key_spec("word", Types.STRING(), (), ROWS).columns == ("word",)
    selector = key_spec(FirstLetter(), "string", ["word"], ROWS)
    assert selector.selector is not None
    assert selector.selector("kelp") == "k"
    assert selector.key_type == Types.STRING()
    assert key_spec(lambda row: row.n, None, (), ROWS).key_type is None


@pytest.mark.parametrize(
    ("key", "key_type", "order_by", "message"),
    [
        ("wrod", None, (), r"no column 'wrod'; the stream has \['word', 'n'\]"),
        ("word", None, "when", "order_by: there is no column 'when'"),
        ([], None, (), "at least one column"),
        (["n", "n"], None, (), "names a column twice"),
        ("word", "bigint", (), "key_type is 'bigint', but the column is 'string'"),
        ("word", "n", (), r"several columns as one list: key_by\(\['word', 'n'\]\)"),
        (3, None, (), "takes column names, a KeySelector or a function, not 3"),
        (FirstLetter, None, (), r"write FirstLetter\(\)"),
        (lambda: 1, None, (), "does not take"),
    ],
)
def test_a_key_that_cannot_be_is_refused(key: Any, key_type: Any, order_by: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        key_spec(key, key_type, order_by, ROWS)


def test_columns_of_a_stream_without_columns_are_refused_with_both_ways_out() -> None:
    with pytest.raises(ConfigurationError, match=r"declare output_type=.*or key by a function"):
        key_spec("word", None, (), declared_type(None, "map"))
