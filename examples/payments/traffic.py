"""Makes payments and rules, the same ones for the same seed, and sends them to Kafka.

python examples/payments/traffic.py --broker localhost:9092 [--payments 20000] [--seed 1]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

BEGIN = 1_793_491_200_000
"""Midnight of 2026-11-01, in milliseconds since 1970."""
DAY = 86_400_000
FOREVER = 2**62
TOPICS = {"payments": 4, "rules": 1, "alerts": 2, "unreadable": 1}
"""And how many partitions they have."""
SETTINGS = {
    # Alerts have the time of their payment, and Kafka forgets records that are a week old by their own time.
    "alerts": {"retention.ms": "-1"},
    # Of each rule the newest form is enough.
    "rules": {"cleanup.policy": "compact"},
}

RULES = (
    {"name": "big spender", "kind": "amount", "cents": 90_000, "payments": 0, "seconds": 3600},
    {"name": "busy card", "kind": "many", "cents": 0, "payments": 6, "seconds": 600},
    {"name": "two places", "kind": "travel", "cents": 0, "payments": 0, "seconds": 1800},
)
GARBAGE = (b"", b"no JSON", b'{"id": 1}', b'{"id": 1e400}', b'{"card": "\\ud800"}', b"\xff\xfe")


def rules() -> list[dict[str, Any]]:
    """What holds from the beginning."""
    return [{**rule, "since": 0, "until": FOREVER} for rule in RULES]


def change_of_rules(at: int) -> list[dict[str, Any]]:
    """From some time on the limit of big spenders is a lower one: the old rule ends, another one begins."""
    old = {**RULES[0], "since": 0, "until": at}
    return [old, {**RULES[0], "name": "spender", "cents": 60_000, "since": at, "until": FOREVER}]


def payments(number: int, seed: int) -> Iterator[dict[str, Any]]:
    """A day of payments in the order of their times; some cards are used as thieves use them."""
    chance = random.Random(seed)
    cards = max(50, number // 50)
    home = [chance.choice(("DE", "FR", "IT", "PL")) for _ in range(cards)]
    times = sorted(chance.sample(range(DAY), number))
    spree = 0
    for identity, time in enumerate(times):
        if not spree:
            card, spree = chance.randrange(cards), chance.choice((1,) * 150 + (8,))
        spree -= 1
        abroad = chance.random() < 0.01
        yield {
            "id": identity,
            "card": f"card-{card}",
            "merchant": f"merchant-{int(chance.paretovariate(1.2)) % 40}",
            "country": "US" if abroad else home[card],
            "cents": int(min(chance.lognormvariate(8, 1.2), 10**8)) + 1,
            "at": BEGIN + time,
        }


def make_topics(broker: str) -> None:
    """Makes the topics that are not there yet."""
    admin = AdminClient({"bootstrap.servers": broker})
    known = admin.list_topics(timeout=60).topics
    missing = [
        NewTopic(name, partitions, config=SETTINGS.get(name, {}))
        for name, partitions in TOPICS.items()
        if name not in known
    ]
    for made in (admin.create_topics(missing) if missing else {}).values():
        made.result(60)


def send(broker: str, topic: str, rows: Iterable[tuple[str | None, bytes]]) -> None:
    """Sends records with their keys, so that those of a key are in one partition, and waits until Kafka has them."""
    producer = Producer({"bootstrap.servers": broker, "linger.ms": 50, "enable.idempotence": True, "log_level": 3})
    for key, value in rows:
        while True:
            try:
                producer.produce(topic, value, key)
                break
            except BufferError:  # the producer holds 100,000 records
                producer.poll(0.1)
    if producer.flush(60):
        raise SystemExit(f"Kafka at {broker} did not take all records of {topic!r} within a minute.")


def as_json(rows: Iterable[dict[str, Any]], key: str) -> Iterator[tuple[str, bytes]]:
    """Keys and values of records."""
    return ((row[key], json.dumps(row).encode()) for row in rows)


def main() -> int:
    """Sends rules and a day of payments."""
    parser = argparse.ArgumentParser(description="Sends a day of payments to Kafka.")
    parser.add_argument("--broker", required=True, help="host:port of Kafka")
    parser.add_argument("--payments", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    make_topics(arguments.broker)
    send(arguments.broker, "rules", as_json(rules(), "name"))
    send(arguments.broker, "payments", as_json(payments(arguments.payments, arguments.seed), "card"))
    print(f"sent {len(RULES)} rules and {arguments.payments:,} payments")
    return 0


if __name__ == "__main__":
    sys.exit(main())
