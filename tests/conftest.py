"""How the tests are divided among the processes of pytest-xdist, and what makes them fast."""

from __future__ import annotations

import os
from typing import Any

import pytest

# These JVMs live for seconds: the second compiler and parallel collectors would cost more than they gain. The variable
# reaches every one of them: drivers, executors, workers of a cluster, ZooKeeper.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

ON_THEIR_OWN = ("_stories.py", "/test_examples.py")
"""Files whose tests share nothing, because each starts programs of its own: any of them may run beside any other."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: Any, log: Any) -> Any:
    """Keeps the tests of a file together, because they share servers, and those on the one Spark session."""
    from xdist.scheduler import LoadScopeScheduling

    class ByWhatTheyShare(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            if file.endswith(ON_THEIR_OWN):
                return nodeid
            return "tests/spark" if file.startswith("tests/spark/") else file

    return ByWhatTheyShare(config, log)
