"""`SourceReaders`: the sources of one task of a real-time job."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import pyarrow as pa

from holdfast.errors import ConfigurationError, HoldfastError, StorageError
from holdfast.kernel.secret import get_logger
from holdfast.runtime.function.source import SourceReader, SourceSplit, SplitSource, plain_copy
from holdfast.runtime.graph.plan import SourcePlan
from holdfast.runtime.operator.operator_instance import user_error
from holdfast.storage.file_system import may_pass
from holdfast.types.arrow import elements_to_batch

logger = get_logger(__name__)

_NO_LISTS: Final = (str, bytes, bytearray, dict)
"""A reader that returns one meant it as an element."""


class SourceReaders:
    """Reads the splits that a task was assigned, of all sources. Used by one thread.

    Args:
        plans: The inputs of the job.
        sources: Their sources, by uid.
        task: Number of the task.
        at_once: Elements that a poll should return at most, until `limit` says otherwise.
        separated: Uids of the sources whose splits each have a watermark.

    Attributes:
        polled_split: The split of the elements that `poll` returned last, for a source whose splits are ordered each by
            itself; empty if they may be of several.
        paused: Uids of the sources that are not read now.
    """

    def __init__(
        self,
        plans: Sequence[SourcePlan],
        sources: Mapping[str, SplitSource],
        task: int,
        at_once: int = SourceReader.at_once,
        separated: Collection[str] = (),
    ) -> None:
        self._types = {plan.uid: plan.element_type for plan in plans}
        self._sources = sources
        self._task = task
        self._at_once = at_once
        self._separated = separated
        self._readers: dict[str, SourceReader] = {}
        self._finished: dict[str, dict[str, int]] = {}
        self._assigned: dict[str, set[str]] = {}
        self._uncounted: set[str] = set()
        self._turns: list[str] = []
        self._polled = 0
        self.polled_split = ""
        self.paused: Collection[str] = frozenset()

    def add(self, assigned: Mapping[str, Sequence[SourceSplit]]) -> None:
        """Read these splits too, by uid of their source."""
        for uid, splits in assigned.items():
            if uid not in self._readers:
                with self._named(uid, "creating its reader"):
                    self._readers[uid] = self._sources[uid].create_reader(self._task)
                self._readers[uid].at_once = self._at_once
                self._readers[uid].separates_splits = uid in self._separated
                self._turns.append(uid)
            self._assigned.setdefault(uid, set()).update(split.split_id for split in splits)
            with self._named(uid, "adding splits"):
                self._readers[uid].add_splits(splits)

    @contextmanager
    def _named(self, uid: str, doing: str) -> Iterator[None]:
        """Name the input in an exception of a reader of the program; those of Spark and clients have classes of errors.

        Raises:
            StorageError: The reader raised an error of the operating system, such as a lost connection.
            UserFunctionError: The reader raised another error.
        """
        try:
            yield
        except HoldfastError:
            raise
        except Exception as error:
            if type(self._sources[uid]).__module__.startswith("holdfast."):
                raise
            if may_pass(error):
                raise StorageError(
                    f"the reader of input {uid!r} failed while {doing}: {type(error).__name__}: {error}"
                ) from error
            failure = user_error(error, uid, None, None, doing)
            failure.is_final = False  # a server may answer otherwise next time
            raise failure from error

    def limit(self, at_once: int) -> None:
        """Set the number of elements that a poll should return at most."""
        self._at_once = at_once
        for reader in self._readers.values():
            reader.at_once = at_once

    @property
    def wait_seconds(self) -> float:
        """Seconds for which a poll may wait for elements. Elements of one source must not wait for those of another."""
        return min((reader.wait_seconds for reader in self._readers.values()), default=SourceReader.wait_seconds)

    @wait_seconds.setter
    def wait_seconds(self, seconds: float) -> None:
        for reader in self._readers.values():
            reader.wait_seconds = seconds if len(self._readers) == 1 else SourceReader.wait_seconds

    def seconds_to_next(self) -> float | None:
        """Return the seconds after which a poll may return elements; None if only a poll finds out."""
        known = []
        for uid, reader in self._readers.items():
            if uid not in self.paused and self.has_splits_of(uid):
                with self._named(uid, "saying when it has elements"):
                    known.append(reader.seconds_to_next)
        seconds = [one for one in known if one is not None]
        return min(seconds, default=math.inf) if len(seconds) == len(known) else None

    def poll(self) -> tuple[str, pa.RecordBatch] | None:
        """Return elements of a source, with its uid; None if there are none now. The sources have turns.

        Raises:
            ConfigurationError: A source returned something else than elements.
            OutputTypeError: A source returned elements that do not have its type.
        """
        for _ in self._turns:
            uid = self._turns.pop(0)
            self._turns.append(uid)
            self._polled += 1
            if uid not in self.paused:
                with self._named(uid, "reading"):
                    found = self._readers[uid].poll()
                    if found is None:
                        continue
                    if isinstance(found, _NO_LISTS) or not hasattr(found, "__getitem__"):
                        raise ConfigurationError(
                            f"the reader of input {uid!r} returned {found!r:.80}: its poll() must return a list of "
                            "elements, a batch, or None"
                        )
                    self.polled_split = self._readers[uid].polled_split
                if len(found):
                    if isinstance(found, pa.RecordBatch):
                        return uid, found
                    return uid, elements_to_batch(found, self._types[uid], uid)
        self._polled = 0
        return None

    def has_more(self) -> bool:
        """Return whether to poll again before waiting: elements of one source must not wait for those of another."""
        if 0 < self._polled < len(self._turns):
            return True
        self._polled = 0
        for uid, reader in self._readers.items():
            with self._named(uid, "saying whether it has elements"):
                if uid not in self.paused and reader.has_fetched:
                    return True
        return False

    def snapshot(self, barrier: int) -> dict[str, dict[str, Any]]:
        """Return the state of each split behind the last polled element, by uid and id.

        A split that was read to its end is reported with the state None at each barrier, until one is accepted: the
        first one may be aborted. The states are copies: a reader may go on with its own before they are sent.

        Raises:
            ConfigurationError: A reader has states that are no JSON, or of splits that it was not assigned.
        """
        result: dict[str, dict[str, Any]] = {}
        for uid, reader in self._readers.items():
            with self._named(uid, "returning the states of its splits"):
                states = dict(reader.snapshot())
            states = plain_copy(states, f"the reader of input {uid!r} returned states of its splits")
            unknown = sorted(states.keys() - self._assigned[uid])
            if unknown:
                raise ConfigurationError(
                    f"the reader of input {uid!r} returned the state of the split {unknown[0]!r}, which it was not "
                    "assigned: return those of the splits that `add_splits` got, under their ids"
                )
            finished = self._finished.setdefault(uid, {})
            for split_id, state in states.items():
                if state is None:
                    finished[split_id] = barrier
            result[uid] = {**states, **dict.fromkeys(finished)}
        return result

    def barrier_accepted(self, barrier: int) -> None:
        """Forget the splits whose end the coordinator knows by this barrier."""
        for uid, finished in self._finished.items():
            self._finished[uid] = {split_id: at for split_id, at in finished.items() if at > barrier}

    def pending(self, uid: str) -> int | None:
        """Return the unread records of a source; None if it counts none, or does not say how many."""
        reader = self._readers.get(uid)
        if reader is None or uid in self._uncounted:
            return None
        try:
            number = reader.pending_records
            return None if number is None else int(number)
        except Exception as error:  # noqa: BLE001 - it is code of a program, and for metrics only: the task goes on
            self._uncounted.add(uid)
            logger.warning("the reader of input %r does not say what is pending: %r", uid, error)
            return None

    def ended_splits(self, uid: str) -> Collection[str]:
        """Return the splits of a source from which no element follows; see `SourceReader.ended_splits`."""
        reader = self._readers.get(uid)
        with self._named(uid, "returning the splits that have ended"):
            return () if reader is None else reader.ended_splits

    def has_splits_of(self, uid: str) -> bool:
        """Return whether a split of a source is not read to its end."""
        reader = self._readers.get(uid)
        with self._named(uid, "saying whether it has splits"):
            return reader is not None and reader.has_splits

    @property
    def has_splits(self) -> bool:
        """Whether a split is not read to its end."""
        return any(map(self.has_splits_of, self._readers))

    def close(self) -> None:
        """Close all readers. Never raises."""
        for reader in self._readers.values():
            with suppress(Exception):
                reader.close()
