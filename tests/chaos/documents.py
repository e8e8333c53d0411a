"""The auditor of checkpoints: what the register names is whole, and never goes back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from holdfast.cli.job_directories import checkpoint_at
from holdfast.state_processor.read.state_summary import summaries
from tests.chaos.bank import Bank


class DocumentAuditor:
    """Reads the newest completed checkpoint with the means of the command, while the job has nothing to do.

    Args:
        bank: What the job is fed.
        directory: Where the checkpoints are.
        options: Where the register is.
    """

    def __init__(self, bank: Bank, directory: Path, options: Mapping[str, str]) -> None:
        self._bank, self._directory = bank, directory
        self._properties = tuple(f"{key}={value}" for key, value in options.items())
        self._newest = (0, 0, 0)

    def look(self) -> None:
        """Read all of it, and judge it.

        Raises:
            AssertionError: It is older than one before, or does not hold what it should.
            HoldfastError: A file that it names is gone or damaged.
        """
        checkpoint = checkpoint_at(str(self._directory), self._properties)
        metadata = checkpoint.metadata
        newest = (metadata.token, metadata.checkpoint_id, metadata.epoch)
        assert all(now >= before for now, before in zip(newest, self._newest, strict=True)), (
            f"token, checkpoint and epoch went from {self._newest} to {newest}"
        )
        self._newest = newest
        rows = {(state.uid, state.state): state.rows for state in summaries(checkpoint)}
        accounts = {account for account, _, _ in self._bank.expected.values()}
        assert rows["ledger", "seq"] == rows["ledger", "total"] == len(accounts), f"of accounts there are {rows}"
