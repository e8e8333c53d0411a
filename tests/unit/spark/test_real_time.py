"""Sessions for real-time jobs: the settings of new ones, and which existing ones are refused; judged without a JVM."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipfile import ZipFile

import pytest

from holdfast.errors import ConfigurationError
from holdfast.kernel.configuration import Configuration
from holdfast.spark import launch, realtime
from holdfast.spark import session as of_spark
from holdfast.spark.realtime import check_real_time
from holdfast.spark.session import REAL_TIME_SETTINGS, EpochTrigger

_WAIT = "spark.shuffle.streaming.networkBufferMaxWaitTimeMs"


def test_the_trigger_real_time_has_no_epochs() -> None:
    trigger = EpochTrigger.parse(" Real-Time ")
    assert trigger.is_real_time
    assert not trigger.ends
    assert not EpochTrigger.parse("continuous").is_real_time
    with pytest.raises(ConfigurationError, match="'real-time'"):
        EpochTrigger.parse("at once")


class Builder:
    """Notes the settings of the session that it would make."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}

    def appName(self, _: str) -> Builder:
        return self

    def config(self, key: str, value: str) -> Builder:
        self.settings[key] = value
        return self

    def getOrCreate(self) -> dict[str, str]:
        return self.settings


class Conf(dict[str, str]):
    """What the JVM has found in Spark's files and on its command line."""

    set = dict.__setitem__


def settings_of_new_session(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], master: str, **of_spark_submit: str
) -> dict[str, str]:
    spark = SimpleNamespace(getActiveSession=lambda: None, _instantiatedSession=None, builder=Builder())
    runtime = SimpleNamespace(getRuntime=lambda: SimpleNamespace(availableProcessors=lambda: 3))
    jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(Runtime=runtime)))
    context = SimpleNamespace(_ensure_initialized=lambda conf: None, _jvm=jvm)
    monkeypatch.setattr(of_spark, "SparkSession", spark)
    monkeypatch.setattr(of_spark, "SparkContext", context)
    monkeypatch.setattr(
        of_spark, "SparkConf", lambda loadDefaults=True: Conf({"spark.master": master} | of_spark_submit)
    )
    monkeypatch.setattr(of_spark, "ensure_java", lambda: None)
    found: Any = of_spark.get_or_create(Configuration(options))
    return dict(found)


def test_a_new_session_of_a_real_time_job_has_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"execution.trigger": "real-time", "spark.speculation": "true"}
    found = settings_of_new_session(monkeypatch, options, "local[*]")
    assert found == {
        **REAL_TIME_SETTINGS,
        "spark.shuffle.streaming.networkBufferSize": "131072",
        "spark.dynamicAllocation.enabled": "false",
        "spark.speculation": "true",  # as the user wants it, and refused later
        "spark.master": "local[12]",
        "spark.python.daemon.module": "holdfast.spark.daemon",
    }
    assert settings_of_new_session(monkeypatch, {}, "local[*]") == {}


@pytest.mark.parametrize(
    ("option", "found", "expected"),
    [
        (None, "yarn", None),
        (None, "local[2]", None),
        ("local[*]", "local[*]", "local[*]"),
        ("yarn", "local[*]", "yarn"),
    ],
)
def test_a_named_master_stays(
    monkeypatch: pytest.MonkeyPatch, option: str | None, found: str, expected: str | None
) -> None:
    options = {"execution.trigger": "real-time"} | ({} if option is None else {"spark.master": option})
    assert settings_of_new_session(monkeypatch, options, found).get("spark.master") == expected


@pytest.mark.parametrize(
    ("master", "of_spark_submit", "expected"),
    [
        ("local[4]", {}, "holdfast.spark.daemon"),
        ("local[4]", {"spark.python.daemon.module": "theirs"}, None),
        ("local[4]", {"spark.submit.pyFiles": "holdfast.zip"}, None),
        ("spark://master:7077", {}, None),
    ],
)
def test_workers_are_forked_with_imports_where_the_package_is_certain_to_be_found(
    monkeypatch: pytest.MonkeyPatch, master: str, of_spark_submit: dict[str, str], expected: str | None
) -> None:
    options = {"execution.trigger": "real-time"}
    found = settings_of_new_session(monkeypatch, options, master, **of_spark_submit)
    assert found.get("spark.python.daemon.module") == expected


def session_with(
    settings: dict[str, str] | None = None,
    *,
    version: str = "4.3.0",
    slots: int = 8,
    dynamic: bool = False,
    application: str = "app-1",
    master: str = "local[8]",
) -> Any:
    profiles = SimpleNamespace(defaultResourceProfile=lambda: None)
    scala = SimpleNamespace(
        conf=lambda: None,
        isLocal=lambda: master.startswith("local["),
        maxNumConcurrentTasks=lambda _: slots,
        resourceProfileManager=lambda: profiles,
    )
    utils = SimpleNamespace(isDynamicAllocationEnabled=lambda _: dynamic)
    spark = SimpleNamespace(util=SimpleNamespace(Utils=utils))
    context = SimpleNamespace(
        getConf=lambda: {**REAL_TIME_SETTINGS, **(settings or {})},
        applicationId=application,
        master=master,
        _jsc=SimpleNamespace(sc=lambda: scala),
        _jvm=SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(spark=spark))),
    )
    return SimpleNamespace(_jsparkSession=None, version=version, sparkContext=context)


