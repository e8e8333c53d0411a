"""The barrier: what a task says about itself when it has read its input and written its run.

Every task of the next stage gets a marker of it (`marker`), and one of them the whole of it, so that what is
acknowledged is exactly what was used: a task has a digest of the attempts whose markers it read, and the job master
accepts an epoch only if all tasks of a stage have read each task above once, in the attempt whose report has come.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from holdfast.errors import CorruptFileError, InconsistentEpochError
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.runtime.exchange.owned_file import read_owned, write_owned
from holdfast.runtime.graph.event_time import merge_observed
from holdfast.storage.job_directory import FileName, JobDirectory

# The marker: what each task of the next stage gets of a task; its length does not depend on how many tasks there are.
#
# A marker says who has written the rows before it: stage, partition and attempt, and the event time that the task
# knows. What the task *did* (its content, see `barrier_row`) follows the marker in one row only, in that of its
# carrier, and the carrier nests it unread in its own content. So each content reaches the driver once, and a task says
# which attempts it has read by a digest of 128 bits: the driver has the contents, makes the same digest of them, and
# compares.
#
#     marker     = head, then for each clock of the job whether a timestamp was observed, then the timestamps
#     head       = "m" (1 byte), 0 (1 byte), stage (2), partition (4), attempt (16): 24 bytes, big endian
#     digest     = BLAKE2b, 16 bytes, of the sorted heads; a head that came twice is in it twice
#     carrier    = the task whose partition is that of the sender, modulo the number of tasks

_HEAD: Final = struct.Struct(">cxHI16s")
_KIND: Final = b"m"
_LONGEST_ATTEMPT: Final = 16

NOTHING_READ: Final = ""
"""The digest of a task that has read no markers: it begins an epoch job."""


def marker_head(stage: int, partition: int, attempt: str) -> bytes:
    """Who wrote the rows before a marker.

    Raises:
        ValueError or struct.error: These are not what a task can be called.
    """
    name = attempt.encode("ascii")
    if not 0 < len(name) <= _LONGEST_ATTEMPT or b"\0" in name:
        raise ValueError(f"an attempt has 1 to {_LONGEST_ATTEMPT} letters, not {attempt!r:.80}")
    return _HEAD.pack(_KIND, stage, partition, name)


def digest_of(heads: Iterable[bytes]) -> str:
    """What stands for having read just these markers, each as often as it is there; in any order."""
    found = sorted(heads)
    return hashlib.blake2b(b"".join(found), digest_size=16).hexdigest() if found else NOTHING_READ


class MarkerFormat:
    """Markers of one job.

    Args:
        clocks: The steps that assign timestamps.
    """

    def __init__(self, clocks: Iterable[str]) -> None:
        self.clocks = tuple(sorted(clocks))
        times = len(self.clocks)
        self._type = np.dtype([("head", f"V{_HEAD.size}"), ("known", "u1", (times,)), ("observed", ">i8", (times,))])

    @property
    def length(self) -> int:
        """Of each marker, in bytes."""
        return self._type.itemsize

    def marker(self, own_head: bytes, observed: Mapping[str, int]) -> bytes:
        """The marker of a task that knows these greatest timestamps by clock."""
        known = bytes(clock in observed for clock in self.clocks)
        return own_head + known + struct.pack(f">{len(known)}q", *(observed.get(clock, 0) for clock in self.clocks))

    def rows(self, marker: bytes, content: bytes, partition: int, tasks: int) -> list[bytes]:
        """The control row for each task of the next stage; its carrier's has the content."""
        rows = [marker] * tasks
        rows[partition % tasks] = marker + content
        return rows

    def observed(self, markers: Sequence[bytes]) -> dict[str, int]:
        """The greatest timestamp by clock, of those that any of the markers knows."""
        if not self.clocks or not markers:
            return {}
        records = np.frombuffer(b"".join(markers), self._type)
        known = records["known"] != 0
        times = np.where(known, records["observed"], np.iinfo(np.int64).min).max(axis=0)
        return {clock: int(times[at]) for at, clock in enumerate(self.clocks) if known[:, at].any()}


