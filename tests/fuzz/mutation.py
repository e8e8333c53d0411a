"""How an input is made worse: bytes as bytes, and what is JSON also as JSON, so that a change gets behind the syntax.

One source of chance decides everything, so Hypothesis shrinks what it finds and libFuzzer replays it by its seed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, Final

DEEP: Final = {"@deep@": 100_000, "@half@": 400, "@near@": 900}
"""Texts that stand for lists nested so many times; the JSON module of Python cannot write them itself."""
NUMBERS: Final = {"@huge@": b"1" + b"0" * 400, "@far@": b"1e9999999", "@farther@": b"-1e-99999999999999999999"}
"""Texts that stand for numbers which have no place in a float, or in a whole number that somebody writes out."""

SCRAPS: Final[tuple[Any, ...]] = (
    None, True, False, 0, 1, -1, 2, 64, 127, 128, 32768, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64,
    -(2**63) - 1, 10**30, 0.5, -0.0, float("nan"), float("inf"), float("-inf"), *NUMBERS, *DEEP,
    "", "a", "0", "-1", "1e999", "null", "\0", "\ud800", "é", "x" * 3000, "../../../etc/passwd", "/", "/dev/zero",
    "file://host/x", "s3://", "00000000-0000-0000-0000-000000000000", "f" * 32, "pickled", "os:system",
    [], {}, [None], [[]], {"": None}, [0, 0], [0, -1], [5, 3], [0, 2**40], {"type": "pickled"}, {"inline": "!"},
)  # fmt: skip
CHUNKS: Final = (
    b"", b"\0", b"\xff" * 8, b"\0" * 64, b"{", b"}", b"[" * 2000, b'"', b"NaN", b"1e999", b"1e9999999", b"-1", b"\x80",
    b"9" * 5000, b"\xed\xa0\x80", b"\r\n", b",", b":", b"/../", b"\x7f\xff\xff\xff",
)  # fmt: skip


def mutated(data: bytes, chance: random.Random) -> bytes:
    """The same bytes with one or a few changes."""
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        tree = _parsed(data) if chance.random() < 0.75 else None
        data = _bytes(data, chance) if tree is None else _written(_changed(tree, chance))
    return data


def _parsed(data: bytes) -> Any:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict | list) and found else None


def _written(tree: Any) -> bytes:
    try:
        data = json.dumps(tree, separators=(",", ":")).encode()
    except RecursionError:
        return b"[" * 1000
    for name, depth in DEEP.items():
        data = data.replace(f'"{name}"'.encode(), b"[" * depth + b"]" * depth)
    for name, number in NUMBERS.items():
        data = data.replace(f'"{name}"'.encode(), number)
    return data


def _changed(tree: Any, chance: random.Random) -> Any:
    """The tree with one node changed, deeper ones as likely as others."""
    places = list(_places(tree))
    holder, name = chance.choice(places)
    kind = chance.randrange(8)
    if kind == 0:
        del holder[name]
    elif kind == 1 and isinstance(holder, list):
        holder.insert(name, holder[name])
    elif kind == 2 and isinstance(holder, dict):
        holder[chance.choice((f"{name}_", "", "..", "../../x"))] = holder.pop(name)
    elif kind == 3:
        holder[name] = [holder[name]]
    elif kind == 4:
        other, at = chance.choice(places)
        if at in other if isinstance(other, dict) else at < len(other):
            holder[name] = json.loads(json.dumps(other[at]))
    elif kind == 5 and type(holder[name]) is int:
        holder[name] += chance.choice((-1, 1, 2**32, -(2**63)))
    else:
        holder[name] = chance.choice(SCRAPS)
    return tree


def _places(tree: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    pending = [tree]
    while pending:
        node = pending.pop()
        for name, part in node.items() if isinstance(node, dict) else enumerate(node):
            found.append((node, name))
            if isinstance(part, dict | list):
                pending.append(part)
    return found


def _bytes(data: bytes, chance: random.Random) -> bytes:
    at, end = sorted((chance.randint(0, len(data)), chance.randint(0, len(data))))
    changes: tuple[Callable[[], bytes], ...] = (
        lambda: data[:at] + data[end:],
        lambda: data[:at],
        lambda: data[:end] + data[at:],
        lambda: data[:at] + chance.choice(CHUNKS) + data[at:],
        lambda: data[:at] + chance.choice(CHUNKS) + data[end:],
        lambda: data[:at] + bytes([(data[at : at + 1] or b"\0")[0] ^ 1 << chance.randrange(8)]) + data[at + 1 :],
        lambda: data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :],
    )
    return chance.choice(changes)()
