"""What somebody sends to a job's REST interface who has its token: method and path, an empty line, a body."""

import http.client
from collections.abc import Mapping
from functools import cache
from urllib.parse import urlsplit

from holdfast.errors import HoldfastError
from holdfast.rest.server import RestServer, job_routes
from holdfast.runtime.job.control import CompletableFuture, JobControl
from tests.fuzz.document import directory
from tests.stories.local import Program, master

BEARER = "token"


class _Control(JobControl):
    """Takes the part of the next epoch, too: it meets a wish for another parallelism at once."""

    def rescale(self, parallelism: Mapping[str, int]) -> CompletableFuture[None]:
        assert all(type(uid) is str and type(number) is int and number > 0 for uid, number in parallelism.items())
        super().rescale(parallelism)
        request = self.next_rescale()
        assert request is not None
        request.future.set_result(None)
        return request.future


@cache
def address() -> tuple[str, int]:
    """Where the interface of a job listens that nobody runs."""
    program = Program()
    program.source("in", "string").print().uid("out")
    job = master(program, directory() / "rest", [{}])
    job.control = _Control()
    url = urlsplit(RestServer(job_routes(job), BEARER).start())
    assert url.hostname is not None and url.port is not None
    return url.hostname, url.port


def parse(data: bytes) -> None:
    head, _, body = data.partition(b"\n\n")
    method, _, target = head.decode("latin-1").partition(" ")
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
