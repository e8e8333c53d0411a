"""The two servers and the client of `spike.py`: below the wire they are the same.

    python benchmarks/flight/wire.py KIND DIR PEM TOKEN

serves the state in DIR by our protocol (`holdfast`) or by Arrow Flight (`flight`) until standard input ends.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyarrow import flight

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # started by its path
    sys.path.insert(0, str(ROOT))

from holdfast.kernel.ids import JobID  # noqa: E402
from holdfast.queryable import ServerSettings, StateServer  # noqa: E402
from holdfast.queryable.client.client_core import ClientRequest, job_id_of  # noqa: E402
from holdfast.queryable.replica.checkpoint_view import to_record_batch  # noqa: E402
from holdfast.queryable.server.routing import LocalStates  # noqa: E402
from holdfast.queryable.wire.connection import server_context  # noqa: E402
from holdfast.queryable.wire.frame import (  # noqa: E402
    Frame,
    FrameReader,
    FrameType,
    Limits,
)
from holdfast.queryable.wire.request import (  # noqa: E402
    GetRequest,
    StateDescription,
    scan_schema,
)
from holdfast.state.descriptor import ValueStateDescriptor  # noqa: E402
from holdfast.storage.job_directory import JobDirectory  # noqa: E402
from holdfast.storage.local import LocalFileSystem  # noqa: E402
from holdfast.storage.register import FileRegister  # noqa: E402
from tests.programs.written_job import WrittenJob  # noqa: E402

JOB, STATE = "bench", "totals"
_HEADER = struct.Struct("<I")
_LONGEST = 1 << 30


def value_of(key: str) -> dict[str, Any]:
    number = int(key[4:])
    return {"name": f"name of {key}", "total": number, "share": number / 7}


def write_state(root: Path, keys: Sequence[str]) -> None:
    """All keys in one completed checkpoint."""
    descriptor: ValueStateDescriptor[Any] = ValueStateDescriptor(
        STATE, "struct<name: string, total: bigint, share: double>"
    )
    descriptor.set_queryable(STATE)
    WrittenJob(root, [descriptor], name=JOB).checkpoint(
        (key, lambda states, key=key: states.totals.update(value_of(key))) for key in keys
    )


class FlightServer(flight.FlightServerBase):
    """What a Flight server of ours would be, as far as it is measured."""

    def __init__(self, follower: Any, pem: bytes | None, token: str | None) -> None:
        self._local = LocalStates(Limits())
        self._view = follower.replica.newest
        super().__init__(
            f"grpc{'+tls' if pem else ''}://127.0.0.1:0",
            tls_certificates=[(pem, pem)] if pem else None,
            middleware={"token": _CheckToken(token)} if token else None,
        )

    def do_action(self, context: Any, action: Any) -> Sequence[bytes]:
        if action.type == "wait":  # for a checkpoint that does not come; a call of Flight has a thread until it ends
            while not context.is_cancelled():
                time.sleep(0.05)
            return []
        if action.type == "describe":
            return [json.dumps(self._view.states[STATE].description.to_json()).encode()]
        return [self._get(action.body.to_pybytes())]

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        for chunk in iter(lambda: next_chunk(reader), None):
            writer.write_metadata(self._get(chunk.app_metadata.to_pybytes()))

    def do_get(self, context: Any, ticket: Any) -> Any:
        state = self._view.states[STATE]
        batches = (to_record_batch(layer, state.description) for layer in state.scan(None))
        return flight.GeneratorStream(scan_schema(state.description), batches)

    def _get(self, message: bytes) -> bytes:
        end = 4 + _HEADER.unpack_from(message)[0]
        frame = Frame(FrameType.GET, 0, message[4:end], message[end:])
        return self._local.get(GetRequest.parse(frame), frame.body, self._view, 0)


def next_chunk(reader: Any) -> Any:
    try:
        return reader.read_chunk()
    except StopIteration:
        return None


class _CheckToken(flight.ServerMiddlewareFactory):
    def __init__(self, token: str) -> None:
        self._wanted = f"Bearer {token}"

    def start_call(self, info: Any, headers: Any) -> None:
        if headers.get("authorization") != [self._wanted]:
            raise flight.FlightUnauthenticatedError("The bearer token is missing or wrong.")


def our_server(root: str, **settings: Any) -> tuple[StateServer, JobDirectory, FileRegister]:
    server = StateServer(ServerSettings(**settings, limits=Limits(connections=5_000, per_address=5_000)))
    server.start()
    directory = JobDirectory(LocalFileSystem(), root, JobID.from_name(JOB))
    return server, directory, FileRegister(directory.fs, directory.register_dir)


def serve(kind: str, root: str, pem: str, token: str) -> None:
    """Serve until standard input ends; Flight's server takes its view from one of ours that nobody asks."""
    settings = {"token": token or None, "tls": server_context(pem, None) if pem else None} if kind == "holdfast" else {}
    server, directory, register = our_server(root, **settings)
    follower, port = server.serve_job(directory, register), server.get_server_address()[1]
    if kind == "flight":
        flying = FlightServer(follower, Path(pem).read_bytes() if pem else None, token or None)
        port = flying.port
    print(port, flush=True)
    sys.stdin.read()
    os._exit(0)


