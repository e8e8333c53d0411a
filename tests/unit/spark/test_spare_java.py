"""Which session may have a JVM that was started before anybody knew of it."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkConf, SparkContext

from holdfast.spark.spare_java import give_java


class Gateway:
    """A JVM as far as can be seen from here: whether it was ended, and in which directory it is."""

    def __init__(self) -> None:
        self.is_ended = False
        self.proc = SimpleNamespace(stdin=SimpleNamespace(close=self.shutdown))
        self.properties: dict[str, str] = {}
        system = SimpleNamespace(setProperty=self.properties.__setitem__)
        files = SimpleNamespace(closeAll=lambda: None)
        hadoop = SimpleNamespace(hadoop=SimpleNamespace(fs=SimpleNamespace(FileSystem=files)))
        self.jvm = SimpleNamespace(
            java=SimpleNamespace(lang=SimpleNamespace(System=system)), org=SimpleNamespace(apache=hadoop)
        )

    def shutdown(self) -> None:
        self.is_ended = True


def conf(**settings: str) -> SparkConf:
    made = SparkConf(loadDefaults=False)
    for key, value in settings.items():
        made.set(f"spark.{key.replace('_', '.')}", value)
    return made


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Gateway:
    gateway = Gateway()
    module: Any = sys.modules[SparkContext.__module__]
    monkeypatch.setattr(module, "launch_gateway", lambda conf, popen_kwargs=None: "its own")
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    give_java(gateway)
    return gateway


def launched(settings: SparkConf | None) -> Any:
    module: Any = sys.modules[SparkContext.__module__]
    return module.launch_gateway(settings)


@pytest.mark.parametrize(
    "settings", [None, conf(), conf(master="local[2]", sql_shuffle_partitions="3"), conf(master="spark://host:7077")]
)
def test_a_session_gets_the_one_that_was_kept_and_only_once(
    kept: Gateway, settings: SparkConf | None, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert launched(settings) is kept
    assert not kept.is_ended
    assert kept.properties == {"user.dir": str(tmp_path)}, "relative paths are those of the process"
    assert launched(settings) == "its own", "the next one"


@pytest.mark.parametrize(
    "settings",
    [
        conf(driver_memory="3g"),
        conf(driver_extraJavaOptions="-Dx=1"),
        conf(jars_packages="org.example:connector:1"),
        conf(master="yarn"),
        conf(master="k8s://https://kubernetes.default.svc"),
    ],
)
def test_what_counts_only_at_the_start_of_a_jvm_gets_one_of_its_own(kept: Gateway, settings: SparkConf) -> None:
    assert launched(settings) == "its own"
    assert kept.is_ended


def test_arguments_in_the_environment_count_at_the_start_too(kept: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf spark.driver.memory=3g pyspark-shell")
    assert launched(conf()) == "its own"
