"""The files of the web page. Anyone may read them: what they show, they fetch with the token of who looks at them.

They are read once, and kept.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

from holdfast.rest.http import Answer, RefusedError, parts_of

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
    # No script, style or picture from elsewhere or from a text, nothing sent elsewhere, in no frame of another page.
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
def _pages() -> dict[str, Answer]:
    found = {}
    for file in files(__package__).joinpath("static").iterdir():
        kind = _TYPES.get(file.name[file.name.rfind(".") :])
        if kind is not None:
            found[file.name] = Answer(file.read_bytes(), media_type=kind, headers=HEADERS)
    return found


def is_page(method: str, target: str) -> bool:
    """Whether a request is for a file of the page, which needs no token."""
    path = parts_of(target).path
    return method == "GET" and (path == "/" or path.startswith(PREFIX))


def page_at(target: str) -> Answer:
    """Return a file of the page.

    Raises:
        RefusedError: There is none of this name.
    """
    path = parts_of(target).path
    name = _FRONT if path == "/" else path.removeprefix(PREFIX)
    found = _pages().get(name)
    if found is None:
        raise RefusedError(404, f"The page has no file {name!r:.60}.")
    return found
