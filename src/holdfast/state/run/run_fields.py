"""Fields of handles and footers, checked when they are read: whoever may write to the storage writes any checksum."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from holdfast.kernel.key_group import UPPER_BOUND_MAX_PARALLELISM


def require(holds: bool, field: str, value: object) -> None:
    """Refuse a value.

    Raises:
        ValueError: It does not hold.
    """
    if not holds:
        raise ValueError(f"{field} cannot be {value!r:.80}")


def whole(value: Mapping[str, Any], name: str, least: int = 0) -> int:
    """Return a whole number that is not below another one, and has 64 bits."""
    number = value[name]
    require(type(number) is int and least <= number < 1 << 63, name, number)
    return int(number)


def text(value: Mapping[str, Any], name: str) -> str:
    """Return a text that has bytes."""
    found = value[name]
    require(type(found) is str, name, found)
    found.encode()
    return str(found)


def times(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return times by name, None among them."""
    found = dict(value[name])
    require(all(type(time) is int or time is None for time in found.values()), name, found)
    return found


def counts(value: Mapping[str, Any], name: str) -> dict[str, int]:
    """Return numbers of rows by name."""
    found = dict(value[name])
    require(all(type(count) is int and count >= 0 for count in found.values()), name, found)
    return found


def key_groups(value: Mapping[str, Any]) -> tuple[int, int]:
    """Return first and last key group of a subtask."""
    first, last = value["key_groups"]
    holds = type(first) is int and type(last) is int and 0 <= first <= last < UPPER_BOUND_MAX_PARALLELISM
    require(holds, "key_groups", value["key_groups"])
    return first, last


def ascending(value: Mapping[str, Any], name: str, end: int) -> tuple[int, ...]:
    """Return whole numbers, each above the one before it and below an end; they may be missing."""
    found = tuple(value.get(name, ()))
    require(all(type(number) is int for number in found), name, found)
    is_in_order = all(before < after for before, after in pairwise(found))
    require(not found or (is_in_order and found[0] >= 0 and found[-1] < end), name, found)
    return found
