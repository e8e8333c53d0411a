"""`/jobs/:jobid/rescales`: what became of the wishes for another parallelism, in the form of Flink's history."""

from __future__ import annotations

from typing import Any

from holdfast.checkpoint.statistics.tracker import Summary
from holdfast.rest.answer import Answer, RefusedError, Request
from holdfast.rest.form import rescale_form
from holdfast.rest.route.route import serves
from holdfast.runtime.job.rescaling import Rescale, RescaleHistory
from holdfast.runtime.master.job_master import JobMaster


class RescaleApi:
    """The rescales of one job since this process runs it.

    Args:
        master: The job's master.
    """

    def __init__(self, master: JobMaster) -> None:
        self._history = master.control.rescales

    @serves("GET", "/jobs/:jobid/rescales/config", rescale_form.CONFIG)
    def config(self, request: Request) -> Answer:
        """How many rescales are remembered."""
        return Answer({"rescaleHistoryMax": RescaleHistory.SIZE})

    @serves("GET", "/jobs/:jobid/rescales/overview", rescale_form.OVERVIEW)
    def overview(self, request: Request) -> Answer:
        """How many rescales there were, and the latest of them."""
        completed, failed = self._history.latest(done=True), self._history.latest(done=False)
        return Answer(
            {
                "rescalesCounts": self._counts(),
                "latest": {
                    "completed": None if completed is None else _described(completed),
                    "failed": None if failed is None else _described(failed),
                    "ignored": None,
                },
            }
        )

    @serves("GET", "/jobs/:jobid/rescales/summary", rescale_form.SUMMARY)
    def summary(self, request: Request) -> Answer:
        """How long rescales took."""
        durations = Summary(self._history.durations).to_json()
        return Answer({"rescalesCounts": self._counts(), "completedRescalesDurationStatsInMillis": durations})

    @serves("GET", "/jobs/:jobid/rescales/history", rescale_form.HISTORY)
    def history(self, request: Request) -> Answer:
        """The last rescales, newest first."""
        return Answer({"rescaleHistory": [_described(rescale) for rescale in self._history.newest_first()]})

    @serves("GET", "/jobs/:jobid/rescales/details/:rescaleuuid", rescale_form.RESCALE)
    def details(self, request: Request) -> Answer:
        """One rescale."""
        wanted = request.path["rescaleuuid"]
        found = self._history.find(wanted)
        if found is None:
            raise RefusedError(404, f"Rescale {wanted} is not known, or forgotten: the last {RescaleHistory.SIZE} are.")
        return Answer(_described(found))

    def _counts(self) -> dict[str, int]:
        return {
            "completed": self._history.completed,
            "failed": self._history.failed,
            "ignored": 0,
            "inProgress": 0,
        }


def _described(rescale: Rescale) -> dict[str, Any]:
    everywhere = rescale.wanted.get("")
    return {
        "rescaleUuid": rescale.id,
        "rescaleAttemptId": rescale.number,
        "triggerCause": "UPDATE_REQUIREMENT",
        "terminalState": "COMPLETED" if rescale.refusal is None else "FAILED",
        "terminatedReason": "SUCCEEDED" if rescale.refusal is None else rescale.refusal,
        "startTimestampInMillis": rescale.started,
        "endTimestampInMillis": rescale.ended,
        "vertices": {
            uid: {
                "jobVertexId": uid,
                "desiredParallelism": rescale.wanted.get(uid, everywhere or before),
                "preRescaleParallelism": before,
                "postRescaleParallelism": rescale.after.get(uid, before),
            }
            for uid, before in rescale.before.items()
        },
        "slots": {},
        "schedulerStates": [],
    }
