"""The metrics of a job, collected at each request: by Flink's names, and as samples.

`runtime/master/metric_catalog.py` declares them, and says how to add one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast.checkpoint.statistics import StatsSnapshot
from holdfast.queryable.server.server import QUERY_COUNTS, REFUSED
from holdfast.runtime.commit.sink_metrics import SinkMetrics
from holdfast.runtime.exchange.real_time_metrics import QUANTILES, by_operator, slowest_watermark
from holdfast.runtime.function.sink import SEND_ERRORS
from holdfast.runtime.job.control import JobStatus
from holdfast.runtime.master import metric_catalog as metric
from holdfast.runtime.master.job_master import JobMaster
from holdfast.runtime.master.metric_catalog import Sample
from holdfast.storage.object_store import METHODS

_NONE: Final = -1
"""Flink's value of a metric that is not known yet."""


def collect_metrics(master: JobMaster) -> dict[str, Any]:
    """Return the metrics of `/jobs/:jobid/metrics` by Flink's name."""
    status, entered, now = master.status, master.history.entered, master.job.clock.now_ms()
    recent = master.progress.recent
    found: dict[str, Any] = {
        "numRestarts": master.history.failure_count,
        "triesInARow": master.failures_in_a_row,
        "uptime": now - entered.get(JobStatus.RUNNING, now) if status is JobStatus.RUNNING else _NONE,
        "downtime": now - entered.get(status, now) if status is JobStatus.RESTARTING else 0,
        **_checkpoints(master.statistics.create_snapshot()),
    }
    if recent:
        found |= {
            "lastEpoch": recent[-1].epoch,
            "lastEpochRows": recent[-1].rows,
            "lastEpochDuration": recent[-1].duration_ms,
            "rowsPerSecond": round(recent[-1].rows_per_second, 1),
            "stateSize": recent[-1].state_bytes,
        }
    return found


def _checkpoints(snapshot: StatsSnapshot) -> dict[str, Any]:
    counts, last, restored = snapshot.counts, snapshot.latest_completed, snapshot.restored
    return {
        "totalNumberOfCheckpoints": counts.total,
        "numberOfInProgressCheckpoints": counts.in_progress,
        "numberOfCompletedCheckpoints": counts.completed,
        "numberOfFailedCheckpoints": counts.failed,
        "lastCheckpointRestoreTimestamp": _NONE if restored is None else restored.restore_timestamp,
        "lastCheckpointSize": _NONE if last is None else last.checkpointed_size,
        "lastCheckpointFullSize": _NONE if last is None else last.state_size,
        "lastCheckpointMetadataSize": _NONE if last is None else last.metadata_size,
        "lastCheckpointDuration": _NONE if last is None else last.end_to_end_duration,
        "lastCheckpointProcessedData": _NONE if last is None else last.processed_data,
        "lastCheckpointPersistedData": _NONE if last is None else 0,
        "lastCheckpointExternalPath": "n/a" if last is None else last.external_path,
        "lastCompletedCheckpointId": _NONE if last is None else last.checkpoint_id,
        "lastCheckpointCompletedTimestamp": _NONE if last is None else last.end_timestamp,
    }


_NO_QUERIES: Final = {REFUSED: 0, "get": 0, "scan": 0}
"""Reported as 0 from the start: Prometheus sees an increase only after an earlier value."""
_LEADING: Final = frozenset({JobStatus.RUNNING, JobStatus.RESTARTING})


def collect_samples(master: JobMaster) -> list[Sample]:
    """Return all metrics of a job as samples."""
    labels = {"job_id": str(master.job.job_id), "job_name": master.job.name}
    return [
        *_of_job(master, labels),
        *_of_operators(master, labels),
        *_of_real_time(master, labels),
        *_of_queries(labels),
    ]


