"""Reports: the acknowledgements of tasks for an epoch, and the markers that identify the attempts that a task has read.

A task sends a marker to each task of the next stage, and its report to one of them, which forwards it. The report has
a digest of the attempts whose markers the task has read. The job master accepts an epoch only if each task has read
each task above exactly once, in the attempt that acknowledged: so what is acknowledged is exactly what was used.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np

from holdfast.errors import CorruptFileError, InconsistentEpochError
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.runtime.exchange.owned_file import read_owned, write_owned
from holdfast.runtime.function.metric import add_task_metrics
from holdfast.runtime.graph.event_time import WatermarkClock, merge_observed
from holdfast.storage.job_directory import FileName, JobDirectory

# A marker identifies the writer of the rows before it (stage, partition, attempt) and has the event time that this task
# knows. Its length does not depend on the number of tasks. The encoded report of the task follows the marker in one row
# only. The task that gets this row forwards the report, unread, within its own. So each report reaches the driver once;
# the driver computes the digest of the reports that it has, and compares it with those of the readers.
#
#     marker     = head, then for each clock of the job whether a timestamp was observed, then the timestamps
#     head       = "m" (1 byte), 0 (1 byte), stage (2), partition (4), attempt (16): 24 bytes, big endian
#     digest     = BLAKE2b, 16 bytes, of the sorted heads; a head that was read twice is in it twice
#     forwarding task = the one whose partition is that of the sender, modulo the number of tasks

_HEAD: Final = struct.Struct(">cxHI16s")
_KIND: Final = b"m"
_LONGEST_ATTEMPT: Final = 16

NOTHING_READ: Final = ""
"""The digest of a task that has read no markers: it begins an epoch job."""
_MOST_NAMED: Final = 5
"""Tasks that an error names at most."""
TICK: Final = b""
"""The content of a tick row, which makes a task without input run."""
LONGEST_ROW: Final = 60 * 1024
"""The largest encoded report in a row, in bytes; with the overhead of Spark it stays below 64 KB."""
_PLAIN_BYTES: Final = 4096
_NESTED: Final = b"n"
_COMPRESSED: Final = b"z"
_FILED: Final = b"f"


def marker_head(stage: int, partition: int, attempt: str) -> bytes:
    """Return the part of a marker that identifies the writer of the rows before it.

    Raises:
        ValueError or struct.error: The attempt is not a name of 1 to 16 letters, or a number is out of range.
    """
    name = attempt.encode("ascii")
    if not 0 < len(name) <= _LONGEST_ATTEMPT or b"\0" in name:
        raise ValueError(f"an attempt has 1 to {_LONGEST_ATTEMPT} letters, not {attempt!r:.80}")
    return _HEAD.pack(_KIND, stage, partition, name)


def digest_of(heads: Iterable[bytes]) -> str:
    """Return the digest of markers. Their order has no effect; a marker that occurs twice counts twice."""
    found = sorted(heads)
    return hashlib.blake2b(b"".join(found), digest_size=16).hexdigest() if found else NOTHING_READ


class MarkerFormat:
    """Markers of one job.

    Args:
        clocks: The steps that assign timestamps.

    Attributes:
        length: Bytes of each marker.
    """

    def __init__(self, clocks: Iterable[str]) -> None:
        self.clocks = tuple(sorted(clocks))
        times = len(self.clocks)
        self._type = np.dtype([("head", f"V{_HEAD.size}"), ("known", "u1", (times,)), ("observed", ">i8", (times,))])
        self.length = self._type.itemsize

    def marker(self, own_head: bytes, observed: Mapping[str, int]) -> bytes:
        """Return the marker of a task that knows these greatest timestamps by clock."""
        known = bytes(clock in observed for clock in self.clocks)
        return own_head + known + struct.pack(f">{len(known)}q", *(observed.get(clock, 0) for clock in self.clocks))

    def rows(self, marker: bytes, report: bytes, partition: int, tasks: int) -> list[bytes]:
        """Return a control row for each task of the next stage; one of them has the encoded report."""
        rows = [marker] * tasks
        rows[partition % tasks] = marker + report
        return rows

    def observed(self, markers: Sequence[bytes]) -> dict[str, int]:
        """Return the greatest timestamp by clock that any of the markers knows."""
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
        self._reports: list[tuple[bytes, bytes]] = []

    def add(self, row: bytes) -> None:
        """Add one control row. A row that arrives twice counts twice, because so did the elements before it.

        Raises:
            ValueError: The row is not a marker of this job.
        """
        length = self._form.length
        if len(row) < length or not row.startswith(_KIND):
            raise ValueError(f"a control row of {len(row)} bytes is not a marker: {row[:32]!r}")
        marker = row[:length]
        self._markers.append(marker)
        if len(row) > length:
            self._reports.append((marker[: _HEAD.size], row[length:]))

    def heads(self) -> list[bytes]:
        return sorted(marker[: _HEAD.size] for marker in self._markers)

    def digest(self) -> str:
        return digest_of(self.heads())

    def observed(self) -> dict[str, int]:
        """Return the greatest timestamp by clock that the tasks above have assigned or read."""
        return self._form.observed(self._markers)

    def reports(self) -> tuple[bytes, ...]:
        """Return the encoded reports that this task forwards, sorted by sender."""
        return tuple(report for _, report in sorted(self._reports))

    def read_attempts(self) -> tuple[tuple[int, str], ...]:
        """Return partition and attempt of each task that was read, for error messages."""
        parts = (_HEAD.unpack(one) for one in self.heads())
        return tuple((partition, name.rstrip(b"\0").decode("ascii", "replace")) for _, _, partition, name in parts)


@dataclass(frozen=True)
class StepReport:
    """The report of one step of a task for an epoch.

    Attributes:
        uid: The step.
        subtask: Index of the subtask.
        run: The new run's handle as JSON; None if no state changed.
        committables: The committables of the sink, JSON values.
        records_in: Elements read.
        records_out: Elements emitted.
        least_timer: Time of the least processing-time timer in milliseconds, None if there is none.
        operator_state: The subtask's operator state as JSON; None if it has not changed.
        queryable: The names under which its states can be queried.
        staged: Names of the files that it staged for a later epoch job of the epoch.
        observed: The greatest timestamp that it assigned, None if there was none.
        saving: Milliseconds that its function took to save its state, and the subtask to write it.
        metrics: The metrics of the function; see `holdfast.runtime.function.metric`.
        busy: Microseconds that the subtask has worked, sending its output included.
        arrived: Rows and bytes that arrived in columns, by edge or source.
        warm: 1 if its state was in the worker's memory, 0 if it was not, None where none is kept there.
        generator: Its watermark generator, pickled, in base 64; None if there is none, or it has not changed.
        merged: How many of the newest runs of the subtask the new run replaces.
        runs_before: The runs that it wrote before for barriers that were abandoned, oldest first, as `run`.
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
    merged: int = 0
    runs_before: tuple[dict[str, Any], ...] = ()

    @property
    def runs(self) -> list[dict[str, Any]]:
        """All new runs of the subtask, oldest first."""
        return [*self.runs_before, *([] if self.run is None else [self.run])]

    def after(self, earlier: StepReport, *, is_per_partition: bool) -> StepReport:
        """Return one report for this time and an earlier one, whose barrier was abandoned.

        Args:
            earlier: The report of the earlier time.
            is_per_partition: Whether the step is a clock per partition.
        """
        arrived = dict(earlier.arrived)
        for name, (rows, size) in self.arrived.items():
            known = arrived.get(name, (0, 0))
            arrived[name] = known[0] + rows, known[1] + size
        observed = [at for at in (earlier.observed, self.observed) if at is not None]
        greatest = min if is_per_partition else max  # it reports negative ones
        return replace(
            self,
            committables=earlier.committables + self.committables,
            records_in=earlier.records_in + self.records_in,
            records_out=earlier.records_out + self.records_out,
            operator_state=earlier.operator_state if self.operator_state is None else self.operator_state,
            observed=greatest(observed, default=None),
            metrics=add_task_metrics(earlier.metrics, self.metrics, {}),
            busy=earlier.busy + self.busy,
            arrived=arrived,
            generator=earlier.generator if self.generator is None else self.generator,
            runs_before=(*earlier.runs, *self.runs_before),
        )

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
            **({"merged": self.merged} if self.merged else {}),
            **({"runs_before": list(self.runs_before)} if self.runs_before else {}),
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
            _number("merged", value.get("merged", 0)),
            tuple(value.get("runs_before", ())),
        )


