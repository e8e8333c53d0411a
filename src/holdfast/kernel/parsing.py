"""Helpers to parse documents that other processes wrote, and that may be damaged or hostile."""

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
"""What Python raises where a field is missing, of another type, out of bounds, or nested too deeply.

Parsers catch these and raise an error that names the file or the sender."""

MAX_NESTING: Final = 100


def parse_strict_json(data: bytes) -> Any:
    """Parse JSON whose numbers are all finite, so that it can be written again.

    Raises:
        ValueError: The text is not JSON, or has a number that is not finite.
        RecursionError: It is nested too deeply.
    """
    return json.loads(data, parse_constant=_finite, parse_float=_finite)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text:.40} is not a number in JSON")
    return number


def check_nesting(document: Any) -> None:
    """Check that a JSON value is not nested so deeply that a recursive walk would overflow the stack.

    Raises:
        ValueError: It is nested more than `MAX_NESTING` times.
    """
    level, depth = [document], 0
    while level:
        if depth > MAX_NESTING:
            raise ValueError(f"it is nested more than {MAX_NESTING} times")
        inner = [part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list)]
        level, depth = [part for parts in inner for part in parts], depth + 1
