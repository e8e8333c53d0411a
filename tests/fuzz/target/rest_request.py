"""What somebody sends to a job's REST interface who has its token: method and path, an empty line, a body."""

import http.client
from functools import cache
from urllib.parse import urlsplit

from holdfast.errors import HoldfastError
from holdfast.rest.server import RestServer, routes_of
from tests.fuzz.document import directory
from tests.stories.local import Program, master

BEARER = "token"


@cache
def address() -> tuple[str, int]:
    """Where the interface of a job listens that nobody runs."""
    program = Program()
    program.source("in", "string").print().uid("out")
    url = urlsplit(RestServer(routes_of(master(program, directory() / "rest", [{}])), BEARER).start())
    assert url.hostname is not None and url.port is not None
    return url.hostname, url.port


def parse(data: bytes) -> None:
    head, _, body = data.partition(b"\n\n")
    method, _, target = head.decode("latin-1").partition(" ")
    if method == "PUT":
        raise HoldfastError("it waits until the job has another parallelism, and nobody runs it here")
    connection = http.client.HTTPConnection(*address(), timeout=60)
    try:
        connection.request(method or "GET", target or "/", body, {"Authorization": f"Bearer {BEARER}"})
        answer = connection.getresponse()
        said = answer.read()
    except (http.client.InvalidURL, ValueError) as error:
        raise HoldfastError("the client does not send this") from error
    except (http.client.BadStatusLine, ConnectionError) as error:
        raise HoldfastError("the connection ended") from error
    finally:
        connection.close()
    assert answer.status != 500, said
    if answer.status >= 400:
        raise HoldfastError(said.decode()[:1000])
