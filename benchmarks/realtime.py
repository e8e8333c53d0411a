"""Latency of a count by key, in real time and of its peers: one run, one machine, two cores.

    python benchmarks/realtime.py [--input kafka|files|generator] [--engines a,b] [--rates 1000,10000,50000]
        [--seconds 30] [--warm-up 15] [--keys 50000] [--json]

A producer sends events at a rate. An engine reads key and creation time, reads and updates one value state for each
event, and writes key, count and creation time, at least once, with a checkpoint each second. A consumer records how old
each event is when it sees it. Every engine has the same program, two tasks for each stage, and a process of its own.
`--parallelism`, `--no-settings` and `--exactly-once` (into Kafka, read committed) are for Holdfast only. The engine
`holdfast-real-time-1` has one task for each stage. `floor` is Kafka's Python client and a dictionary in one thread:
nothing survives a failure.

- `kafka`: from a topic to a topic, of two partitions each. One broker serves the whole run.
- `files`: from files of JSON lines, one every 100 ms, to a sink in the engine. Holdfast and Flink look for new files
  every 2 ms.
- `generator`: events are made in the tasks of the engine, and seen by a sink in it. It needs no broker and is quick.

An engine that did not keep up with the rate has no latencies in the table, but says how far it was behind at the end.
The broker, the producer and the consumer run on the same two cores; "all" is what all processes of the machine used of
them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parents[1]
for folder in (ROOT, ROOT / "src"):
    if str(folder) not in sys.path:  # started by its path
        sys.path.insert(0, str(folder))

from benchmarks.engines import pyflink  # noqa: E402
from benchmarks.harness import realtime_outcome as outcomes  # noqa: E402
from benchmarks.harness.realtime_run import PARALLELISM, RealTimeRun  # noqa: E402
from benchmarks.harness.realtime_traffic import FILE_SECONDS  # noqa: E402
from benchmarks.harness.warm_process import end_session, processor_seconds  # noqa: E402
from scripts.jars import bring_all  # noqa: E402

MODULES: Final = {
    "holdfast-real-time": "holdfast",
    "holdfast-real-time-1": "holdfast",
    "holdfast-epochs": "holdfast",
    "spark-group-by": "spark",
    "spark-tws": "spark",
    "spark-real-time": "spark",
    "pyflink": "flink",
    "flink-sql": "flink",
    "floor": "floor",
}
ONLY_TOPICS: Final = ("spark-real-time", "floor")
"""Engines that read only topics."""
ENGINES: Final = {
    "kafka": tuple(MODULES),
    "files": tuple(name for name in MODULES if name not in ONLY_TOPICS),
    "generator": ("holdfast-real-time", "holdfast-real-time-1", "holdfast-epochs"),
}
LOCKS: Final = {module: ROOT / "benchmarks" / f"{module}-kafka-jars.lock" for module in ("spark", "flink")}
A_ROW_A_KEY: Final = ("spark-group-by",)
"""Engines that write a row a key and batch instead of a row an event."""

PUBLISHED_RATE: Final = 1_000
PUBLISHED: Final = (
    "| spark-real-time, as Spark has published it: 15 cores, another machine, `transformWithState` "
    "| 1,000 | | 104 | 141 | | | | |"
)
CORES: Final = 2
_PATIENCE: Final = 180.0
_LOOK: Final = 0.05
_DRAIN: Final = 15.0
_BROKER_OPTIONS: Final = ("-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:MaxInlineLevel=15")
"""Those of Kafka's own script."""
_SETTLED: Final = 1.0
_CLOSE: Final = 30.0
_LATE_MS: Final = 100.0


class Process:
    """A program in a session of its own.

    Args:
        arguments: The module to run, and what it gets.
        workspace: Where it runs, and where its log is.
        python: Its interpreter.
        stdin: What it reads; by default a pipe that `tell` writes to.
        has_output: Whether its standard output is a pipe, and not in the log.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        workspace: Path,
        python: str = sys.executable,
        stdin: Any = subprocess.PIPE,
        *,
        has_output: bool = False,
    ) -> None:
        self._log = workspace / f"{arguments[0].rpartition('.')[2]}.log"
        path = os.pathsep.join(filter(None, (str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [python, "-m", *arguments],
                stdin=stdin,
                stdout=subprocess.PIPE if has_output else log,
                stderr=log,
                cwd=workspace,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )
        self.output = self._process.stdout
        self.pid: Final = self._process.pid
        """Its number, which is that of its session."""

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()

    def processor_seconds(self) -> float:
        return processor_seconds(self.pid)

    def require_alive(self) -> None:
        """Check that it runs.

        Raises:
            EngineError: It has ended.
        """
        if self._process.poll() is not None:
            raise EngineError(self.last_line())

    def last_line(self) -> str:
        """Return the line of its log that says most about its end."""
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        named = [line for line in lines if "Error" in line or "Exception" in line]
        return (named or lines or ["it has ended without a word"])[-1][:300]

    def close(self) -> str:
        """End its input, wait until it has ended, and return its output. Kill what lives on, or has no input to end."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_CLOSE)
        end_session(self.pid)
        self._process.wait()
        output, self.output = self.output, None
        if output is None:
            return ""
        with output:
            return output.read().decode(errors="replace")


