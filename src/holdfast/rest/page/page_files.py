"""The static files of the web page, read once. They need no token: the page fetches all data with the user's token."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

from holdfast.rest.http import HttpError, Response, split_target

PREFIX: Final = "/page/"
_FRONT: Final = "index.html"
_TYPES: Final = {
    ".css": "text/css; charset=UTF-8",
    ".html": "text/html; charset=UTF-8",
    ".js": "text/javascript; charset=UTF-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=UTF-8",
}
HEADERS: Final = {
    # No scripts, styles or pictures from other servers or inline, no requests to other servers, no embedding in frames.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


@cache
def _pages() -> dict[str, Response]:
    found = {}
    for file in files(__package__).joinpath("static").iterdir():
        kind = _TYPES.get(file.name[file.name.rfind(".") :])
        if kind is not None:
            found[file.name] = Response(file.read_bytes(), media_type=kind, headers=HEADERS)
    return found


def is_page_request(method: str, target: str) -> bool:
    """Return whether a request is for a file of the page."""
    path = split_target(target).path
    return method == "GET" and (path == "/" or path.startswith(PREFIX))


def page_file(target: str) -> Response:
    """Return a file of the page.

    Raises:
        HttpError: There is no such file.
    """
    path = split_target(target).path
    name = _FRONT if path == "/" else path.removeprefix(PREFIX)
    found = _pages().get(name)
    if found is None:
        raise HttpError(404, f"The page has no file {name!r:.60}.")
    return found
