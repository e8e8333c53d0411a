"""Classes of a script are pickled by name and found again where the script is not, as in a worker."""

from __future__ import annotations

import enum
import functools
import os
import pickle
import subprocess
import sys
import textwrap
import traceback
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from holdfast.errors import MissingClassError
from holdfast.types import program_classes
from holdfast.types.opaque import dumps
from holdfast.types.program_classes import (
    ProgramClasses,
    loads,
    pickle_program,
    program_object,
    unpickle_program,
    use_own_classes,
)

SCRIPT = """
    import collections, dataclasses, enum, sys
    import numpy as np
    from decimal import Decimal as Price
    from holdfast.types.opaque import dumps
    from holdfast.types.program_classes import pickle_program

    PASSWORD = "not to be kept"

    class Status(enum.Enum):
        NEW = "new"

    class Order:
        class Line:
            def __init__(self, cents): self.cents = cents
        def pay(self): return PASSWORD

    Renamed = Order

    class Unmentioned:
        def answer(self): return 42

    class Large:
        def answer(self): return ROWS
    ROWS = np.zeros(1_000_000)

    class Locked:
        def answer(self): return FILE
    FILE = open(__file__, "rb")

    def helper(): return PASSWORD

    def made():
        @dataclasses.dataclass
        class Local:
            n: int
        return Local
    Local = made()
    Point = collections.namedtuple("Point", "x y")
    first, second = ((lambda: [type("Twice", (), {})])()[0] for _ in "ab")

    def function():
        return Status.NEW, Order.Line(5), Local(3), Point(1, 2), helper, first(), second()

    written = [dumps(value) for value in function()] + [dumps(Unmentioned()), dumps(Renamed())]
    sys.stdout.buffer.write(pickle_program((function, written)))
"""


Shipped = Callable[..., Any]


@pytest.fixture(scope="module")
def script_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("program") / "script.py"


@pytest.fixture(scope="module")
def output(script_file: Path) -> Callable[[str], bytes]:
    @functools.cache
    def run(script: str) -> bytes:
        script_file.write_text(textwrap.dedent(script), encoding="utf-8")
        return subprocess.run([sys.executable, str(script_file)], check=True, capture_output=True).stdout

    return run


@pytest.fixture
def shipped(output: Callable[[str], bytes]) -> Shipped:
    """What a script sends to workers, in a process whose main module is another one."""
    return lambda script=SCRIPT: unpickle_program(output(script))


@pytest.fixture(autouse=True)
def no_program() -> Iterator[None]:
    yield
    use_own_classes()


def test_values_of_the_driver_are_of_the_classes_that_the_functions_have(shipped: Shipped) -> None:
    (function, written), classes = shipped()
    classes.use()

    status, line, local, point, helper, *_ = function()

    assert loads(written[0]) is status
    assert type(loads(written[1])) is type(line)
    assert loads(written[2]) == local, "a class of a function's body"
    assert loads(written[3]) == point
    assert loads(written[4])() == helper() == "not to be kept"


def test_what_a_worker_writes_is_by_name_and_holds_nothing_of_the_script(shipped: Shipped) -> None:
    (function, written), classes = shipped()
    classes.use()

    status, line, local, point, helper, *_ = function()
    del written[2]  # the driver knows a class of a function's body by name only when it has sent the job
    for value, by_driver in zip([status, line, point, helper, local], [*written[:4], dumps(local)], strict=True):
        for data in (dumps(value), by_driver):
            assert b"not to be kept" not in data
            assert b"cloudpickle" not in data
            assert type(loads(data)) is type(value)


def test_classes_that_no_function_mentions_are_found_too(shipped: Shipped) -> None:
    (_, written), classes = shipped()
    classes.use()

    unmentioned = loads(written[-2])
    assert unmentioned.answer() == 42
    assert dumps(unmentioned) == written[-2]
    assert program_object("__main__:Price").__name__ == "Decimal", "a class that has moved into a module"


def test_another_name_of_a_class_is_read_and_its_own_is_written(shipped: Shipped) -> None:
    (_, written), classes = shipped()
    classes.use()

    assert program_object("__main__:Renamed") is program_object("__main__:Order")
    assert b"Renamed" not in dumps(program_object("__main__:Renamed")())
    assert dumps(loads(written[-1])) == written[-1]


