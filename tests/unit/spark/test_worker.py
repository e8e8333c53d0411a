"""How a worker speaks with its JVM."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

TASK = """
import socket, sys
from holdfast.spark.worker import disable_tcp_delays
disable_tcp_delays()
disable_tcp_delays()
mine = socket.socket(fileno=int(sys.argv[1]))
print(mine.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
"""


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="no Linux")
def test_what_a_worker_writes_is_not_held_back() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as worker:
        assert worker.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 0
        number = str(worker.fileno())
        command = [sys.executable, "-c", TASK, number]
        ended = subprocess.run(command, pass_fds=[worker.fileno()], capture_output=True, text=True, check=True)
        assert int(ended.stdout) != 0


def test_connections_of_other_kinds_are_left_alone() -> None:
    with socket.socketpair()[0] as worker:
        command = [sys.executable, "-c", TASK.partition("mine")[0] + "print('ended')", "0"]
        ended = subprocess.run(command, pass_fds=[worker.fileno()], capture_output=True, text=True, check=True)
        assert ended.stdout == "ended\n"
