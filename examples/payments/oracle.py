"""Says what the job must have written: plain Python over all payments at once, which shares no code with the job."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

HOUR = 3_600_000
DELAY = 600_000
"""How late a payment may be; an hour is over when the newest payment is this much younger than its end."""

Alert = tuple[int, str, str, int]
Turnover = tuple[str, int, int, int]


def alerts(payments: Iterable[dict[str, Any]], rules: Iterable[dict[str, Any]]) -> Counter[Alert]:
    """Payment, card, rule and time of each alert."""
    by_card: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for payment in sorted(payments, key=lambda payment: (payment["at"], payment["id"])):
        by_card[payment["card"]].append(payment)
    latest = {rule["name"]: rule for rule in rules}
    found: Counter[Alert] = Counter()
    for card, history in by_card.items():
        for position, payment in enumerate(history):
            for name, rule in latest.items():
                if rule["since"] <= payment["at"] < rule["until"] and _breaks(rule, history[: position + 1]):
                    found[payment["id"], card, name, payment["at"]] += 1
    return found


def _breaks(rule: dict[str, Any], history: list[dict[str, Any]]) -> bool:
    *before, last = history
    within = [payment for payment in history if last["at"] - payment["at"] < rule["seconds"] * 1000]
    if rule["kind"] == "many":
        return len(within) > rule["payments"]
    if rule["kind"] == "amount":
        return sum(payment["cents"] for payment in within) > rule["cents"]
    return bool(before) and before[-1] in within and before[-1]["country"] != last["country"]


def turnovers(payments: Iterable[dict[str, Any]]) -> Counter[Turnover]:
    """Merchant, hour, payments and cents, of all hours."""
    groups: dict[tuple[str, int], list[int]] = defaultdict(list)
    for payment in payments:
        groups[payment["merchant"], payment["at"] // HOUR * HOUR].append(payment["cents"])
    return Counter((merchant, hour, len(cents), sum(cents)) for (merchant, hour), cents in groups.items())


def turnover_problems(found: Counter[Turnover], payments: Iterable[dict[str, Any]], newest: int) -> list[str]:
    """What is wrong with a table of turnovers.

    Args:
        found: Its rows.
        payments: All payments.
        newest: The time that all partitions of the topic have reached: hours that are over by then must be there. A
            later hour may be there, if it has all of its payments.
    """
    hours = turnovers(payments)
    expected = Counter(row for row in hours if row in found or row[1] + HOUR <= newest - DELAY)
    return differences("turnover", found, expected)


def histories(payments: Iterable[dict[str, Any]], card: str) -> dict[int, int]:
    """Of a card, the sum of its cents after each number of payments."""
    sums = {0: 0}
    for payment in payments:
        if payment["card"] == card:
            sums[len(sums)] = sums[len(sums) - 1] + payment["cents"]
    return sums


def differences(what: str, found: Counter[Any], expected: Counter[Any]) -> list[str]:
    """Every row that is missing, is there too often, or should not be there, as sentences."""
    return [f"{what}: {row} is there {found[row]} times instead of {expected[row]}"
            for row in sorted(found.keys() | expected.keys()) if found[row] != expected[row]]  # fmt: skip
