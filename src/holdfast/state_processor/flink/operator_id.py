"""The id that Flink makes of a uid: MurmurHash3 of 128 bits."""

from __future__ import annotations

from typing import Final

_MASK: Final = (1 << 64) - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F


def operator_id_of(uid: str) -> str:
    """Return the 32 hexadecimal digits of an operator with a uid."""
    data = uid.encode("utf-8", "replace")
    first = second = 0
    whole = len(data) // 16 * 16
    for at in range(0, whole, 16):
        first ^= _mixed(int.from_bytes(data[at : at + 8], "little"), _C1, 31, _C2)
        first = (_turned(first, 27) + second) * 5 + 0x52DCE729 & _MASK
        second ^= _mixed(int.from_bytes(data[at + 8 : at + 16], "little"), _C2, 33, _C1)
        second = (_turned(second, 31) + first) * 5 + 0x38495AB5 & _MASK
    tail = data[whole:]
    second ^= _mixed(int.from_bytes(tail[8:], "little"), _C2, 33, _C1)
    first ^= _mixed(int.from_bytes(tail[:8], "little"), _C1, 31, _C2)
    first, second = first ^ len(data), second ^ len(data)
    first = first + second & _MASK
    second = second + first & _MASK
    first, second = _final(first), _final(second)
    first = first + second & _MASK
    second = second + first & _MASK
    return (first.to_bytes(8, "little") + second.to_bytes(8, "little")).hex()


def _mixed(part: int, before: int, turns: int, after: int) -> int:
    return _turned(part * before & _MASK, turns) * after & _MASK


def _turned(value: int, turns: int) -> int:
    return (value << turns | value >> 64 - turns) & _MASK


def _final(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33