class MarkerReader:
    """Collects the control rows that arrive in one task's input.

    Args:
        form: The markers of the job.
    """

    def __init__(self, form: MarkerFormat) -> None:
        self._form = form
        self._markers: list[bytes] = []
        self._contents: list[tuple[bytes, bytes]] = []

    def take(self, row: bytes) -> None:
        """Takes one row. One that comes twice counts twice: then the rows before it have come twice as well.

        Raises:
            ValueError: It is no marker of this job.
        """
        length = self._form.length
        if len(row) < length or not row.startswith(_KIND):
            raise ValueError(f"a control row of {len(row)} bytes is no marker: {row[:32]!r}")
        marker = row[:length]
        self._markers.append(marker)
        if len(row) > length:
            self._contents.append((marker[: _HEAD.size], row[length:]))

    def heads(self) -> list[bytes]:
        """Who wrote what was read, sorted."""
        return sorted(marker[: _HEAD.size] for marker in self._markers)

    def digest(self) -> str:
        """What stands for all that was read."""
        return digest_of(self.heads())

    def observed(self) -> dict[str, int]:
        """The greatest timestamp by clock that the tasks above have assigned or read of."""
        return self._form.observed(self._markers)

    def contents(self) -> tuple[bytes, ...]:
        """What came to this task as the carrier, as it came, by sender."""
        return tuple(content for _, content in sorted(self._contents))

    def listed(self) -> tuple[tuple[int, str], ...]:
        """Partition and attempt of all that was read, to tell people."""
        parts = (_HEAD.unpack(one) for one in self.heads())
        return tuple((partition, name.rstrip(b"\0").decode("ascii", "replace")) for _, _, partition, name in parts)


_TOLD: Final = 5
"""How many tasks an error names."""


@dataclass(frozen=True)
class StepReport:
    """What one step of a task did in the epoch.

    Attributes:
        uid: The step.
        subtask: Index of the subtask.
        run: The new run's handle as JSON; None if no state changed.
        committables: What the sink staged, JSON values.
        records_in: Elements read.
        records_out: Elements emitted.
        least_timer: Time of the least processing-time timer in milliseconds, None if there is none.
        operator_state: The subtask's operator state as JSON; None if it has not changed.
        queryable: The names under which its states can be queried.
        staged: Names of the files that it staged for a later epoch job of the epoch.
        observed: The greatest timestamp that it assigned, None if there was none.
        saving: How many milliseconds its function took to save its state, and the subtask to write it.
        metrics: What the function has counted itself; see `holdfast.runtime.function.metric`.
        busy: How many microseconds the subtask has worked, handing on what it emitted included.
        arrived: Rows and bytes that came to it in columns, by the edge or the source that they came from.
        warm: 1 if its state was in the worker's memory, 0 if it was not, None where none is kept there.
        generator: What its watermark generator holds, pickled, in base 64; None if there is none, or no change.
    """

    uid: str
    subtask: int
    run: dict[str, Any] | None = None
    committables: tuple[Any, ...] = ()
    records_in: int = 0
    records_out: int = 0
    least_timer: int | None = None
    operator_state: dict[str, Any] | None = None
    queryable: tuple[str, ...] = ()
    staged: tuple[str, ...] = ()
    observed: int | None = None
    saving: tuple[int, int] = (0, 0)
    metrics: dict[str, list[Any]] = field(default_factory=dict)
    busy: int = 0
    arrived: dict[str, tuple[int, int]] = field(default_factory=dict)
    warm: int | None = None
    generator: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "uid": self.uid,
            "subtask": self.subtask,
            "run": self.run,
            "committables": list(self.committables),
            "in": self.records_in,
            "out": self.records_out,
            "least_timer": self.least_timer,
            "operator_state": self.operator_state,
            "queryable": list(self.queryable),
            "staged": list(self.staged),
            "observed": self.observed,
            "saving": list(self.saving),
            **({"metrics": self.metrics} if self.metrics else {}),
            **({"busy": self.busy} if self.busy else {}),
            **({"arrived": {name: list(numbers) for name, numbers in self.arrived.items()}} if self.arrived else {}),
            **({} if self.warm is None else {"warm": self.warm}),
            **({} if self.generator is None else {"generator": self.generator}),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> StepReport:
        _require(value, uid=str, subtask=int, committables=list, queryable=list, staged=list, saving=list)
        _require(value, **{"in": int, "out": int})
        return cls(
            value["uid"],
            value["subtask"],
            value["run"],
            tuple(value["committables"]),
            value["in"],
            value["out"],
            value["least_timer"],
            value["operator_state"],
            tuple(value["queryable"]),
            tuple(value["staged"]),
            value["observed"],
            (value["saving"][0], value["saving"][1]),
            _metrics(value.get("metrics", {})),
            _number("busy", value.get("busy", 0)),
            _arrived(value.get("arrived", {})),
            _number("warm", value["warm"]) if "warm" in value else None,
            _generator(value.get("generator")),
        )


