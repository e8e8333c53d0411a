"""What either wire does when something fails, or many clients come; told by `spike.py --stories`.

Each story has a server of its own, in a process of its own. What a client is told is the error's class and the start of
its text; seconds are from the failure to the error.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyarrow import flight

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # started by its path
    sys.path.insert(0, str(ROOT))

from benchmarks.flight.wire import JOB, STATE, FlightServer, FlightWire, our_server, server_process  # noqa: E402
from holdfast.queryable import AsyncQueryableStateClient, QueryableStateClient, at_least  # noqa: E402

KINDS = ("holdfast", "flight")
PATIENCE = 20.0  # seconds after which a process counts as hanging
FAR = 99  # a checkpoint that does not come
IDLE, WAITING, UNREAD = 1000, 250, 100
open_at_exit: list[Any] = []


class Asking:
    """The same questions on either wire."""

    def __init__(self, kind: str, port: int, ca: str | None = None, token: str | None = None) -> None:
        self.kind = kind
        if kind == "holdfast":
            self.ours = QueryableStateClient("localhost", port, ca, token)
        else:
            self.theirs = FlightWire(port, ca, token, is_alone=True)

    def get(self, key: str = "key-00000001", seconds: float = 10.0) -> Any:
        if self.kind == "holdfast":  # waits five seconds beyond its deadline, as the server may use all of it
            return self.ours.get_kv_state(JOB, STATE, key, deadline=seconds - 5.0).value
        self.theirs.options = flight.FlightCallOptions(timeout=seconds, headers=self.theirs.headers)
        return self.theirs.get(key)

    def wait(self) -> None:
        """For a checkpoint that does not come."""
        if self.kind == "holdfast":
            self.ours.get_kv_state(JOB, STATE, "key-00000001", consistency=at_least(FAR), deadline=60.0)
        else:
            list(self.theirs.client.do_action(flight.Action("wait", b""), flight.FlightCallOptions(timeout=65.0)))

    def begin_scan(self) -> Any:
        """A scan of which nothing but the start is read."""
        if self.kind == "holdfast":
            return self.ours.scan(JOB, STATE, batch_rows=1000)
        reader = self.theirs.client.do_get(flight.Ticket(b"scan"))
        return reader, reader.read_chunk()


def told(action: Callable[[], Any]) -> dict[str, Any]:
    """How an action ends, and how long it took."""
    started = time.perf_counter()
    try:
        action()
        outcome = "answered"
    except Exception as error:
        outcome = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    return {"outcome": outcome, "seconds": round(time.perf_counter() - started, 2)}


def census(pid: int) -> dict[str, int]:
    """Threads, sockets and memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    sockets = 0
    for link in list(Path(f"/proc/{pid}/fd").iterdir()):
        with suppress(FileNotFoundError):  # closed meanwhile, as the listing itself
            sockets += str(link.readlink()).startswith("socket:")
    return {"threads": int(status["Threads"]), "sockets": sockets, "rss_mb": int(status["VmRSS"].split()[0]) // 1024}


def tell(root: Path, keys: list[str], pem: str, ca: str, other_ca: str) -> Iterator[dict[str, Any]]:
    for kind in KINDS:
        for story in (killed, hanging, garbage, too_long, idle, waiting, unread):
            with server_process(kind, root) as (port, pid):
                yield {"story": story.__name__, "side": kind, **story(kind, port, pid)}
        with server_process(kind, root, pem, "secret") as (port, _):
            yield {"story": "right", "side": kind, **told(lambda: Asking(kind, port, ca, "secret").get())}  # noqa: B023
            yield {"story": "wrong token", "side": kind, **told(lambda: Asking(kind, port, ca, "no").get())}  # noqa: B023
            yield {"story": "no token", "side": kind, **told(lambda: Asking(kind, port, ca).get())}  # noqa: B023
            yield {"story": "wrong CA", "side": kind, **told(lambda: Asking(kind, port, other_ca, "secret").get())}  # noqa: B023
            yield {"story": "no TLS", "side": kind, **told(lambda: Asking(kind, port, None, "secret").get())}  # noqa: B023
        with server_process(kind, root) as (port, _):
            yield {"story": "client exits with open streams", "side": kind, **role("exits", kind, str(port))}
            for who in ("same", "other"):
                yield {"story": f"fork, {who} client", "side": kind, **role(f"forks-{who}", kind, str(port))}
        yield {"story": "server exits with open streams", "side": kind, **role("serves", kind, str(root))}


def killed(kind: str, port: int, pid: int) -> dict[str, Any]:
    asking, found = Asking(kind, port), {}
    thread = threading.Thread(target=lambda: found.update(told(asking.wait)))
    thread.start()
    time.sleep(1.0)
    os.kill(pid, signal.SIGKILL)
    at = time.perf_counter()
    thread.join()
    return found | {"seconds": round(time.perf_counter() - at, 2)}


def hanging(kind: str, port: int, pid: int) -> dict[str, Any]:
    asking = Asking(kind, port)
    asking.get()
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.5)
    try:
        found = told(lambda: asking.get(seconds=6.0))
    finally:
        os.kill(pid, signal.SIGCONT)
    return found | {"afterwards": told(asking.get)["outcome"]}


