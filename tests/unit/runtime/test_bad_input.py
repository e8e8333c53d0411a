"""Bad input and bad programs: one clear error that says where, nothing committed, and the mended job goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.datastream import DataStream, KeyedProcessFunction, ParquetFileSink
from holdfast.errors import (
    ConfigurationError,
    HoldfastError,
    JobExecutionError,
    NullKeyError,
    OutputTypeError,
    StateError,
    UserFunctionError,
)
from holdfast.state.descriptor import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from tests.stories import journal, tidiness
from tests.stories.functions import Numbering
from tests.stories.journal import Journal, as_tuples
from tests.stories.local import Program, epochs, run

PAIR = "key string, n bigint"
GOOD = [[("a", 1), ("b", 2)], [("a", 3)], [("b", 4), ("c", 5)]]


def failure(place: Path, program: Program, batches: Sequence[Sequence[Any]], **settings: Any) -> HoldfastError:
    """What the job fails with; what had been committed before stays, and nothing comes after it."""
    with pytest.raises(HoldfastError) as failed:
        run(program, place / "job", epochs("in", batches), **settings)
    error = failed.value
    if isinstance(error, JobExecutionError):
        assert isinstance(error.__cause__, HoldfastError)
        return error.__cause__
    return error


def keyed(place: Path, key: Any, key_type: Any = None, source: Any = PAIR) -> Program:
    program = Program()
    counted = program.source("in", source).key_by(key, key_type).process(Numbering()).uid("counting")
    counted.sink_to(Journal(place / "out")).uid("out")
    return program


# Keys.


@pytest.mark.parametrize(
    ("key", "key_type"),
    [("key", None), (lambda pair: pair.key, "string"), (lambda pair: pair.key, None)],
    ids=["column", "typed selector", "untyped selector"],
)
def test_a_null_key_names_the_operator(place: Path, key: Any, key_type: Any) -> None:
    error = failure(place, keyed(place, key, key_type), [GOOD[0], [("a", 1), (None, 7)], GOOD[1]])
    assert isinstance(error, NullKeyError)
    assert "'counting'" in str(error)
    assert len(journal.read(place / "out")) == len(GOOD[0])
    run(keyed(place, key, key_type), place / "job", epochs("in", GOOD))
    assert sorted((row.key, n) for row, n in journal.read(place / "out")) == [
        ("a", 1), ("a", 2), ("b", 1), ("b", 2), ("c", 1),
    ]  # fmt: skip


def test_null_parts_of_a_composite_key_are_values(place: Path) -> None:
    rows = [("a", 1), ("a", None), (None, 1), (None, None), (None, None), ("a", None), ("a", 1)]
    run(keyed(place, ["key", "n"]), place / "job", epochs("in", [rows[:4], rows[4:]]))
    assert sorted((number, str(tuple(row))) for row, number in journal.read(place / "out")) == sorted(
        (rows[: i + 1].count(row), str(row)) for i, row in enumerate(rows)
    )


@pytest.mark.parametrize("inside", [False, True], ids=["as a whole", "in a tuple"])
def test_a_key_without_a_canonical_form_is_refused(place: Path, inside: bool) -> None:
    key = object()
    error = failure(place, keyed(place, lambda pair: ("x", key) if inside else key), GOOD)
    assert "'counting'" in str(error)
    assert type(key).__name__ in str(error)
    assert "str" in str(error), "it says what a key may be"


def test_a_key_that_does_not_fit_its_declared_type_is_refused(place: Path) -> None:
    error = failure(place, keyed(place, lambda pair: pair.key, "bigint"), GOOD)
    assert "'counting'" in str(error)
    assert "'a'" in str(error) and "bigint" in str(error)


def test_a_selector_that_raises_is_the_users_error(place: Path) -> None:
    error = failure(place, keyed(place, lambda pair: 1 // (pair.n - 3)), GOOD)
    assert isinstance(error, UserFunctionError)
    assert (error.uid, error.epoch) == ("counting", 2)
    assert "selecting a key" in str(error) and "ZeroDivisionError" in str(error)


# Values.


def test_an_element_that_does_not_fit_the_type_of_its_source_is_named(place: Path) -> None:
    error = failure(place, keyed(place, "key"), [GOOD[0], [("a", "many")]])
    assert isinstance(error, OutputTypeError)
    assert "'in'" in str(error) and "'n'" in str(error) and "'many'" in str(error)


def mapped(place: Path, function: Callable[[Any], Any], output_type: str = PAIR, *, key: bool = False) -> Program:
    program = Program()
    stream: DataStream = program.source("in", PAIR)
    stream = stream.key_by("key") if key else stream
    stream.map(function, output_type).uid("mapping").sink_to(ParquetFileSink(place / "out")).uid("out")
    return program


@pytest.mark.parametrize("key", [False, True], ids=["narrow", "keyed"])
@pytest.mark.parametrize(
    ("value", "named"),
    [
        (("a", "three"), ["'n'", "'three'", "bigint"]),
        (("a", 2**63), ["'n'", str(2**63)]),
        ((5, 1), ["'key'", "5", "string"]),
        (("a", 1, 2), ["3", "2"]),
        (("a",), ["1", "2"]),
        ("text", ["'text'"]),
        (17, ["17"]),
    ],
    ids=["wrong type", "too large", "number for a string", "too many", "too few", "no row", "a number"],
)
def test_output_that_does_not_match_its_type_names_operator_field_and_value(
    place: Path, value: Any, named: list[str], key: bool
) -> None:
    program = mapped(place, lambda pair: value if pair.n == 3 else pair, key=key)
    error = failure(place, program, GOOD)
    assert isinstance(error, OutputTypeError)
    assert "'mapping'" in str(error)
    for word in named:
        assert word in str(error)
    run(mapped(place, lambda pair: pair, key=key), place / "job", epochs("in", GOOD))
    tidiness.inspect(place / "job", outputs=(place / "out",))


STATES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "value": (ValueStateDescriptor("wrong", "bigint"), lambda state: state.update("text")),
    "list": (ListStateDescriptor("wrong", "bigint"), lambda state: state.add("text")),
    "map value": (MapStateDescriptor("wrong", "string", "bigint"), lambda state: state.put("k", "text")),
    "map key": (MapStateDescriptor("wrong", "bigint", "string"), lambda state: state.put("text", "v")),
    "reducing": (ReducingStateDescriptor("wrong", lambda a, b: a + b, "bigint"), lambda state: state.add("text")),
}


@pytest.mark.parametrize("kind", STATES)
def test_a_value_that_does_not_fit_its_state_names_operator_state_and_value(place: Path, kind: str) -> None:
    descriptor, change = STATES[kind]

    class Careless(KeyedProcessFunction):
        def open(self, runtime_context: Any) -> None:
            getter = "get_map_state" if "map" in kind else f"get_{kind.replace('value', '')}_state".replace("__", "_")
            self.state = getattr(runtime_context, getter)(descriptor)

        def process_element(self, value: Any, ctx: Any) -> Any:
            if value.n == 3:
                change(self.state)
            yield value

    program = Program()
    program.source("in", PAIR).key_by("key").process(Careless(), PAIR).uid("careless").sink_to(Journal(place / "out"))
    error = failure(place, program, GOOD)
    assert isinstance(error, (StateError, OutputTypeError, UserFunctionError))
    assert "'careless'" in str(error) and "'wrong'" in str(error) and "'text'" in str(error)
    assert as_tuples(journal.read(place / "out")) == sorted(GOOD[0])


# Functions.


def raising(pair: Any) -> Any:
    if pair.n == 3:
        raise LookupError("this is what went wrong")
    return pair


def test_a_function_that_raises_is_named_with_key_epoch_and_traceback(place: Path) -> None:
    error = failure(place, mapped(place, raising, key=True), GOOD)
    assert isinstance(error, UserFunctionError)
    assert (error.uid, error.key, error.epoch) == ("mapping", "a", 2)
    assert "LookupError: this is what went wrong" in str(error)
    assert "test_bad_input.py" in str(error) and "in raising" in str(error)
    run(mapped(place, lambda pair: pair, key=True), place / "job", epochs("in", GOOD))
    tidiness.inspect(place / "job", outputs=(place / "out",))


def test_a_timer_that_raises_is_named_with_its_key(place: Path) -> None:
    class Late(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Any:
            ctx.timer_service().register_event_time_timer(1)
            yield value

        def on_timer(self, timestamp: int, ctx: Any) -> Any:
            raise LookupError("too late")

    program = Program()
    program.source("in", PAIR).key_by("key").process(Late(), PAIR).uid("late").sink_to(Journal(place / "out"))
    error = failure(place, program, [[("only", 1)]], is_bounded=True)
    assert isinstance(error, UserFunctionError)
    assert (error.uid, error.key) == ("late", "only")
    assert "firing a timer" in str(error)


def test_a_function_that_cannot_be_pickled_is_refused_before_anything_runs(place: Path) -> None:
    lock = threading.Lock()
    error = failure(place, mapped(place, lambda pair: pair if lock else None), GOOD)
    assert isinstance(error, ConfigurationError)
    assert "'mapping'" in str(error) and "lock" in str(error)
    assert "open()" in str(error), "it says what to do instead"


def test_generator_or_not_a_process_function_may_return_nothing(place: Path) -> None:
    program = Program()
    stream = program.source("in", PAIR)
    stream.key_by("key").process(lambda pair, ctx: None, PAIR).uid("none").sink_to(Journal(place / "out"))
    stream.flat_map(lambda pair: None, PAIR).sink_to(Journal(place / "out")).uid("other")
    run(program, place / "job", epochs("in", GOOD))
    assert journal.read(place / "out") == []


def test_state_on_a_stream_without_keys_is_refused_with_the_reason(place: Path) -> None:
    from holdfast.datastream import RichMapFunction

    class Stateful(RichMapFunction):
        def open(self, runtime_context: Any) -> None:
            runtime_context.get_state(ValueStateDescriptor("n", "bigint"))

        def map(self, value: Any) -> Any:
            return value

    error = failure(place, mapped(place, Stateful()), GOOD)
    assert isinstance(error, ConfigurationError)
    assert "'mapping'" in str(error) and "key_by()" in str(error)