def test_two_classes_of_one_name_stay_two(shipped: Shipped) -> None:
    (function, written), classes = shipped()
    classes.use()

    *_, first, second = function()
    assert type(first) is not type(second)
    assert type(loads(written[5])) is type(first)
    assert type(loads(dumps(second))) is type(second)


def test_a_class_that_cannot_be_sent_is_refused_with_the_reason(shipped: Shipped) -> None:
    _, classes = shipped()
    classes.use()

    with pytest.raises(MissingClassError, match=r"'Large' of the main module.*more than 1048576 bytes"):
        program_object("__main__:Large")
    with pytest.raises(MissingClassError, match=r"'Locked'.*could not be sent to workers: .*Error"):
        program_object("__main__:Locked")
    with pytest.raises(MissingClassError, match=r"'Gone'.*does not have it now. Define or import it there"):
        program_object("__main__:Gone")


def test_each_job_of_a_process_has_its_own_classes(shipped: Shipped) -> None:
    script = """
        import sys
        from holdfast.types.program_classes import pickle_program
        class Money:
            def euros(self): return 0
        sys.stdout.buffer.write(pickle_program(lambda: Money()))
    """
    made_before, before = shipped(script)
    _, now = shipped(script.replace("return 0", "return 1"))

    before.use()
    data = dumps(made_before())
    assert loads(data).euros() == 0
    now.use()
    assert loads(data).euros() == 1
    before.use()
    assert loads(data).euros() == 0
    assert type(loads(data)) is type(made_before())


def test_a_class_by_value_of_an_earlier_release_is_the_one_of_today(
    shipped: Shipped, output: Callable[[str], bytes]
) -> None:
    (function, _), classes = shipped()
    script = SCRIPT.replace('"not to be kept"', '"long gone"').replace(
        "pickle_program((function, written))", "__import__('cloudpickle').dumps([*function()[:4], Order()])"
    )
    data = output(script)

    without = loads(data)
    assert without[0].value == "new", "by value, where the program has no such class"
    assert without[4].pay() == "long gone"

    classes.use()
    status, line, local, point, order = loads(data)
    now = function()
    assert status is now[0]
    assert type(line) is type(now[1])
    assert local == now[2]
    assert point == now[3]
    assert order.pay() == "not to be kept"
    assert b"cloudpickle" not in dumps([status, line, local, point])


OLD = """
    import collections, sys, cloudpickle
    from dataclasses import dataclass
    from typing import NamedTuple

    class Order:
        @dataclass
        class Line:
            cents: int
        class Note:
            pass
        class Place(NamedTuple):
            x: int
            def where(self): return "old"

    class Line:
        def __init__(self): self.n = 1

    def of_another_module():
        class Line:
            def text(self): return "old"
        Line.__module__ = "__mp_main__"
        Line.text.__qualname__ = Line.__qualname__ = "Order.Line"
        return Line()

    objects = [Order.Line(5), Line(), Order.Note(), Order.Place(1), of_another_module()]
    sys.stdout.buffer.write(b"|HERE|".join(map(cloudpickle.dumps, objects)))
"""
CLASSES_NOW = {
    "both": ("Order", "Line", "Order.Line", "Order.Note", "Order.Place"),
    "only the nested one": ("Order", "Order.Line"),
    "only the outer one": ("Order", "Line"),
    "the same names in another class": ("Order", "Invoice", "Invoice.Line", "Invoice.Note", "Invoice.Place"),
}


