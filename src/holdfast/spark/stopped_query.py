"""The checkpoint directory of a stopped Spark query: its logs, the positions of its sources, its state."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from holdfast.errors import ConfigurationError, CorruptFileError, NotExistError, StateError, StorageError
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.kernel.secret import get_logger, location_without_credentials
from holdfast.runtime.graph.input_matching import InputLeaf
from holdfast.runtime.graph.source_positions import OffsetLine
from holdfast.spark.input.description import streaming_leaves
from holdfast.spark.input.positions import lines_of_leaves


class HadoopFolder:
    """A directory on any file system that Spark reads; hidden files, such as checksums, are left out.

    Args:
        session: Session of Spark, which knows the file systems.
        path: The directory, as Spark takes it.

    Raises:
        StorageError: Spark knows no such file system.
    """

    def __init__(self, session: SparkSession, path: str) -> None:
        jvm = session.sparkContext._jvm
        assert jvm is not None
        self._jvm: Any = jvm
        place = jvm.org.apache.hadoop.fs.Path(path)
        try:
            self._fs: Any = place.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())
        except Py4JJavaError as error:
            raise _failed("list", path, error) from error
        whole = self._fs.makeQualified(place)
        self.path = str(whole.toString())
        self.is_escaped = str(whole.toUri().toString()) != self.path  # a space, a % or the like is in it

    def names(self, folder: str = "") -> list[str]:
        """Return the files and folders in a folder; none if it does not exist. Blocks.

        Raises:
            StorageError: It cannot be listed.
        """
        return [name for name, _ in self._entries(folder)]

    def files(self, folder: str) -> Iterator[str]:
        """Yield all files below a folder, by their paths below it, in order. Blocks.

        Raises:
            StorageError: Something cannot be listed.
        """
        for name, is_folder in self._entries(folder):
            if is_folder:
                yield from (f"{name}/{inner}" for inner in self.files(f"{folder}/{name}"))
            else:
                yield name

    def read(self, file: str) -> bytes:
        """Return the content of a file. Blocks.

        Raises:
            NotExistError: It does not exist.
            StorageError: It cannot be read.
        """
        place = self._place(file)
        try:
            if not self._fs.exists(place):
                raise NotExistError(f"There is no file {self.path}/{file}.")
            stream = self._fs.open(place)
            try:
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()
        except Py4JJavaError as error:
            raise _failed("read", f"{self.path}/{file}", error) from error

    def _entries(self, folder: str) -> list[tuple[str, bool]]:
        place = self._place(folder)
        try:
            if not self._fs.exists(place):
                return []
            found = [(str(one.getPath().getName()), bool(one.isDirectory())) for one in self._fs.listStatus(place)]
        except Py4JJavaError as error:
            raise _failed("list", f"{self.path}/{folder}", error) from error
        return sorted((name, is_folder) for name, is_folder in found if not name.startswith((".", "_")))

    def _place(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.path}/{name}" if name else self.path)


def _failed(what: str, path: str, error: Py4JJavaError) -> StorageError:
    return StorageError(f"Spark cannot {what} {path!r}: {error.java_exception.getMessage()}")


logger = get_logger(__name__)

_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_COMMITS: Final = ("v1", "v2")
_PLAIN: Final = "v1"
_HEADER: Final = 2
_TIMES: Final = ("batchTimestampMs", "batchWatermarkMs")


@dataclass(frozen=True)
class QueryLogs:
    """One committed batch in the logs of a query.

    Attributes:
        folder: The checkpoint directory of the query.
        query_id: Its id.
        batch_id: The batch.
        lines: For each source of its plan the position after the batch, in Spark's form.
        lines_before: The same after the batch before; None if the log does not have it any more, or it is the first.
        timestamp: Start of the batch, in milliseconds.
        watermark: Watermark of the batch, in milliseconds; 0 for none.
    """

    folder: HadoopFolder
    query_id: str
    batch_id: int
    lines: tuple[str, ...]
    lines_before: tuple[str, ...] | None
    timestamp: int
    watermark: int


def read_logs(folder: HadoopFolder, batch_id: int | None = None) -> QueryLogs:
    """Read the logs of a query that does not run. Blocks.

    Args:
        folder: Its checkpoint directory.
        batch_id: The batch; None for the last one, which must be committed.

    Raises:
        NotExistError: It is no checkpoint directory of a query, or the batch is not in its logs.
        StateError: The batch was not committed; or none is named, and a batch after the last committed one was begun
            and read something.
        ConfigurationError: Spark keeps positions by the names of sources, or in another unknown form.
        CorruptFileError: An entry is damaged.
    """
    if "metadata" not in folder.names():
        raise NotExistError(
            f"{folder.path!r} is no checkpoint directory of a query of Spark: there is no file 'metadata' in it."
        )
    planned, committed = _numbers(folder, "offsets"), _numbers(folder, "commits")
    if not committed:
        raise StateError(f"No batch of the query in {folder.path!r} was committed, so it has no state to take.")
    chosen = committed[-1] if batch_id is None else batch_id
    if chosen not in committed or chosen not in planned:
        known = f"there are {committed[0]} to {committed[-1]}"
        if chosen in planned:
            raise StateError(
                f"Batch {chosen} of the query in {folder.path!r} was begun and not committed. Start the query once "
                f"more, so that it ends the batch, or take a batch that was committed: {known}."
            )
        raise NotExistError(f"The logs of the query in {folder.path!r} do not have batch {chosen}: {known}.")
    _require_commit(folder, chosen)
    header, lines = _entry(folder, chosen)
    before = _entry(folder, chosen - 1)[1] if chosen - 1 in planned else None
    later = [number for number in planned if number > chosen]
    if batch_id is None and later:
        _require_nothing_read(folder, chosen, lines, later)
    return QueryLogs(
        folder,
        _query_id(folder),
        chosen,
        lines,
        before,
        header["batchTimestampMs"],
        header["batchWatermarkMs"],
    )


def _require_nothing_read(folder: HadoopFolder, chosen: int, lines: tuple[str, ...], later: list[int]) -> None:
    """Refuse to drop silently what a batch has read that was begun and did not end."""
    begun = later[0]
    if any(_entry(folder, number)[1] != lines for number in later):
        raise StateError(
            f"Batch {begun} of the query in {folder.path!r} has read rows and was not committed; the sink of the query "
            f"may have some of what it made of them. Start the query once more, so that it ends the batch, or say "
            f"batch_id={chosen}: then a job reads these rows again, and what the sink has stays there."
        )
    logger.warning("batch %d of the query in %s was begun, read nothing and is left out", begun, folder.path)


def _numbers(folder: HadoopFolder, log: str) -> list[int]:
    return sorted(int(name) for name in folder.names(log) if _NUMBER.fullmatch(name))


def _require_commit(folder: HadoopFolder, number: int) -> None:
    version = _text(folder, f"commits/{number}").partition("\n")[0]
    if version not in _COMMITS:
        raise ConfigurationError(
            f"{folder.path}/commits/{number} has the form {version!r:.40}, but {' and '.join(_COMMITS)} are known."
        )


def _entry(folder: HadoopFolder, number: int) -> tuple[Mapping[str, int], tuple[str, ...]]:
    """Return the times in the header of an entry of the offset log, and a line for each source."""
    name = f"offsets/{number}"
    version, *rest = _text(folder, name).split("\n")
    if version != _PLAIN:
        raise ConfigurationError(
            f"{folder.path}/{name} has the form {version!r:.40}, but {_PLAIN!r} is known, which knows sources by their "
            "places: a query whose sources have names (DataStreamReader.name()) cannot be taken."
        )
    try:
        header = json.loads(rest[0]) if rest[0] else {}
        times = {key: int(header.get(key) or 0) for key in _TIMES}
    except PARSE_ERRORS as error:
        raise _damaged(folder, name) from error
    if len(rest) < _HEADER:
        raise _damaged(folder, name)
    return times, tuple(rest[_HEADER - 1 :])


def _query_id(folder: HadoopFolder) -> str:
    try:
        return str(json.loads(_text(folder, "metadata"))["id"])
    except PARSE_ERRORS as error:
        raise _damaged(folder, "metadata") from error


def _text(folder: HadoopFolder, name: str) -> str:
    try:
        return folder.read(name).decode()
    except UnicodeDecodeError as error:
        raise _damaged(folder, name) from error


def _damaged(folder: HadoopFolder, name: str) -> CorruptFileError:
    return CorruptFileError(f"{folder.path}/{name}", 0, "it is no entry of a log of Spark")


_ENTRY: Final = re.compile(r"([0-9]{1,18})(\.compact)?")
_LOG_OFFSET: Final = "logOffset"
_PATTERN: Final = re.compile(r"[*?\[\]{}]")


@dataclass(frozen=True)
class QueryPositions:
    """Positions of sources, and the files that they need.

    Attributes:
        streaming: As a checkpoint has it, except for the files.
        files: The files of the sources, by path below their folders.
    """

    streaming: Mapping[str, Any]
    files: Mapping[str, bytes]


def positions_of(logs: QueryLogs, inputs: Mapping[str, DataFrame | None]) -> QueryPositions:
    """Return the positions of a query's sources, for inputs of a job. Blocks.

    Args:
        logs: Logs of the query.
        inputs: The sources in the order of the query's plan: by the uid of the input that continues there, what the
            source reads. With None it is not known, and the job must confirm that the position holds.

    Raises:
        ConfigurationError: They are not the sources of the query.
        StateError: Files of a source are missing.
    """
    lines = _lines(logs, inputs)
    if len(lines) != len(logs.lines):
        raise ConfigurationError(
            f"The query in {logs.folder.path!r} has {len(logs.lines)} sources, but {list(inputs)!r} read from "
            f"{len(lines)}: give them all, in the order in which the query reads them."
        )
    files: dict[str, bytes] = {}
    for folder in sorted({line.folder for line in lines}):
        [*at] = dict.fromkeys(text for line, text in zip(lines, logs.lines, strict=True) if line.folder == folder)
        if len(at) != 1:
            raise ConfigurationError(
                f"Inputs of the query in {logs.folder.path!r} read one source, but stand at different places: {at!r}."
            )
        own = _files(logs.folder, folder, at[0])
        for line in lines:
            if line.folder == folder:
                _require_place(line.leaf, own, logs)
        files |= {f"{folder}/{name}": content for name, content in own.items()}
    batch = logs.batch_id
    if batch > 0 and logs.lines_before is None:
        raise StateError(
            f"The offset log in {logs.folder.path!r} has batch {batch} and not the one before, and Spark needs both to "
            "go on: take a newer batch."
        )
    offsets = {str(batch): _position_text(logs, logs.lines)}
    if logs.lines_before is not None:
        offsets[str(batch - 1)] = _position_text(logs, logs.lines_before)
    streaming = {"batch_id": batch, "offsets": offsets, "inputs": [line.to_json() for line in lines]}
    return QueryPositions(streaming, files)


def _lines(logs: QueryLogs, inputs: Mapping[str, DataFrame | None]) -> Sequence[OffsetLine]:
    known: dict[str, DataFrame] = {uid: frame for uid, frame in inputs.items() if frame is not None}
    for uid, frame in inputs.items():
        if not isinstance(uid, str) or not uid:
            raise ConfigurationError(f"An input has a uid that is a text and not empty, not {uid!r}.")
        if frame is not None and not (isinstance(frame, DataFrame) and frame.isStreaming):
            raise ConfigurationError(f"Input {uid!r} is a streaming DataFrame that reads what the query read, or None.")
    if known and len(known) < len(inputs):
        raise ConfigurationError("Give all inputs a DataFrame, or none of them.")
    if known:
        leaves = [(uid, leaf) for uid, frame in known.items() for leaf in streaming_leaves(frame)]
        return lines_of_leaves(leaves, next(iter(known.values())).sparkSession)
    return [
        OffsetLine(
            InputLeaf(uid, 0, f"source {number} of the query {logs.query_id} of Spark", "unknown columns"), number
        )
        for number, uid in enumerate(inputs)
    ]


def _position_text(logs: QueryLogs, lines: Sequence[str]) -> str:
    # The job does not take over the query's settings, and its plan in Spark has no watermark.
    header = {"batchWatermarkMs": 0, "batchTimestampMs": logs.timestamp, "conf": {}}
    return "\n".join(["v1", json.dumps(header), *lines])


def _files(folder: HadoopFolder, number: int, line: str) -> dict[str, bytes]:
    """Return the files of a source; of a source of files only those read so far, or it would skip later files.

    Raises:
        StateError: Its log has no entry at its position.
    """
    place = f"sources/{number}"
    names = [name for name in folder.files(place) if not name.endswith(".tmp")]
    newest = _log_offset(line)
    if newest is not None:
        entries = {name: _ENTRY.fullmatch(name) for name in names}
        names = [name for name, found in entries.items() if found is not None and int(found[1]) <= newest]
        missing = _missing(names, newest)
        if newest >= 0 and missing is not None:
            raise StateError(
                f"{folder.path}/{place} has no entry {missing}, so it is unknown which files the query had read at "
                f"{line!r}: take a newer batch."
            )
    return {name: folder.read(f"{place}/{name}") for name in names}


def _missing(names: Sequence[str], newest: int) -> int | None:
    """Return the first missing entry of the log up to one; None if it is complete."""
    compacted = max((int(name.partition(".")[0]) for name in names if name.endswith(".compact")), default=-1)
    there = {int(name) for name in names if not name.endswith(".compact")} | {compacted}
    return next((number for number in range(compacted + 1, newest + 1) if number not in there), None)


def _log_offset(line: str) -> int | None:
    """Return the last entry that a source of files has read; None for other sources, -1 if it read nothing."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return None
    found = said.get(_LOG_OFFSET) if isinstance(said, dict) else None
    return found if type(found) is int else None


