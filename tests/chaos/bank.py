"""What the job is fed, and the auditor who reads its output: a bank that pays at random and forgets nothing."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.programs.chaos_job import BUCKETS, DISORDER, WIDTH

ROWS = 200
ACCOUNTS = 12


@dataclass(frozen=True)
class Books:
    """What the state of the job must be when it has taken so many payments.

    Attributes:
        seq: How many of them each account had.
        total: And what they come to.
        counts: How many are in each window that is still open, by bucket and end.
        sums: And what their numbers come to.
    """

    seq: dict[str, int]
    total: dict[str, int]
    counts: dict[tuple[int, int], int]
    sums: dict[tuple[int, int], int]


class Bank:
    """Feeds payments and rules as files, and knows what must come of them.

    Args:
        inputs: Where the job reads.
        seed: Decides about the payments.
    """

    def __init__(self, inputs: Path, seed: int) -> None:
        self.inputs = inputs
        """Where the job reads."""
        self._random = random.Random(seed)
        self._files = 0
        self.rules = 0
        self.expected: list[tuple[str, int, int]] = []
        """Account, number and total of each payment."""
        self._numbers: Counter[str] = Counter()
        self._totals: Counter[str] = Counter()
        self._books = 0, self._books_of(0)
        for name in ("payments", "rules", "scratch"):
            (inputs / name).mkdir(parents=True)
        self.add_rule()

    def pay(self, rows: int = ROWS) -> None:
        """Another file of payments."""
        first = len(self.expected)
        numbers = range(first, first + rows)
        accounts = [f"account-{self._random.randrange(ACCOUNTS)}" for _ in numbers]
        amounts = [self._random.randrange(1, 50) for _ in numbers]
        for account, amount in zip(accounts, amounts, strict=True):
            self._numbers[account] += 1
            self._totals[account] += amount
            self.expected.append((account, self._numbers[account], self._totals[account]))
        self._write("payments", {"payment": list(numbers), "account": accounts, "amount": amounts})

    def add_rule(self) -> None:
        """Another file with a rule."""
        self.rules += 1  # before anybody can read it
        self._write("rules", {"rule": [self.rules - 1]})

    def books(self, payments: int) -> Books:
        """What must be in the books after the first so many payments."""
        number, books = self._books
        if number != payments:
            books = self._books_of(payments)
            self._books = payments, books
        return books

    def _books_of(self, payments: int) -> Books:
        entries = self.expected[:payments]
        counts: Counter[tuple[int, int]] = Counter()
        sums: Counter[tuple[int, int]] = Counter()
        watermark = payments - 1 - DISORDER - 1
        for payment, (_, seq, _) in enumerate(entries):
            window = window_of(payment)
            if window[1] > watermark:
                counts[window] += 1
                sums[window] += seq
        seqs = {account: seq for account, seq, _ in entries}
        totals = {account: total for account, _, total in entries}
        return Books(seqs, totals, dict(counts), dict(sums))

    def _write(self, name: str, columns: dict[str, list[Any]]) -> None:
        self._files += 1
        new = self.inputs / "scratch" / "new.parquet"
        pq.write_table(pa.table(columns), new)
        os.utime(new, (1_000_000 + self._files, 1_000_000 + self._files))
        new.rename(self.inputs / name / f"{self._files:06d}.parquet")


class Auditor:
    """Reads each file of the output once, and keeps what it has seen: what was shown may not go or change.

    Args:
        bank: What the job is fed.
        outputs: Where the job writes.
    """

    def __init__(self, bank: Bank, outputs: Path) -> None:
        self._bank, self._outputs = bank, outputs
        self._read: dict[Path, int] = {}
        self.entries: dict[int, tuple[str, int, int]] = {}
        self._rules: dict[tuple[str, int], int] = {}
        self.shown = self.rules = 0
        """How many payments there must have been, and rules, for all that was shown."""
        self.windows: dict[tuple[int, int], tuple[int, int]] = {}

    def look(self) -> int:
        """Read what is new, and judge it; returns how many payments are shown.

        Raises:
            AssertionError: A row came twice, is wrong, or has gone.
        """
        for path in self._new("entries"):
            for payment, account, seq, total, rules in rows_of(path):
                assert payment not in self.entries, f"payment {payment} came twice, the second time in {path}"
                assert self._bank.expected[payment : payment + 1] == [(account, seq, total)], (
                    f"payment {payment} is wrong in {path}"
                )
                assert rules <= self._bank.rules, f"payment {payment} knows rules that there are not"
                self.entries[payment] = (account, seq, total)
                self._rules[account, seq] = rules
                self.shown, self.rules = max(self.shown, payment + 1), max(self.rules, rules)
        for path in self._new("windows"):
            for bucket, ends, count, total in rows_of(path):
                assert (bucket, ends) not in self.windows, f"window {ends} of {bucket} came twice: {path}"
                self.windows[bucket, ends] = (count, total)
        return len(self.entries)

    def judge(self) -> None:
        """Compare everything with what was fed, once the job has shown each payment.

        Raises:
            AssertionError: Something is missing or wrong.
        """
        self.look()
        assert self.entries == dict(enumerate(self._bank.expected))
        model: dict[tuple[int, int], list[int]] = {}
        for payment, (_, seq, _) in enumerate(self._bank.expected):
            window = model.setdefault(window_of(payment), [0, 0])
            window[0] += 1
            window[1] += seq
        for window, shown in self.windows.items():
            assert shown == tuple(model[window]), f"window {window} is {shown} instead of {model[window]}"
        passed = {window for window in model if window[1] < len(self._bank.expected) - DISORDER - ROWS}
        assert passed <= set(self.windows), f"windows that have ended are missing: {sorted(passed - set(self.windows))}"
        known: dict[str, int] = {}
        for (account, _), rules in sorted(self._rules.items()):
            assert rules >= known.get(account, 0), f"{account} forgot a rule"
            known[account] = rules

    def _new(self, name: str) -> Sequence[Path]:
        there = {path: path.stat().st_size for path in (self._outputs / name).glob("*.parquet")}
        mine = {path: size for path, size in self._read.items() if path.parent.name == name}
        assert all(there.get(path) == size for path, size in mine.items()), f"a file of {name} has gone or changed"
        new = sorted(set(there) - set(mine))
        self._read.update((path, there[path]) for path in new)
        return new


def window_of(payment: int) -> tuple[int, int]:
    """The bucket of a payment, and the end of the window in which it is."""
    return payment % BUCKETS, payment // WIDTH * WIDTH + WIDTH - 1


def rows_of(path: Path) -> list[tuple[Any, ...]]:
    """The rows of one file."""
    table = pq.read_table(path)
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def by_key(rows: Iterable[Mapping[str, Any]]) -> dict[Any, Any]:
    """The values of a state that was read as a table; those of a map by key and map key."""
    return {(row["key"], row["map_key"]) if "map_key" in row else row["key"]: row["value"] for row in rows}
