"""How the tests are divided among the processes of pytest-xdist, and what makes them fast."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from holdfast.storage import object_store
from tests import memory
from tests.examples import TRIES_ALL, examples
from tests.long_tests import is_long, store_durations
from tests.postgres import PostgresServer

ARCHIVE = Path(sys.prefix, "spark.jsa")
"""Classes of Spark, as `tests/programs/java_archive.py` writes them; they halve what the start of a JVM costs."""

# These JVMs live for seconds: the second compiler and parallel collectors would cost more than they gain. The variable
# reaches every one of them: drivers, executors, workers of a cluster, ZooKeeper. A JVM without use for the archive need
# not say so.
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:cds=off -Xlog:cds+dynamic=off"
os.environ.setdefault(
    "JAVA_TOOL_OPTIONS", f"{JVM_OPTIONS} -XX:SharedArchiveFile={ARCHIVE}" if ARCHIVE.exists() else JVM_OPTIONS
)

_LONG_TESTS_UNTIL = float(os.environ.get("LONG_TESTS_UNTIL", "inf"))

# Each epoch of a test waits for the disk a dozen times, and no test asks whether the machine loses power: processes are
# killed, and what they wrote stays. Whoever wants a disk names one in these variables.
if memory.has_room():
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory.DIRECTORY))
    os.environ.setdefault("TMPDIR", str(memory.DIRECTORY))

# Speed is measured in benchmarks; a test that fails because the machine is busy says nothing.
settings.register_profile("untimed", deadline=None, max_examples=examples(100))
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def s3_options_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process reaches object stores in one way for its life; that of the tests has many lives."""
    monkeypatch.setattr(object_store, "_current", object_store.current_s3_options())


@pytest.fixture(autouse=True)
def log_level_of_its_own() -> None:
    """A command or a job that ran in this process before may have set the level of our logger."""
    logging.getLogger("holdfast").setLevel(logging.NOTSET)


@pytest.fixture(scope="module")
def postgres_server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    """Marks the long tests, and what a measurement of coverage leaves out."""
    is_measured = bool(config.getoption("cov_source", None))
    for item in items:
        if is_long(item.nodeid):
            item.add_marker(pytest.mark.long)
        if is_measured and _repeats(item):
            item.add_marker(pytest.mark.no_cover)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips long tests after `LONG_TESTS_UNTIL`, in seconds since 1970: a run that must end has no time for them."""
    if time.time() > _LONG_TESTS_UNTIL and item.get_closest_marker("long") is not None:
        pytest.skip(f"no time is left in this run for the long test {item.nodeid}")


def _repeats(item: Any) -> bool:
    """Whether a test takes long because it runs the same lines again; it would take twice as long under a tracer."""
    return item.get_closest_marker("long") is not None or (
        TRIES_ALL and getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: Any, log: Any) -> Any:
    """Keeps the tests of a file together, because they share servers, and those on the one Spark session."""
    from tests.scheduling import ByWhatTheyShare

    return ByWhatTheyShare(config, log)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Shows which files took longest, where `--durations` asks, and stores how long tests took for `make durations`."""
    tests: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                tests[report.nodeid] += report.duration
    if os.environ.get("STORE_DURATIONS"):
        store_durations(tests)
    if not config.option.durations:
        return
    seconds: Counter[str] = Counter()
    for test, took in tests.items():
        seconds[test.partition("::")[0]] += took
    terminalreporter.section(f"slowest files, of {seconds.total() / 60:.0f} minutes in all processes")
    for file, took in seconds.most_common(config.option.durations):
        terminalreporter.write_line(f"{took:7.1f}s {file}")
