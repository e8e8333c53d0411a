"""Queries of committed state against Redis: the same keys and values, one client process, loopback, in the same run.

    python benchmarks/query.py [--keys 100000] [--rounds 5] [--seconds 2] [--json]

Both servers run in processes of their own, both clients give Python objects: redis-py with hiredis and decoded answers,
and ours. The two take turns in each round. Redis (Debian's package) must be installed; redis-py is installed once into
the cache. What has no counterpart in Redis, a scan of everything and the time until a completed checkpoint can be read,
stands beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # started by its path
    sys.path.insert(0, str(ROOT))

from holdfast.queryable import AsyncQueryableStateClient, QueryableStateClient, at_least  # noqa: E402
from holdfast.state.descriptor import ValueStateDescriptor  # noqa: E402
from tests.programs.written_job import WrittenJob  # noqa: E402

REQUIREMENTS = Path(__file__).with_name("requirements-query.txt")
IN_FLIGHT = 32
MANY = 1000
STATE = "totals"
WINDOW = 5.0  # seconds with gets, and seconds without
SETTLED = 120  # epochs of the job at half its rate before the first window: its JVM compiles in the first minute


def redis_module(cache: Path) -> Any:
    """redis-py with hiredis, from a folder of its own that is made once."""
    folder = cache / "query-packages"
    if not folder.exists():
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), "-r", str(REQUIREMENTS)]
        subprocess.run(install, check=True, stdout=sys.stderr)
    sys.path.append(str(folder))
    import hiredis  # noqa: F401
    import redis

    return redis


def value_of(key: str) -> str:
    return f"total of {key}: {sum(key.encode()):09d}"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def redis_server(redis: Any, keys: list[str]) -> Iterator[int]:
    program = shutil.which("redis-server")
    if program is None:
        raise SystemExit("There is no redis-server: apt-get install redis-server.")
    port = free_port()
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        with redis.Redis(port=port) as client:
            for _ in range(500):
                try:
                    client.ping()
                    break
                except redis.ConnectionError:
                    time.sleep(0.01)
            for at in range(0, len(keys), 10_000):
                client.mset({key: value_of(key) for key in keys[at : at + 10_000]})
        yield port
    finally:
        process.terminate()
        process.wait()


@contextmanager
def state_server(directory: Path) -> Iterator[int]:
    command = [sys.executable, "-c", "from holdfast.cli import main; main()", "state-server", str(directory)]
    process = subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline().rpartition(":")[2])
    finally:
        process.terminate()
        process.wait()


def written_job(root: Path, keys: list[str], epochs: int) -> WrittenJob:
    """A job whose state came about in one large epoch and some small ones, as it does."""
    descriptor: ValueStateDescriptor[str] = ValueStateDescriptor(STATE, "string")
    descriptor.set_queryable(STATE)
    job = WrittenJob(root, [descriptor], name="bench")

    def write(key: str) -> tuple[str, Callable[[Any], None]]:
        return key, lambda states: states.totals.update(value_of(key))

    job.checkpoint(map(write, keys))
    chance = random.Random(1)
    for _ in range(epochs):
        job.checkpoint(map(write, chance.sample(keys, len(keys) // 100)))
    return job


async def measure_get(ask: Callable[[str], Awaitable[str]], keys: list[str], seconds: float) -> dict[str, float]:
    """Single gets, so many in flight: how many a second, and the latency of the slowest of a hundred."""
    chance = random.Random(7)
    latencies: list[float] = []
    ends = time.perf_counter() + seconds

    async def one_after_the_other() -> None:
        while (started := time.perf_counter()) < ends:
            key = chance.choice(keys)
            found = await ask(key)
            latencies.append(time.perf_counter() - started)
            assert found == value_of(key) or len(latencies) % 1000, "wrong answer"

    started = time.perf_counter()
    await asyncio.gather(*(one_after_the_other() for _ in range(IN_FLIGHT)))
    elapsed = time.perf_counter() - started
    latencies.sort()
    return {
        "per_second": len(latencies) / elapsed,
        "median_milliseconds": 1000 * latencies[len(latencies) // 2],
        "p99_milliseconds": 1000 * latencies[len(latencies) * 99 // 100],
    }


async def measure_many(ask: Callable[[list[str]], Awaitable[list[str]]], keys: list[str], seconds: float) -> float:
    """Keys a second in requests for a thousand."""
    chance = random.Random(8)
    batches = [chance.sample(keys, MANY) for _ in range(50)]
    assert await ask(batches[0]) == [value_of(key) for key in batches[0]]
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        await ask(batches[count % len(batches)])
        count += 1
    return MANY * count / (time.perf_counter() - started)


async def contest(ports: dict[str, int], keys: list[str], rounds: int, seconds: float) -> list[dict[str, Any]]:
    from redis.asyncio import Redis

    results = []
    async with (
        Redis(port=ports["redis"], decode_responses=True) as theirs,
        AsyncQueryableStateClient("127.0.0.1", ports["holdfast"]) as ours,
    ):
        client: Any = theirs.client()
        connection = await client.__aenter__()

        async def our_get(key: str) -> str:
            return str((await ours.get_kv_state("bench", STATE, key)).value)

        async def our_many(wanted: list[str]) -> list[str]:
            return (await ours.get_many("bench", STATE, wanted)).values

        gets: dict[str, Callable[[str], Awaitable[str]]] = {"redis": theirs.get, "holdfast": our_get}
        many: dict[str, Callable[[list[str]], Awaitable[list[str]]]] = {"redis": connection.mget, "holdfast": our_many}
        for number in range(rounds + 1):
            for side in sorted(gets, reverse=number % 2 == 0):
                single = await measure_get(gets[side], keys, seconds)
                keys_per_second = await measure_many(many[side], keys, seconds)
                if number:  # the first round warms up
                    results.append({"side": side, "round": number, **single, "keys_per_second": keys_per_second})
        await client.__aexit__(None, None, None)
    return results


def measure_scan(port: int, rows: int, rounds: int) -> list[float]:
    """Rows a second of a scan of everything."""
    found = []
    with QueryableStateClient("127.0.0.1", port) as client:
        for _ in range(rounds + 1):
            started = time.perf_counter()
            count = sum(batch.num_rows for batch in client.scan("bench", STATE))
            found.append(count / (time.perf_counter() - started))
            assert count == rows
    return found[1:]


def measure_visibility(port: int, job: WrittenJob, keys: list[str], rounds: int) -> list[float]:
    """Milliseconds from the completion of a checkpoint until a reader gets it; nobody notifies the server."""
    chance = random.Random(9)
    found = []
    with QueryableStateClient("127.0.0.1", port) as client:
        for number in range(rounds):
            changed = chance.sample(keys, 500)

            def write(states: Any, number: int = number) -> None:
                states.totals.update(f"new {number}")

            checkpoint = job.checkpoint((key, write) for key in changed)
            completed = time.perf_counter()
            answer = client.get_kv_state("bench", STATE, changed[0], consistency=at_least(checkpoint))
            found.append(1000 * (time.perf_counter() - completed))
            assert answer.value == f"new {number}"
            time.sleep(chance.random() * 0.1)
    return found


def measure_impact(root: Path, count: int, gets_per_second: int) -> dict[str, Any]:
    """Epoch times of a job on Spark at half its rate with gets of its state, paired with the quiet seconds before."""
    port, output = free_port(), root.with_name("epochs.jsonl")
    program = [sys.executable, str(Path(__file__).parent / "harness" / "query_job.py"), str(root), str(port)]
    windows: list[tuple[float, float]] = []
    with (
        output.open("w") as sink,
        subprocess.Popen(program, stdin=subprocess.PIPE, stdout=sink, start_new_session=True) as process,
    ):
        try:
            until_paced(output, process)
            served = asyncio.run(gets_in_windows(port, count, gets_per_second, windows))
        finally:
            assert process.stdin is not None
            process.stdin.close()
    paced = [epoch for epoch in epochs_in(output) if epoch["paced"]]
    pairs: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for number, (start, stop) in enumerate(windows):
        loaded = [e["seconds"] for e in paced if start < e["at"] - e["seconds"] and e["at"] < stop]
        quiet = [e["seconds"] for e in paced if start - WINDOW < e["at"] - e["seconds"] and e["at"] < start]
        if len(loaded) > 2 and len(quiet) > 2:
            pairs[number % 2 == 0].append((statistics.median(quiet), statistics.median(loaded)))
    if not pairs[True] or not pairs[False]:
        raise SystemExit(f"The job ran {len(paced)} paced epochs, too few to compare; give more --impact-windows.")
    return {
        "windows": len(pairs[True]) + len(pairs[False]),
        "gets_per_second": round(served / (WINDOW * max(1, len(windows)))),
        "quiet_epoch_milliseconds": round(
            1000 * statistics.median(quiet for quiet, _ in pairs[True] + pairs[False]), 1
        ),
        "epoch_rise": round(statistics.median(loaded / quiet for quiet, loaded in pairs[True]) - 1, 4),
        "epoch_rise_one_by_one": round(statistics.median(loaded / quiet for quiet, loaded in pairs[False]) - 1, 4),
    }


def epochs_in(output: Path) -> list[dict[str, Any]]:
    """What the job has printed so far, without a line that is not whole yet; other lines are for people."""
    lines = output.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines if line.startswith("{")]


def until_paced(output: Path, process: subprocess.Popen[bytes]) -> None:
    """Until the job has found its rate and has run at half of it for a while."""
    while sum(epoch["paced"] for epoch in epochs_in(output)) < SETTLED:
        if process.poll() is not None:
            raise SystemExit(f"The job ended with exit code {process.returncode}.")
        time.sleep(0.2)


async def gets_in_windows(port: int, count: int, per_second: int, windows: list[tuple[float, float]]) -> int:
    """Ask in every second window; returns how many answers came.

    A hundred times a second some gets are made: in turn all at once, as by a server with many users, and each when the
    one before was answered.
    """
    served = 0
    async with AsyncQueryableStateClient("127.0.0.1", port) as client:
        for number in range(count):
            await asyncio.sleep(WINDOW)
            start = time.time()
            for tick in range(round(100 * WINDOW)):
                keys = [f"key-{(served + i) % 20_000:08d}" for i in range(per_second // 100)]
                if number % 2 == 0:
                    await asyncio.gather(*(client.get_kv_state("paced", "counts", key) for key in keys))
                else:
                    for key in keys:
                        await client.get_kv_state("paced", "counts", key)
                served += len(keys)
                await asyncio.sleep(max(0.0, start + (tick + 1) / 100 - time.time()))
            windows.append((start, time.time()))
    return served


def summary(results: list[dict[str, Any]], scans: list[float], visible: list[float], rows: int) -> dict[str, Any]:
    def median(side: str, name: str) -> float:
        return statistics.median(result[name] for result in results if result["side"] == side)

    names = ("per_second", "median_milliseconds", "p99_milliseconds", "keys_per_second")
    sides = {side: {name: round(median(side, name), 3) for name in names} for side in ("redis", "holdfast")}
    ours, theirs = sides["holdfast"], sides["redis"]
    return {
        "rows": rows,
        "redis": theirs,
        "holdfast": ours,
        "get_ratio": round(ours["per_second"] / theirs["per_second"], 3),
        "p99_ratio": round(ours["p99_milliseconds"] / theirs["p99_milliseconds"], 3),
        "many_ratio": round(ours["keys_per_second"] / theirs["keys_per_second"], 3),
        "scan_rows_per_second": round(statistics.median(scans)),
        "visible_milliseconds": round(statistics.median(visible), 1),
        "visible_p90_milliseconds": round(sorted(visible)[len(visible) * 9 // 10], 1),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Queries of committed state against Redis.")
    parser.add_argument("--keys", type=int, default=100_000, help="keys in both (default: %(default)s)")
    parser.add_argument("--scan-keys", type=int, default=1_000_000, help="rows of the scan (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=10, help="small epochs after the large one")
    parser.add_argument("--rounds", type=int, default=5, help="rounds in which the two take turns")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--impact-windows", type=int, default=20, help="in which a job on Spark is queried; 0: none")
    parser.add_argument("--only-impact", action="store_true", help="measure nothing else")
    parser.add_argument("--cache", type=Path, default=ROOT / ".bench", help="where redis-py is installed")
    parser.add_argument("--json", action="store_true", help="print JSON lines only")
    chosen = parser.parse_args(arguments)
    if chosen.only_impact:
        with tempfile.TemporaryDirectory(prefix="holdfast-query-") as directory:
            report_impact(measure_impact(Path(directory) / "paced", chosen.impact_windows, 1000), chosen.json)
        return 0
    redis = redis_module(chosen.cache.resolve())
    keys = [f"key-{number:08d}" for number in range(chosen.keys)]
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-query-")))
        job = written_job(root / "small", keys, chosen.epochs)
        ports = {
            "redis": stack.enter_context(redis_server(redis, keys)),
            "holdfast": stack.enter_context(state_server(root / "small")),
        }
        wait_for(ports["holdfast"])
        results = asyncio.run(contest(ports, keys, chosen.rounds, chosen.seconds))
        visible = measure_visibility(ports["holdfast"], job, keys, 30)
        scanned = [f"key-{number:08d}" for number in range(chosen.scan_keys)]
        written_job(root / "large", scanned, 3)
        port = stack.enter_context(state_server(root / "large"))
        wait_for(port)
        scans = measure_scan(port, len(scanned), chosen.rounds)
        report(summary(results, scans, visible, chosen.keys), results, chosen.json)
        if chosen.impact_windows:
            report_impact(measure_impact(root / "paced", chosen.impact_windows, 1000), chosen.json)
    return 0


def wait_for(port: int) -> None:
    """Until the server follows the job."""
    with QueryableStateClient("127.0.0.1", port) as client:
        while not client.jobs():
            time.sleep(0.05)


def report(found: dict[str, Any], results: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        for result in results:
            print(json.dumps({"measurement": "round", **result}))
        print(json.dumps({"measurement": "summary", **found}))
        return
    print(f"{'':<10} {'get/s':>10} {'median ms':>10} {'p99 ms':>8} {'get_many keys/s':>16}")
    for side in ("redis", "holdfast"):
        row = found[side]
        print(
            f"{side:<10} {row['per_second']:>10,.0f} {row['median_milliseconds']:>10.2f} "
            f"{row['p99_milliseconds']:>8.2f} {row['keys_per_second']:>16,.0f}"
        )
    print(f"{'ratio':<10} {found['get_ratio']:>10.2f} {'':>10} {found['p99_ratio']:>8.2f} {found['many_ratio']:>16.2f}")
    print(f"scan: {found['scan_rows_per_second']:,} rows/s")
    print(
        f"a completed checkpoint is visible after {found['visible_milliseconds']} ms at the median, "
        f"{found['visible_p90_milliseconds']} ms in nine of ten"
    )


def report_impact(impact: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"measurement": "impact", **impact}))
        return
    print(
        f"epochs of a job at half its rate take {100 * impact['epoch_rise']:.1f} % longer with "
        f"{impact['gets_per_second']} gets/s, and {100 * impact['epoch_rise_one_by_one']:.1f} % with gets one by one "
        f"({impact['windows']} paired windows)"
    )


if __name__ == "__main__":
    sys.exit(main())