@dataclass(frozen=True)
class Barrier:
    """One task's acknowledgement of one epoch.

    Attributes:
        read: Digest of the markers that it has read, `NOTHING_READ` for none.
        upstream: The barriers of the stage above that it carries to the driver.
        observed: The greatest timestamp by clock that this task, and those that it has read of, assigned.
        listed: Partition and attempt of what it has read, where an epoch is run again and people may want to know.
    """

    stage: int
    partition: int
    attempt: str
    steps: tuple[StepReport, ...] = ()
    read: str = NOTHING_READ
    upstream: tuple[Barrier, ...] = ()
    observed: Mapping[str, int] = field(default_factory=dict)
    listed: tuple[tuple[int, str], ...] = ()

    @property
    def head(self) -> bytes:
        """What the markers of this task begin with."""
        return marker_head(self.stage, self.partition, self.attempt)

    def to_json(self) -> dict[str, Any]:
        """All but the barriers that it carries."""
        return {
            "stage": self.stage,
            "partition": self.partition,
            "attempt": self.attempt,
            "steps": [step.to_json() for step in self.steps],
            "read": self.read,
            "observed": dict(self.observed),
            **({"listed": [list(item) for item in self.listed]} if self.listed else {}),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any], upstream: tuple[Barrier, ...] = ()) -> Barrier:
        """The barrier of which `to_json` was written.

        Args:
            value: What was written.
            upstream: The barriers that it carries.

        Raises:
            Any of `PARSE_ERRORS`: There is none.
        """
        _require(value, stage=int, partition=int, attempt=str, steps=list, read=str, observed=dict)
        barrier = cls(
            stage=value["stage"],
            partition=value["partition"],
            attempt=value["attempt"],
            steps=tuple(StepReport.from_json(step) for step in value["steps"]),
            read=value["read"],
            upstream=upstream,
            observed=value["observed"],
            listed=tuple((partition, attempt) for partition, attempt in value.get("listed", ())),
        )
        assert barrier.head
        return barrier


def _metrics(value: Any) -> dict[str, list[Any]]:
    _require({"metrics": value}, metrics=dict)
    for name, entry in value.items():
        _require({name: entry}, **{name: list})
        if not entry or any(type(number) not in (int, float) for number in entry[1:]):
            raise TypeError(f"metric {name!r:.80} of a barrier is {entry!r:.80}")
    return dict(value)


def _arrived(value: Any) -> dict[str, tuple[int, int]]:
    _require({"arrived": value}, arrived=dict)
    return {name: (_number(name, rows), _number(name, size)) for name, (rows, size) in value.items()}


def _generator(value: Any) -> str | None:
    if value is not None:
        _require({"generator": value}, generator=str)
    return value  # type: ignore[no-any-return]


def _number(name: str, value: Any) -> int:
    _require({name: value}, **{name: int})
    return int(value)


def _require(value: Mapping[str, Any], **kinds: type) -> None:
    for name, kind in kinds.items():
        if type(value[name]) is not kind:
            raise TypeError(f"{name!r} of a barrier is {value[name]!r:.80}")


@dataclass(frozen=True)
class EpochReport:
    """All barriers of an epoch, stage by stage, known to agree."""

    stages: tuple[tuple[Barrier, ...], ...]

    def steps(self) -> list[StepReport]:
        """Reports of all subtasks of all steps."""
        return [step for stage in self.stages for barrier in stage for step in barrier.steps]

    def observed(self) -> dict[str, int]:
        """The greatest timestamp by clock."""
        return merge_observed(*({step.uid: step.observed} for step in self.steps() if step.observed is not None))


def check_epoch(last_stage: list[Barrier], tasks: dict[int, int]) -> EpochReport:
    """Checks that the acknowledged attempts are exactly those whose rows were used.

    Args:
        last_stage: The barriers that the engine's action returned.
        tasks: Number of tasks of each stage; 0 where the source decides (stage 0).

    Raises:
        InconsistentEpochError: A task is missing or answered twice, or a task has read another attempt of a task above
            than the one whose report came, or one twice, or not at all. Nothing of the epoch may be used; run it again
            under a new attempt id.
    """
    stages: list[tuple[Barrier, ...]] = []
    current = tuple(sorted(last_stage, key=lambda b: b.partition))
    for index in sorted(tasks, reverse=True):
        _check_complete(current, index, tasks[index])
        stages.append(current)
        if index - 1 in tasks:
            current = _upstream_of(current, index)
        elif any(barrier.read != NOTHING_READ or barrier.upstream for barrier in current):
            raise InconsistentEpochError(f"stage {index} has no stage above it, but its tasks have read markers")
    return EpochReport(tuple(reversed(stages)))


def _check_complete(barriers: tuple[Barrier, ...], index: int, expected: int) -> None:
    partitions = [barrier.partition for barrier in barriers]
    wrong = [b.stage for b in barriers if b.stage != index]
    if wrong or len(set(partitions)) != len(partitions) or (expected and partitions != list(range(expected))):
        raise InconsistentEpochError(
            f"stage {index} must be acknowledged by each of its {expected or 'own'} tasks once, but acknowledgements "
            f"came from partitions {partitions}"
        )