def _require_place(leaf: InputLeaf, files: Mapping[str, bytes], logs: QueryLogs) -> None:
    """Reject an input that reads another folder than the source did."""
    found = re.search(r" of path '([^']*)'$", leaf.reads)
    if found is None or _PATTERN.search(found[1]):
        return
    for content in files.values():
        for text in content.decode(errors="replace").splitlines()[1:]:
            try:
                path = str(json.loads(text)["path"])
            except PARSE_ERRORS:
                continue
            if not _plain(location_without_credentials(path)).startswith(_plain(found[1]).rstrip("/") + "/"):
                raise ConfigurationError(
                    f"Input {leaf.uid!r} reads {leaf.reads}, but its source in {logs.folder.path!r} has read {path!r}: "
                    "give the inputs in the order in which the query reads them."
                )
            return


def _plain(path: str) -> str:
    return re.sub(r"^file:/+", "/", path)


KEY: Final = "key"
VALUE: Final = "value"
MAP_KEY: Final = "map_key"
EXPIRES: Final = "expires"
TIME: Final = "timestamp"
STAMP: Final = "stamp"

Kind = Literal["value", "list", "map", "timers"]

_TRANSFORM: Final = ("transformWithStateExec", "transformWithStateInPandasExec", "transformWithStateInPySparkExec")
_GROUPS: Final = ("applyInPandasWithState", "flatMapGroupsWithState", "mapGroupsWithState")
_DEDUPE: Final = "dedupe"
_DEDUPE_WITHIN: Final = "dedupeWithinWatermark"
_AGGREGATE: Final = "stateStoreSave"
_KINDS: Final[Mapping[str, Kind]] = {"ValueState": "value", "ListState": "list", "MapState": "map"}
_TIMERS: Final = "TimerState"
_MODES: Final = {"NoTime": "none", "ProcessingTime": "processingtime", "EventTime": "eventtime"}
_DOMAINS: Final = {"processingtime": "processing", "eventtime": "event"}
_REFUSED: Final = {
    "symmetricHashJoin": "a join of two streams, whose rows wait for each other in a form of Spark's own",
    "sessionWindowStateStoreSaveExec": "an aggregation over session windows, which Spark merges in a form of its own",
    "globalLimit": "a limit",
}
_NO_TIMEOUT: Final = -1


