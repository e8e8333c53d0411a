"""Types as Spark SQL writes them, read without Spark.

``NOT NULL``, ``COMMENT`` and field metadata are understood and dropped: every field may be null. ``VARCHAR(n)`` is a
string. What has no Arrow form that Spark and Python share is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from holdfast.errors import ConfigurationError
from holdfast.types.information.type_information import (
    AtomicTypeInformation,
    ChangelogTypeInformation,
    CharTypeInformation,
    CollatedStringTypeInformation,
    DecimalTypeInformation,
    ListTypeInformation,
    MapTypeInformation,
    RowTypeInformation,
    TypeInformation,
)

_TOKEN: Final = re.compile(
    r"""\s*(?:
        (?P<quoted>`(?:[^`]|``)*`)
      | (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*")
      | (?P<word>[\w.\-]+)
      | (?P<sign>[<>(),:])
    )""",
    re.VERBOSE,
)
_SYNONYMS: Final = {
    "boolean": "boolean",
    "bool": "boolean",
    "tinyint": "tinyint",
    "byte": "tinyint",
    "smallint": "smallint",
    "short": "smallint",
    "int": "int",
    "integer": "int",
    "bigint": "bigint",
    "long": "bigint",
    "float": "float",
    "real": "float",
    "double": "double",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ltz": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
    "binary": "binary",
}
_REFUSED: Final = {
    "variant": "cast it to a string or to a declared type first",
    "void": "give it a type, for instance CAST(... AS STRING)",
    "null": "give it a type, for instance CAST(... AS STRING)",
    "geometry": "convert it to binary first",
    "geography": "convert it to binary first",
    "calendarinterval": "use a day-time interval",
    "object": "convert it to a declared type first",
}
_DAY_TIME_UNITS: Final = ("day", "hour", "minute", "second")
BINARY_COLLATION: Final = "UTF8_BINARY"


def parse_type(text: str) -> TypeInformation:
    """Read one type, such as ``array<bigint>``.

    Raises:
        ConfigurationError: It is not a type, or one that has no Arrow form.
    """
    parser = _Parser(text)
    result = parser.type()
    parser.end()
    return result


def parse_schema(text: str) -> RowTypeInformation:
    """Read the columns of a table, such as ``a string, b bigint``.

    Raises:
        ConfigurationError: It is not a list of columns, or one has a type without an Arrow form.
    """
    parser = _Parser(text)
    result = parser.fields(until=None)
    parser.end()
    return result


_LONGEST_NUMBER: Final = 9


class _Parser:
    """Reads tokens from left to right, one ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str]] = []
        self._at = 0
        position = 0
        end = len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None:
                raise self._error(f"{text[position:].strip()[:20]!r} is not understood")
            assert match.lastgroup is not None
            self._tokens.append((match.lastgroup, match.group(match.lastgroup)))
            position = match.end()

    def end(self) -> None:
        """Check that everything was read."""
        if self._at < len(self._tokens):
            raise self._error(f"{self._tokens[self._at][1]!r} is not expected")

    def type(self) -> TypeInformation:
        """Read one type."""
        kind, name = self._next("a type")
        lower = name.lower()
        if kind != "word":
            raise self._error(f"a type is expected, not {name!r}")
        if lower in _REFUSED:
            raise self._error(f"type {lower!r} has no form that Spark and Python share; {_REFUSED[lower]}")
        simple = _SYNONYMS.get(lower)
        if simple is not None:
            return AtomicTypeInformation(simple)
        special = _SPECIAL.get(lower)
        if special is None:
            raise self._error(f"{name!r} is not a type")
        return special(self)

    def string(self) -> TypeInformation:
        """Read what may follow STRING."""
        if not self._take("collate"):
            return AtomicTypeInformation("string")
        collation = self._next("a collation")[1].strip("`").upper()
        if collation == BINARY_COLLATION:
            return AtomicTypeInformation("string")
        return CollatedStringTypeInformation(collation)

    def character(self) -> TypeInformation:
        """Read the length of CHAR."""
        numbers = self._numbers()
        if len(numbers) > 1:
            raise self._error("CHAR has one length")
        return CharTypeInformation(*numbers)

    def varying(self) -> TypeInformation:
        """Read the length of VARCHAR, which Spark enforces."""
        self._numbers()
        return AtomicTypeInformation("string")

    def decimal(self) -> TypeInformation:
        """Read precision and scale."""
        numbers = self._numbers()
        if len(numbers) > 2:
            raise self._error("DECIMAL has a precision and a scale")
        return DecimalTypeInformation(*(*numbers, *(10, 0)[len(numbers) :]))

    def time(self) -> TypeInformation:
        """Read the precision of TIME; Python has microseconds in any case."""
        self._numbers()
        return AtomicTypeInformation("time")

    def interval(self) -> TypeInformation:
        """Read the units of INTERVAL; only those from day to second have an Arrow form."""
        units = []
        while self._peek()[1].lower() in (*_DAY_TIME_UNITS, "to", "year", "month"):
            units.append(self._next("a unit")[1].lower())
        if units and all(unit in (*_DAY_TIME_UNITS, "to") for unit in units):
            return AtomicTypeInformation("interval day to second")
        name = " ".join(["interval", *units])
        raise self._error(f"type {name!r} has no form that Spark and Python share; use a day-time interval or numbers")

    def array(self) -> TypeInformation:
        """Read the elements' type."""
        self._expect("<")
        element = self.type()
        self._expect(">")
        return ListTypeInformation(element)

    def map(self) -> TypeInformation:
        """Read the types of keys and values."""
        self._expect("<")
        key = self.type()
        self._expect(",")
        value = self.type()
        self._expect(">")
        return MapTypeInformation(key, value)

    def struct(self) -> TypeInformation:
        """Read the fields of a struct."""
        self._expect("<")
        result = self.fields(until=">")
        self._expect(">")
        return result

    def changelog(self) -> TypeInformation:
        """Read the fields of rows that say what they do to a table. Spark knows no such type: it is for streams."""
        self._expect("<")
        rows = self.fields(until=">")
        self._expect(">")
        return ChangelogTypeInformation(rows.names, rows.types)

    def fields(self, until: str | None) -> RowTypeInformation:
        """Read fields separated by commas."""
        names: list[str] = []
        types: list[TypeInformation] = []
        while self._at < len(self._tokens) and self._peek()[1] != until:
            if names:
                self._expect(",")
            kind, name = self._next("a field's name")
            if kind not in ("word", "quoted"):
                raise self._error(f"a field's name is expected, not {name!r}")
            names.append(name[1:-1].replace("``", "`") if kind == "quoted" else name)
            self._take(":")
            types.append(self.type())
            if self._take("not"):
                self._expect("null")
            if self._take("comment"):
                self._next("a comment")
        if until is None and not names:
            raise self._error("there are no columns")
        return RowTypeInformation(names, types)

    def _numbers(self) -> list[int]:
        numbers: list[int] = []
        if self._take("("):
            while not numbers or self._take(","):
                word = self._next("a number")[1]
                if not word.isdecimal() or len(word) > _LONGEST_NUMBER:
                    raise self._error(f"a number is expected, not {word!r:.80}")
                numbers.append(int(word))
            self._expect(")")
        return numbers

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("", "")

    def _next(self, what: str) -> tuple[str, str]:
        token = self._peek()
        if not token[0]:
            raise self._error(f"{what} is missing at the end")
        self._at += 1
        return token

    def _take(self, word: str) -> bool:
        if self._peek()[1].lower() == word and self._peek()[0] != "quoted":
            self._at += 1
            return True
        return False

    def _expect(self, word: str) -> None:
        if not self._take(word):
            raise self._error(f"{word!r} is expected, not {self._peek()[1]!r}")

    def _error(self, problem: str) -> ConfigurationError:
        return ConfigurationError(f"In the type {self._text!r}: {problem}.")


_SPECIAL: Final[dict[str, Callable[[_Parser], TypeInformation]]] = {
    "string": _Parser.string,
    "char": _Parser.character,
    "character": _Parser.character,
    "varchar": _Parser.varying,
    "decimal": _Parser.decimal,
    "dec": _Parser.decimal,
    "numeric": _Parser.decimal,
    "time": _Parser.time,
    "interval": _Parser.interval,
    "array": _Parser.array,
    "map": _Parser.map,
    "struct": _Parser.struct,
    "changelog": _Parser.changelog,
}
