"""Settings of Spark that come too late are told, and one is given to who reads it; judged without a JVM."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.kernel.configuration import Configuration
from holdfast.spark import session as of_spark
from holdfast.spark.session import EpochTrigger, warn_ignored_options


@pytest.mark.parametrize("name", ["available-now", "availableNow", "AVAILABLE-NOW"])
def test_a_trigger_may_be_called_as_spark_calls_it(name: str) -> None:
    assert EpochTrigger.parse(name).arguments() == {"availableNow": True}


def test_a_spark_option_that_a_session_does_not_have_is_named(caplog: pytest.LogCaptureFixture) -> None:
    session: Any = SimpleNamespace(conf={"spark.master": "local[2]", "spark.ui.enabled": "false"})
    options = {
        "spark.master": "local[4]",
        "spark.ui.enabled": False,
        "spark.executor.memory": "2g",
        "pipeline.name": "n",
    }
    warn_ignored_options(session, Configuration(options))
    told = [record.getMessage() for record in caplog.records]
    assert [message.split()[1] for message in told] == ["spark.executor.memory", "spark.master"]
    assert all("has no effect" in message for message in told)


class Builder:
    """Makes a session that knows what PySpark reads from the environment when its context begins."""

    def appName(self, _: str) -> Builder:
        return self

    def config(self, _key: str, _value: str) -> Builder:
        return self

    def getOrCreate(self) -> str:
        return os.environ["PYSPARK_PYTHON"]


@pytest.mark.parametrize("of_environment", [None, "python-of-the-environment"])
def test_workers_run_the_python_of_the_option_then_that_of_the_environment_then_the_drivers(
    monkeypatch: pytest.MonkeyPatch, of_environment: str | None
) -> None:
    spark = SimpleNamespace(getActiveSession=lambda: None, _instantiatedSession=None, builder=Builder())
    monkeypatch.setattr(of_spark, "SparkSession", spark)
    monkeypatch.setattr(of_spark, "ensure_java", lambda: None)
    monkeypatch.setenv("PYSPARK_PYTHON", of_environment or "")
    if of_environment is None:
        monkeypatch.delenv("PYSPARK_PYTHON")
    started: Any = of_spark.get_or_create(Configuration({}))
    assert started == (of_environment or sys.executable)
    started = of_spark.get_or_create(Configuration({"spark.pyspark.python": "./env/bin/python"}))
    assert started == "./env/bin/python"
