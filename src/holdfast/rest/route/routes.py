"""All that is served, and who answers a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from holdfast.rest.answer import Answer, RefusedError, Request, probed
from holdfast.rest.request_head import parts_of
from holdfast.rest.route.document import document_of
from holdfast.rest.route.route import Handler, Route, declared, serves
from holdfast.rest.route.schema import ANY, STRING, mapping, record


class UnknownPathError(RefusedError):
    """Nothing is served at a path."""


class Routes:
    """What is served: method and path, such as ``GET /jobs/:jobid``, and who answers.

    Args:
        job_id: The job; paths of other jobs are answered with 404. None: whoever answers knows which jobs there are.

    Attributes:
        linger: Waits until the outcomes of operations have been fetched, at most for the given seconds.
        not_ready: Says why the process is not ready, None if it is; for probes. Must not block.
    """

    def __init__(self, job_id: str | None, linger: Callable[[float], None]) -> None:
        self._job_id = job_id
        self.linger = linger
        self.not_ready: Callable[[], str | None] = lambda: None
        self._routes: list[Route] = []
        self._absent: dict[str, str] = {}
        for name, route in declared(Routes):
            self.serve(route.bound(getattr(self, name)))

    def serve(self, *routes: Route) -> None:
        """Serve what is declared."""
        self._routes = sorted([*self._routes, *routes], key=lambda route: route.order)

    def add(self, method: str, path: str, handler: Handler) -> None:
        """Serve a path that nothing is declared of: any query and any answer."""
        what = (handler.__doc__ or "").strip().partition("\n")[0]
        self.serve(Route(method, path, handler=handler, what=what))

    def add_absent(self, absent: Mapping[str, str]) -> None:
        """Say why paths of Flink's are not served; `*` stands for anything.

        Args:
            absent: The reason by method and path.
        """
        for target, reason in absent.items():
            method, _, path = target.partition(" ")
            what = f"{method} {path.rstrip('*')} has no meaning here. {reason}"
            self.serve(Route(method, path, handler=_refusal(what), status=501, what=what))
        self._absent |= absent

    @property
    def served(self) -> list[Route]:
        """What is answered with more than a reason."""
        return [route for route in self._routes if not route.is_refusal]

    @serves("GET", "/openapi.json", mapping(ANY))
    def openapi(self, request: Request) -> Answer:
        """This interface, as an OpenAPI document."""
        return Answer(document_of(self.served, self._absent))

    @serves("GET", "/health/live", record({"status": STRING}), is_open=True)
    def live(self, request: Request) -> Answer:
        """Whether the process is alive, for probes."""
        return probed("/health/live", None)

    @serves("GET", "/health/ready", record({"status": STRING}), is_open=True)
    def ready(self, request: Request) -> Answer:
        """Whether the process is ready, for probes."""
        return probed("/health/ready", self.not_ready())

    def answer(self, method: str, target: str, body: Mapping[str, Any]) -> Answer:
        """Answer a request.

        Raises:
            RefusedError: It cannot be answered.
        """
        parts = parts_of(target)
        shown = f"{parts.path!r:.200}"
        fitting = [(route, match) for route in self._routes if (match := route.pattern.fullmatch(parts.path))]
        allowed = ", ".join(sorted({route.method for route, _ in fitting if not route.is_refusal}))
        for route, match in fitting:
            if route.method != method:
                continue
            if route.is_refusal and allowed:
                raise RefusedError(405, f"{route.what} {allowed} is served at {shown}.", {"Allow": allowed})
            found = match.groupdict()
            if self._job_id is not None and found.get("jobid", self._job_id) != self._job_id:
                raise RefusedError(404, f"Job {found['jobid']:.80} not found; this is the master of {self._job_id}.")
            return route.respond(found, dict(parse_qsl(parts.query, keep_blank_values=True)), body)
        if allowed:
            raise RefusedError(405, f"{method:.80} is not served at {shown}; {allowed} is.", {"Allow": allowed})
        raise UnknownPathError(404, f"Nothing is served at {shown}.")


def _refusal(what: str) -> Handler:
    def refuse(request: Request) -> Answer:
        raise RefusedError(501, what)

    return refuse
