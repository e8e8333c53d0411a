"""All metrics: name, kind, labels and meaning of each, once. Samples are made of them, and the page that lists them.

Names are those of Flink's exporter where Flink has the number. It shows counters as gauges, and so do we under its
names; ours follow the convention of Prometheus.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from holdfast.errors import CorruptFileError
from holdfast.kernel.parsing import PARSE_ERRORS

# One number with its name: how the process of a job tells its job manager, and both Prometheus.


@dataclass(frozen=True)
class Sample:
    """A number.

    Attributes:
        name: As Prometheus knows it; that of a counter without ``_total``.
        value: The number.
        help: What it is.
        is_counter: Whether it only grows while a process lives. Flink's exporter shows its counters as gauges, and
            under Flink's names so do we.
        labels: What it is about.
    """

    name: str
    value: float
    help: str
    is_counter: bool = False
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)


def to_json(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Return samples as JSON."""
    return [asdict(sample) for sample in samples]


def from_json(body: Any) -> list[Sample]:
    """Read samples.

    Raises:
        CorruptFileError: They are none.
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
        raise CorruptFileError("metrics", None, f"they are no numbers of a job: {error!r:.200}.") from error


JOB: Final = ("job_id", "job_name")
OPERATOR: Final = (*JOB, "operator_id")


@dataclass(frozen=True)
class MetricEntry:
    """One metric.

    Attributes:
        name: As Prometheus knows it; that of a counter without ``_total``.
        help: What it is, in a sentence.
        labels: What tells its numbers apart.
        is_counter: Whether it only grows while a process lives.
    """

    name: str
    help: str
    labels: tuple[str, ...] = JOB
    is_counter: bool = False

    def of(self, value: float, labels: Mapping[str, str] | None = None, **further: str) -> Sample:
        """Return a number of it.

        Args:
            value: The number.
            labels: What it is about.
            further: More of them.
        """
        found = {**(labels or {}), **further}
        assert tuple(found) == self.labels, f"{self.name} has the labels {self.labels}, not {tuple(found)}"
        return Sample(self.name, value, self.help, self.is_counter, found)


def _counter(name: str, help: str, labels: tuple[str, ...] = JOB) -> MetricEntry:
    return MetricEntry(name, help, labels, is_counter=True)


_FLINK_JOB: Final = "flink_jobmanager_job_"
_FLINK_OPERATOR: Final = "flink_taskmanager_job_task_operator_"

# Of a job, as at /jobs/:jobid/metrics.
FLINK_OF_JOB: Final = {
    name: MetricEntry(_FLINK_JOB + name, help)
    for name, help in {
        "numRestarts": "Attempts that have failed.",
        "uptime": "Milliseconds since the job runs, of its last attempt.",
        "downtime": "Milliseconds since the job fails, 0 while it runs.",
        "totalNumberOfCheckpoints": "Checkpoints and savepoints that were asked for.",
        "numberOfInProgressCheckpoints": "Of these, those under way.",
        "numberOfCompletedCheckpoints": "Of these, those that have completed.",
        "numberOfFailedCheckpoints": "Of these, those that have failed.",
        "lastCheckpointRestoreTimestamp": "When the job was restored, in milliseconds since 1970.",
        "lastCheckpointSize": "Bytes that the newest checkpoint has written.",
        "lastCheckpointFullSize": "Bytes of all that the newest checkpoint names.",
        "lastCheckpointMetadataSize": "Bytes of its document.",
        "lastCheckpointDuration": "Milliseconds from its trigger to its pointer.",
        "lastCheckpointProcessedData": "Always 0: nothing is processed while it is taken.",
        "lastCheckpointPersistedData": "Always 0: a shuffle is the barrier, no data is in flight.",
        "lastCompletedCheckpointId": "Its id.",
        "lastCheckpointCompletedTimestamp": "When it completed, in milliseconds since 1970.",
    }.items()
}

EPOCHS: Final = _counter("holdfast_job_epochs", "Epochs that were accepted.")
EPOCHS_REPEATED: Final = _counter(
    "holdfast_job_epochs_repeated", "Epochs run again because tasks had read different attempts."
)
ROWS_IN: Final = _counter("holdfast_job_rows_in", "Elements read from sources.")
EPOCH_SECONDS: Final = _counter("holdfast_job_epoch_seconds", "Time that epochs have taken.")
CHECKPOINT_SECONDS: Final = _counter(
    "holdfast_job_checkpoint_seconds", "Of that, for documents and pointers of checkpoints."
)
COMMIT_SECONDS: Final = _counter("holdfast_job_commit_seconds", "Of that, spent waiting for the commits of sinks.")
ATTEMPTS_FAILED: Final = _counter("holdfast_job_attempts_failed", "Attempts of the job that have failed.")
CHECKPOINTS_FAILED: Final = _counter(
    "holdfast_job_checkpoints_failed", "Checkpoints that have failed, by Flink's name of the reason.", (*JOB, "reason")
)
COMPACTIONS: Final = _counter(
    "holdfast_job_compactions",
    "Compactions of state, by what became of their result: taken, or dropped because it failed or came too late.",
    (*JOB, "outcome"),
)
COMPACTION_BYTES: Final = _counter("holdfast_job_compaction_bytes", "Bytes of the results that were taken.")
COMPACTION_WAIT: Final = _counter(
    "holdfast_job_compaction_wait_seconds", "Time that epochs have waited for compaction."
)
STATE_BYTES: Final = MetricEntry("holdfast_job_state_bytes", "Size of the run files of all state.")
TRIES: Final = MetricEntry("holdfast_job_tries_in_a_row", "Attempts that have failed since a checkpoint completed.")
STATUS: Final = MetricEntry("holdfast_job_status", "1 for the status of the job, 0 for others.", (*JOB, "status"))
IS_LEADER: Final = MetricEntry(
    "holdfast_job_is_leader", "1 if this process leads the job, 0 if it stands by or has ended."
)
FENCING_TOKEN: Final = MetricEntry(
    "holdfast_job_fencing_token", "The leader's fencing token; each take-over and each restart raises it."
)

RECORDS_IN: Final = MetricEntry(f"{_FLINK_OPERATOR}numRecordsIn", "Elements read, summed over subtasks.", OPERATOR)
RECORDS_OUT: Final = MetricEntry(f"{_FLINK_OPERATOR}numRecordsOut", "Elements emitted, summed over subtasks.", OPERATOR)
BYTES_IN: Final = MetricEntry(
    f"{_FLINK_OPERATOR}numBytesIn", "Bytes that came in columns, of sources and exchanges.", OPERATOR
)
WATERMARK: Final = MetricEntry(
    f"{_FLINK_OPERATOR}currentOutputWatermark", "Its watermark, in milliseconds since 1970.", OPERATOR
)
EVENT_TIME_LAG: Final = MetricEntry(
    f"{_FLINK_OPERATOR}currentEmitEventTimeLag",
    "Milliseconds that the newest timestamp is behind the clock, of operators that assign timestamps.",
    OPERATOR,
)
PENDING_RECORDS: Final = MetricEntry(
    f"{_FLINK_OPERATOR}pendingRecords",
    "Records that wait in a source to be read, where the source counts them: Kafka does. As of its last batch.",
    OPERATOR,
)
PENDING_FILES: Final = MetricEntry(
    "holdfast_operator_pending_files",
    "Files that wait in a FileSource, which belong to no epoch yet.",
    OPERATOR,
)
PENDING_BYTES: Final = MetricEntry(f"{_FLINK_OPERATOR}pendingBytes", "Bytes of the files that wait.", OPERATOR)
OFFSET_COMMITS: Final = MetricEntry(
    f"{_FLINK_OPERATOR}KafkaSourceReader_commitsSucceeded",
    "How often where a source stands was committed to its consumer group.",
    OPERATOR,
)
OFFSET_COMMITS_FAILED: Final = MetricEntry(
    f"{_FLINK_OPERATOR}KafkaSourceReader_commitsFailed",
    "How often it was not; the next checkpoint tries again, and the job does not need it.",
    OPERATOR,
)
FETCH_LAG: Final = MetricEntry(
    f"{_FLINK_OPERATOR}currentFetchEventTimeLag",
    "Milliseconds that the newest element of the last epoch was old when it was read, of sources with timestamps.",
    OPERATOR,
)
RECORDS_SENT: Final = MetricEntry(
    f"{_FLINK_OPERATOR}numRecordsSend", "Elements that a sink has committed: its target shows them.", OPERATOR
)
BYTES_SENT: Final = MetricEntry(
    f"{_FLINK_OPERATOR}numBytesSend", "Bytes of the files in which they were staged, where the sink says it.", OPERATOR
)
SEND_ERRORS: Final = MetricEntry(
    f"{_FLINK_OPERATOR}numRecordsSendErrors",
    "Elements that a sink could not write and put aside as dead letters, where it does so.",
    OPERATOR,
)
SEND_TIME: Final = MetricEntry(
    f"{_FLINK_OPERATOR}currentSendTime", "Milliseconds that a sink took for the commit of its last epoch.", OPERATOR
)
COMMITTABLES: Final = {
    name: MetricEntry(_FLINK_OPERATOR + name, help, OPERATOR)
    for name, help in {
        "pendingCommittables": "Committables of a sink that wait, staged in accepted epochs and not committed.",
        "successfulCommittables": "Committables that a commit has made visible.",
        "alreadyCommittedCommittables": "Committables of which the target has said that they are there.",
        "failedCommittables": "Committables that a committer gave up on purpose.",
        "retriedCommittables": "How often a committable was to be tried again.",
    }.items()
}
SINK_SECONDS: Final = _counter(
    "holdfast_operator_commit_seconds",
    "Time that commits of a sink have taken, those that failed and pauses between tries included.",
    OPERATOR,
)
SINK_LAG: Final = MetricEntry(
    "holdfast_operator_commit_lag_seconds",
    "How long the oldest output of a sink has waited for its commit since its epoch was accepted, 0 if none waits.",
    OPERATOR,
)
SINK_PENDING: Final = MetricEntry(
    "holdfast_operator_pending_rows", "Elements that a sink has staged in accepted epochs and not committed.", OPERATOR
)
SINK_BEHIND: Final = MetricEntry(
    "holdfast_operator_pending_epochs", "Accepted epochs whose output a sink has not committed.", OPERATOR
)
WATERMARK_LAG: Final = MetricEntry(
    "holdfast_operator_watermark_lag_seconds", "How far its watermark is behind the clock.", OPERATOR
)
OPERATOR_STATE_BYTES: Final = MetricEntry("holdfast_operator_state_bytes", "Size of its run files.", OPERATOR)
STATE_ENTRIES: Final = MetricEntry(
    "holdfast_operator_state_entries",
    "Rows of its run files. What was written again, or deleted, counts until it is compacted.",
    OPERATOR,
)
BUSY_SECONDS: Final = _counter(
    "holdfast_operator_busy_seconds", "Time that its subtasks have worked, in all.", OPERATOR
)
CACHE_HITS: Final = _counter(
    "holdfast_operator_cache_hits", "Tasks that found their state in the memory of a worker.", OPERATOR
)
CACHE_MISSES: Final = _counter(
    "holdfast_operator_cache_misses", "Tasks that did not, and read what they needed from run files.", OPERATOR
)
FUNCTION: Final = "flink_taskmanager_job_task_operator_"
"""Before the names of what functions count themselves."""

QUERIES: Final = _counter(
    "holdfast_queries", "What the servers of queryable state in this process were asked for.", (*JOB, "kind")
)
QUERIES_REFUSED: Final = _counter("holdfast_queries_refused", "Of these, those that were refused at once.")

MANAGER_IS_LEADER: Final = MetricEntry(
    "holdfast_jobmanager_is_leader", "1 if this job manager leads, 0 if it stands by.", ()
)
MANAGER_JOBS: Final = MetricEntry(
    "holdfast_jobmanager_jobs",
    "Jobs by status: those that it leads, and those that have ended, also under leaders before, as far as it knows.",
    ("status",),
)
MANAGER_PROCESSES: Final = _counter(
    "holdfast_jobmanager_job_processes", "How often this term has started a process of the job.", ("job_id",)
)

ALL: Final = (
    *FLINK_OF_JOB.values(),
    *COMMITTABLES.values(),
    *(value for value in list(globals().values()) if isinstance(value, MetricEntry)),
)
"""All of them, in the order of this file."""
