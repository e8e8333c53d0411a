"""What it raises in Python to read something that has not the form that it should have."""

from __future__ import annotations

import json
import math
import struct
from typing import Any, Final

PARSE_ERRORS: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)
"""A field that is missing, of another type, without bounds, or nested too deeply: readers of what came from outside
turn these into an error that names where it came from."""

MAX_NESTING: Final = 100


def parse_strict_json(data: bytes) -> Any:
    """JSON as our own writers make it: its numbers are finite, so that it can be written again.

    Raises:
        ValueError: It is no such JSON.
        RecursionError: It is nested too deeply.
    """
    return json.loads(data, parse_constant=_finite, parse_float=_finite)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text:.40} is no number of JSON")
    return number


def check_nesting(document: Any) -> None:
    """Make sure that JSON is not nested so deeply that going through it would end the stack.

    Raises:
        ValueError: It is.
    """
    level, depth = [document], 0
    while level:
        if depth > MAX_NESTING:
            raise ValueError(f"it is nested more than {MAX_NESTING} times")
        inner = [part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list)]
        level, depth = [part for parts in inner for part in parts], depth + 1
