"""The declaration of every metric: name, kind, labels and help. Samples and `docs/metrics.md` are made from it.

Names are those of Flink's exporter where Flink has the metric. Flink's exporter shows counters as gauges, and under its
names Holdfast does the same. Holdfast's own names follow Prometheus' conventions.

To add a metric, declare it here, yield its sample in `rest/metric_samples.py` (in
`dispatcher/job_manager_api.py` for a job manager), and run `python scripts/metrics_page.py`. A task sends its values in
its `StepReport`, and `JobMetrics` adds them up. A real-time task also sends `RealTimeMetrics`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from holdfast.errors import CorruptFileError
from holdfast.kernel.parsing import PARSE_ERRORS


@dataclass(frozen=True)
class Sample:
    """The value of a metric at one moment.

    Attributes:
        name: Its name in Prometheus; a counter's without ``_total``.
        value: The value.
        help: The description of the metric.
        is_counter: Whether it is a counter, not a gauge.
        labels: The labels of the value.
    """

    name: str
    value: float
    help: str
    is_counter: bool = False
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)


def to_json(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    return [asdict(sample) for sample in samples]


def from_json(body: Any) -> list[Sample]:
    """Parse the samples of another process.

    Raises:
        CorruptFileError: They are malformed.
    """
    try:
        return [
            Sample(
                str(entry["name"]),
                float(entry["value"]),
                str(entry["help"]),
                bool(entry["is_counter"]),
                {str(key): str(value) for key, value in entry["labels"].items()},
            )
            for entry in body
        ]
    except PARSE_ERRORS as error:
        raise CorruptFileError("metrics", None, f"they are malformed: {error!r:.200}.") from error


JOB: Final = ("job_id", "job_name")
OPERATOR: Final = (*JOB, "operator_id")
SUBTASK: Final = (*OPERATOR, "subtask_index")
_LATENCY_LABELS: Final = (*JOB, "source_id", "operator_id", "operator_subtask_index")


@dataclass(frozen=True)
class MetricEntry:
    """The declaration of a metric.

    Attributes:
        name: Its name in Prometheus; a counter's without ``_total``.
        help: The description, one or two sentences.
        labels: The names of its labels.
        is_counter: Whether it is a counter, not a gauge.
    """

    name: str
    help: str
    labels: tuple[str, ...] = JOB
    is_counter: bool = False

    def sample(self, value: float, labels: Mapping[str, str] | None = None, **further: str) -> Sample:
        """Return a value of the metric with its labels."""
        found = {**(labels or {}), **further}
        assert tuple(found) == self.labels, f"{self.name} has the labels {self.labels}, not {tuple(found)}"
        return Sample(self.name, value, self.help, self.is_counter, found)


def _counter(name: str, help: str, labels: tuple[str, ...] = JOB) -> MetricEntry:
    return MetricEntry(name, help, labels, is_counter=True)


_FLINK_JOB: Final = "flink_jobmanager_job_"
FLINK_OPERATOR: Final = "flink_taskmanager_job_task_operator_"
"""Prefix of metrics of operators, and of those that user functions register."""

_FLINK_TASK: Final = "flink_taskmanager_job_task_"
_LATENCY: Final = "flink_taskmanager_job_latency_source_id_operator_id_operator_subtask_index_latency"

# The metrics of /jobs/:jobid/metrics.
FLINK_JOB_METRICS: Final = {
    name: MetricEntry(_FLINK_JOB + name, help)
    for name, help in {
        "numRestarts": "Failed attempts of the job.",
        "uptime": "Milliseconds since the current attempt has been running.",
        "downtime": "Milliseconds since the job failed and has been restarting, 0 while it runs.",
        "totalNumberOfCheckpoints": "Triggered checkpoints and savepoints.",
        "numberOfInProgressCheckpoints": "Checkpoints and savepoints in progress.",
        "numberOfCompletedCheckpoints": "Completed checkpoints and savepoints.",
        "numberOfFailedCheckpoints": "Failed checkpoints and savepoints.",
        "lastCheckpointRestoreTimestamp": "Time of the last restore, in milliseconds since 1970.",
        "lastCheckpointSize": "Bytes written by the newest checkpoint.",
        "lastCheckpointFullSize": "Bytes of all files that the newest checkpoint refers to.",
        "lastCheckpointMetadataSize": "Bytes of the metadata file of the newest checkpoint.",
        "lastCheckpointDuration": "Milliseconds from trigger to completion of the newest checkpoint.",
        "lastCheckpointProcessedData": "Always 0: elements during a checkpoint are not counted.",
        "lastCheckpointPersistedData": "Always 0: checkpoints contain no elements in flight.",
        "lastCompletedCheckpointId": "Id of the newest completed checkpoint.",
        "lastCheckpointCompletedTimestamp": "Completion time of the newest checkpoint, in milliseconds since 1970.",
    }.items()
}

EPOCHS: Final = _counter("holdfast_job_epochs", "Accepted epochs.")
EPOCHS_REPEATED: Final = _counter(
    "holdfast_job_epochs_repeated",
    "Epochs repeated because tasks had read the output of different task attempts.",
)
ROWS_IN: Final = _counter("holdfast_job_rows_in", "Elements read from sources.")
EPOCH_SECONDS: Final = _counter("holdfast_job_epoch_seconds", "Duration of all epochs.")
CHECKPOINT_SECONDS: Final = _counter(
    "holdfast_job_checkpoint_seconds", "Part of holdfast_job_epoch_seconds that was spent writing checkpoint metadata."
)
COMMIT_SECONDS: Final = _counter(
    "holdfast_job_commit_seconds", "Part of holdfast_job_epoch_seconds that was spent waiting for commits of sinks."
)
ATTEMPTS_FAILED: Final = _counter("holdfast_job_attempts_failed", "Failed attempts of the job.")
CHECKPOINTS_FAILED: Final = _counter(
    "holdfast_job_checkpoints_failed", "Failed checkpoints by Flink's failure reason.", (*JOB, "reason")
)
COMPACTIONS: Final = _counter(
    "holdfast_job_compactions",
    "Compactions of state by outcome: taken (their result is used), or dropped (failed or too late).",
    (*JOB, "outcome"),
)
COMPACTION_BYTES: Final = _counter(
    "holdfast_job_compaction_bytes", "Bytes written by compactions whose result is used."
)
COMPACTION_BEHIND: Final = MetricEntry(
    "holdfast_job_compaction_behind_runs",
    "Runs above state.compaction.max-runs in which a key has to be looked up; 0 if compaction keeps up.",
)
STORAGE_REQUESTS: Final = _counter(
    "holdfast_job_storage_requests",
    "Requests to object stores by process (driver, with its compaction, or worker) and method: put and list are the "
    "expensive ones. Libraries of tables and Spark itself are not counted.",
    (*JOB, "process", "method"),
)
STATE_BYTES: Final = MetricEntry("holdfast_job_state_bytes", "Size of the run files of all state, in bytes.")
TRIES: Final = MetricEntry("holdfast_job_tries_in_a_row", "Failed attempts since the last completed checkpoint.")
STATUS: Final = MetricEntry(
    "holdfast_job_status", "1 for the current status of the job, 0 for all others.", (*JOB, "status")
)
IS_LEADER: Final = MetricEntry(
    "holdfast_job_is_leader", "1 if this process leads the job, 0 if it stands by or the job has ended."
)
FENCING_TOKEN: Final = MetricEntry(
    "holdfast_job_fencing_token", "Fencing token of the leader; each takeover and each restart raises it."
)

RECORDS_IN: Final = MetricEntry(f"{FLINK_OPERATOR}numRecordsIn", "Elements read, summed over subtasks.", OPERATOR)
RECORDS_OUT: Final = MetricEntry(
    f"{FLINK_OPERATOR}numRecordsOut", "Elements emitted, with side outputs, summed over subtasks.", OPERATOR
)
BYTES_IN: Final = MetricEntry(
    f"{FLINK_OPERATOR}numBytesIn", "Bytes read in columns, from sources and exchanges.", OPERATOR
)
WATERMARK: Final = MetricEntry(
    f"{FLINK_OPERATOR}currentOutputWatermark", "Watermark of the operator, in milliseconds since 1970.", OPERATOR
)
EVENT_TIME_LAG: Final = MetricEntry(
    f"{FLINK_OPERATOR}currentEmitEventTimeLag",
    "Milliseconds between the newest timestamp and the clock, for operators that assign timestamps.",
    OPERATOR,
)
PENDING_RECORDS: Final = MetricEntry(
    f"{FLINK_OPERATOR}pendingRecords",
    "Unread records of a source at its last batch, if the source counts them, as Kafka does.",
    OPERATOR,
)
PENDING_FILES: Final = MetricEntry(
    "holdfast_operator_pending_files",
    "Unread files of a FileSource.",
    OPERATOR,
)
PENDING_BYTES: Final = MetricEntry(
    f"{FLINK_OPERATOR}pendingBytes", "Bytes of the unread files of a FileSource.", OPERATOR
)
OFFSET_COMMITS: Final = MetricEntry(
    f"{FLINK_OPERATOR}KafkaSourceReader_commitsSucceeded",
    "Successful commits of offsets to the consumer group.",
    OPERATOR,
)
OFFSET_COMMITS_FAILED: Final = MetricEntry(
    f"{FLINK_OPERATOR}KafkaSourceReader_commitsFailed",
    "Failed commits of offsets. The next checkpoint retries; the job itself does not need them.",
    OPERATOR,
)
FETCH_LAG: Final = MetricEntry(
    f"{FLINK_OPERATOR}currentFetchEventTimeLag",
    "Age of the newest element of the last epoch when it was read, in milliseconds, for sources with timestamps.",
    OPERATOR,
)
RECORDS_SENT: Final = MetricEntry(
    f"{FLINK_OPERATOR}numRecordsSend", "Elements that a sink has committed, so that they are visible.", OPERATOR
)
BYTES_SENT: Final = MetricEntry(
    f"{FLINK_OPERATOR}numBytesSend",
    "Bytes of the staged files of committed elements, if the sink reports them.",
    OPERATOR,
)
SEND_ERRORS: Final = MetricEntry(
    f"{FLINK_OPERATOR}numRecordsSendErrors",
    "Elements that a sink could not write and has put aside as dead letters.",
    OPERATOR,
)
SEND_TIME: Final = MetricEntry(
    f"{FLINK_OPERATOR}currentSendTime", "Milliseconds that the last commit of a sink took.", OPERATOR
)
COMMITTABLES: Final = {
    name: MetricEntry(FLINK_OPERATOR + name, help, OPERATOR)
    for name, help in {
        "pendingCommittables": "Committables of a sink that are staged in accepted epochs and not committed yet.",
        "successfulCommittables": "Committables that were committed.",
        "alreadyCommittedCommittables": "Committables that an earlier commit had already made visible.",
        "failedCommittables": "Committables that a committer has rejected; it does not retry them.",
        "retriedCommittables": "Retries of committables.",
    }.items()
}
SINK_SECONDS: Final = _counter(
    "holdfast_operator_commit_seconds",
    "Duration of the commits of a sink, including failed ones and pauses between retries.",
    OPERATOR,
)
SINK_LAG: Final = MetricEntry(
    "holdfast_operator_commit_lag_seconds",
    "Seconds since the epoch of the oldest uncommitted output of a sink was accepted, 0 without such output.",
    OPERATOR,
)
SINK_PENDING: Final = MetricEntry(
    "holdfast_operator_pending_rows",
    "Elements that a sink has staged in accepted epochs and not committed yet.",
    OPERATOR,
)
SINK_BEHIND: Final = MetricEntry(
    "holdfast_operator_pending_epochs", "Accepted epochs whose output a sink has not committed yet.", OPERATOR
)
WATERMARK_LAG: Final = MetricEntry(
    "holdfast_operator_watermark_lag_seconds", "Seconds between the watermark of the operator and the clock.", OPERATOR
)
OPERATOR_STATE_BYTES: Final = MetricEntry(
    "holdfast_operator_state_bytes", "Size of the run files of the operator, in bytes.", OPERATOR
)
STATE_ENTRIES: Final = MetricEntry(
    "holdfast_operator_state_entries",
    "Rows in the run files of the operator. Overwritten and deleted entries count until compaction.",
    OPERATOR,
)
BUSY_SECONDS: Final = _counter("holdfast_operator_busy_seconds", "Busy time of all subtasks of the operator.", OPERATOR)
CACHE_HITS: Final = _counter(
    "holdfast_operator_cache_hits", "Tasks that found their state in the memory of a Python worker.", OPERATOR
)
CACHE_MISSES: Final = _counter(
    "holdfast_operator_cache_misses", "Tasks that had to read their state from run files.", OPERATOR
)
BUSY_TIME: Final = MetricEntry(
    f"{_FLINK_TASK}busyTimeMsPerSecond",
    "Real time: milliseconds a second in which the task of the subtask works. Operators of one task have the same.",
    SUBTASK,
)
BACK_PRESSURED_TIME: Final = MetricEntry(
    f"{_FLINK_TASK}backPressuredTimeMsPerSecond",
    "Real time: milliseconds a second in which the task waits: the next stage accepts no more, or has its thread.",
    SUBTASK,
)
IDLE_TIME: Final = MetricEntry(
    f"{_FLINK_TASK}idleTimeMsPerSecond", "Real time: milliseconds a second in which the task waits for input.", SUBTASK
)
MESSAGES_OUT: Final = MetricEntry(
    f"{_FLINK_TASK}numBuffersOutPerSecond",
    "Real time: messages that the task of the subtask sends to the next stage a second, with barriers and watermarks.",
    SUBTASK,
)
RATE_IN: Final = MetricEntry(
    f"{FLINK_OPERATOR}numRecordsInPerSecond", "Real time: elements that the subtask reads a second.", SUBTASK
)
RATE_OUT: Final = MetricEntry(
    f"{FLINK_OPERATOR}numRecordsOutPerSecond",
    "Real time: elements that the subtask emits a second, with side outputs; of a source, those that it reads.",
    SUBTASK,
)
INPUT_WATERMARK: Final = MetricEntry(
    f"{FLINK_OPERATOR}currentInputWatermark",
    "Real time: watermark of the input of the subtask, in milliseconds since 1970.",
    SUBTASK,
)
ALIGNMENT_TIME: Final = MetricEntry(
    f"{_FLINK_TASK}checkpointAlignmentTime",
    "Real time: nanoseconds from the first to the last arrival of the last barrier.",
    SUBTASK,
)
START_DELAY: Final = MetricEntry(
    f"{_FLINK_TASK}checkpointStartDelayNanos",
    "Real time: nanoseconds from the trigger of the last barrier in the driver to its first arrival in the task.",
    SUBTASK,
)
SYNC_SECONDS: Final = MetricEntry(
    "holdfast_operator_checkpoint_sync_seconds",
    "Real time: seconds for which the elements of the task waited for its last snapshot.",
    SUBTASK,
)
LATENCY: Final = MetricEntry(
    _LATENCY,
    "Real time: quantiles of the latency from a source to the subtask, in milliseconds, if metrics.latency.interval "
    "is set.",
    (*_LATENCY_LABELS, "quantile"),
)
LATENCY_COUNT: Final = MetricEntry(
    f"{_LATENCY}_count", "Real time: latency markers of the source that have reached the subtask.", _LATENCY_LABELS
)

QUERIES: Final = _counter(
    "holdfast_queries", "Requests to the queryable state servers of this process, by type.", (*JOB, "kind")
)
QUERIES_REFUSED: Final = _counter(
    "holdfast_queries_refused", "Requests to the queryable state servers of this process that failed at once."
)

MANAGER_IS_LEADER: Final = MetricEntry(
    "holdfast_jobmanager_is_leader", "1 if this job manager leads, 0 if it stands by.", ()
)
MANAGER_JOBS: Final = MetricEntry(
    "holdfast_jobmanager_jobs",
    "Jobs of this leader by status, including ended jobs of earlier leaders that it knows.",
    ("status",),
)
MANAGER_PROCESSES: Final = _counter(
    "holdfast_jobmanager_job_processes", "Starts of the job's process under this leader.", ("job_id",)
)

ALL: Final = (
    *FLINK_JOB_METRICS.values(),
    *COMMITTABLES.values(),
    *(value for value in list(globals().values()) if isinstance(value, MetricEntry)),
)
"""All metrics in the order of this file."""
