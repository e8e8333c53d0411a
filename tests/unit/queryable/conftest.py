"""A job whose checkpoints are written by hand, and servers and clients that are closed after the test."""

from contextlib import ExitStack

import pytest

from holdfast.queryable import QueryableStateClient, ServerSettings, StateServer
from holdfast.queryable.server.server import all_key_groups


class Bench:
    """Starts servers and clients, and closes them."""

    def __init__(self, stack):
        self._stack = stack

    def server(self, job=None, *, share=all_key_groups, leader=None, **settings):
        settings.setdefault("poll", 0.01)
        server = self._stack.enter_context(StateServer(ServerSettings(**settings)))
        if job is not None:
            server.serve_job(job.directory, job.register, share=share, leader=leader)
        return server

    def client(self, server, **more):
        return self._stack.enter_context(QueryableStateClient(*server.get_server_address(), **more))


@pytest.fixture
def bench():
    with ExitStack() as stack:
        yield Bench(stack)