def _of_job(master: JobMaster, labels: Mapping[str, str]) -> Iterator[Sample]:
    for name, value in collect_metrics(master).items():
        if name in metric.FLINK_JOB_METRICS and isinstance(value, int | float) and value != _NONE:
            yield metric.FLINK_JOB_METRICS[name].sample(value, labels)
    numbers = master.metrics.numbers
    yield metric.EPOCHS.sample(numbers.epochs, labels)
    yield metric.EPOCHS_REPEATED.sample(numbers.repeated, labels)
    yield metric.ROWS_IN.sample(numbers.rows, labels)
    yield metric.EPOCH_SECONDS.sample(round(numbers.seconds, 6), labels)
    yield metric.CHECKPOINT_SECONDS.sample(round(numbers.checkpoint_seconds, 6), labels)
    yield metric.COMMIT_SECONDS.sample(round(numbers.commit_seconds, 6), labels)
    yield metric.ATTEMPTS_FAILED.sample(master.history.failure_count, labels)
    for reason, count in sorted(master.statistics.create_snapshot().failures.items()):
        yield metric.CHECKPOINTS_FAILED.sample(count, labels, reason=reason)
    compaction = master.compaction
    yield metric.COMPACTIONS.sample(compaction.swapped, labels, outcome="taken")
    yield metric.COMPACTIONS.sample(compaction.dropped, labels, outcome="dropped")
    yield metric.COMPACTION_BYTES.sample(compaction.bytes_written, labels)
    for process in ("driver", "worker"):
        for method in METHODS:
            count = numbers.requests.get((process, method), 0)
            yield metric.STORAGE_REQUESTS.sample(count, labels, process=process, method=method)
    yield metric.COMPACTION_BEHIND.sample(compaction.behind, labels)
    yield metric.STATE_BYTES.sample(sum(operator.state_bytes for operator in numbers.operators.values()), labels)
    yield metric.TRIES.sample(master.failures_in_a_row, labels)
    yield metric.IS_LEADER.sample(int(master.status in _LEADING), labels)
    if master.fencing_token is not None:
        yield metric.FENCING_TOKEN.sample(master.fencing_token, labels)
    for status in JobStatus:
        yield metric.STATUS.sample(int(status is master.status), labels, status=status.value)


def _of_operators(master: JobMaster, labels: Mapping[str, str]) -> Iterator[Sample]:
    now = master.job.clock.now_ms()
    for uid, source in sorted(master.job.engine.source_metrics().items()):
        for entry, number in (
            (metric.PENDING_RECORDS, source.records),
            (metric.PENDING_FILES, source.files),
            (metric.PENDING_BYTES, source.bytes),
            (metric.OFFSET_COMMITS, source.commits),
            (metric.OFFSET_COMMITS_FAILED, source.failed_commits),
        ):
            if number is not None:
                yield entry.sample(number, labels, operator_id=uid)
    numbers = master.metrics.numbers
    for uid, lag in sorted(numbers.fetch_lags.items()):
        yield metric.FETCH_LAG.sample(lag, labels, operator_id=uid)
    for uid, sink in numbers.sinks.items():
        yield from _of_sink(sink, now, {**labels, "operator_id": uid})
    live = by_operator(master.job.engine.task_metrics())
    for uid, operator in sorted(numbers.operators.items()):
        own = {**labels, "operator_id": uid}
        yield metric.RECORDS_IN.sample(operator.records_in, own)
        yield metric.RECORDS_OUT.sample(operator.records_out, own)
        yield metric.BYTES_IN.sample(operator.bytes_in, own)
        yield metric.BUSY_SECONDS.sample(round(operator.busy / 1e6, 6), own)
        yield metric.OPERATOR_STATE_BYTES.sample(operator.state_bytes, own)
        yield metric.STATE_ENTRIES.sample(operator.state_entries, own)
        if operator.warm or operator.cold:
            yield metric.CACHE_HITS.sample(operator.warm, own)
            yield metric.CACHE_MISSES.sample(operator.cold, own)
        if operator.newest is not None:
            yield metric.EVENT_TIME_LAG.sample(now - operator.newest, own)
        reached = slowest_watermark(live.get(uid, ()))  # that of the last barrier may be old
        watermark = operator.watermark if reached is None else reached
        if watermark is not None:
            yield metric.WATERMARK.sample(watermark, own)
            yield metric.WATERMARK_LAG.sample((now - watermark) / 1000, own)
        if SEND_ERRORS in operator.own:
            yield metric.SEND_ERRORS.sample(operator.own[SEND_ERRORS][1], own)
        yield from _of_function({name: values for name, values in operator.own.items() if name != SEND_ERRORS}, own)