@dataclass(frozen=True)
class QueryState:
    """One state of an operator.

    Attributes:
        name: Its name; a descriptive one where Spark has none.
        kind: Its kind.
        has_ttl: Whether its values expire.
        domain: Domain of timers, `event` or `processing`.
        column: Column of the aggregation buffer that it is; None for another state.
    """

    name: str
    kind: Kind
    has_ttl: bool = False
    domain: str | None = None
    column: int | None = None


@dataclass(frozen=True)
class QueryOperator:
    """One operator with state.

    Attributes:
        operator_id: Its number in the query, from 0.
        name: Spark's name of its kind.
        states: Its states.
        partitions: Number of partitions of its state.
        time_mode: Time mode of `transformWithState`, as `StatefulProcessorHandle` has it; empty for other operators.
    """

    operator_id: int
    name: str
    states: tuple[QueryState, ...]
    partitions: int
    time_mode: str = ""

    def state(self, name: str) -> QueryState:
        """Return a state by its name.

        Raises:
            NotExistError: There is none.
        """
        for state in self.states:
            if state.name == name:
                return state
        raise NotExistError(
            f"Operator {self.operator_id} ({self.name}) has no state {name!r}; it has "
            f"{[state.name for state in self.states]!r}."
        )


class QueryStates:
    """The state of a query after a batch, read by Spark's `state-metadata` and `statestore` sources.

    Args:
        session: Session of Spark.
        logs: Logs of the query.
    """

    def __init__(self, session: SparkSession, logs: QueryLogs) -> None:
        self._session = session
        self._logs = logs

    def operators(self) -> list[QueryOperator]:
        """Return the operators with state. Blocks.

        Raises:
            StateError: Spark cannot read the metadata.
        """
        reader = self._session.read.format("state-metadata").option("batchId", self._logs.batch_id)
        try:
            rows = reader.load(self._logs.folder.path).collect()
        except PySparkException as error:
            raise self._failed("the operators", error) from error
        found: dict[int, QueryOperator] = {}
        for row in rows:
            if row.operatorId not in found:
                found[row.operatorId] = self._operator(row)
        return [found[number] for number in sorted(found)]

    def operator(self, operator_id: int | None) -> QueryOperator:
        """Return an operator by its number; None for the only one.

        Raises:
            NotExistError: There is none.
            StateError: There are several, and none is named; or its state has an unknown form, or is not whole.
        """
        operators = self.operators()
        listed = ", ".join(f"{one.operator_id} ({one.name})" for one in operators) or "none"
        if operator_id is None and len(operators) != 1:
            raise StateError(
                f"The query in {self._logs.folder.path!r} has {len(operators)} operators with state: {listed}. "
                "Choose one with operator_id."
            )
        chosen = [one for one in operators if operator_id in (None, one.operator_id)]
        if not chosen:
            raise NotExistError(
                f"The query in {self._logs.folder.path!r} has no operator {operator_id!r} with state: {listed}."
            )
        if chosen[0].name in _REFUSED or not chosen[0].states:
            why = _REFUSED.get(chosen[0].name, f"{chosen[0].name!r}, whose state is in a form that is not known")
            raise StateError(
                f"Operator {chosen[0].operator_id} of the query in {self._logs.folder.path!r} is {why}. Its state "
                "cannot be taken; take that of the others with operator_id."
            )
        self._require_partitions(chosen[0])
        return chosen[0]

    def _require_partitions(self, operator: QueryOperator) -> None:
        """Check that all folders exist: Spark's reader would not miss a last one."""
        folder = f"state/{operator.operator_id}"
        found = {name for name in self._logs.folder.names(folder) if name.isdecimal()}
        missing = [number for number in range(operator.partitions) if str(number) not in found]
        if missing and not self._is_of_all_rows(operator):
            raise StateError(
                f"{self._logs.folder.path}/{folder} has no folder {missing[0]}, but the state is in "
                f"{operator.partitions} partitions: the checkpoint is not whole, copy it again."
            )

    def _is_of_all_rows(self, operator: QueryOperator) -> bool:
        """Return whether an aggregation groups by nothing: its state is in one partition, whatever Spark says."""
        key = self._load(operator).schema[KEY].dataType if operator.name == _AGGREGATE else None
        return isinstance(key, StructType) and not key.fields

    def frame(self, operator: QueryOperator, state: QueryState) -> DataFrame:
        """Return a state as a frame: `key`, a struct, and the columns of its kind.

        These are `value`, of a map also `map_key`, of a list a list in its order; with a time to live `expires`, in
        milliseconds, of a list a list of them; of timers `timestamp`, in milliseconds.

        Raises:
            StateError: Spark cannot read it.
        """
        if operator.name in _TRANSFORM:
            return self._of_processor(operator, state)
        frame = self._load(operator)
        if operator.name in _GROUPS:
            return _of_groups(frame, state)
        if operator.name == _DEDUPE:
            return frame.select(KEY, F.lit(True).alias(VALUE))
        if operator.name == _DEDUPE_WITHIN:
            expires = F.floor(F.col(f"{VALUE}.expiresAtMicros") / 1000)
            return frame.select(KEY, expires.alias(TIME if state.kind == "timers" else VALUE))
        assert state.column is not None
        # Buffers of Spark may have one name twice, so they are taken by their places.
        named = _with_distinct_names(frame)
        return named.select(KEY, F.col(f"{VALUE}._{state.column}").alias(VALUE)).where(F.col(VALUE).isNotNull())

    def _of_processor(self, operator: QueryOperator, state: QueryState) -> DataFrame:
        if state.kind == "timers":
            frame = self._load(operator, readRegisteredTimers="true")
            return frame.select(KEY, F.col("expiration_timestamp_ms").alias(TIME))
        frame = self._load(operator, stateVarName=state.name, flattenCollectionTypes=str(state.kind == "map").lower())
        if state.kind == "list":
            listed = F.col("list_value")
            if not state.has_ttl:
                return frame.select(KEY, listed.alias(VALUE))
            return frame.select(
                KEY,
                F.transform(listed, lambda one: one[VALUE]).alias(VALUE),
                F.transform(listed, lambda one: one["ttlExpirationMs"]).alias(EXPIRES),
            )
        columns = [F.col(KEY)]
        if state.kind == "map":
            columns.append(F.col("user_map_key").alias(MAP_KEY))
        value = F.col("user_map_value" if state.kind == "map" else VALUE)
        if not state.has_ttl:
            return frame.select(*columns, value.alias(VALUE))
        return frame.select(*columns, value[VALUE].alias(VALUE), value["ttlExpirationMs"].alias(EXPIRES))

    def _operator(self, row: Any) -> QueryOperator:
        made = QueryOperator(int(row.operatorId), str(row.operatorName), (), int(row.numPartitions))
        if made.name in _TRANSFORM:
            return self._processor(made, row)
        states: tuple[QueryState, ...]
        if made.name in _GROUPS:
            states = (QueryState("state", "value"), QueryState("timers", "timers"))
        elif made.name == _DEDUPE:
            states = (QueryState("seen", "value"),)
        elif made.name == _DEDUPE_WITHIN:
            states = (QueryState("expires", "value"), QueryState("timers", "timers", domain="event"))
        elif made.name == _AGGREGATE:
            states = _buffers(self._load(made).schema[VALUE].dataType)
        else:
            return made
        return replace(made, states=states)

    def _processor(self, made: QueryOperator, row: Any) -> QueryOperator:
        try:
            properties = json.loads(row.operatorProperties)
            variables = properties["stateVariables"]
            variables = json.loads(variables) if isinstance(variables, str) else variables
            mode = _MODES[properties["timeMode"]]
            states = [
                QueryState(str(one["stateName"]), _KINDS[one["stateVariableType"]], bool(one["ttlEnabled"]))
                for one in variables
                if one["stateVariableType"] != _TIMERS
            ]
            has_timers = len(states) < len(variables)
        except PARSE_ERRORS as error:
            raise StateError(
                f"What Spark says of operator {made.operator_id} ({made.name}) in {self._logs.folder.path!r} is not "
                f"known here: {row.operatorProperties!r:.200}."
            ) from error
        if has_timers and mode in _DOMAINS:
            states.append(QueryState("timers", "timers", domain=_DOMAINS[mode]))
        return replace(made, states=tuple(states), time_mode=mode)

    def _load(self, operator: QueryOperator, **options: str) -> DataFrame:
        reader = self._session.read.format("statestore").options(
            operatorId=operator.operator_id, batchId=self._logs.batch_id, **options
        )
        try:
            return reader.load(self._logs.folder.path)
        except PySparkException as error:
            raise self._failed(f"operator {operator.operator_id} ({operator.name})", error) from error

    def _failed(self, what: str, error: PySparkException) -> StateError:
        folder = self._logs.folder
        cure = (
            " Its reader looks elsewhere if a path has a space, a % or the like in it: copy the directory to another."
        )
        return StateError(
            f"Spark cannot read {what} of the query in {folder.path!r} at batch {self._logs.batch_id}: {error!s:.600}"
            f"{cure if folder.is_escaped else ''}"
        )


