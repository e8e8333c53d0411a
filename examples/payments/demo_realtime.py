"""Payments in real time: alerts come within milliseconds, and a worker that is killed loses none.

What `make demo-realtime` runs. It starts a Kafka broker of its own, and `job.py --real-time`. Then it sends payments at
a rate, reads the alerts as they come, and kills one of Spark's Python workers with SIGKILL in the middle. It prints how
long alerts took from the moment when their payment was sent, and compares alerts and turnovers with `oracle.py`. Alerts
are written at least once, so some may come twice after the kill; the table is exactly once.

    python examples/payments/demo_realtime.py [--work DIR] [--payments N] [--rate N] [--broker HOST:PORT]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # the pieces of the demo lie beside it, and it is started by its path

import oracle  # noqa: E402
import traffic  # noqa: E402
from confluent_kafka import Consumer, Producer, TopicPartition  # noqa: E402
from demo import newest_everywhere, run_demo, start, written_turnovers  # noqa: E402

SETTINGS = {
    "spark.master": "local[16]",
    "parallelism.default": "1",
    "execution.checkpointing.interval": "1 s",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "5",
    "restart-strategy.fixed-delay.delay": "0 s",
}


class Alerts(threading.Thread):
    """Reads the alerts as they come, with the time when each was seen first.

    Attributes:
        found: How often each alert was read.
        seen: When each alert was read first, in seconds since 1970.
    """

    def __init__(self, broker: str) -> None:
        super().__init__(daemon=True)
        self.found: Counter[oracle.Alert] = Counter()
        self.seen: dict[oracle.Alert, float] = {}
        self._is_over = threading.Event()
        self._consumer = Consumer({"bootstrap.servers": broker, "group.id": "demo", "fetch.wait.max.ms": 5})
        self._consumer.assign([TopicPartition("alerts", n, 0) for n in range(traffic.TOPICS["alerts"])])

    def run(self) -> None:
        """Reads until it is told to end."""
        while not self._is_over.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                row = json.loads(message.value())
                alert = (row["payment"], row["card"], row["rule"], row["at"])
                self.seen.setdefault(alert, time.time())
                self.found[alert] += 1
        self._consumer.close()

    def end(self) -> None:
        """Returns when nothing is read any more."""
        self._is_over.set()
        self.join()


class Traffic(threading.Thread):
    """Sends payments at a rate.

    Attributes:
        sent: When each payment was sent, by its id, in seconds since 1970.
    """

    def __init__(self, broker: str, payments: list[dict[str, Any]], rate: int) -> None:
        super().__init__(daemon=True)
        self.sent: dict[int, float] = {}
        self._broker, self._payments, self._rate = broker, payments, rate

    def run(self) -> None:
        """Sends all payments."""
        producer = Producer(
            {"bootstrap.servers": self._broker, "linger.ms": 1, "enable.idempotence": True, "log_level": 3}
        )
        begun = time.monotonic()
        for number, (key, value) in enumerate(traffic.as_json(self._payments, "card")):
            while (ahead := number / self._rate - (time.monotonic() - begun)) > 0:
                producer.poll(min(ahead, 0.01))
            self.sent[self._payments[number]["id"]] = time.time()
            producer.produce("payments", value, key)
        producer.flush(60)


def busiest_worker(session: int) -> int:
    """Return the process id of the Python worker of Spark, in a session, that has used most processor time.

    Workers are children of a daemon of PySpark or of Holdfast. Others of its children plan sources, or have no task.
    """
    daemons, children = set(), []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            if b"spark.daemon\0pyspark.worker" in command and os.getsid(int(entry.name)) == session:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                children.append((int(fields[11]) + int(fields[12]), int(entry.name), int(fields[1])))
                daemons.add(int(entry.name))
        except OSError:  # it has just ended
            continue
    return max((used, process) for used, process, parent in children if parent in daemons)[1]


def latencies(seen: dict[oracle.Alert, float], sent: dict[int, float], begin: float, end: float) -> str:
    """Describe how long the alerts took whose payments were sent in a time."""
    took = sorted(at - sent[alert[0]] for alert, at in seen.items() if begin <= sent[alert[0]] < end)
    if not took:
        return "no alerts"
    p50, p99 = (1000 * took[min(int(len(took) * share), len(took) - 1)] for share in (0.5, 0.99))
    return f"{len(took):,} alerts, p50 {p50:.0f} ms, p99 {p99:.0f} ms"


def run(broker: str, work: Path, number: int, rate: int) -> int:
    """The demo, on a broker; returns the exit code."""
    table = work / "turnovers"
    arguments = ["--broker", broker, "--table", str(table), "--checkpoints", str(work / "checkpoints"), "--real-time"]
    options = [part for name, value in SETTINGS.items() for part in ("-D", f"{name}={value}")]
    rules = traffic.rules()
    # The first payments only show that the job runs; they are payments as all others.
    payments = list(traffic.payments(number, seed=1))
    first, rest = payments[: number // 20], payments[number // 20 :]
    expected = oracle.alerts(payments, rules)

    print(f"1. The job starts; {len(rules)} rules and {len(first):,} payments go into Kafka")
    traffic.make_topics(broker)
    traffic.send(broker, "rules", traffic.as_json(rules, "name"))
    job = start(options, arguments, work / "job.log")
    alerts = Alerts(broker)
    alerts.start()
    sender = Traffic(broker, rest, rate)
    try:
        # A rule holds for the payments that come after it.
        job.wait_until(lambda: any((work / "checkpoints").glob("*/chk-3")), "it had read the rules")
        traffic.send(broker, "payments", traffic.as_json(first, "card"))
        early = set(oracle.alerts(first, rules))
        job.wait_until(lambda: early <= alerts.found.keys(), "the first alerts came")

        print(f"2. {len(rest):,} payments, {rate:,} a second, while alerts are read")
        begun = time.time()
        sender.start()
        time.sleep(len(rest) / rate / 2)
        victim = busiest_worker(job.session)
        os.kill(victim, signal.SIGKILL)
        killed = time.time()
        print(f"3. In the middle, the Python worker {victim} was killed with SIGKILL")

        def seen_again() -> list[float]:
            return [at for alert, at in list(alerts.seen.items()) if sender.sent.get(alert[0], 0) > killed]

        job.wait_until(seen_again, "alerts came again")
        print(f"  the first alert of a later payment came after {min(seen_again()) - killed:.1f} s")
        sender.join()
        job.wait_until(lambda: expected.keys() <= alerts.found.keys(), "all alerts came")
        newest = newest_everywhere(broker)
        job.wait_until(
            lambda: not oracle.turnover_problems(written_turnovers(table), payments, newest),
            "all hours were there",
        )
    finally:
        job.kill()
        alerts.end()

    print("4. Everything against plain Python")
    sent = {payment["id"]: 0.0 for payment in first} | sender.sent
    print(f"  before the kill: {latencies(alerts.seen, sent, begun + 1, killed - 1)}")
    print(f"  around it:       {latencies(alerts.seen, sent, killed - 1, killed + 10)}")
    problems = oracle.differences("alert", Counter(set(alerts.found)), expected)
    problems += oracle.turnover_problems(written_turnovers(table), payments, newest)
    if problems:
        print("  " + "\n  ".join(["NOT EQUAL:", *problems[:10], f"{len(problems)} differences"]))
        return 1
    twice = sum(alerts.found.values()) - len(alerts.found)
    rows = sum(written_turnovers(table).values())
    print(f"  nothing was lost: {len(alerts.found):,} alerts ({twice} came again, as at least once allows), and")
    print(f"  {rows:,} rows of turnover, each once")
    return 0


def main() -> int:
    """Run the demo as the command line says."""
    parser = argparse.ArgumentParser(description="Payments in real time; a worker is killed, and nothing is lost.")
    parser.add_argument("--payments", type=int, default=10_000)
    parser.add_argument("--rate", type=int, default=200, help="payments a second (default: 200)")
    return run_demo(parser, ".demo-realtime", lambda broker, given: run(broker, given.work, given.payments, given.rate))


if __name__ == "__main__":
    sys.exit(main())
