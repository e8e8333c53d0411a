"""The numbers of a job as Prometheus reads them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.errors import ConfigurationError, CorruptFileError, StorageError
from holdfast.kernel.configuration import Configuration
from holdfast.rest.metric_samples import collect_samples
from holdfast.rest.server import limits_from
from holdfast.runtime.master.metric_catalog import ALL, from_json
from holdfast.spark.input.description import records_behind
from tests.stories.served import Running, holdfast, until


def scraped(running: Running, token: str | None = None, path: str = "/metrics") -> dict[tuple[str, str], float]:
    """What stands at /metrics, by name and operator or status."""
    address = running.client.address
    request = urllib.request.Request(
        address.url + path, headers={"Authorization": f"Bearer {token or address.bearer_token}"}
    )
    with urllib.request.urlopen(request) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        text = answer.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                assert sample.labels["job_name"] == "words"
                about = sample.labels.get("operator_id", sample.labels.get("status", ""))
                found[sample.name, about] = sample.value
    return found


def test_a_job_is_counted_under_flinks_names_where_flink_has_them(tmp_path: Path) -> None:
    running = Running(tmp_path)
    try:
        running.say("sand", "kelp", "kelp")
        sent = "flink_taskmanager_job_task_operator_numRecordsSend", "sink"  # it commits beside the next epoch
        until(lambda: scraped(running).get(sent) == 5)
        found = scraped(running)
        assert found["flink_jobmanager_job_numberOfCompletedCheckpoints", ""] == 2
        assert found["flink_jobmanager_job_numRestarts", ""] == 0
        assert found["flink_jobmanager_job_lastCheckpointFullSize", ""] > 0
        assert found["holdfast_job_rows_in_total", ""] == 5
        assert found["flink_taskmanager_job_task_operator_numRecordsIn", "count"] == 5
        assert found["flink_taskmanager_job_task_operator_numRecordsOut", "count"] == 5
        assert found["holdfast_operator_state_bytes", "count"] == found["holdfast_job_state_bytes", ""] > 0
        assert found["flink_taskmanager_job_task_operator_successfulCommittables", "sink"] >= 2
        assert found["flink_taskmanager_job_task_operator_pendingCommittables", "sink"] == 0
        assert found["flink_taskmanager_job_task_operator_numBytesSend", "sink"] > 0
        assert found["holdfast_operator_commit_seconds_total", "sink"] > 0
        assert found["holdfast_job_epoch_seconds_total", ""] > 0
        assert found["holdfast_operator_commit_lag_seconds", "sink"] == 0
        assert found["holdfast_job_status", "RUNNING"] == 1
        assert found["holdfast_job_status", "FAILED"] == 0
        assert not [name for name, _ in found if "currentOutputWatermark" in name], "no event time, no watermark"
    finally:
        running.end()


def test_a_job_that_waits_to_restart_is_restarting_wherever_one_looks(tmp_path: Path) -> None:
    """Its second wait is an hour, so that all look at the same."""
    delay = {"initial-backoff": "10 ms", "max-backoff": "1 h", "backoff-multiplier": 360_000, "jitter-factor": 0}
    strategy = {f"restart-strategy.exponential-delay.{name}": value for name, value in delay.items()}
    running = Running(tmp_path, **{"restart-strategy.type": "exponential-delay"}, **strategy)

    def always(stage: int, partition: int) -> None:
        raise StorageError("the disk is on fire")

    running.engine._interceptor = always
    running.say("rock")
    until(lambda: (running.client.get()["tries-in-a-row"], running.client.get()["state"]) == (2, "RESTARTING"))
    found = scraped(running)
    assert found["holdfast_job_tries_in_a_row", ""] == 2
    shown = {status: value for (name, status), value in found.items() if name == "holdfast_job_status"}
    assert {status for status, value in shown.items() if value} == {"RESTARTING"}
    assert "RESTARTING (2 failed)" in holdfast("list", running.directory).output
    running.master.control.cancel()
    running.thread.join(30)
    assert not running.thread.is_alive()


def test_state_its_cache_and_what_waits_are_counted(tmp_path: Path) -> None:
    running = Running(tmp_path, event_time=True)
    try:
        running.say("sand", "kelp", "kelp")
        until(lambda: scraped(running)["holdfast_job_epochs_total", ""] >= 2)
        found = scraped(running)
        operator = "flink_taskmanager_job_task_operator_"
        assert found["holdfast_operator_state_entries", "count"] == 4, "kelp is there twice until it is compacted"
        tasks = [found[f"holdfast_operator_cache_{what}_total", "count"] for what in ("hits", "misses")]
        assert tasks == [2, 0], "two tasks of the second epoch found what those of the first had left"
        assert found[f"{operator}numBytesIn", "count"] > 0
        assert found["holdfast_operator_busy_seconds_total", "count"] > 0
        assert found[f"{operator}pendingRecords", "words"] == 0
        assert found[f"{operator}currentEmitEventTimeLag", "stamped"] > 1e12, "its timestamps are of 1970"
        assert found[f"{operator}currentFetchEventTimeLag", "words"] > 1e12
        assert found["holdfast_operator_watermark_lag_seconds", "count"] > 1e9
        assert (found["holdfast_job_is_leader", ""], found["holdfast_job_fencing_token", ""]) == (1, 1)
    finally:
        running.end()


CONDITIONAL = {
    "holdfast_job_checkpoints_failed": "a checkpoint has failed",
    "flink_jobmanager_job_lastCheckpointRestoreTimestamp": "the job has been restored",
    "flink_taskmanager_job_task_operator_pendingBytes": "a source reads files",
    "holdfast_operator_pending_files": "a source reads files",
    "flink_taskmanager_job_task_operator_KafkaSourceReader_commitsSucceeded": "a source commits offsets",
    "flink_taskmanager_job_task_operator_KafkaSourceReader_commitsFailed": "a source commits offsets",
    "flink_taskmanager_job_task_operator_numRecordsSendErrors": "a sink puts dead letters aside",
    **{entry.name: "the job runs in real time" for entry in ALL if entry.help.startswith("Real time:")},
    "holdfast_jobmanager_is_leader": "the process is a job manager",
    "holdfast_jobmanager_jobs": "the process is a job manager",
    "holdfast_jobmanager_job_processes": "the process is a job manager",
}


def test_each_declared_metric_is_emitted_by_a_job_or_named_as_conditional(tmp_path: Path) -> None:
    running = Running(tmp_path, event_time=True)
    try:
        running.say("sand", "kelp", "kelp")
        until(lambda: scraped(running)["holdfast_job_epochs_total", ""] >= 2)
        declared = {entry.name for entry in ALL}
        until(lambda: {s.name for s in collect_samples(running.master)} == declared - CONDITIONAL.keys())
    finally:
        running.end()


def test_failures_of_checkpoints_are_counted_by_their_reasons(tmp_path: Path) -> None:
    running = Running(tmp_path)
    try:
        (tmp_path / "file").write_text("no directory")
        running.client.post("savepoints", {"target-directory": str(tmp_path / "file")})
        until(lambda: running.master.statistics.create_snapshot().failures)
        failed = [
            sample for sample in collect_samples(running.master) if sample.name == "holdfast_job_checkpoints_failed"
        ]
        assert [(sample.labels["reason"], sample.value) for sample in failed] == [("IO_EXCEPTION", 1)]
    finally:
        running.end()


def test_records_that_wait_are_counted_as_spark_tells_of_them() -> None:
    kafka = {"endOffset": {"words": {"0": 3, "1": 5}}, "latestOffset": {"words": {"0": 10, "1": 5, "2": 1}}}
    assert records_behind(kafka) == 8
    texts = {name: json.dumps(offset) for name, offset in kafka.items()}
    assert records_behind(texts) == 8
    ours = {
        "endOffset": {"words": {"id": "x", "next": {"0": 3}}},
        "latestOffset": {"words": {"id": "x", "next": {"0": 4}}},
    }
    assert records_behind(ours) == 1
    for other in ({}, {"endOffset": 1, "latestOffset": 2}, {"endOffset": None, "latestOffset": None}):
        assert records_behind(other) is None


def test_what_failed_is_counted_and_rows_of_failed_epochs_are_not(tmp_path: Path) -> None:
    running = Running(tmp_path, **{"restart-strategy.type": "none"})
    running.say("sand", "poison")
    running.thread.join(30)
    numbers = running.master.metrics.numbers
    assert (numbers.epochs, numbers.rows, running.master.history.failure_count) == (1, 2, 1)


def test_the_token_of_a_scraper_reads_metrics_only(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("for-prometheus\n")
    running = Running(tmp_path, **{"rest.metrics.token-file": str(token)})
    try:
        assert scraped(running, "for-prometheus")
        assert scraped(running)
        for path, shown in (
            ("/jobs", "for-prometheus"),
            ("/metrics", "guessed"),
            ("/metrics/../jobs", "for-prometheus"),
        ):
            with pytest.raises(urllib.error.HTTPError) as caught:
                scraped(running, shown, path)
            assert caught.value.code == 401
    finally:
        running.end()


def test_a_token_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text(" \n")
    for name, word in (("missing", "cannot be read"), ("empty", "is empty")):
        with pytest.raises(ConfigurationError, match=word):
            limits_from(Configuration({"rest.metrics.token-file": str(tmp_path / name)}))


@pytest.mark.parametrize("body", [[{}], [1], {"name": 1}, [{"name": "x", "value": "much", "help": "", "labels": {}}]])
def test_what_is_no_number_is_refused(body: Any) -> None:
    with pytest.raises(CorruptFileError, match="they are malformed"):
        from_json(body)
