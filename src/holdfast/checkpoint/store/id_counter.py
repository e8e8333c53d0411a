"""Ids of checkpoints: from 1, ascending, and none is ever used twice."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Final

from holdfast.storage.register.fenced_register import Lease, RegisterState


class CheckpointIDCounter(ABC):
    """Hands out the ids of checkpoints. Safe to use from several threads."""

    INITIAL_CHECKPOINT_ID: Final = 1

    @abstractmethod
    def start(self) -> None:
        """Make the counter ready."""

    @abstractmethod
    def shutdown(self, job_status: str) -> None:
        """End the use of the counter. Its value is kept: ids must stay unique even after the job has ended."""

    @abstractmethod
    def get_and_increment(self) -> int:
        """Return an id that nobody had before.

        Raises:
            FencedError: Another leader hands them out now.
            StorageError: It could not be made sure that nobody else gets it.
        """

    @abstractmethod
    def get(self) -> int:
        """Return the id that comes next."""

    @abstractmethod
    def set_count(self, new_id: int) -> None:
        """Let the next id be this one, if it is ahead; going back would use ids twice and is refused.

        Raises:
            ValueError: Ids from there on were handed out already.
        """

    def get_last(self) -> int:
        """Return the last id that was handed out, 0 if none was."""
        return self.get() - 1


class StandaloneCheckpointIDCounter(CheckpointIDCounter):
    """Counts in memory; for jobs that need not survive this process."""

    def __init__(self) -> None:
        self._next = self.INITIAL_CHECKPOINT_ID
        self._lock = threading.Lock()

    def start(self) -> None:
        """Nothing needs to be made ready."""

    def shutdown(self, job_status: str) -> None:
        """Nothing needs to be given up."""

    def get_and_increment(self) -> int:
        """Return the next id."""
        with self._lock:
            self._next += 1
            return self._next - 1

    def get(self) -> int:
        """Return the id that comes next."""
        return self._next

    def set_count(self, new_id: int) -> None:
        """Let the next id be this one."""
        with self._lock:
            if new_id < self._next:
                raise ValueError(f"Checkpoint ids from {new_id} on were handed out already; the next is {self._next}.")
            self._next = new_id


class RegisterCheckpointIDCounter(CheckpointIDCounter):
    """Reserves ids in blocks in the job's register.

    A block that a leader reserved and did not use up is lost, so gaps between ids are normal. Usually no write is made
    for a block: whoever writes the register anyway passes the new state through `reserve`.

    Args:
        lease: The right to write the register.
        block: How many ids are reserved at once.
    """

    def __init__(self, lease: Lease, block: int = 10) -> None:
        self._lease = lease
        self._block = block
        self._lock = threading.Lock()
        self._next = lease.state.next_checkpoint_id
        self._limit = self._next

    def start(self) -> None:
        """Nothing needs to be made ready: the register is."""

    def shutdown(self, job_status: str) -> None:
        """Nothing is given up: the register keeps what was reserved."""

    def get_and_increment(self) -> int:
        """Return the next id; writes the register if the block is used up."""
        with self._lock:
            if self._next >= self._limit:
                self._reserve_now(self._next)
            self._next += 1
            return self._next - 1

    def get(self) -> int:
        """Return the id that comes next."""
        return self._next

    def set_count(self, new_id: int) -> None:
        """Let the next id be this one, and reserve a block from there."""
        with self._lock:
            if new_id < self._next:
                raise ValueError(f"Checkpoint ids from {new_id} on were handed out already; the next is {self._next}.")
            if new_id + 1 > self._limit:
                self._reserve_now(new_id)
            self._next = new_id

    def reserve(self, state: RegisterState) -> RegisterState:
        """Return a state of the register in which ids for the near future are reserved.

        Call `reserved` once it was written.
        """
        if self._limit - self._next > self._block // 2:
            return state
        return replace(state, next_checkpoint_id=max(state.next_checkpoint_id, self._next + self._block))

    def reserved(self, state: RegisterState) -> None:
        """Take note of a state that was written; everything below its next id is this leader's."""
        with self._lock:
            self._limit = max(self._limit, state.next_checkpoint_id)

    def _reserve_now(self, first: int) -> None:
        state = self._lease.write(
            lambda old: replace(old, next_checkpoint_id=max(old.next_checkpoint_id, first + self._block))
        )
        self._limit = state.next_checkpoint_id