@pytest.fixture(autouse=True)
def threads_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realtime, "keeps_properties", lambda: True)


@pytest.mark.parametrize(
    ("session", "named", "remedy"),
    [
        (SimpleNamespace(), "a Spark Connect session", "create a classic session (without spark.remote)"),
        (session_with(version="4.2.1"), "Spark 4.2.1", "install PySpark 4.3 or newer"),
        (session_with({"spark.speculation": "true"}), "spark.speculation=true", "set it to false"),
        (session_with(dynamic=True), "spark.dynamicAllocation.enabled=true", "spark.executor.instances"),
        (session_with({"spark.authenticate": "true"}), "spark.authenticate=true", "unauthenticated"),
        (session_with({"spark.network.crypto.enabled": "TRUE"}), "spark.network.crypto.enabled", "run it by epochs"),
        (session_with({"spark.io.encryption.enabled": "true"}), "spark.io.encryption.enabled", "run it by epochs"),
        (session_with({"spark.ssl.rpc.enabled": "true"}), "spark.ssl.rpc.enabled", "run it by epochs"),
        (session_with(slots=4, master="local[4]"), "needs 5 slots at once", "lower 'parallelism.default'"),
    ],
)
def test_sessions_that_cannot_run_it_are_refused_in_one_sentence(session: Any, named: str, remedy: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        check_real_time(session, [2, 3])
    text = str(refused.value)
    assert named in text
    assert remedy in text
    assert text.endswith(".")
    assert ". " not in text


def test_threads_that_share_a_thread_of_the_jvm_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realtime, "keeps_properties", lambda: False)
    with pytest.raises(ConfigurationError, match="PYSPARK_PIN_THREAD"):
        check_real_time(session_with(), [1])


@pytest.mark.parametrize(
    ("slots", "cores", "is_local", "parallelism"),
    [(8, 2, True, 1), (16, 4, True, 2), (4, 16, True, 1), (2, 2, True, 1), (64, 2, False, 16), (1, 2, False, 1)],
)
def test_a_job_that_sets_no_parallelism_leaves_cores_for_others(
    slots: int, cores: int, is_local: bool, parallelism: int
) -> None:
    runtime = SimpleNamespace(getRuntime=lambda: SimpleNamespace(availableProcessors=lambda: cores))
    jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(Runtime=runtime)))
    scala = SimpleNamespace(isLocal=lambda: is_local)
    context = SimpleNamespace(defaultParallelism=slots, _jvm=jvm, _jsc=SimpleNamespace(sc=lambda: scala))
    session: Any = SimpleNamespace(sparkContext=context)
    assert launch._default_parallelism(session, EpochTrigger.parse("real-time")) == parallelism
    assert launch._default_parallelism(session, EpochTrigger.parse("continuous")) == slots


def test_executors_of_a_cluster_may_still_be_starting() -> None:
    check_real_time(session_with(slots=0, master="yarn"), [2, 3])


def test_a_context_without_the_settings_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    slow = {"spark.python.udf.pipelined.enabled": "false", _WAIT: "1"}
    with caplog.at_level(logging.WARNING):
        check_real_time(session_with(application="fast"), [1])
        check_real_time(session_with({_WAIT: "1"}, application="faster"), [1])
        assert not caplog.records
        check_real_time(session_with({_WAIT: "50"}, application="late"), [1])
        assert f"--conf {_WAIT}={REAL_TIME_SETTINGS[_WAIT]}" in caplog.records.pop().getMessage()
        check_real_time(session_with(slow, application="slow"), [1])
        check_real_time(session_with(slow, application="slow"), [1])
    (record,) = caplog.records
    assert "--conf spark.python.udf.pipelined.enabled=true" in record.getMessage()
    assert _WAIT not in record.getMessage()


def test_a_worker_finds_everything_imported(tmp_path: Path) -> None:
    archive = tmp_path / "modules.zip"
    with ZipFile(archive, "w") as made:
        for name in ("before", "behind"):
            made.writestr(f"{name}.py", "")
    program = f"""
import importlib, sys, zipimport
sys.path.insert(0, {str(archive)!r})
import before
from holdfast.spark import daemon
daemon.prepare()
modules = set(sys.modules)
importlib.invalidate_caches()
print([path for path, one in sys.path_importer_cache.items() if isinstance(one, zipimport.zipimporter)])
import holdfast.datastream, behind
import pyarrow as pa
pa.array([1])
print(sorted(set(sys.modules) - modules))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "['behind']"]