def _of_real_time(master: JobMaster, labels: Mapping[str, str]) -> Iterator[Sample]:
    """Yield the metrics of the tasks of a real-time job; nothing in a job by epochs."""
    tasks = master.job.engine.task_metrics()
    for uid, subtasks in sorted(by_operator(tasks).items()):
        for subtask in subtasks:
            own = {**labels, "operator_id": uid, "subtask_index": str(subtask.subtask)}
            yield metric.BUSY_TIME.sample(subtask.time.busy, own)
            yield metric.BACK_PRESSURED_TIME.sample(subtask.time.back_pressured, own)
            yield metric.IDLE_TIME.sample(subtask.time.idle, own)
            yield metric.MESSAGES_OUT.sample(subtask.messages_out, own)
            yield metric.RATE_IN.sample(subtask.rates.records_in, own)
            yield metric.RATE_OUT.sample(subtask.rates.records_out, own)
            if subtask.rates.watermark is not None:
                yield metric.INPUT_WATERMARK.sample(subtask.rates.watermark, own)
        for flow in master.flow.subtasks(uid):
            if flow.barrier is not None:
                own = {**labels, "operator_id": uid, "subtask_index": str(flow.subtask)}
                yield metric.ALIGNMENT_TIME.sample(1000 * flow.barrier.alignment, own)
                yield metric.START_DELAY.sample(1000 * flow.barrier.start_delay, own)
                yield metric.SYNC_SECONDS.sample(flow.barrier.sync / 1e6, own)
    for (_, partition), task in sorted(tasks.items()):
        for uid in task.operators:
            for source, latency in task.latencies.items():
                own = {**labels, "source_id": source, "operator_id": uid, "operator_subtask_index": str(partition)}
                yield metric.LATENCY_COUNT.sample(latency.count, own)
                for quantile, milliseconds in zip(QUANTILES, latency.quantiles, strict=True):
                    yield metric.LATENCY.sample(milliseconds, own, quantile=str(quantile))


def _of_sink(sink: SinkMetrics, now: int, labels: Mapping[str, str]) -> Iterator[Sample]:
    yield metric.RECORDS_SENT.sample(sink.records, labels)
    yield metric.BYTES_SENT.sample(sink.bytes, labels)
    if sink.last_epoch is not None:
        yield metric.SEND_TIME.sample(sink.last_ms, labels)
    counted = {
        "pendingCommittables": sink.pending,
        "successfulCommittables": sink.successful,
        "alreadyCommittedCommittables": sink.already,
        "failedCommittables": sink.failed,
        "retriedCommittables": sink.retried,
    }
    for name, count in counted.items():
        yield metric.COMMITTABLES[name].sample(count, labels)
    yield metric.SINK_SECONDS.sample(round(sink.seconds, 6), labels)
    yield metric.SINK_LAG.sample(sink.lag_ms(now) / 1000, labels)
    yield metric.SINK_PENDING.sample(sink.pending_records, labels)
    yield metric.SINK_BEHIND.sample(sink.pending_epochs, labels)


def _of_function(numbers: Mapping[str, list[Any]], labels: Mapping[str, str]) -> Iterator[Sample]:
    """Yield the metrics of user functions under the names of Flink's exporter."""
    for name, (kind, *values) in sorted(numbers.items()):
        endings = {"distribution": ("_count", "_sum", "_min", "_max"), "meter": ("_count",)}.get(kind, ("",))
        for ending, value in zip(endings, values, strict=True):
            yield Sample(
                f"{metric.FLINK_OPERATOR}{name}{ending}", value, f"A {kind} of a user function.", labels=labels
            )


def _of_queries(labels: Mapping[str, str]) -> Iterator[Sample]:
    counts = {**_NO_QUERIES, **QUERY_COUNTS}
    yield metric.QUERIES_REFUSED.sample(counts.pop(REFUSED), labels)
    for kind, count in sorted(counts.items()):
        yield metric.QUERIES.sample(count, labels, kind=kind)
