"""Settings of Spark that come too late are told; judged without a JVM, by the one thing that is asked of a session."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.kernel.configuration import Configuration
from holdfast.spark.session import tell_what_has_no_effect


def test_a_spark_option_that_a_session_does_not_have_is_named(caplog: pytest.LogCaptureFixture) -> None:
    session: Any = SimpleNamespace(conf={"spark.master": "local[2]", "spark.ui.enabled": "false"})
    options = {
        "spark.master": "local[4]",
        "spark.ui.enabled": False,
        "spark.executor.memory": "2g",
        "pipeline.name": "n",
    }
    tell_what_has_no_effect(session, Configuration(options))
    told = [record.getMessage() for record in caplog.records]
    assert [message.split()[1] for message in told] == ["spark.executor.memory", "spark.master"]
    assert all("has no effect" in message for message in told)
