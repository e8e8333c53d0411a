"""One path with its method: what it takes, what it answers, and who does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from holdfast.rest.answer import Answer, Request
from holdfast.rest.route.schema import TEXT, Schema, check, matching, query_of, record

Handler = Callable[[Request], Answer]
_Method = TypeVar("_Method", bound=Callable[..., Answer])
_SERVES: Final = "_holdfast_serves"
_PARAMETER: Final = re.compile(r":([a-z]+)")
JSON: Final = "application/json"
_NOTHING: Final[Schema] = record()
_ID: Final = matching("[0-9A-Za-z-]{1,64}$", "1 to 64 letters, digits and '-'")
PARAMETERS: Final[dict[str, Schema]] = {
    "jobid": matching("[0-9a-f]{32}$"),
    "checkpointid": matching("[0-9]{1,19}$"),
    "triggerid": _ID,
    "snapshotid": matching("(?:latest|[0-9]{1,19})$", "the id of a checkpoint, or 'latest'"),
    "otherid": matching("(?:latest|[0-9]{1,19})$", "the id of a checkpoint, or 'latest'"),
}
"""The parts of paths that have a form; others are text."""
TRIGGER_ID: Final = _ID


@dataclass(frozen=True)
class Route:
    """What is served at a path.

    Attributes:
        method: GET, POST, PUT, PATCH or DELETE.
        path: Such as ``/jobs/:jobid``; `*` stands for anything.
        answer: The form of what is answered if all goes well.
        handler: Who answers; None in a declaration that is not bound yet.
        status: With which status.
        query: An object with what may stand behind the question mark; None: anything, and nobody looks.
        body: The form of the body; None: anything, and whoever answers checks it.
        media_type: Of the answer.
        refusals: Statuses of refusals besides those that every path may have.
        what: What it is, in a sentence.
        is_open: Whether it is answered without the token.
    """

    method: str
    path: str
    answer: Schema = field(default_factory=dict, hash=False)
    handler: Handler | None = None
    status: int = 200
    query: Schema | None = field(default=None, hash=False)
    body: Schema | None = field(default=None, hash=False)
    media_type: str = JSON
    refusals: tuple[int, ...] = ()
    what: str = ""
    is_open: bool = False

    @property
    def parameters(self) -> list[str]:
        """The parts of the path that vary."""
        return _PARAMETER.findall(self.path)

    @property
    def is_refusal(self) -> bool:
        """Whether all that is ever answered is why not."""
        return self.status >= 500

    @property
    def order(self) -> tuple[Any, ...]:
        """Paths that say more come before those that fit them, too."""
        return "*" in self.path, [(part.startswith(":"), part) for part in self.path.split("/")]

    @property
    def pattern(self) -> re.Pattern[str]:
        """What fits."""
        path = _PARAMETER.sub(lambda found: _part(found[1]), self.path.replace("*", ".*"))
        return re.compile(f"(?:/v1)?{path}/?")

    def bound(self, handler: Handler) -> Route:
        """The same with somebody who answers."""
        return replace(self, handler=handler)

    def respond(self, path: Mapping[str, str], query: Mapping[str, str], body: Mapping[str, Any]) -> Answer:
        """Answer a request.

        Args:
            path: The parts of its path that vary, as they stand in it.
            query: Its query.
            body: Its body.

        Raises:
            RefusedError: It is not as declared, or cannot be answered.
        """
        assert self.handler is not None
        parts = {name: unquote(text) for name, text in path.items()}
        numbers = dict(query) if self.query is None else query_of(query, self.query)
        if self.body is not None:
            check(body, self.body)
        return self.handler(Request(parts, numbers, body))


def serves(
    method: str,
    path: str,
    answer: Schema,
    *,
    status: int = 200,
    query: Schema = _NOTHING,
    body: Schema | None = None,
    media_type: str = JSON,
    refusals: tuple[int, ...] = (),
    is_open: bool = False,
) -> Callable[[_Method], _Method]:
    """Declare what a method of an API serves; the first line of its docstring says what that is.

    Args:
        method: GET, POST, PUT, PATCH or DELETE.
        path: Such as ``/jobs/:jobid``.
        answer: The form of the answer.
        status: The status of the answer.
        query: What may stand behind the question mark.
        body: The form of the body; None for none.
        media_type: Of the answer.
        refusals: Statuses of refusals besides those that every path may have.
        is_open: Whether it is answered without the token.
    """

    def declare(handler: _Method) -> _Method:
        what = (handler.__doc__ or "").strip().partition("\n")[0]
        taken = _NOTHING if body is None else body
        route = Route(method, path, answer, None, status, query, taken, media_type, refusals, what, is_open)
        setattr(handler, _SERVES, route)
        return handler

    return declare


def declared(kind: type) -> Iterator[tuple[str, Route]]:
    """What the methods of an API serve, by their names."""
    for name, member in vars(kind).items():
        route = getattr(member, _SERVES, None)
        if route is not None:
            yield name, route


def bound(api: object) -> Iterator[Route]:
    """What an API serves."""
    for name, route in declared(type(api)):
        yield route.bound(getattr(api, name))


def _part(parameter: str) -> str:
    form = PARAMETERS.get(parameter)
    return f"(?P<{parameter}>{'[^/]+' if form is None else form['pattern'].strip('^$')})"


def form_of(parameter: str) -> Schema:
    """The form of a part of a path."""
    return PARAMETERS.get(parameter, TEXT)
