"""Options: their keys, types, defaults and older names, registered where they are defined.

A module that has options defines them at its top level; importing it makes them known to
`holdfast.kernel.configuration.Configuration.validate`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar, get_origin

import humanfriendly

from holdfast.errors import ConfigurationError
from holdfast.kernel.secret import is_secret, shown

T = TypeVar("T")


class DurationType:
    """The type of options that are a length of time; their values are whole milliseconds.

    Written as a number of milliseconds, a `datetime.timedelta`, or text such as ``10 s``, ``100ms`` or ``1.5 h``, with
    any of Flink's units.
    """


class MemorySize:
    """The type of options that are a size; their values are whole bytes.

    Written as a number of bytes, or text such as ``20 kb`` or ``64 mb``, where a kilobyte has 1024 bytes.
    """


@dataclass(frozen=True, eq=False)
class ConfigOption(Generic[T]):
    """One option.

    Attributes:
        key: The current key.
        type: str, int, float, bool, list, DurationType, MemorySize or an Enum class.
        default: The value when it is not set, already in its final form.
        description: What it does, for the documentation.
        deprecated_keys: Older keys, still accepted with a notice.
        fallback_keys: Other options' keys that are asked when this one is not set.
    """

    key: str
    type: Any
    default: T
    description: str
    deprecated_keys: tuple[str, ...] = ()
    fallback_keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known = _options.get(self.key)
        if known is not None and (known.type, known.default) != (self.type, self.default):
            raise ConfigurationError(f"Option {self.key!r} is defined twice with different types or defaults.")
        _options[self.key] = self
        for alias in (*self.deprecated_keys, *self.fallback_keys):
            _by_alias.setdefault(alias, {})[self.key] = self

    def keys(self) -> Iterator[str]:
        """All keys under which the value may stand, the one that wins first."""
        yield self.key
        yield from self.deprecated_keys
        yield from self.fallback_keys

    def parse(self, value: Any, key: str | None = None) -> T:
        """Convert a value as it was set to the option's type.

        Raises:
            ConfigurationError: It is not of that type; the message names the key.
        """
        try:
            result: T = convert(self.type, value)
        except (*_UNFIT, humanfriendly.InvalidTimespan, humanfriendly.InvalidSize) as error:
            named = key or self.key
            raise ConfigurationError(
                f"Option {named!r}: {shown(named, value)!r:.200} is not {expectation(self.type)}."
            ) from (None if is_secret(named) else error)
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        return _lookup, (self.key,)


_UNFIT: Final = (ValueError, TypeError, ArithmeticError)
_UNITS: Final = {"": "ms", "milli": "ms", "millis": "ms", "nano": "ns", "nanos": "ns"} | dict.fromkeys(
    ("micro", "micros", "\N{MICRO SIGN}s", "\N{GREEK SMALL LETTER MU}s"), "us"
)
"""What Flink's units of time that `humanfriendly` has not are there."""
_options: dict[str, ConfigOption[Any]] = {}
_by_alias: dict[str, dict[str, ConfigOption[Any]]] = {}
_FREE_PREFIXES: Final = ("pipeline.global-job-parameters.", "spark.")


def all_options() -> Mapping[str, ConfigOption[Any]]:
    """Return the options of all modules imported so far, by their current keys."""
    return MappingProxyType(_options)


def options_for(key: str) -> tuple[ConfigOption[Any], ...]:
    """Return the options to which a key belongs, as the current one or an older one; none if it is unknown."""
    own = _options.get(key)
    others = _by_alias.get(key, {})
    return ((own,) if own is not None else ()) + tuple(option for option in others.values() if option is not own)


def all_keys() -> frozenset[str]:
    """Return all known keys, deprecated ones and fallbacks included."""
    return frozenset(_options) | frozenset(_by_alias)


def is_free(key: str) -> bool:
    """Whether the key has a prefix that passes unchecked."""
    return key.startswith(_FREE_PREFIXES)


def parse_duration(value: Any) -> int:
    """Return a length of time in whole milliseconds; see `DurationType`.

    Raises:
        ConfigurationError: It is not a length of time, or a negative one.
    """
    try:
        return _duration(value)
    except (*_UNFIT, humanfriendly.InvalidTimespan) as error:
        raise ConfigurationError(f"{value!r:.200} is not {expectation(DurationType)}.") from error


def parse_memory_size(value: Any) -> int:
    """Return a size in whole bytes; see `MemorySize`.

    Raises:
        ConfigurationError: It is not a size, or a negative one.
    """
    try:
        return _memory_size(value)
    except (*_UNFIT, humanfriendly.InvalidSize) as error:
        raise ConfigurationError(f"{value!r:.200} is not {expectation(MemorySize)}.") from error


def as_text(value: Any) -> str:
    """Return a value as the text that `ConfigOption.parse` reads the same: for another process, a person, a file."""
    if isinstance(value, timedelta):
        return str(value // timedelta(milliseconds=1))
    if isinstance(value, (list, tuple)):
        items = [as_text(item) for item in value]
        return ";".join(items) + (";" if len(items) == 1 and "," in items[0] else "")
    return _text(value) if isinstance(value, (bool, Enum)) else str(value)


def expectation(kind: Any) -> str:
    """Say in words what values an option of this type takes."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "one of " + ", ".join(repr(member.name) for member in kind)
    words = {
        str: "text",
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        DurationType: "a length of time such as '10 s', '100 ms' or a number of milliseconds",
        MemorySize: "a size such as '64 mb' or a number of bytes",
    }
    return words.get(kind, "a list of texts, in one text separated by ';' or ','")


def _lookup(key: str) -> ConfigOption[Any]:
    return _options[key]


def convert(kind: Any, value: Any) -> Any:
    """Convert a value to a type of options, or raise ValueError, TypeError or humanfriendly's errors."""
    if kind is list or get_origin(kind) is list:
        return _texts(value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _member(kind, value)
    converters = {
        str: _text,
        int: _whole,
        float: _number,
        bool: _truth,
        DurationType: _duration,
        MemorySize: _memory_size,
    }
    return converters[kind](value)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, (str, int, float)):
        return str(value)
    raise TypeError


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise TypeError
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError
    number = float(value)
    if math.isnan(number):
        raise ValueError
    return number


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise ValueError


def _duration(value: Any) -> int:
    if isinstance(value, timedelta):
        result = value // timedelta(milliseconds=1)
    elif isinstance(value, int) and not isinstance(value, bool):
        result = value
    elif isinstance(value, str) and value.strip().isdecimal():
        result = int(value)
    elif isinstance(value, str):
        text = value.strip().lower()
        unit = text.lstrip("0123456789. ")
        number = text.removesuffix(unit)
        result = round(humanfriendly.parse_timespan(number + _UNITS.get(unit, unit)) * 1000)
    else:
        raise TypeError
    if result < 0:
        raise ValueError
    return result


def _memory_size(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        result = value
    elif isinstance(value, str):
        result = int(humanfriendly.parse_size(value, binary=True))
    else:
        raise TypeError
    if result < 0:
        raise ValueError
    return result


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        parts = value.split(";" if ";" in value else ",")
        return [part.strip() for part in parts if part.strip()]
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return list(value)
    raise TypeError


def _member(kind: type[Enum], value: Any) -> Enum:
    if isinstance(value, kind):
        return value
    if isinstance(value, str):
        wanted = _folded(value)
        for member in kind:
            if wanted in (_folded(member.name), _folded(str(member.value))):
                return member
    raise ValueError


def _folded(text: str) -> str:
    return text.strip().lower().replace("-", "_")
