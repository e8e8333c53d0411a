"""What has been answered through a proxy, so that nobody is shown an older checkpoint by another server afterwards.

Servers see a checkpoint complete one after the other. A proxy that forwards one request to the first and the next one
to the second would show its clients time that runs backwards. So it asks for at least what it has shown already.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from holdfast.queryable.wire.consistency import ConsistencyKind, at_least
from holdfast.queryable.wire.request import GetRequest, ScanRequest

R = TypeVar("R", GetRequest, ScanRequest)


class HighWater:
    """The newest checkpoint of each job that was shown; belongs to one event loop."""

    def __init__(self) -> None:
        self._shown: dict[str, tuple[int, str, int]] = {}

    def of(self, job: str) -> int:
        """Return the newest checkpoint that was shown, 0 if none was."""
        shown = self._shown.get(job)
        return shown[0] if shown is not None else 0

    def not_before(self, request: R) -> R:
        """Return a request for the newest checkpoint as one that is answered from none before those shown."""
        shown = self.of(request.job)
        if not shown or request.consistency.kind is not ConsistencyKind.NEWEST:
            return request
        return replace(request, consistency=at_least(shown))

    def note(self, job: str, origin: dict[str, Any]) -> None:
        """An answer is shown, which says where it is from."""
        checkpoint_id, lineage = origin.get("checkpoint_id"), origin.get("lineage")
        if isinstance(checkpoint_id, int) and isinstance(lineage, str) and checkpoint_id > self.of(job):
            self._shown[job] = (checkpoint_id, lineage, origin.get("completed_at", 0))

    def forget(self, job: str) -> None:
        """Nothing was shown of a job."""
        self._shown.pop(job, None)

    def forget_if_begun_anew(self, job: str, newest: dict[str, Any]) -> bool:
        """Forget what was shown of a job whose checkpoints begin with 1 again, as its directory was removed.

        Args:
            job: The job.
            newest: Where an answer from its newest checkpoint is from.

        Returns:
            Whether that was so; otherwise a server is late, perhaps so late that it has not seen a restore.
        """
        shown = self._shown.get(job)
        if shown is None or newest.get("lineage") == shown[1] or newest.get("completed_at", 0) < shown[2]:
            return False
        del self._shown[job]
        return True
