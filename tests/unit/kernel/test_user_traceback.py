"""Tracebacks of user functions, and values as short text: hostile ones too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.kernel.failure_text import one_line, short_repr, user_traceback, with_source_lines


class Hostile:
    def __repr__(self) -> str:
        raise ValueError("no repr")

    def __str__(self) -> str:
        raise ValueError("no text")


class HostileError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def raised(call: Any) -> Exception:
    with pytest.raises(Exception) as found:
        call()
    return found.value


def test_a_value_is_shown_in_one_short_line() -> None:
    assert short_repr(("a", 1)) == "('a', 1)"
    assert short_repr(Hostile()) == "<Hostile, whose repr raises ValueError>"
    assert len(short_repr("x" * 10_000)) < 300
    assert one_line(ValueError("first\nsecond")) == "ValueError: first"
    assert one_line(HostileError()) == "HostileError"
    assert "\n" not in short_repr(type("Named", (), {"__repr__": lambda self: "a\nb\x1b[31m"})())


def test_a_deep_traceback_has_its_ends() -> None:
    def deep(n: int) -> int:
        return other(n - 1) if n else 1 // 0

    def other(n: int) -> int:
        return deep(n)

    lines = user_traceback(raised(lambda: deep(100))).splitlines()
    assert len(lines) == 20
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "ZeroDivisionError: integer division or modulo by zero"
    assert sum(" lines ..." in line for line in lines) == 1


def test_lines_of_the_program_are_added_where_a_worker_had_no_file(tmp_path: Path) -> None:
    program = tmp_path / "job.py"
    program.write_text("def f(x):\n    return x.nothing\n")
    text = (
        f'Traceback (most recent call last):\n  File "{program}", line 2, in f\n'
        '  File "/nowhere/else.py", line 7, in g\nAttributeError: no'
    )
    assert with_source_lines(text).splitlines() == [
        "Traceback (most recent call last):",
        f'  File "{program}", line 2, in f',
        "    return x.nothing",
        '  File "/nowhere/else.py", line 7, in g',
        "AttributeError: no",
    ]
    assert with_source_lines(with_source_lines(text)) == with_source_lines(text)


def test_no_text_has_no_lines() -> None:
    assert with_source_lines("") == ""


def test_an_error_of_java_has_its_causes_and_no_frames() -> None:
    frames = "\n".join(f"\tat org.apache.spark.rdd.RDD.$anonfun$f{n}(RDD.scala:{n})" for n in range(100))
    text = (
        f"An error occurred while calling o7.collectToPython.\n: SparkException: cannot read part-1\n{frames}\n"
        f"\t... 1 more\nCaused by: java.io.IOException: CRC checksum verification failed\n{frames}"
    )

    def collect() -> None:
        raise RuntimeError(text)

    error = raised(collect)
    shown = user_traceback(error)
    assert "cannot read part-1" in shown and shown.endswith("CRC checksum verification failed")
    assert "RDD.scala" not in shown and len(shown.splitlines()) < 12
    assert one_line(error) == "RuntimeError: java.io.IOException: CRC checksum verification failed"
