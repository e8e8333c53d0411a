"""What anybody sends to a REST interface before he has shown a token: the lines above a request's body, as they are."""

from typing import Final

from holdfast.errors import HoldfastError
from holdfast.rest.http import HttpError, RequestHead, probe_response
from holdfast.rest.page.page_files import is_page_request, page_file
from holdfast.rest.server import _encoded, _refusal

MOST: Final = 500
"""Letters of a refusal; what was sent may have 16 KiB, and comes from a stranger."""


def parse(data: bytes) -> None:
    head, _, _ = data.partition(b"\r\n\r\n")
    try:
        _read(RequestHead(head + b"\r\n\r\n"))
    except HttpError as error:
        assert len(str(error)) <= MOST, f"{len(str(error))} letters of a refusal"
        assert 400 <= error.status < 600
        assert _encoded(_refusal(error)).count(b"\r\n\r\n") == 1
        raise HoldfastError(str(error)) from error


def _read(head: RequestHead) -> None:
    """In the order of a connection."""
    if head.is_probe:
        probe_response(head.target, None)
        return
    head.check_host({"known.example"})
    if is_page_request(head.method, head.target):
        page_file(head.target)
        return
    head.check_origin()
    if not head.is_scrape("scraper"):
        head.check_bearer("token")
    assert 0 <= head.body_length(1 << 20) <= 1 << 20