class EngineError(Exception):
    """An engine has not started, or has ended."""


@dataclass(frozen=True)
class Measurement:
    """A line of the table.

    Attributes:
        run: What was measured.
        outcome: What was seen.
        expected: How many events were created in this time.
        engine_share: What the engine used of the cores.
        machine_share: What all processes of the machine used of them.
        late_ms: By how many milliseconds the producer was late at most.
        messages: How many messages a second each stage sent to the next one at the end, for engines that count them.
    """

    run: RealTimeRun
    outcome: outcomes.Outcome
    expected: int
    engine_share: float
    machine_share: float
    late_ms: float
    messages: Sequence[float] = ()

    @property
    def missing(self) -> int:
        """How many events were not seen; 0 for an engine that writes a row a key."""
        return 0 if self.run.engine in A_ROW_A_KEY else max(0, self.expected - self.outcome.events)

    @property
    def kept_up(self) -> bool:
        # The borders of a second differ by an event or two between the producer and this program. Events of a file are
        # created when it is written, so a border may cut off those of a file, and of the time that it was late.
        late = self.run.rate * (FILE_SECONDS + self.late_ms / 1000) if self.run.input == "files" else 0
        return self.outcome.kept_up and self.missing <= max(2, self.expected // 1000, late)

    def to_json(self) -> str:
        names = ("p50_ms", "p99_ms", "p999_ms", "max_ms")
        quantiles = self.outcome.quantiles if self.kept_up else ()
        found = {
            "engine": self.run.engine,
            "input": self.run.input,
            "rate": self.run.rate,
            "kept_up": self.kept_up,
            "behind_s": round(self.outcome.behind, 2),
            "events": self.outcome.events,
            "missing": self.missing,
            **{name: round(value, 1) for name, value in zip(names, quantiles, strict=False)},
            "engine_of_two_cores": round(self.engine_share, 3),
            "all_of_two_cores": round(self.machine_share, 3),
            "producer_late_ms": self.late_ms,
            "messages_a_second": list(self.messages),
        }
        return json.dumps(found)

    def to_row(self) -> str:
        shares = f"{self.engine_share:.0%} | {self.machine_share:.0%}"
        begin = f"| {self.run.engine} | {self.run.rate:,} | {self.outcome.events:,}"
        if not self.kept_up:
            unseen = f", {self.missing:,} events not seen" if self.missing else ""
            behind = f"did not keep up: {self.outcome.behind:.1f} s behind at the end{unseen}"
            return f"{begin} | {behind} | | | | {shares} |"
        numbers = " | ".join(f"{number:.1f}" for number in self.outcome.quantiles)
        return f"{begin} | {numbers} | {shares} |"

    def remark(self) -> str | None:
        found = []
        if self.messages:
            found.append(f"messages a second between stages: {', '.join(f'{count:,.0f}' for count in self.messages)}")
        if self.late_ms > _LATE_MS:
            found.append(f"the producer was late by up to {self.late_ms:.0f} ms")
        return f"{self.run.engine}, {self.run.rate:,}: {'; '.join(found)}" if found else None


def measure(run: RealTimeRun, warm_up: float, seconds: float, python: str) -> Measurement:
    """Measure one engine at one rate.

    Args:
        run: The measurement; its directories exist.
        warm_up: Seconds at the rate before events count.
        seconds: For how long they count.
        python: The interpreter of the engine.

    Raises:
        EngineError: The engine writes nothing, or has ended.
    """
    workspace, latencies = Path(run.workspace), Path(run.latencies)
    prints = run.input == "files" and run.engine == "flink-sql"
    with contextlib.ExitStack() as stack:
        cores = sorted(os.sched_getaffinity(0))
        module = f"benchmarks.realtime_engines.{MODULES[run.engine]}"
        counts = MODULES[run.engine] == "holdfast"
        engine = Process([module, run.to_json()], workspace, python, has_output=prints or counts)
        stack.callback(engine.close)
        if run.has_topics or prints:
            arguments = ["benchmarks.harness.realtime_reader", run.to_json()]
            reader = Process(arguments, workspace, stdin=engine.output if prints else subprocess.PIPE)
            if prints:
                assert engine.output is not None
                engine.output.close()  # the reader has it
                engine.output = None
            stack.callback(reader.close)
        traffic = None
        if run.input != "generator":
            arguments = ["benchmarks.harness.realtime_traffic", run.to_json()]
            traffic = Process(arguments, workspace, has_output=True)
            stack.callback(traffic.close)
        wait_for_events(engine, traffic, latencies)
        if traffic is not None:
            traffic.tell("go")
        time.sleep(warm_up)
        engine.require_alive()
        if traffic is not None:
            traffic.tell("measure")
        begin, *used = time.time(), busy_seconds(cores), engine.processor_seconds()
        time.sleep(max(0.0, begin + seconds - time.time()))
        end, *used_then = time.time(), busy_seconds(cores), engine.processor_seconds()
        machine, own = ((then - now) / (end - begin) / len(cores) for now, then in zip(used, used_then, strict=True))
        engine.require_alive()
        messages = []
        if counts:
            assert engine.output is not None
            engine.tell("messages")
            messages = json.loads(engine.output.readline())
        late_ms = 0.0 if traffic is None else lateness(traffic)
        drain(latencies, end)
    expected = round(run.rate * (end - begin))
    outcome = outcomes.judge(outcomes.read_pairs(latencies), int(begin * 1e6), int(end * 1e6))
    return Measurement(run, outcome, expected, own, machine, late_ms, messages)


def lateness(traffic: Process) -> float:
    """End the producer, and return by how many milliseconds it was late at most.

    Raises:
        EngineError: It has not sent all of its events.
    """
    said = traffic.close()
    if not said:
        raise EngineError(f"the producer has not sent its events: {traffic.last_line()}")
    return float(json.loads(said)["late_ms"])


def wait_for_events(engine: Process, traffic: Process | None, latencies: Path) -> None:
    """Block until the first event was seen."""
    deadline = time.monotonic() + _PATIENCE
    while not outcomes.newest_created(latencies):
        engine.require_alive()
        if traffic is not None:
            traffic.require_alive()
        if time.monotonic() > deadline:
            raise EngineError(f"it has written nothing for {_PATIENCE:.0f} s: {engine.last_line()}")
        time.sleep(_LOOK)


def drain(latencies: Path, end: float) -> None:
    """Block until the last events were seen, or for some seconds."""
    deadline = time.time() + _DRAIN
    newest, since = 0, time.time()
    while time.time() < deadline:
        now = outcomes.newest_created(latencies)
        if now != newest:
            newest, since = now, time.time()
        elif newest > (end - _SETTLED) * 1e6 and time.time() - since > _SETTLED:
            return
        time.sleep(_LOOK)


def busy_seconds(cores: Sequence[int]) -> float:
    """Return the seconds of processor time that all processes have used of some cores since the machine started."""
    ticks = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            user, nice, system, _, _, interrupts, soft_interrupts, *_ = map(int, fields)
            ticks += user + nice + system + interrupts + soft_interrupts
    return ticks / os.sysconf("SC_CLK_TCK")


def make_topics(servers: str, *names: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": servers})
    for future in admin.create_topics([NewTopic(name, PARALLELISM) for name in names]).values():
        future.result(60)


def delete_topics(servers: str, *names: str) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": servers})
    for future in admin.delete_topics(list(names)).values():
        future.result(60)


def measure_in(place: Path, run: RealTimeRun, warm_up: float, seconds: float, cache: Path) -> Measurement:
    """Make what a measurement needs in an empty directory, and measure.

    Raises:
        EngineError: Jars of the engine cannot be downloaded, or it does not run.
    """
    folders = {name: place / name for name in ("workspace", "latencies", "files/in")}
    for folder in folders.values():
        folder.mkdir(parents=True)
    run = replace(run, workspace=str(folders["workspace"]), latencies=str(folders["latencies"]))
    module = MODULES[run.engine]
    python = pyflink.interpreter(cache) if module == "flink" else sys.executable
    if run.input == "files":
        return measure(replace(run, source=str(folders["files/in"])), warm_up, seconds, python)
    if run.input == "generator":
        return measure(run, warm_up, seconds, python)
    if module in LOCKS:
        jars = cache / f"{module}-kafka"
        problem = bring_all(LOCKS[module], jars)
        if problem:
            raise EngineError(problem)
        run = replace(run, jars=",".join(map(str, sorted(jars.glob("*.jar")))))
    topics = [f"{way}-{run.engine}-{run.rate}" for way in ("in", "out")]
    make_topics(run.servers, *topics)
    try:
        return measure(replace(run, source=topics[0], target=topics[1]), warm_up, seconds, python)
    finally:
        delete_topics(run.servers, *topics)


@contextlib.contextmanager
def servers_of(source: str, place: Path) -> Iterator[str]:
    """A broker, if events come from a topic; nothing otherwise."""
    if source != "kafka":
        yield ""
        return
    from holdfast.testing import KafkaServer

    with KafkaServer(place, jvm_options=_BROKER_OPTIONS) as kafka:
        yield kafka.bootstrap_servers


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", choices=tuple(ENGINES), default="kafka", help="where events come from")
    parser.add_argument("--engines", default="", help="names, separated by commas; by default all")
    parser.add_argument("--rates", default="1000,10000,50000", help="events a second (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="that are measured (default: %(default)s)")
    parser.add_argument("--warm-up", type=float, default=15.0, help="seconds at the rate (default: %(default)s)")
    parser.add_argument("--keys", type=int, default=50_000)
    parser.add_argument(
        "--spark-batch",
        default="5 seconds",
        help="between two checkpoints of Spark's real-time mode; less than the default is refused by Spark",
    )
    parser.add_argument("--checkpoints", default="1 s", help="between two checkpoints of other engines (%(default)s)")
    parser.add_argument("--parallelism", type=int, default=PARALLELISM, help="tasks of each stage (%(default)s)")
    parser.add_argument("--exactly-once", action="store_true", help="results are visible after the checkpoint")
    parser.add_argument("--no-settings", action="store_true", help="in a Spark session without those of real time")
    parser.add_argument("--cache", type=Path, default=ROOT / ".bench", help="jars, and the environment of PyFlink")
    parser.add_argument("--json", action="store_true", help="print JSON lines only")
    chosen = parser.parse_args(arguments)
    able = ENGINES[chosen.input]
    chosen.engines = [name.strip() for name in chosen.engines.split(",") if name.strip()] or list(able)
    unknown = [name for name in chosen.engines if name not in able]
    if unknown:
        parser.error(f"there is no engine {unknown[0]!r} for {chosen.input}: choose from {', '.join(able)}")
    peers = [name for name in chosen.engines if MODULES[name] != "holdfast"]
    if peers and (chosen.exactly_once or chosen.no_settings or chosen.parallelism != PARALLELISM):
        options = "--parallelism, --no-settings and --exactly-once"
        parser.error(f"{options} are for Holdfast only: remove {peers[0]} from --engines")
    if chosen.exactly_once and chosen.input != "kafka":
        parser.error("--exactly-once writes to Kafka: use --input kafka")
    chosen.rates = [int(rate) for rate in chosen.rates.split(",")]
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parse(arguments)
    cores = sorted(os.sched_getaffinity(0))[:CORES]
    os.sched_setaffinity(0, cores)  # of all processes that are started here
    cache = chosen.cache.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    if not chosen.json:
        print(f"load {os.getloadavg()[0]:.1f}, cores {', '.join(map(str, cores))}, input {chosen.input}\n")
        print("| engine | events/s | events | p50 ms | p99 ms | p99.9 ms | max ms | of two cores | all |")
        print("|---|---:|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    remarks = []
    with tempfile.TemporaryDirectory(prefix="realtime-", dir=cache) as folder:
        place = Path(folder)
        with servers_of(chosen.input, place / "kafka") as servers:
            for rate in chosen.rates:
                for name in chosen.engines:
                    run = RealTimeRun(
                        name,
                        chosen.input,
                        rate,
                        chosen.keys,
                        *("", "", "", ""),
                        servers,
                        batch=chosen.spark_batch,
                        checkpoints=chosen.checkpoints,
                        parallelism=1 if name == "holdfast-real-time-1" else chosen.parallelism,
                        is_exactly_once=chosen.exactly_once,
                        has_settings=not chosen.no_settings,
                    )
                    try:
                        found = measure_in(place / f"{name}-{rate}", run, chosen.warm_up, chosen.seconds, cache)
                    except EngineError as error:
                        report_failure(run, str(error), chosen.json)
                        continue
                    print(found.to_json() if chosen.json else found.to_row(), flush=True)
                    remarks.append(found.remark())
    if not chosen.json and any(remarks):
        print("\n".join(["", *filter(None, remarks)]))
    return 0


def report_failure(run: RealTimeRun, reason: str, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"engine": run.engine, "input": run.input, "rate": run.rate, "failed": reason}), flush=True)
        return
    print(f"| {run.engine} | {run.rate:,} | | failed: {reason.replace('|', '/')} | | | | | |", flush=True)
    if run.engine == "spark-real-time" and run.rate == PUBLISHED_RATE:
        print(PUBLISHED, flush=True)


if __name__ == "__main__":
    sys.exit(main())
