"""The document of a checkpoint, `_metadata`: its content, how it is encoded, and how it is read and checked.

A versioned, checksummed JSON document (`holdfast.storage.state_handle`) that names everything the checkpoint consists
of, by paths relative to the job directory (of a savepoint: to its own directory)::

    format_version, kind "checkpoint", checksum
    job_id, job_name, checkpoint_id, epoch, token, lineage, completed_at, processing_time
    properties         {"type": "CHECKPOINT" | "SAVEPOINT" | ..., "format": "CANONICAL" | "NATIVE" | null}
    operators          [{uid, operator_id, name, parallelism, max_parallelism, key, runs, states, subtasks,
                         committables}]
    source_positions   positions of the sources after the epoch
    master_states      {hook: JSON}
    extra              further state of the job master
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.checkpoint.snapshot_type import CheckpointProperties
from holdfast.errors import CorruptFileError, StateError
from holdfast.kernel.key_group import UPPER_BOUND_MAX_PARALLELISM
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.state.operator_snapshot import check_snapshot, snapshot_size
from holdfast.state.run_file import RunHandle
from holdfast.storage.state_handle import decode_document, encode_document

KIND: Final = "checkpoint"
FORMAT_VERSION: Final = 1
PREVIOUS_EPOCH: Final = "previous_epoch"
TARGETS: Final = "targets"
WINDOWS: Final = "windows"
CLAIMED: Final = "claimed"
EVENT_TIME: Final = "event_time"
EVENT_TIME_AGAIN: Final = "event_time_again"
"""Event time for a replay; a restored job begins it anew."""
_SUBTASK: Final = re.compile("[0-9]{1,6}")
_HEX_JOB: Final = re.compile("[0-9a-f]{32}")
_OF_EVENT_TIME: Final = {"watermarks": int, "reached": int, "heard": int, "generators": dict}


class FieldReader:
    """Takes the fields of a JSON object one by one, and checks type and bounds of each."""

    def __init__(self, fields: dict[str, Any], path: str, where: str = "") -> None:
        self._fields = fields
        self._path = path
        self._where = where

    def invalid(self, what: str) -> CorruptFileError:
        """Return the error for an invalid field."""
        return CorruptFileError(self._path, None, f"{self._where}{what}.")

    def take(self, name: str) -> Any:
        """Take a value of any type."""
        if name not in self._fields:
            raise self.invalid(f"field {name!r} is missing")
        return self._fields.pop(name)

    def string(self, name: str) -> str:
        """Take a string that can be encoded as UTF-8."""
        value: str = self._typed(name, str, "a string")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise self.invalid(f"field {name!r} is {value!r:.80}") from error
        return value

    def integer(self, name: str, least: int | None = None, most: int | None = None) -> int:
        """Take an integer within bounds."""
        value: int = self._typed(name, int, "an integer")
        if least is not None and value < least:
            raise self.invalid(f"field {name!r} is {value!r:.40}, below {least}")
        if most is not None and value > most:
            raise self.invalid(f"field {name!r} is {value!r:.40}, above {most}")
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        return dict(self._typed(name, dict, "an object"))

    def sequence(self, name: str) -> list[Any]:
        return list(self._typed(name, list, "a list"))

    def objects(self, name: str) -> Iterator[FieldReader]:
        """Take a list of objects; yields a reader for each."""
        for index, item in enumerate(self.sequence(name)):
            where = f"{self._where}{name}[{index}]: "
            if not isinstance(item, dict):
                raise CorruptFileError(self._path, None, f"{where}{reprlib.repr(item)} is not an object.")
            yield FieldReader(item, self._path, where)

    def run(self) -> RunHandle:
        """Read all fields as a run handle."""
        try:
            return RunHandle.from_json(self._fields)
        except PARSE_ERRORS as error:
            raise self.invalid(f"not a run handle: {error!r:.300}") from error

    def end(self) -> None:
        """Raise an error if unknown fields are left."""
        if self._fields:
            raise self.invalid(f"fields {reprlib.repr(sorted(self._fields))} are unknown")

    def _typed(self, name: str, kind: type, words: str) -> Any:
        value = self.take(name)
        if type(value) is not kind:
            raise self.invalid(f"field {name!r} is {reprlib.repr(value)}, not {words}")
        return value


@dataclass(frozen=True)
class OperatorMetadata:
    """State of one operator in a checkpoint.

    Attributes:
        uid: The operator's uid, by which a restore matches it.
        operator_id: 32 hexadecimal digits derived from the uid.
        name: Display name.
        parallelism: Number of subtasks in the epoch of the checkpoint.
        max_parallelism: Number of key groups; fixed for the life of the state.
        key: The key codec as JSON; None for an operator without key.
        runs: Keyed state and timers, oldest run first.
        states: Further description of its state; a window operator describes the form of its open windows under
            `windows`.
        subtasks: Operator state and progress of each subtask, as JSON.
        committables: Staged output that may not be committed yet, by sink:
            ``{"epoch": int, "subtask": int, "value": JSON}``.
    """

    uid: str
    operator_id: str
    name: str
    parallelism: int
    max_parallelism: int
    key: Any = None
    runs: tuple[RunHandle, ...] = ()
    states: Mapping[str, Any] = field(default_factory=dict)
    subtasks: tuple[Any, ...] = ()
    committables: Mapping[str, list[Any]] = field(default_factory=dict)

    @property
    def operator_state_size(self) -> int:
        """Size of the operator state in bytes, in the document and in files."""
        return sum(snapshot_size(subtask) for subtask in self.subtasks)

    @property
    def state_size(self) -> int:
        """Size of all runs and of the operator state in bytes."""
        return sum(run.size for run in self.runs) + self.operator_state_size


@dataclass(frozen=True)
class CheckpointMetadata:
    """Content of a checkpoint's document. `CheckpointMetaData` is Flink's pair of its id and timestamp.

    Attributes:
        job_id: 32 hexadecimal digits.
        job_name: Display name.
        checkpoint_id: The checkpoint.
        epoch: The epoch at whose end the state was taken.
        token: Token of the leader that completed it.
        incarnation: Id of the line of successive checkpoints; a start from another snapshot begins a new one.
        completed_at: Completion time in milliseconds since 1970, by the leader's clock.
        processing_time: Processing time of the epoch, in milliseconds since 1970.
        operators: All operators with state.
        source_positions: Positions of the sources after the epoch, as JSON.
        properties: Kind of snapshot, as JSON.
        master_states: State of the master hooks, by name.
        extra: Further state of the job master, as JSON: `previous_epoch` is the epoch of the checkpoint before,
            `targets` identifies the targets of sinks, by uid, `claimed` is a snapshot that the job must delete,
            `event_time` is the progress of event time after the epoch.
    """

    job_id: str
    job_name: str
    checkpoint_id: int
    epoch: int
    token: int
    incarnation: str
    completed_at: int
    processing_time: int
    operators: tuple[OperatorMetadata, ...] = ()
    source_positions: Any = None
    properties: Mapping[str, Any] = field(default_factory=lambda: {"type": "CHECKPOINT", "format": None})
    master_states: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return (
            f"CheckpointMetadata({self.checkpoint_id}, epoch {self.epoch}, job {self.job_name!r}, "
            f"{len(self.operators)} operators)"
        )

    @property
    def state_size(self) -> int:
        """Size of all state in bytes."""
        return sum(operator.state_size for operator in self.operators)

    @property
    def new_size(self) -> int:
        """Size in bytes of the state that was written since the checkpoint before."""
        before = int(self.extra.get(PREVIOUS_EPOCH, self.epoch - 1))
        runs = sum(run.size for operator in self.operators for run in operator.runs if run.epoch > before)
        return runs + sum(snapshot_size(part, before) for operator in self.operators for part in operator.subtasks)

    @property
    def is_savepoint(self) -> bool:
        """Whether it is a savepoint of any kind."""
        return str(self.properties.get("type", "")).endswith("SAVEPOINT")

    def operator(self, uid: str) -> OperatorMetadata | None:
        """Return an operator by uid; None if there is none."""
        return next((operator for operator in self.operators if operator.uid == uid), None)

    def strings(self) -> Iterator[str]:
        """Iterate over all strings of the document, including file names."""
        for operator in self.operators:
            for run in operator.runs:
                yield run.path
            yield from _strings((operator.key, operator.states, operator.subtasks, operator.committables))
        yield from _strings((self.source_positions, self.master_states, self.extra))


def encode(metadata: CheckpointMetadata) -> bytes:
    """Return the document as bytes.

    Raises:
        TypeError or ValueError: A value is not JSON.
    """
    body = {name: getattr(metadata, name) for name in CheckpointMetadata.__dataclass_fields__}
    body["lineage"] = body.pop("incarnation")
    body["operators"] = [
        {name: getattr(operator, name) for name in OperatorMetadata.__dataclass_fields__}
        | {"runs": [run.to_json() for run in operator.runs]}
        for operator in metadata.operators
    ]
    return encode_document(KIND, FORMAT_VERSION, body)


def decode(data: bytes, path: str) -> CheckpointMetadata:
    """Read a document.

    Args:
        data: The whole file.
        path: Its path, for errors.

    Raises:
        CorruptFileError: It is truncated or changed, or a field is missing or invalid.
        FormatVersionError: A newer version wrote it.
    """
    reader = FieldReader(decode_document(data, path, KIND, FORMAT_VERSION), path)
    metadata = CheckpointMetadata(
        job_id=reader.string("job_id"),
        job_name=reader.string("job_name"),
        checkpoint_id=reader.integer("checkpoint_id", 1),
        epoch=reader.integer("epoch"),
        token=reader.integer("token", 0),
        incarnation=reader.string("lineage"),
        completed_at=reader.integer("completed_at"),
        processing_time=reader.integer("processing_time"),
        operators=tuple(_operator(item) for item in reader.objects("operators")),
        source_positions=reader.take("source_positions"),
        properties=_properties(reader),
        master_states=reader.mapping("master_states"),
        extra=reader.mapping("extra"),
    )
    reader.end()
    previous, targets = metadata.extra.get(PREVIOUS_EPOCH, 0), metadata.extra.get(TARGETS, {})
    times = (metadata.extra.get(EVENT_TIME), metadata.extra.get(EVENT_TIME_AGAIN))
    is_known = _is_claim(metadata.extra.get(CLAIMED)) and all(map(_is_event_time, times))
    if type(previous) is not int or type(targets) is not dict or not is_known:
        raise reader.invalid(f"extra is {reprlib.repr(metadata.extra)}")
    return metadata


def _is_claim(value: Any) -> bool:
    if value is None:
        return True
    return (
        type(value) is dict
        and value.keys() in ({"path", "digest"}, {"path", "digest", "job", "owner"})
        and all(type(part) is str for part in value.values())
        and _HEX_JOB.fullmatch(value.get("job", "0" * 32)) is not None
    )


def _is_event_time(value: Any) -> bool:
    if value is None:
        return True
    return (
        type(value) is dict
        and value.keys() <= _OF_EVENT_TIME.keys()
        and all(
            type(part) is dict and all(type(one) is _OF_EVENT_TIME[name] for one in part.values())
            for name, part in value.items()
        )
        and all(map(_are_of_subtasks, value.get("generators", {}).values()))
    )


def _are_of_subtasks(value: Mapping[str, Any]) -> bool:
    return all(_SUBTASK.fullmatch(subtask) and type(held) is str for subtask, held in value.items())


def _properties(reader: FieldReader) -> dict[str, Any]:
    properties = reader.mapping("properties")
    try:
        CheckpointProperties.from_json(properties)
    except ValueError as error:
        raise reader.invalid(str(error)) from error
    return properties


def _operator(reader: FieldReader) -> OperatorMetadata:
    operator = OperatorMetadata(
        uid=reader.string("uid"),
        operator_id=reader.string("operator_id"),
        name=reader.string("name"),
        parallelism=reader.integer("parallelism", 1, UPPER_BOUND_MAX_PARALLELISM),
        max_parallelism=reader.integer("max_parallelism", 1, UPPER_BOUND_MAX_PARALLELISM),
        key=reader.take("key"),
        runs=tuple(run.run() for run in reader.objects("runs")),
        states=reader.mapping("states"),
        subtasks=tuple(reader.sequence("subtasks")),
        committables=reader.mapping("committables"),
    )
    reader.end()
    beyond = [run.path for run in operator.runs if run.key_groups[1] >= operator.max_parallelism]
    if beyond:
        raise reader.invalid(f"run {beyond[0]!r:.200} has key groups above {operator.max_parallelism - 1}")
    for sink, entries in operator.committables.items():
        if not (type(entries) is list and all(map(_is_committable, entries))):
            raise reader.invalid(f"committables of sink {sink!r:.80} are {reprlib.repr(entries)}")
    for index, subtask in enumerate(operator.subtasks):
        try:
            check_snapshot(subtask)
        except StateError as error:
            raise reader.invalid(f"subtasks[{index}]: {error}") from error
    return operator


def _is_committable(entry: Any) -> bool:
    if type(entry) is not dict or "value" not in entry:
        return False
    numbers = (entry.get("epoch"), entry.get("subtask"), entry.get("rows", 0))
    return all(type(number) is int for number in numbers) and type(entry.get("incarnation", "")) is str


def _strings(value: Any) -> Iterator[str]:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            pending.extend(item.keys())
            pending.extend(item.values())
        elif isinstance(item, list | tuple):
            pending.extend(item)
