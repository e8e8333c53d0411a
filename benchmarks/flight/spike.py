"""Arrow Flight against the protocol of our query servers: the same state, the same look-ups, only the wire differs.

    python benchmarks/flight/spike.py [--keys 100000] [--rounds 5] [--seconds 1] [--stories] [--json]

Both servers run in processes of their own and answer through `LocalStates` from the same checkpoint; both clients make
a request and read an answer with the same code (`Question`). They take turns in each round. Flight carries a request
as the body of an action (`action`), or as a message of an exchange that stays open (`exchange`, one stream a thread,
which knows no deadline of a single message). pyarrow has no asyncio for Flight: there it runs through 64 threads.
`--stories` shows what each of them does when something fails; see `stories.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # started by its path
    sys.path.insert(0, str(ROOT))

from benchmarks.flight.wire import (  # noqa: E402
    JOB,
    STATE,
    FlightWire,
    question_for,
    server_process,
    write_certificates,
    write_state,
)
from holdfast.queryable import AsyncQueryableStateClient, QueryableStateClient  # noqa: E402
from holdfast.queryable.client.async_client import RequestBatcher  # noqa: E402

TOKEN, MANY, THREADS = "secret", 1000, 64
SIDES = ("holdfast", "flight action", "flight exchange")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Cost:
    """Time that passes, and processor time of the server and of this process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._started, self._server, self._client = time.perf_counter(), cpu_seconds(pid), time.process_time()

    def of(self, count: int, latencies: Sequence[float] = ()) -> dict[str, float]:
        """What so many gets, keys or rows have cost; milliseconds of processor time for a thousand of them."""
        found = {
            "per_second": count / (time.perf_counter() - self._started),
            "server_cpu_ms": 1e6 * (cpu_seconds(self._pid) - self._server) / count,
            "client_cpu_ms": 1e6 * (time.process_time() - self._client) / count,
        }
        if latencies:
            ordered = sorted(latencies)
            found |= {"median_ms": 1000 * ordered[count // 2], "p99_ms": 1000 * ordered[count * 99 // 100]}
        return found


def measure_threads(
    asks: Sequence[Callable[[str], Any]], keys: list[str], seconds: float, pid: int
) -> dict[str, float]:
    latencies: list[float] = []
    ends = time.perf_counter() + seconds

    def run(ask: Callable[[str], Any], chance: random.Random) -> None:
        found = []
        while (started := time.perf_counter()) < ends:
            key = chance.choice(keys)
            value = ask(key)
            found.append(time.perf_counter() - started)
            assert value["name"] == f"name of {key}"
        latencies.extend(found)

    cost = Cost(pid)
    threads = [threading.Thread(target=run, args=(ask, random.Random(i))) for i, ask in enumerate(asks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return cost.of(len(latencies), latencies)


async def measure_tasks(
    ask: Callable[[str], Awaitable[Any]], count: int, keys: list[str], seconds: float, pid: int
) -> dict[str, float]:
    chance, latencies = random.Random(3), []
    await ask(keys[0])
    cost, begun = Cost(pid), time.perf_counter()

    async def run() -> None:
        while (started := time.perf_counter()) < begun + seconds:
            await ask(chance.choice(keys))
            latencies.append(time.perf_counter() - started)

    await asyncio.gather(*(run() for _ in range(count)))
    return cost.of(len(latencies), latencies)


def measure_asyncio(ports: dict[str, tuple[int, int]], keys: list[str], seconds: float) -> Iterator[tuple[str, Any]]:
    """Gets in flight; with `together` those of one turn of the loop travel in one message, on either wire."""

    async def ours(count: int, **more: Any) -> dict[str, float]:
        port, pid = ports["holdfast"]
        async with AsyncQueryableStateClient("127.0.0.1", port) as client:
            return await measure_tasks(lambda k: client.get_kv_state(JOB, STATE, k, **more), count, keys, seconds, pid)

    async def theirs(count: int, *, is_together: bool) -> dict[str, float]:
        port, pid = ports["flight"]
        wire, loop = FlightWire(port), asyncio.get_running_loop()
        with ThreadPoolExecutor(THREADS) as pool:
            gathering = RequestBatcher(lambda question: loop.run_in_executor(pool, wire.ask, question))

            async def ask(key: str) -> Any:
                if not is_together:
                    return await loop.run_in_executor(pool, wire.get, key)
                question = question_for((key,))
                question.check_key(wire.what)
                return await gathering.get(question)

            return await measure_tasks(ask, count, keys, seconds, pid)

    for count in (64, 1000):
        name = f"asyncio, {count:,} in flight"
        yield f"{name}, together|holdfast", asyncio.run(ours(count))
        yield f"{name}, together|flight action", asyncio.run(theirs(count, is_together=True))
        yield f"{name}, each by itself|holdfast", asyncio.run(ours(count, key_type="string"))
        yield f"{name}, each by itself|flight action", asyncio.run(theirs(count, is_together=False))


def measure_wire(
    wire: str, ports: dict[str, tuple[int, int]], ca: str, keys: list[str], seconds: float, turn: int
) -> Iterator[tuple[str, Any]]:
    """Clients that block, once; who begins changes from round to round."""
    token, tls = (None if wire == "plain" else TOKEN), (ca if "TLS" in wire else None)
    (our_port, our_pid), (their_port, their_pid) = ports["holdfast"], ports["flight"]
    pids = {side: our_pid if side == "holdfast" else their_pid for side in SIDES}
    theirs = FlightWire(their_port, tls, token)
    with QueryableStateClient("localhost", our_port, tls, token) as ours:
        single = {
            "holdfast": lambda: lambda key: ours.get_kv_state(JOB, STATE, key).value,
            "flight action": lambda: theirs.get,
            "flight exchange": theirs.exchange,
        }
        for threads in (1, 8):
            for side in SIDES[:: 1 if turn % 2 else -1]:
                asks = [single[side]() for _ in range(threads)]
                name = f"get, {threads} thread{'s' * (threads > 1)}, {wire}"
                yield f"{name}|{side}", measure_threads(asks, keys, seconds, pids[side])
        several = {"holdfast": lambda k: ours.get_many(JOB, STATE, k).values, "flight action": theirs.many}
        scans = {"holdfast": lambda: sum(b.num_rows for b in ours.scan(JOB, STATE)), "flight action": theirs.scan}
        for side in sorted(several, reverse=bool(turn % 2)):
            yield f"get_many of {MANY:,}, {wire}|{side}", measure_many(several[side], keys, seconds, pids[side])
        for side in sorted(scans, reverse=bool(turn % 2)):
            yield f"scan, {wire}|{side}", measure_scan(scans[side], len(keys), seconds, pids[side])


def measure_many(
    ask: Callable[[list[str]], Sequence[Any]], keys: list[str], seconds: float, pid: int
) -> dict[str, float]:
    batches = [random.Random(i).sample(keys, MANY) for i in range(20)]
    assert [value["total"] for value in ask(batches[0])] == [int(key[4:]) for key in batches[0]]
    cost, count, started = Cost(pid), 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        ask(batches[count % len(batches)])
        count += 1
    return cost.of(MANY * count)


def measure_scan(scan: Callable[[], int], rows: int, seconds: float, pid: int) -> dict[str, float]:
    cost, count, started = Cost(pid), 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        assert scan() == rows
        count += 1
    return cost.of(rows * count)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Arrow Flight against the protocol of our query servers.")
    parser.add_argument("--keys", type=int, default=100_000, help="rows of the state (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds in which the two take turns")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--stories", action="store_true", help="show what happens when something fails; no numbers")
    parser.add_argument("--json", action="store_true", help="print JSON lines only")
    chosen = parser.parse_args(arguments)
    keys = [f"key-{number:08d}" for number in range(chosen.keys)]
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-flight-")))
        write_state(root, keys)
        pem, ca, other_ca = write_certificates(root)
        if chosen.stories:
            from benchmarks.flight.stories import tell

            for line in tell(root, keys, pem, ca, other_ca):
                print(json.dumps(line), flush=True)
            return 0
        wires = {"plain": ("", ""), "token": ("", TOKEN), "TLS and token": (pem, TOKEN)}
        servers = {
            wire: {kind: stack.enter_context(server_process(kind, root, *how)) for kind in ("holdfast", "flight")}
            for wire, how in wires.items()
        }
        found: dict[str, list[dict[str, float]]] = {}
        for turn in range(chosen.rounds + 1):
            parts = [measure_wire(wire, ports, ca, keys, chosen.seconds, turn) for wire, ports in servers.items()]
            for name, result in chain(*parts, measure_asyncio(servers["plain"], keys, chosen.seconds)):
                if turn:  # the first round warms up
                    found.setdefault(name, []).append(result)
        report(found, as_json=chosen.json)
    return 0


def report(found: dict[str, list[dict[str, float]]], *, as_json: bool) -> None:
    for name, results in found.items():
        what, _, side = name.partition("|")
        medians = {field: round(statistics.median(r[field] for r in results), 3) for field in results[0]}
        if as_json:
            rounds = [round(result["per_second"]) for result in results]
            print(json.dumps({"measurement": what, "side": side, **medians, "rounds": rounds}))
        else:
            more = "  ".join(f"{field} {value:,.2f}" for field, value in medians.items() if field != "per_second")
            print(f"{what:<44} {side:<16} {medians['per_second']:>12,.0f}/s  {more}")


if __name__ == "__main__":
    sys.exit(main())