def _upstream_of(current: tuple[Barrier, ...], index: int) -> tuple[Barrier, ...]:
    above = sorted((b for barrier in current for b in barrier.upstream), key=lambda b: (b.partition, b.attempt))
    came = digest_of(barrier.head for barrier in above)
    differing = [barrier for barrier in current if barrier.read != came]
    if differing:
        raise InconsistentEpochError(
            f"tasks of stage {index} have read different attempts of the stage above than those whose reports came, or "
            f"one of them twice or not at all: {len(differing)} of {len(current)} tasks{_told(differing, above)}"
        )
    return tuple(above)


def _told(differing: Sequence[Barrier], above: Sequence[Barrier]) -> str:
    """Which tasks, and what the first of them has read that is not what came, if it lists that."""
    partitions = ", ".join(str(barrier.partition) for barrier in differing[:_TOLD])
    first = next((barrier for barrier in differing if barrier.listed), None)
    if first is None:
        return f" (partitions {partitions}{', ...' if len(differing) > _TOLD else ''})"
    read, came = Counter(first.listed), Counter((barrier.partition, barrier.attempt) for barrier in above)
    more, less = sorted((read - came).elements()), sorted((came - read).elements())
    return f" (partitions {partitions}); partition {first.partition} read {more[:_TOLD]} instead of {less[:_TOLD]}"


# How a barrier travels: as it is, compressed, or, where even that is too long for a row, in a file.
#
# This is the *content* of a task, which goes to one task of the next stage, and that of the last stage to the driver::
#
#     content = "{..."                                  JSON, of a barrier that carries none
#             | "n" length "{..." (length content)*     followed by the contents that it carries; lengths of 4 bytes
#             | "z" zlib(content)
#             | "f" handle of a file with the content, as JSON
#
# A task never reads the contents that it carries: only the driver does, each once. What makes a content long is what
# nobody bounds: the committables of a user's sink, the names of staged files, many tasks above few. The file lies among
# those that operators own; no checkpoint names it, so it is swept when its epoch is.

TICK: Final = b""
"""Content of a tick row: it makes sure that a task without input still runs, and says nothing."""

LONGEST_ROW: Final = 60 * 1024
"""Bytes of a content in a row; with what Spark adds to it, it stays below 64 KB."""

_PLAIN_BYTES: Final = 4096
_CARRYING: Final = b"n"
_COMPRESSED: Final = b"z"
_FILED: Final = b"f"


def encode_barrier(
    barrier: Barrier, directory: JobDirectory, name: Callable[[], FileName], carried: Sequence[bytes] = ()
) -> bytes:
    """The content of a task; writes a file, durably, if it would be too long.

    Args:
        barrier: The task's own barrier.
        directory: The job's directory.
        name: Draws a new name for a file.
        carried: Contents of tasks above, as they came.
    """
    content = json.dumps(barrier.to_json(), separators=(",", ":")).encode()
    if carried:
        content = b"".join([_CARRYING, *(part for one in (content, *carried) for part in (_length(one), one))])
    if len(content) > _PLAIN_BYTES:  # the reports of subtasks are alike
        content = _COMPRESSED + zlib.compress(content, 1)
    if len(content) <= LONGEST_ROW:
        return content
    return _FILED + json.dumps(write_owned(directory, name, content)).encode()


def decode_barrier(content: bytes, directory: JobDirectory) -> Barrier:
    """The barrier of a content that `pack` made, with all that it carries.

    Raises:
        NotExistError: The file that it is in is not there: the tasks do not share a disk.
        CorruptFileError: It is not what was written.
    """
    try:
        return _unpacked(content, directory)
    except (*PARSE_ERRORS, zlib.error) as error:
        raise CorruptFileError(directory.path, None, f"the report of a task cannot be read: {error!r:.300}.") from error


def _unpacked(content: bytes, directory: JobDirectory) -> Barrier:
    if content.startswith(_FILED):
        content = read_owned(directory, json.loads(content[len(_FILED) :]))
    if content.startswith(_COMPRESSED):
        content = zlib.decompress(content[len(_COMPRESSED) :])
    if not content.startswith(_CARRYING):
        return Barrier.from_json(json.loads(content))
    own, *carried = _parts(content)
    return Barrier.from_json(json.loads(own), tuple(_unpacked(one, directory) for one in carried))


def _length(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big")


def _parts(content: bytes) -> Iterator[bytes]:
    at = len(_CARRYING)
    while at < len(content):
        start = at + 4
        at = start + int.from_bytes(content[at:start], "big")
        if at > len(content):
            raise ValueError(f"a part of {at - start} bytes ends beyond the {len(content)} that there are")
        yield content[start:at]
