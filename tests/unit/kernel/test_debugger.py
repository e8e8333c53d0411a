"""Functions in another process are debugged from this one: at a breakpoint, and where they have failed."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from holdfast.kernel.debugger import SOCKET, DebuggerServer

STOPS = """
def count(word, n):
    if word == "kelp":
        breakpoint()
    return n + 1

print(count("rock", 1), count("kelp", 2))
"""
FAILS = """
from holdfast.runtime.operator.operator_instance import user_error

def count(word, n):
    return n / len(word)

try:
    count("", 7)
except ZeroDivisionError as error:
    print(user_error(error, "count", "", 3, "processing an element").uid)
"""


def debugged(program: str, typed: list[str]) -> tuple[str, str]:
    """What the program has printed, and what the terminal has shown."""
    lines, shown = iter(typed), io.StringIO()
    with tempfile.TemporaryDirectory() as directory:
        with DebuggerServer(str(Path(directory) / "s"), lambda: next(lines, ""), shown):
            assert DebuggerServer.is_listening()
            ran = subprocess.run(
                [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
            )
        assert SOCKET not in os.environ
    assert not ran.stderr or "BdbQuit" in ran.stderr, ran.stderr
    return ran.stdout, shown.getvalue()


def test_a_breakpoint_stops_in_the_terminal_and_values_can_be_changed() -> None:
    printed, shown = debugged(STOPS, ["p word, n\n", "!n = 41\n", "c\n"])
    assert "('kelp', 2)" in shown
    assert printed == "2 42\n"


def test_at_the_end_of_what_is_typed_the_program_ends() -> None:
    printed, _ = debugged(STOPS, [])
    assert printed == ""


def test_a_failure_is_looked_at_where_it_was_raised() -> None:
    printed, shown = debugged(FAILS, ["p word, n\n", "q\n"])
    assert "ZeroDivisionError: division by zero" in shown
    assert "('', 7)" in shown
    assert printed == "count\n"


def test_without_a_terminal_nothing_stops() -> None:
    ran = subprocess.run([sys.executable, "-c", FAILS], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "count\n"