@contextmanager
def server_process(kind: str, root: Path, pem: str = "", token: str = "") -> Iterator[tuple[int, int]]:
    """The port and the process id of a server."""
    command = [sys.executable, __file__, kind, str(root), pem, token]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        try:
            yield int(process.stdout.readline()), process.pid
        finally:
            process.stdin.close()


def question_for(keys: Sequence[str]) -> ClientRequest:
    return ClientRequest(job_id_of(JOB), STATE, keys)


class FlightWire:
    """A client of the Flight server; one connection for all threads unless it is told to be alone."""

    def __init__(self, port: int, ca: str | None = None, token: str | None = None, *, is_alone: bool = False) -> None:
        self.client = flight.FlightClient(
            f"grpc{'+tls' if ca else ''}://localhost:{port}",
            tls_root_certs=Path(ca).read_bytes() if ca else None,
            # Clients of one process share a connection otherwise, whatever is said about them.
            generic_options=[("grpc.use_local_subchannel_pool", 1)] if is_alone else None,
        )
        self.headers = [(b"authorization", b"Bearer " + token.encode())] if token else []
        self.options = flight.FlightCallOptions(timeout=15.0, headers=self.headers)
        [described] = self.client.do_action(flight.Action("describe", b""), self.options)
        self.what = StateDescription.from_json(json.loads(described.body.to_pybytes()))

    def ask(self, question: ClientRequest) -> tuple[Frame, StateDescription]:
        [answer] = self.client.do_action(flight.Action("get", self._message(question)), self.options)
        return FrameReader(_LONGEST, None).feed(answer.body)[0], self.what

    def get(self, key: str) -> Any:
        question = question_for((key,))
        return question.one(*self.ask(question)).value

    def many(self, keys: Sequence[str]) -> Sequence[Any]:
        question = question_for(keys)
        return question.many(*self.ask(question)).values

    def scan(self) -> int:
        reader = self.client.do_get(flight.Ticket(b"scan"), self.options)
        return sum(chunk.data.num_rows for chunk in reader)

    def exchange(self) -> Callable[[str], Any]:
        """Gets on one open stream; a deadline would be that of the whole stream."""
        options = flight.FlightCallOptions(headers=self.headers)
        writer, reader = self.client.do_exchange(flight.FlightDescriptor.for_command(b"get"), options)

        def get(key: str) -> Any:
            question = question_for((key,))
            writer.write_metadata(self._message(question))
            answer = reader.read_chunk().app_metadata
            return question.one(FrameReader(_LONGEST, None).feed(answer)[0], self.what).value

        return get

    def _message(self, question: ClientRequest) -> bytes:
        header, body = question.encode(self.what)
        return b"".join((_HEADER.pack(len(header)), header, *body))


def write_certificates(directory: Path) -> tuple[str, str, str]:
    """The files of a server, of its authority, and of another one."""
    import trustme

    authority, names = trustme.CA(), ("server.pem", "ca.pem", "other-ca.pem")
    paths = [directory / name for name in names]
    authority.issue_cert("127.0.0.1", "localhost").private_key_and_cert_chain_pem.write_to_path(paths[0])
    authority.cert_pem.write_to_path(paths[1])
    trustme.CA().cert_pem.write_to_path(paths[2])
    return str(paths[0]), str(paths[1]), str(paths[2])


if __name__ == "__main__":
    serve(*sys.argv[1:])