@pytest.mark.parametrize("names", CLASSES_NOW.values(), ids=CLASSES_NOW)
def test_a_class_by_value_is_found_by_its_full_name(
    output: Callable[[str], bytes], monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    """The last parts of the names are equal; pickles of earlier releases have only these, but methods have all."""
    old = output(OLD).split(b"|HERE|")
    now: dict[str, Any] = {}
    for name in names:
        base = namedtuple("Place", "x") if name.endswith("Place") else object  # type: ignore[misc]
        now[name] = type(name.rpartition(".")[2], (base,), {"__qualname__": name, "__module__": "__main__"})
        if "." in name:
            setattr(now[name.partition(".")[0]], now[name].__name__, now[name])
    monkeypatch.setattr(program_classes, "_full_names", {})
    ProgramClasses("elsewhere", {f"__main__:{name}": cls for name, cls in now.items()}, {}, {}).use()

    nested, outer, note, place, other = map(loads, old)

    assert (type(nested) is now.get("Order.Line"), type(outer) is now.get("Line")) == (
        "Order.Line" in names,
        "Line" in names,
    )
    for found, expected in ((nested, {"cents": 5}), (outer, {"n": 1})):
        assert vars(found) == expected
        assert type(found).__name__ == "Line"
        assert type(found) not in (now.get("Invoice.Line"), None)
    assert type(note) is now.get("Order.Note", now.get("Invoice.Note", type(note))), "the only one of this name"
    assert type(place) is now.get("Order.Place", type(place))
    assert type(place) is not now.get("Invoice.Place")
    assert other.text() == "old", "of a module that this program does not have"


class Color(enum.Enum):
    RED = 1


def test_values_of_importable_classes_are_pickled_as_ever() -> None:
    data = dumps([Color.RED, functools.partial(max, 1)])
    assert b"program_object" not in data
    assert loads(data)[0] is Color.RED
    assert pickle.loads(data)[0] is Color.RED


def test_the_driver_finds_classes_of_function_bodies_once_the_job_has_been_sent() -> None:
    pair = namedtuple("pair", "a b")  # type: ignore[name-match]
    assert b"_make_skeleton_" not in dumps(pair(1, 2)), "read as it was written, whatever else has its name"
    assert type(loads(dumps(pair(1, 2)))) is pair

    pickle_program(lambda: pair)

    assert b"cloudpickle" not in dumps(pair(1, 2))
    assert type(loads(dumps(pair(1, 2)))) is pair


def test_a_large_array_beside_a_class_is_not_copied() -> None:
    """Its size is known before it is pickled."""
    pickler = program_classes._ClassPickler(program_classes._Limited())
    with pytest.raises(program_classes._TooLargeError):
        pickler.dump(np.zeros(1_000_000))


# The file, line and source of a user's function in a traceback.


def lose_names_of_files(code: Any) -> Any:
    """As cloudpickle 3.1.3 does."""
    make, arguments = ORIGINAL(code)
    return make, tuple("<dynamic-code>" if argument == code.co_filename else argument for argument in arguments)


ORIGINAL: Callable[..., Any] = cloudpickle.CloudPickler.dispatch_table[type(lose_names_of_files.__code__)]
FAILS = """
    import sys
    from holdfast.types.program_classes import pickle_program
    def fails():
        return 1 / 0  # the user's line
    sys.stdout.buffer.write(pickle_program(fails))
"""


def test_a_traceback_has_the_file_line_and_source_of_the_function(shipped: Shipped, script_file: Path) -> None:
    function, _ = shipped(FAILS)
    with pytest.raises(ZeroDivisionError) as caught:
        function()
    text = "".join(traceback.format_exception(caught.value))
    assert f'File "{script_file}", line 5, in fails' in text
    assert "return 1 / 0  # the user's line" in text


def test_no_release_of_cloudpickle_takes_the_file_away(monkeypatch: pytest.MonkeyPatch) -> None:
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(compile("def fails():\n    return 1 / 0", "/home/me/job.py", "exec"), scope)
    monkeypatch.setitem(cloudpickle.CloudPickler._dispatch_table, type(scope["fails"].__code__), lose_names_of_files)
    assert cloudpickle.loads(cloudpickle.dumps(scope["fails"])).__code__.co_filename == "<dynamic-code>"

    function, _ = unpickle_program(pickle_program(scope["fails"]))

    assert function.__code__.co_filename == "/home/me/job.py"
    with pytest.raises(ZeroDivisionError) as caught:
        function()
    frame = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (frame.filename, frame.lineno, frame.name) == ("/home/me/job.py", 2, "fails")


@pytest.mark.skipif("HOLDFAST_CLOUDPICKLE" not in os.environ, reason="a directory with another cloudpickle")
def test_another_release_of_cloudpickle_reads_and_writes_the_same() -> None:
    """`pip install --target DIRECTORY cloudpickle==VERSION`, and DIRECTORY in the environment."""
    tests = ["-k", "not another_release", "-p", "no:cacheprovider", "-n", "0", "-q"]
    paths = [os.environ["HOLDFAST_CLOUDPICKLE"], *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    subprocess.run([sys.executable, "-m", "pytest", __file__, *tests], check=True, env=environment)


def test_classes_are_found_by_the_driver_that_has_them() -> None:
    assert ProgramClasses("elsewhere", {}, {}, {}).find("__main__:anything") is None
