"""Sinks whose committers hand the requests of an epoch on in parts, as those of programs that wrap a sink may do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.runtime.function.sink import CommitRequest, Committer, Sink


class InParts(Sink):
    """A sink that wraps another one, as programs do to count, log or gate."""

    def __init__(self, inner: Sink, hand_on: Callable[[Committer, Sequence[CommitRequest]], None]) -> None:
        self.inner, self.hand_on = inner, hand_on

    def __getattribute__(self, name: str) -> Any:
        own = ("inner", "hand_on", "create_committer", "__class__", "__dict__", "__reduce_ex__", "__getstate__")
        return super().__getattribute__(name) if name in own else getattr(super().__getattribute__("inner"), name)

    def __getstate__(self) -> dict[str, Any]:
        return {"inner": self.inner, "hand_on": None}

    def create_committer(self, context: Any) -> Committer:
        return PartCommitter(self.inner.create_committer(context), self.hand_on)

    def create_writer(self, context: Any) -> Any:
        raise NotImplementedError


class PartCommitter(Committer):
    def __init__(self, inner: Any, hand_on: Callable[[Committer, Sequence[CommitRequest]], None]) -> None:
        self.inner, self.hand_on = inner, hand_on

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        self.hand_on(self.inner, requests)

    def last_epoch(self, incarnation: str) -> int | None:
        return self.inner.last_epoch(incarnation)  # type: ignore[no-any-return]

    def close(self) -> None:
        self.inner.close()


def one_by_one(inner: Committer, requests: Sequence[CommitRequest]) -> None:
    for request in requests:
        inner.commit([request])