class BarrierTimes(NamedTuple):
    """The times of a barrier in a real-time task, in microseconds.

    Attributes:
        start_delay: From its trigger in the driver to its arrival from the first producer, by the clocks of two hosts.
        alignment: From the arrival of the barrier from the first producer to that from the last one.
        sync: For which elements waited for the snapshot.
        asynchronous: From the end of `sync` until the snapshot was durable.
    """

    start_delay: int
    alignment: int
    sync: int
    asynchronous: int


@dataclass(frozen=True)
class TaskReport:
    """The report of one task for one epoch, its acknowledgement.

    Attributes:
        read: Digest of the markers that it has read, `NOTHING_READ` for none.
        upstream: The reports of the stage above that this task forwards to the driver.
        observed: The greatest timestamp by clock that this task and the tasks above it have assigned.
        read_attempts: Partition and attempt of each task that it has read; only where an epoch runs again, for errors.
        requests: Requests of its process to object stores since the report before, by method.
        barrier: The times of the barrier; None in a job by epochs.
    """

    stage: int
    partition: int
    attempt: str
    steps: tuple[StepReport, ...] = ()
    read: str = NOTHING_READ
    upstream: tuple[TaskReport, ...] = ()
    observed: Mapping[str, int] = field(default_factory=dict)
    read_attempts: tuple[tuple[int, str], ...] = ()
    requests: Mapping[str, int] = field(default_factory=dict)
    barrier: BarrierTimes | None = None

    def after(self, earlier: TaskReport, clocks: Mapping[str, WatermarkClock]) -> TaskReport:
        """Return one report for this time and an earlier one, whose barrier was abandoned.

        Args:
            earlier: The report of the earlier time, of the same task; some of its steps may be missing.
            clocks: The clocks of the job.
        """
        before = {step.uid: step for step in earlier.steps}
        steps = {
            step.uid: step.after(
                before[step.uid], is_per_partition=step.uid in clocks and clocks[step.uid].is_per_partition
            )
            if step.uid in before
            else step
            for step in self.steps
        }
        requests = Counter(earlier.requests)
        requests.update(self.requests)
        return replace(
            self,
            steps=tuple({**before, **steps}.values()),
            observed={step.uid: step.observed for step in steps.values() if step.observed is not None},
            requests=dict(requests),
        )

    @property
    def head(self) -> bytes:
        """The first part of the markers of this task."""
        return marker_head(self.stage, self.partition, self.attempt)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON, without the forwarded ones."""
        return {
            "stage": self.stage,
            "partition": self.partition,
            "attempt": self.attempt,
            "steps": [step.to_json() for step in self.steps],
            "read": self.read,
            "observed": dict(self.observed),
            **({"listed": [list(item) for item in self.read_attempts]} if self.read_attempts else {}),
            **({"requests": dict(self.requests)} if self.requests else {}),
            **({} if self.barrier is None else {"barrier": list(self.barrier)}),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any], upstream: tuple[TaskReport, ...] = ()) -> TaskReport:
        """Return a report from the result of `to_json`.

        Args:
            value: The document.
            upstream: The reports that it forwards.

        Raises:
            Any of `PARSE_ERRORS`: The document is not a report.
        """
        _require(value, stage=int, partition=int, attempt=str, steps=list, read=str, observed=dict)
        report = cls(
            stage=value["stage"],
            partition=value["partition"],
            attempt=value["attempt"],
            steps=tuple(StepReport.from_json(step) for step in value["steps"]),
            read=value["read"],
            upstream=upstream,
            observed=value["observed"],
            read_attempts=tuple((partition, attempt) for partition, attempt in value.get("listed", ())),
            requests={name: _number(name, count) for name, count in value.get("requests", {}).items()},
            barrier=_barrier(value.get("barrier")),
        )
        assert report.head
        return report


def execution_id(attempt: str, uid: str) -> str:
    """Return the id under which a step of an execution of a task acknowledges."""
    return f"{attempt}/{uid}"


def _metrics(value: Any) -> dict[str, list[Any]]:
    _require({"metrics": value}, metrics=dict)
    for name, entry in value.items():
        _require({name: entry}, **{name: list})
        if not entry or any(type(number) not in (int, float) for number in entry[1:]):
            raise TypeError(f"metric {name!r:.80} of a report is {entry!r:.80}")
    return dict(value)


def _arrived(value: Any) -> dict[str, tuple[int, int]]:
    _require({"arrived": value}, arrived=dict)
    return {name: (_number(name, rows), _number(name, size)) for name, (rows, size) in value.items()}


def _barrier(value: Any) -> BarrierTimes | None:
    return None if value is None else BarrierTimes(*(_number("barrier", time) for time in value))


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
            raise TypeError(f"{name!r} of a report is {value[name]!r:.80}")


@dataclass(frozen=True)
class EpochReport:
    """All reports of an epoch, by stage, after the check that they agree."""

    stages: tuple[tuple[TaskReport, ...], ...]

    def steps(self) -> list[StepReport]:
        return [step for stage in self.stages for report in stage for step in report.steps]

    def observed(self) -> dict[str, int]:
        return merge_observed(*({step.uid: step.observed} for step in self.steps() if step.observed is not None))


def check_epoch(last_stage: list[TaskReport], tasks: dict[int, int]) -> EpochReport:
    """Check that the attempts that acknowledged are exactly those whose rows were used.

    Args:
        last_stage: The reports that the engine's action returned.
        tasks: Number of tasks of each stage; 0 where the source decides (stage 0).

    Raises:
        InconsistentEpochError: A task is missing or answered twice, or a task has read another attempt of a task above
            than the one that acknowledged, or one twice, or not at all. Nothing of the epoch may be used; run it again
            under a new attempt id.
    """
    stages: list[tuple[TaskReport, ...]] = []
    current = tuple(sorted(last_stage, key=lambda report: report.partition))
    for index in sorted(tasks, reverse=True):
        _check_complete(current, index, tasks[index])
        stages.append(current)
        if index - 1 in tasks:
            current = _upstream_of(current, index)
        elif any(report.read != NOTHING_READ or report.upstream for report in current):
            raise InconsistentEpochError(f"stage {index} has no stage above it, but its tasks have read markers")
    return EpochReport(tuple(reversed(stages)))


def _check_complete(reports: tuple[TaskReport, ...], index: int, expected: int) -> None:
    partitions = [report.partition for report in reports]
    wrong = [report.stage for report in reports if report.stage != index]
    if wrong or len(set(partitions)) != len(partitions) or (expected and partitions != list(range(expected))):
        raise InconsistentEpochError(
            f"stage {index} must be acknowledged by each of its {expected or 'own'} tasks once, but acknowledgements "
            f"came from partitions {partitions}"
        )


def _upstream_of(current: tuple[TaskReport, ...], index: int) -> tuple[TaskReport, ...]:
    above = sorted(
        (above for report in current for above in report.upstream), key=lambda one: (one.partition, one.attempt)
    )
    reported = digest_of(report.head for report in above)
    differing = [report for report in current if report.read != reported]
    if differing:
        raise InconsistentEpochError(
            f"tasks of stage {index} have read different attempts of the stage above than those whose reports arrived, "
            f"or one of them twice or not at all: {len(differing)} of {len(current)} tasks"
            f"{_describe_difference(differing, above)}"
        )
    return tuple(above)


def _describe_difference(differing: Sequence[TaskReport], above: Sequence[TaskReport]) -> str:
    """Name the tasks, and the attempts that the first of them has read instead, if it lists them."""
    partitions = ", ".join(str(report.partition) for report in differing[:_MOST_NAMED])
    first = next((report for report in differing if report.read_attempts), None)
    if first is None:
        return f" (partitions {partitions}{', ...' if len(differing) > _MOST_NAMED else ''})"
    read, reported = Counter(first.read_attempts), Counter((report.partition, report.attempt) for report in above)
    more, less = sorted((read - reported).elements()), sorted((reported - read).elements())
    wrong = f"partition {first.partition} read {more[:_MOST_NAMED]} instead of {less[:_MOST_NAMED]}"
    return f" (partitions {partitions}); {wrong}"


# An encoded report is plain, compressed, or in a file if it is still too long for a row. It goes to one task of the
# next stage, that of the last stage to the driver::
#
#     report = "{..."                                 JSON, of a report without forwarded ones
#            | "n" length "{..." (length report)*     followed by the forwarded reports; lengths of 4 bytes
#            | "z" zlib(report)
#            | "f" handle of a file with the report, as JSON
#
# A task never decodes the reports that it forwards: only the driver does, each once. A report can be long because of
# the committables of a sink, the names of staged files, or many tasks above few. The file is one of those that
# operators own; no checkpoint names it, so it is swept with its epoch.


def encode_report(
    report: TaskReport, directory: JobDirectory, name: Callable[[], FileName], forwarded: Sequence[bytes] = ()
) -> bytes:
    """Encode the report of a task. Write a file, durably, if the report would be too long for a row.

    Args:
        report: The task's own report.
        directory: The job's directory.
        name: Makes a new file name.
        forwarded: Encoded reports of tasks above.
    """
    content = json.dumps(report.to_json(), separators=(",", ":")).encode()
    if forwarded:
        content = b"".join([_NESTED, *(part for one in (content, *forwarded) for part in (_length(one), one))])
    if len(content) > _PLAIN_BYTES:  # the reports of subtasks are alike
        content = _COMPRESSED + zlib.compress(content, 1)
    if len(content) <= LONGEST_ROW:
        return content
    return _FILED + json.dumps(write_owned(directory, name, content)).encode()


def decode_report(content: bytes, directory: JobDirectory) -> TaskReport:
    """Decode the result of `encode_report`, with all forwarded reports.

    Raises:
        NotExistError: The file of the report does not exist: driver and tasks do not share a file system.
        CorruptFileError: The file was changed after it was written.
    """
    try:
        return _unpacked(content, directory)
    except (*PARSE_ERRORS, zlib.error) as error:
        raise CorruptFileError(directory.path, None, f"the report of a task cannot be read: {error!r:.300}.") from error


def _unpacked(content: bytes, directory: JobDirectory) -> TaskReport:
    if content.startswith(_FILED):
        content = read_owned(directory, json.loads(content[len(_FILED) :]))
    if content.startswith(_COMPRESSED):
        content = zlib.decompress(content[len(_COMPRESSED) :])
    if not content.startswith(_NESTED):
        return TaskReport.from_json(json.loads(content))
    own, *forwarded = _parts(content)
    return TaskReport.from_json(json.loads(own), tuple(_unpacked(one, directory) for one in forwarded))


def _length(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big")


def _parts(content: bytes) -> Iterator[bytes]:
    at = len(_NESTED)
    while at < len(content):
        start = at + 4
        at = start + int.from_bytes(content[at:start], "big")
        if at > len(content):
            raise ValueError(f"a part of {at - start} bytes ends beyond the {len(content)} that there are")
        yield content[start:at]
