"""One number with its name: how the process of a job tells its job manager, and both Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from holdfast.errors import CorruptFileError
from holdfast.kernel.malformed import MALFORMED
from holdfast.rest.metric.job_numbers import OURS, metrics_of
from holdfast.runtime.job.status import JobStatus
from holdfast.runtime.master.job_master import JobMaster

_JOB: Final = "flink_jobmanager_job_"
_OPERATOR: Final = "flink_taskmanager_job_task_operator_"
_MISSING: Final = -1


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


def samples_of(master: JobMaster) -> list[Sample]:
    """Return the numbers of a job."""
    labels = {"job_id": str(master.job.job_id), "job_name": master.job.name}
    return [*_of_job(master, labels), *_of_operators(master, labels)]


def _of_job(master: JobMaster, labels: Mapping[str, str]) -> Iterator[Sample]:
    for name, value in metrics_of(master).items():
        if isinstance(value, int | float) and name not in OURS and value != _MISSING:
            yield Sample(_JOB + name, value, f"Flink's {name}.", labels=labels)
    numbers = master.metrics.numbers
    counted: dict[str, tuple[float, str]] = {
        "epochs": (numbers.epochs, "Epochs that were accepted."),
        "epochs_repeated": (numbers.repeated, "Epochs run again because tasks had read different attempts."),
        "rows_in": (numbers.rows, "Elements read from sources."),
        "epoch_seconds": (round(numbers.seconds, 6), "Time that epochs have taken."),
        "checkpoint_seconds": (round(numbers.checkpoint_seconds, 6), "Time of documents and pointers of checkpoints."),
        "commit_seconds": (round(numbers.commit_seconds, 6), "Time of the commits of sinks."),
        "attempts_failed": (master.history.failure_count, "Attempts that have failed."),
    }
    for name, (value, what) in counted.items():
        yield Sample(f"holdfast_job_{name}", value, what, is_counter=True, labels=labels)
    state = sum(operator.state_bytes for operator in numbers.operators.values())
    yield Sample("holdfast_job_state_bytes", state, "Size of the run files of all state.", labels=labels)
    yield Sample("holdfast_job_tries_in_a_row", master.tries, "Attempts failed since a checkpoint.", labels=labels)
    for status in JobStatus:
        is_now = int(status is master.status)
        yield Sample(
            "holdfast_job_status", is_now, "1 for the status of the job.", labels={**labels, "status": status.value}
        )


def _of_operators(master: JobMaster, labels: Mapping[str, str]) -> Iterator[Sample]:
    now = master.job.clock.now_ms()
    for uid, operator in sorted(master.metrics.numbers.operators.items()):
        own = {**labels, "operator_id": uid}
        yield Sample(f"{_OPERATOR}numRecordsIn", operator.records_in, "Elements read.", labels=own)
        yield Sample(f"{_OPERATOR}numRecordsOut", operator.records_out, "Elements emitted.", labels=own)
        yield Sample("holdfast_operator_state_bytes", operator.state_bytes, "Size of its run files.", labels=own)
        yield from _of_function(operator.own, own)
        if operator.watermark is not None:
            yield Sample(f"{_OPERATOR}currentOutputWatermark", operator.watermark, "Its watermark in ms.", labels=own)
            lag = (now - operator.watermark) / 1000
            yield Sample("holdfast_operator_watermark_lag_seconds", lag, "How far it is behind the clock.", labels=own)


def _of_function(numbers: Mapping[str, list[Any]], labels: Mapping[str, str]) -> Iterator[Sample]:
    """What a function counts itself, under the names that Flink's exporter would give it."""
    for name, (kind, *values) in sorted(numbers.items()):
        endings = {"distribution": ("_count", "_sum", "_min", "_max"), "meter": ("_count",)}.get(kind, ("",))
        for ending, value in zip(endings, values, strict=True):
            yield Sample(f"{_OPERATOR}{name}{ending}", value, f"A {kind} of the program's.", labels=labels)


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
    except MALFORMED as error:
        raise CorruptFileError("metrics", None, f"they are no numbers of a job: {error!r:.200}.") from error
