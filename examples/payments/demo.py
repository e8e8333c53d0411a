"""A day of payments through Kafka, a job that is killed in the middle, and every alert exactly once.

What `make demo-kafka` runs. It starts a Kafka broker of its own (or takes the one of `--broker`), sends rules and half
of the day, starts `job.py`, and kills its whole process group with SIGKILL in the middle. While the job is down, a rule
changes and customers go on paying. The same command again: it goes on. Then alerts, table and unreadable records are
compared with `oracle.py`, row by row.

    python examples/payments/demo.py [--work DIR] [--payments N] [--broker HOST:PORT]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # the pieces of the demo lie beside it, and it is started by its path

import dashboard  # noqa: E402
import oracle  # noqa: E402
import traffic  # noqa: E402
from confluent_kafka import Consumer, KafkaError, TopicPartition  # noqa: E402
from deltalake import DeltaTable  # noqa: E402

from holdfast.cli.demo_job import DemoJob  # noqa: E402
from holdfast.queryable import QueryableStateClient  # noqa: E402
from holdfast.queryable.wire.errors import QueryError  # noqa: E402
from holdfast.testing import KafkaServer  # noqa: E402
from holdfast.testing.server.kafka import kafka_jars  # noqa: E402

EPOCHS = 8


def start(options: list[str], arguments: list[str], log: Path) -> DemoJob:
    """Start `job.py` with options of `holdfast run` and arguments of its own."""
    holdfast = str(Path(sys.executable).with_name("holdfast"))
    return DemoJob([holdfast, "run", *options, str(HERE / "job.py"), "--", *arguments], log)


class Watch(threading.Thread):
    """Asks the job for one card after each checkpoint, as a dashboard does, whether the job is there or not."""

    def __init__(self, port: int, card: str) -> None:
        super().__init__(daemon=True)
        self.answers: dict[int, Any] = {}
        self._port = port
        self._card = card
        self._is_over = threading.Event()

    def run(self) -> None:
        """Asks until it is told to end."""
        while not self._is_over.wait(0.2):
            with contextlib.suppress(QueryError), QueryableStateClient("127.0.0.1", self._port) as client:
                while not self._is_over.wait(0.2):
                    result = client.get_kv_state(dashboard.JOB, dashboard.STATE, self._card)
                    self.answers[result.checkpoint_id] = result.value

    def end(self) -> None:
        """Returns when nothing is asked any more."""
        self._is_over.set()
        self.join()

    def problems(self, sums: dict[int, int]) -> list[str]:
        """Answers that are no history of the card, or go back."""
        found, before = [], 0
        for checkpoint, card in sorted(self.answers.items()):
            payments, cents = (card["payments"], card["cents"]) if card else (0, 0)
            if sums.get(payments) != cents or payments < before:
                found.append(f"checkpoint {checkpoint} says of {self._card}: {card}")
            before = payments
        return found


def records(broker: str, topic: str) -> Iterator[Any]:
    """What a reader of committed records sees now."""
    settings = {"group.id": "demo", "enable.auto.commit": False, "auto.offset.reset": "error"}
    settings |= {"isolation.level": "read_committed", "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": broker, **settings})
    try:
        left = set(range(traffic.TOPICS[topic]))
        consumer.assign([TopicPartition(topic, partition, 0) for partition in left])
        while left:
            message = consumer.poll(30)
            if message is None:
                raise SystemExit(f"Kafka at {broker} does not answer.")
            if message.error() is None:
                yield message
            elif message.error().code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition())
            else:
                raise SystemExit(f"Kafka: {message.error()}")
    finally:
        consumer.close()


def written_alerts(broker: str) -> Counter[oracle.Alert]:
    """The alerts in Kafka."""
    rows = (json.loads(message.value()) for message in records(broker, "alerts"))
    return Counter((row["payment"], row["card"], row["rule"], row["at"]) for row in rows)


def written_turnovers(table: Path) -> Counter[oracle.Turnover]:
    """The rows of the Delta table."""
    rows = DeltaTable(table).to_pyarrow_table().to_pylist()
    return Counter(
        (row["merchant"], int(row["hour"].timestamp() * 1000), row["payments"], row["cents"]) for row in rows
    )


def newest_everywhere(broker: str) -> int:
    """The time of payments that each partition has reached; what was sent first to one came before what follows."""
    newest = dict.fromkeys(range(traffic.TOPICS["payments"]), 0)
    for message in records(broker, "payments"):
        if message.key():
            newest[message.partition()] = json.loads(message.value())["at"]
    return min(newest.values())


def run(broker: str, work: Path, number: int, port: int) -> int:
    """The demo, on a broker; returns the exit code."""
    table = work / "turnovers"
    arguments = ["--broker", broker, "--table", str(table), "--checkpoints", str(work / "checkpoints")]
    arguments += ["--rows-per-epoch", str(-(-number // EPOCHS)), "--query-port", str(port)]
    payments = list(traffic.payments(number, seed=1))
    morning, evening = payments[: number // 2], payments[number // 2 :]
    rules, change = traffic.rules(), traffic.change_of_rules(evening[0]["at"])
    expected = oracle.alerts(payments, rules + change)
    [(card, _)] = Counter(card for _, card, _, _ in expected).most_common(1)

    print(f"1. {len(rules)} rules and {len(morning):,} payments go into Kafka, and a few records that are none")
    traffic.make_topics(broker)
    traffic.send(broker, "rules", traffic.as_json(rules, "name"))
    traffic.send(broker, "payments", traffic.as_json(morning, "card"))
    traffic.send(broker, "payments", ((None, value) for value in traffic.GARBAGE))

    print("2. The job runs, until it is killed in the middle")
    watch = Watch(port, card)
    watch.start()
    cards: list[dict[str, Any]] = []
    try:
        with start([], arguments, work / "job-1.log") as job:
            enough = sum(oracle.alerts(morning, rules).values()) // 2
            job.wait_until(lambda: written_alerts(broker).total() >= enough, "half of the alerts were there")
            job.kill()
            print(f"  {written_alerts(broker).total()} alerts are there; its process group was killed with SIGKILL")

        print(f"3. While it is down a rule changes, and {len(evening):,} more payments come")
        traffic.send(broker, "rules", traffic.as_json(change, "name"))
        traffic.send(broker, "payments", traffic.as_json(evening, "card"))

        print("4. The same program again: it goes on until it has read all that is there")
        with start(["-D", "execution.trigger=available-now"], arguments, work / "job-2.log") as job:
            while job.exit_code is None:
                with contextlib.suppress(QueryError):
                    cards = dashboard.worst_cards(port)
                time.sleep(0.5)
            job.require_success()
    finally:
        watch.end()
    print("  its dashboard, shortly before the end:\n")
    print("    " + dashboard.page(cards, dashboard.best_merchants(table)).replace("\n", "\n    ") + "\n")

    print("5. Everything against plain Python")
    unreadable = Counter(message.value() or b"" for message in records(broker, "unreadable"))
    problems = oracle.differences("alert", written_alerts(broker), expected)
    turnovers = written_turnovers(table)
    problems += oracle.turnover_problems(turnovers, payments, newest_everywhere(broker))
    problems += oracle.differences("unreadable", unreadable, Counter(traffic.GARBAGE))
    problems += watch.problems(oracle.histories(payments, card))
    if problems:
        print("  " + "\n  ".join(["NOT EQUAL:", *problems[:10], f"{len(problems)} differences"]))
        return 1
    rows = sum(turnovers.values())
    print(f"  equal: {sum(expected.values()):,} alerts, {rows:,} rows of turnover, {len(traffic.GARBAGE)} unreadable")
    print(f"  records, and all {len(watch.answers)} answers about {card} are its history")
    return 0


def run_demo(parser: argparse.ArgumentParser, work: str, run: Callable[[str, argparse.Namespace], int]) -> int:
    """Run a demo as the command line says, on a broker of its own if the command line names none.

    Args:
        parser: The arguments of the demo; `--work` and `--broker` are added.
        work: The name of the directory of its files, unless the command line names one.
        run: Runs the demo on a broker, and returns the exit code.
    """
    parser.add_argument("--work", type=Path, default=HERE.parent.parent / work, help="where everything is written")
    parser.add_argument("--broker", help="host:port of a Kafka without the topics of the demo (default: its own)")
    arguments = parser.parse_args()
    if not arguments.broker and kafka_jars() is None:
        raise SystemExit("there are no jars of a Kafka broker: run scripts/jars.py kafka, or name one by --broker")
    started = time.monotonic()
    arguments.work = arguments.work.resolve()
    shutil.rmtree(arguments.work, ignore_errors=True)
    arguments.work.mkdir(parents=True)
    if arguments.broker:
        code = run(arguments.broker, arguments)
    else:
        with KafkaServer(arguments.work / "kafka") as server:
            code = run(server.bootstrap_servers, arguments)
    print(f"{'Done' if code == 0 else 'FAILED'} in {time.monotonic() - started:.0f} s.")
    return code


def main() -> int:
    """Run the demo as the command line says."""
    parser = argparse.ArgumentParser(description="Payments through Kafka, a SIGKILL in the middle, nothing lost.")
    parser.add_argument("--payments", type=int, default=20_000)
    parser.add_argument("--query-port", type=int, default=9069)
    return run_demo(
        parser, ".demo-kafka", lambda broker, given: run(broker, given.work, given.payments, given.query_port)
    )


if __name__ == "__main__":
    sys.exit(main())
