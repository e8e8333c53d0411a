"""Writes docs/reference/rest.md from the OpenAPI documents of a job and of a job manager.

    python scripts/rest_page.py [--check]

With --check nothing is written; the exit code says whether the page is current.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

from holdfast.dispatcher.job_manager_api import JobManagerApi
from holdfast.rest.checkpoint_api import CheckpointApi
from holdfast.rest.job_api import FlowApi, JobApi, RescaleApi
from holdfast.rest.route import Routes, declared_routes, openapi_document
from holdfast.rest.server import ABSENT, ABSENT_OF_JOB_MANAGERS
from holdfast.rest.state_api import StateApi

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "rest.md"

INTRODUCTION = """\
# REST

This page is generated from the code: `python scripts/rest_page.py`. A test checks that it is current. A server returns
the same as an OpenAPI document: `GET /openapi.json`.

[Operations](../operations.md#rest) describes addresses, tokens, host names and limits. Send the token with each
request: `Authorization: Bearer TOKEN`. The errors 401 (no token), 500 and 503 are possible everywhere, and are not
listed below. The body of an error is `{"errors": ["..."]}`.
"""

Document = Mapping[str, Any]
Operation = tuple[str, Mapping[str, Any], list[str]]
"""A title, the operation of the document, and the servers that have it."""


def main(arguments: list[str] | None = None) -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description="Write docs/reference/rest.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is not current")
    check = parser.parse_args(arguments).check
    text = page({"a job": document_of_jobs(), "a job manager": document_of_job_managers()})
    if check:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


def document_of_jobs() -> Document:
    """Return the document that the process of a job serves."""
    kinds = (Routes, JobApi, FlowApi, StateApi, CheckpointApi, RescaleApi)
    routes = [route for kind in kinds for _, route in declared_routes(kind) if not route.is_refusal]
    return openapi_document(routes, ABSENT)


def document_of_job_managers() -> Document:
    """Return the document that a job manager serves."""
    return openapi_document(JobManagerApi(lambda: None).served, ABSENT_OF_JOB_MANAGERS)


def page(documents: Mapping[str, Document]) -> str:
    """Return the page for the documents of some servers, by what serves them."""
    lines = [INTRODUCTION, "## Paths", ""]
    operations = list(_operations(documents))
    lines += _table(
        ("path", "summary", "served by"),
        [
            (f"[`{title.partition(',')[0]}`](#{_anchor(title)})", operation["summary"], " and ".join(servers))
            for title, operation, servers in operations
        ],
    )
    for title, operation, servers in operations:
        lines += ["", *_section(title, operation, servers)]
    lines += ["", "## Schemas", "", "Fields are required unless the table says otherwise. There are no others."]
    schemas = {
        name: form for document in documents.values() for name, form in document["components"]["schemas"].items()
    }
    for name, schema in sorted(schemas.items()):
        lines += ["", f"### {name}", "", *_fields(schema)]
    lines += ["", "## Paths of Flink that are not served", "", "They are answered with 501 and the reason."]
    for server, document in documents.items():
        lines += ["", f"By {server}:", ""]
        lines += _table(("path", "reason"), [(f"`{path}`", why) for path, why in sorted(document["x-absent"].items())])
    return "\n".join(lines) + "\n"


def _operations(documents: Mapping[str, Document]) -> Iterator[Operation]:
    """Yield each operation once for servers that describe it in the same way."""
    found: dict[tuple[str, str], list[tuple[Mapping[str, Any], list[str]]]] = {}
    for server, document in documents.items():
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                known = found.setdefault((path, method.upper()), [])
                same = [servers for other, servers in known if other == operation]
                if same:
                    same[0].append(server)
                else:
                    known.append((operation, [server]))
    for (path, method), variants in sorted(found.items()):
        title = f"{method} {path.replace('{', ':').replace('}', '')}"
        for operation, servers in variants:
            yield title if len(variants) == 1 else f"{title}, by {servers[0]}", operation, servers


def _section(title: str, operation: Mapping[str, Any], servers: list[str]) -> Iterator[str]:
    yield f"### {title}"
    yield ""
    yield _wrapped(
        f"{operation['summary']} Served by {' and '.join(servers)}."
        + (" Needs no token." if operation.get("security") == [] else "")
    )
    parameters = [
        (f"`{one['name']}`", one["in"], "yes" if one["required"] else "no", *_described(one["schema"]))
        for one in operation.get("parameters", ())
    ]
    if parameters:
        yield ""
        yield from _table(("parameter", "in", "required", "type", "meaning"), parameters)
    if "requestBody" in operation:
        [content] = operation["requestBody"]["content"].values()
        yield ""
        yield "Body:"
        yield ""
        yield from _fields(content["schema"])
    yield ""
    (status, answer), *refusals = sorted(operation["responses"].items())
    [(media_type, content)] = answer["content"].items()
    body = _type(content["schema"]) if media_type == "application/json" else f"`{media_type}`"
    others = [f"{code} {HTTPStatus(int(code)).phrase}" for code, _ in refusals if code not in {"401", "500", "503"}]
    yield _wrapped(f"Response: {status}, {body}." + (f" Errors: {', '.join(others)}." if others else ""))


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _fields(schema: Mapping[str, Any]) -> Iterator[str]:
    if "properties" not in schema:
        yield _wrapped(_sentence(_type(schema)))
        return
    needed = schema.get("required", ())
    rows = []
    for name, form in schema["properties"].items():
        kind, meaning = _described(form)
        rows.append((f"`{name}`", kind, " ".join([*([] if name in needed else ["Optional."]), meaning]).strip()))
    if rows:
        yield from _table(("field", "type", "meaning"), rows)
    else:
        yield "An object without fields."


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _described(schema: Mapping[str, Any]) -> tuple[str, str]:
    """Return the type of a schema, and what it says in words."""
    said = schema.get("description") or schema.get("x-form") or ""
    return _type(schema), _sentence(said.rstrip(".")) if said else ""


def _type(schema: Mapping[str, Any]) -> str:
    """Return a schema in words, on one line."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(form) for form in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    kind = schema.get("type")
    if kind == "array":
        return f"list of {_type(schema['items'])}"
    if kind == "object":
        fields = ", ".join(f"`{name}`: {_type(form)}" for name, form in schema.get("properties", {}).items())
        if fields:
            return f"object ({fields})"
        more = schema.get("additionalProperties")
        return f"object with values of type {_type(more)}" if isinstance(more, Mapping) and more else "object"
    return str(kind or "any value")


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |"


if __name__ == "__main__":
    sys.exit(main())