def stamped(frame: DataFrame, state: QueryState, time_to_live: int) -> DataFrame:
    """Return a state with the times of last use, `stamp`, instead of the times of expiry, in milliseconds."""
    expires = F.col(EXPIRES)
    if state.kind == "list":
        used = F.transform(expires, lambda one: one - F.lit(time_to_live))
    else:
        used = expires - F.lit(time_to_live)
    return frame.withColumn(STAMP, used).drop(EXPIRES)


def _of_groups(frame: DataFrame, state: QueryState) -> DataFrame:
    value = F.col(VALUE)
    if state.kind == "timers":
        time = value["timeoutTimestamp"]
        return frame.select(KEY, time.alias(TIME)).where(F.col(TIME) != _NO_TIMEOUT)
    return frame.select(KEY, value["groupState"].alias(VALUE)).where(F.col(VALUE).isNotNull())


def _buffers(value: Any) -> tuple[QueryState, ...]:
    assert isinstance(value, StructType)
    taken: list[str] = []
    for at, field in enumerate(value.fields):
        number = 1 + sum(other.name == field.name for other in value.fields[:at])
        taken.append(field.name if number == 1 else f"{field.name}_{number}")
    return tuple(QueryState(name, "value", column=at) for at, name in enumerate(taken))


def _with_distinct_names(frame: DataFrame) -> DataFrame:
    value = frame.schema[VALUE].dataType
    assert isinstance(value, StructType)
    fields: Sequence[str] = [f"_{at}: {field.dataType.simpleString()}" for at, field in enumerate(value.fields)]
    return frame.withColumn(VALUE, F.col(VALUE).cast(f"struct<{', '.join(fields)}>"))
