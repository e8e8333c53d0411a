"""Which process of pytest-xdist runs which tests.

Tests of a file stay together, because they share servers; so do those on the one Spark session. Tests that keep the
cores busy and tests that mostly wait run beside each other: the first processes take the former, the others the latter.
"""

from __future__ import annotations

from typing import Any, Final

from xdist.scheduler import LoadScopeScheduling

from tests.long_tests import durations

SESSION: Final = "tests/spark"
"""The scope of all tests on the one Spark session; in the process that has it, nothing but tests of Spark may run."""
BUSY_PROCESSES: Final = 2
"""How many processes run tests that keep the cores busy: each has a Spark."""
ON_THEIR_OWN: Final = ("_stories.py", "/test_examples.py")
"""Files whose tests share nothing, because each starts programs of its own: any of them may run beside any other."""
ON_ONE_CLUSTER: Final = "tests/spark/test_yarn_stories.py"
"""Its tests share a YARN and a packed environment, which two processes would each start."""
SHORT_SECONDS: Final = 0.1
"""How long a test takes of which nothing is stored; fewer seconds than the average do no harm."""


def is_busy(scope: str) -> bool:
    """Whether the tests of a scope keep the cores busy."""
    return scope == SESSION or scope.startswith(f"{SESSION}/")


class ByWhatTheyShare(LoadScopeScheduling):
    """Keeps together what shares something, and runs what is busy beside what waits."""

    def __init__(self, config: Any, log: Any = None) -> None:
        super().__init__(config, log)
        self._with_session: set[Any] = set()

    def _assign_work_unit(self, node: Any) -> None:
        """Give a process the next tests of its kind; of the other kind only if too few others are left."""
        wants_busy = node in self.nodes[:BUSY_PROCESSES]
        suited = self._next(wants_busy)
        if suited is None:
            # A third Spark would only slow the others down, and a process that has the session must not run the rest.
            is_barred = not wants_busy or node in self._with_session
            others = [other for other in self.nodes if other is not node and not other.shutting_down]
            if is_barred and len(others) >= BUSY_PROCESSES:
                node.shutdown()
                return
            suited = self._next(not wants_busy)
        assert suited is not None
        if suited == SESSION:
            self._with_session.add(node)
        self.workqueue.move_to_end(suited, last=False)
        super()._assign_work_unit(node)

    def remove_node(self, node: Any) -> str | None:
        """Give back what a process that crashed had not ended; with a scope that has ended, the next one would wait."""
        unfinished = {scope: tests for scope, tests in self.assigned_work[node].items() if not all(tests.values())}
        self.assigned_work[node] = unfinished
        return super().remove_node(node)

    def _next(self, busy: bool) -> str | None:
        """Return the longest scope that is busy, or that is not; None if there is none. So none ends long after all."""
        scopes = (scope for scope in self.workqueue if is_busy(scope) == busy)
        return max(scopes, key=self._seconds, default=None)

    def _seconds(self, scope: str) -> float:
        return sum(durations().get(test, SHORT_SECONDS) for test in self.workqueue[scope])

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file == ON_ONE_CLUSTER:
            return file
        if file.endswith(ON_THEIR_OWN):
            return nodeid
        return SESSION if file.startswith(f"{SESSION}/") else file
