"""The words in which bodies, queries and answers are declared: JSON Schema, of which what is used here is checked here.

What a request brings is checked against its declaration before anybody acts on it, so the declaration cannot say
anything else than what is taken. Answers are judged by tests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from holdfast.rest.answer import RefusedError

Schema = Mapping[str, Any]

NAME: Final = "x-name"
"""Under which name a schema stands in the document once, instead of wherever it is used."""
REFUSED: Final = "x-refused"
"""Values that have a status and a reason of their own."""
FORM: Final = "x-form"
"""What a pattern means, in words."""

ANY: Final[Schema] = {}
FLAG: Final[Schema] = {"type": "boolean"}
INTEGER: Final[Schema] = {"type": "integer"}
NUMBER: Final[Schema] = {"type": "number"}
STRING: Final[Schema] = {"type": "string"}
TEXT: Final[Schema] = {"type": "string", "pattern": r"\S"}
"""Text that says something."""
_SHOWN: Final = 80


def integer(least: int | None = None, most: int | None = None) -> Schema:
    """A whole number."""
    bounds = {"minimum": least, "maximum": most}
    return {**INTEGER, **{name: bound for name, bound in bounds.items() if bound is not None}}


def matching(pattern: str, what: str | None = None) -> Schema:
    """Text of a form.

    Args:
        pattern: From its first character on; to its last if it ends with `$`.
        what: The form in words.
    """
    return {"type": "string", "pattern": f"^{pattern}", **({FORM: what} if what else {})}


def choice(*values: str, refused: Mapping[str, tuple[int, str]] | None = None) -> Schema:
    """One of several texts.

    Args:
        values: What is taken.
        refused: Values that people may try, each with the status and the reason of the refusal.
    """
    others = {REFUSED: {value: list(why) for value, why in refused.items()}} if refused else {}
    return {"type": "string", "enum": list(values), **others}


def array(of: Schema) -> Schema:
    """A list."""
    return {"type": "array", "items": of}


def mapping(of: Schema, least: int = 0) -> Schema:
    """An object whose fields have any names."""
    return {"type": "object", "additionalProperties": of, **({"minProperties": least} if least else {})}


def record(fields: Mapping[str, Schema] | None = None, optional: Mapping[str, Schema] | None = None) -> Schema:
    """An object with fields that are there, others that may be, and no further ones."""
    needed, others = fields or {}, optional or {}
    return {
        "type": "object",
        "properties": {**needed, **others},
        "additionalProperties": False,
        **({"required": list(needed)} if needed else {}),
    }


def or_none(of: Schema) -> Schema:
    """A value that may be missing."""
    return {"anyOf": [of, {"type": "null"}]}


def either(*kinds: Schema) -> Schema:
    """A value of one of several forms."""
    return {"anyOf": list(kinds)}


def named(name: str, schema: Schema) -> Schema:
    """A schema with a name of its own."""
    return {**schema, NAME: name}


def told(what: str, schema: Schema) -> Schema:
    """A schema with a sentence about it."""
    return {**schema, "description": what}


def check(value: Any, schema: Schema, name: str = "The body") -> None:
    """Check what a request brings.

    Args:
        value: It.
        schema: What it must be.
        name: What it is called in messages.

    Raises:
        RefusedError: It is something else.
    """
    kind = schema.get("type")
    if kind == "object":
        _check_object(value, schema, name)
    elif kind == "array":
        if not isinstance(value, list):
            raise _wrong(name, "a list", value)
        for index, item in enumerate(value):
            check(item, schema["items"], f"{name}[{index}]")
    elif kind == "string":
        _check_text(value, schema, name)
    elif kind == "boolean":
        if not isinstance(value, bool):
            raise _wrong(name, "true or false", value)
    elif kind == "integer":
        least, most = schema.get("minimum"), schema.get("maximum")
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or (least is not None and value < least) or (most is not None and value > most):
            raise _wrong(name, f"a whole number{_between(least, most)}", value)
    else:
        assert not schema, f"nothing checks {schema!r}"


def query_of(texts: Mapping[str, str], schema: Schema) -> dict[str, Any]:
    """Return the query of a request, of which each value arrives as text.

    Raises:
        RefusedError: It is not what the schema says.
    """
    found = {
        name: int(text) if _is_number(schema, name) and re.fullmatch("-?[0-9]{1,18}", text) else text
        for name, text in texts.items()
    }
    check(found, schema, "The query")
    return found


def _is_number(schema: Schema, name: str) -> bool:
    return bool(schema["properties"].get(name, ANY).get("type") == "integer")


def _check_object(value: Any, schema: Schema, name: str) -> None:
    if not isinstance(value, Mapping):
        raise _wrong(name, "an object", value)
    known, others = schema.get("properties", {}), schema.get("additionalProperties", False)
    for key, entry in value.items():
        if key in known:
            check(entry, known[key], key)
        elif others is False:
            raise RefusedError(400, f"The field {key!r:.{_SHOWN}} is not known; there are {sorted(known)!r}.")
        else:
            check(entry, others, f"{key!r:.{_SHOWN}}")
    for key in schema.get("required", ()):
        if key not in value:
            raise RefusedError(400, f"{name} has no field {key!r}.")
    if len(value) < schema.get("minProperties", 0):
        raise RefusedError(400, f"{name} is empty.")


def _check_text(value: Any, schema: Schema, name: str) -> None:
    if isinstance(value, str) and value in schema.get(REFUSED, ()):
        status, reason = schema[REFUSED][value]
        raise RefusedError(status, reason)
    if "enum" in schema:
        if value not in schema["enum"]:
            raise _wrong(name, f"one of {', '.join(schema['enum'])}", value)
    elif not isinstance(value, str) or not _matches(schema.get("pattern"), value):
        form = schema.get("pattern", r"\S")
        raise _wrong(name, schema.get(FORM) or ("text" if form == r"\S" else f"text of the form {form}"), value)


def _matches(pattern: str | None, text: str) -> bool:
    if pattern is None:
        return True
    is_whole = pattern.startswith("^") and pattern.endswith("$")
    return (re.fullmatch(pattern[1:-1], text) if is_whole else re.search(pattern, text)) is not None


def _between(least: int | None, most: int | None) -> str:
    bounds = [f"at least {least}"] if least is not None else []
    bounds += [f"at most {most}"] if most is not None else []
    return f" of {' and '.join(bounds)}" if bounds else ""


def _wrong(name: str, what: str, value: Any) -> RefusedError:
    return RefusedError(400, f"{name} is {what}, not {value!r:.{_SHOWN}}.")