def garbage(kind: str, port: int, pid: int) -> dict[str, Any]:
    asking, before = Asking(kind, port), census(pid)
    chance = random.Random(5)
    for _ in range(50):
        with socket.create_connection(("localhost", port)) as connection:
            connection.settimeout(0.2)
            try:
                connection.sendall(chance.randbytes(200_000))
                connection.recv(1000)
            except OSError:
                pass
    return told(asking.get) | {"before": before, "after": census(pid)}


def too_long(kind: str, port: int, pid: int) -> dict[str, Any]:
    """A request of 200 MB, from who means it."""
    asking, before = Asking(kind, port), census(pid)
    if kind == "holdfast":
        found = told(lambda: asking.ours.get_many(JOB, STATE, ["x" * 2_000_000] * 100))
    else:
        body = (0).to_bytes(4, "little") + b"x" * 200_000_000
        found = told(lambda: list(asking.theirs.client.do_action(flight.Action("get", body))))
    most = Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0]
    return found | {"before": before, "most_rss_mb": int(most) // 1024}


def idle(kind: str, port: int, pid: int) -> dict[str, Any]:
    """Many clients that have asked once."""
    before, own, started = census(pid), census(os.getpid()), time.perf_counter()
    clients = [Asking(kind, port) for _ in range(IDLE)]
    for client in clients:
        client.get()
    seconds = round(time.perf_counter() - started, 2)
    return {"seconds": seconds, "before": before, "after": census(pid), "client": grown(own, census(os.getpid()))}


def waiting(kind: str, port: int, pid: int) -> dict[str, Any]:
    """Many reads that wait for a checkpoint, and how long a get takes beside them."""
    before, asking = census(pid), Asking(kind, port)
    quick = median_get(asking)

    async def ours() -> dict[str, Any]:
        async with AsyncQueryableStateClient("localhost", port) as client:
            reads = (
                client.get_kv_state(JOB, STATE, "key-00000001", key_type="string", consistency=at_least(FAR))
                for _ in range(WAITING)
            )
            tasks = [asyncio.create_task(read) for read in reads]
            await asyncio.sleep(2.0)
            found = {"after": census(pid), "get_ms": await asyncio.to_thread(median_get, asking)}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return found

    if kind == "holdfast":
        found = asyncio.run(ours())
    else:
        one = FlightWire(port, is_alone=True).client
        threads = [threading.Thread(target=told, args=(lambda: wait_on(one),), daemon=True) for _ in range(WAITING)]
        for thread in threads:
            thread.start()
        time.sleep(2.0)
        found = {"after": census(pid), "get_ms": median_get(asking)}
        os.kill(pid, signal.SIGKILL)
        for thread in threads:
            thread.join()
    return {"before": before, "get_ms_alone": quick, **found}


def wait_on(client: Any) -> None:
    list(client.do_action(flight.Action("wait", b""), flight.FlightCallOptions(timeout=60.0)))


def unread(kind: str, port: int, pid: int) -> dict[str, Any]:
    """Scans whose readers have stopped reading."""
    asking, before = Asking(kind, port), census(pid)
    quick, scans = median_get(asking), [Asking(kind, port).begin_scan() for _ in range(UNREAD)]
    time.sleep(2.0)
    return {
        "before": before,
        "after": census(pid),
        "get_ms_alone": quick,
        "get_ms": median_get(asking),
        "n": len(scans),
    }


def median_get(asking: Asking) -> float:
    latencies = []
    for _ in range(300):
        started = time.perf_counter()
        asking.get()
        latencies.append(1000 * (time.perf_counter() - started))
    return round(statistics.median(latencies), 2)


def grown(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: after[name] - before[name] for name in before}


# Roles of other processes.


def role(name: str, kind: str, where: str) -> dict[str, Any]:
    """Run a role in a process of its own; how it ended."""
    command, started = [sys.executable, __file__, name, kind, where], time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return {"outcome": "hangs", "seconds": round(time.perf_counter() - started, 2)}
    said = (done.stdout.strip() + " | " + done.stderr.strip()[-160:]).strip(" |")
    return {"outcome": said, "code": done.returncode, "seconds": round(time.perf_counter() - started, 2)}


def play(name: str, kind: str, where: str) -> None:
    if name == "serves":
        server, directory, register = our_server(where)
        follower = server.serve_job(directory, register)
        flying = FlightServer(follower, None, None) if kind == "flight" else None
        asking = Asking(kind, flying.port if flying else server.get_server_address()[1])
        get = asking.theirs.exchange() if flying else asking.get
        get("key-00000001")
        open_at_exit.extend([server, flying, asking.begin_scan(), get])
        print("ends while a client has a scan and a stream open", flush=True)
        return
    asking = Asking(kind, int(where))
    asking.get()
    if name == "exits":
        held = [asking.begin_scan() for _ in range(3)]
        if kind == "flight":
            asking.theirs.exchange()("key-00000001")
        threading.Thread(target=told, args=(asking.wait,), daemon=True).start()
        time.sleep(0.5)
        print(f"ends while {len(held)} scans and a get are open")
        return
    child = os.fork()
    if child == 0:
        chosen = asking if name == "forks-same" else None
        answer = told(lambda: (chosen or Asking(kind, int(where))).get())  # noqa: PLW0108 - connecting may fail too
        print("child:", answer["outcome"], flush=True)
        os._exit(0)
    ends = time.monotonic() + PATIENCE
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > ends:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            print("child: hangs")
            break
        time.sleep(0.05)
    print("parent:", told(asking.get)["outcome"])


if __name__ == "__main__":
    play(*sys.argv[1:])
