"""Programs on a real Spark session, in this process: what the environment promises beside exactly-once."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast.datastream import (
    CollectedElements,
    JobStatus,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.errors import ConfigurationError, JobExecutionError
from holdfast.spark.session import limit_late_trigger_warnings

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


class Count(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint", 0))

    def process_element(self, row: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        self.count.update(self.count.value() + 1)
        yield row.word, self.count.value()


@pytest.fixture
def env(spark: Any, tmp_path: Path) -> StreamExecutionEnvironment:
    options = {
        "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
        "restart-strategy.type": "none",
        "parallelism.default": 2,
    }
    return StreamExecutionEnvironment.get_execution_environment(options, spark=spark)


def test_elements_of_a_collection_are_collected(
    env: StreamExecutionEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    numbers = env.from_collection(range(5), "bigint").map(lambda n: n * n, output_type="bigint")
    collected = numbers.execute_and_collect()
    assert isinstance(collected, CollectedElements)
    assert repr(collected).startswith(f"<elements of <job '{collected.get_job_client().name}' ")
    assert "execution.checkpointing.dir" not in caplog.text, "a job without a name is never resumed"
    with collected:
        assert sorted(collected) == [0, 1, 4, 9, 16]
    assert collected.get_job_client().get_job_status() is JobStatus.FINISHED


def test_each_execute_without_a_name_runs_its_own_job_once(env: StreamExecutionEnvironment, spark: Any) -> None:
    told: list[tuple[str, int]] = []

    def program(env: StreamExecutionEnvironment) -> list[JobStatus]:
        numbers = env.from_collection([1, 2], "bigint")
        statuses = []
        for name in ("first", "second", "third"):
            end = numbers.for_each_epoch(lambda df, _, name=name: told.extend((name, r[0]) for r in df.collect()))
            end.uid("told")
            statuses.append(env.execute().status)
        return statuses

    everything = [(name, n) for name in ("first", "second", "third") for n in (1, 2)]
    assert program(env) == [JobStatus.FINISHED] * 3
    assert sorted(told) == sorted(everything)
    again = StreamExecutionEnvironment.get_execution_environment(env.get_configuration(), spark=spark)
    assert program(again) == [JobStatus.FINISHED] * 3
    assert sorted(told) == sorted(everything)


def test_two_environments_without_names_run_a_job_each(spark: Any, tmp_path: Path) -> None:
    """Also in the next process; and a part that runs again in this one has finished."""
    program = f"""
import sys
from holdfast.datastream import StreamExecutionEnvironment

def env():
    return StreamExecutionEnvironment.get_execution_environment({{
        "execution.checkpointing.dir": {str(tmp_path / "checkpoints")!r}, "parallelism.default": 1}})

def ebb():
    e = env()
    e.from_collection([1], "bigint").map(lambda n: ("ebb", n), output_type="w string, n bigint").print().uid("p")
    return e.execute().status.name

def flood():
    e = env()
    e.from_collection([1], "bigint").map(lambda n: ("flood", n), output_type="w string, n bigint").print().uid("p")
    return e.execute().status.name

print("ended", ebb(), flood(), ebb())
"""
    script = tmp_path / "tides.py"
    script.write_text(program)
    told = []
    for _ in range(2):
        ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=240, check=True)
        assert "ended FINISHED FINISHED FINISHED" in ended.stdout
        told.append(sorted(word for word in ("ebb", "flood") for _ in range(ended.stdout.count(word))))
    assert told == [["ebb", "flood"], []]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


def test_the_session_of_another_thread_is_used(spark: Any) -> None:
    settings = {"spark.sql.shuffle.partitions": "3", "spark.app.name": "mine"}
    before = {key: spark.conf.get(key) for key in settings}
    with ThreadPoolExecutor(1) as other:
        env = StreamExecutionEnvironment.get_execution_environment(settings)
        other.submit(lambda: env.spark).result()
    assert env.spark.sparkContext is spark.sparkContext
    assert {key: spark.conf.get(key) for key in settings} == before


def test_pickled_elements_need_no_type(env: StreamExecutionEnvironment) -> None:
    collected = env.from_collection([{"a": {1}}, "text", None]).map(lambda value: [value]).execute_and_collect()
    assert sorted(map(repr, collected)) == ["['text']", "[None]", "[{'a': {1}}]"]


def test_a_limit_ends_the_job(env: StreamExecutionEnvironment, spark: Any) -> None:
    rates = env.from_dataframe(spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load())
    taken = rates.map(lambda row: row.value, output_type="bigint").execute_and_collect("rates", limit=25)
    assert isinstance(taken, list)
    assert sorted(set(taken)) == sorted(taken)
    assert len(taken) == 25


def test_an_iterator_that_is_closed_has_no_more_elements(env: StreamExecutionEnvironment, spark: Any) -> None:
    rates = env.from_dataframe(spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load())
    taken = rates.map(lambda row: row.value, output_type="bigint").execute_and_collect("closed")
    assert isinstance(taken, CollectedElements)
    assert next(taken) >= 0
    taken.close()
    assert list(taken) == []
    assert taken.get_job_client().get_job_status() is JobStatus.CANCELED


def test_an_interrupted_wait_for_an_element_cancels_the_job(
    env: StreamExecutionEnvironment, spark: Any, tmp_path: Path
) -> None:
    (tmp_path / "texts").mkdir()
    env.configure({"execution.trigger": "100 ms"})
    taken = env.from_dataframe(spark.readStream.text(str(tmp_path / "texts"))).execute_and_collect("interrupted")
    assert isinstance(taken, CollectedElements)
    press = threading.Timer(1, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    press.start()
    with pytest.raises(KeyboardInterrupt):
        next(taken)
    assert taken.get_job_client().await_termination(60)
    assert taken.get_job_client().get_job_status() is JobStatus.CANCELED
    assert list(taken) == []


def test_collecting_has_a_uid_and_can_be_dropped_when_a_restore_is_rejected(env: StreamExecutionEnvironment) -> None:
    env.configure({"pipeline.auto-generate-uids": False})
    numbers = env.from_collection([1, 2], "bigint").uid("numbers")
    with pytest.raises(ConfigurationError, match="A limit is a whole number of at least 0, not -1"):
        numbers.execute_and_collect(limit=-1)
    with pytest.raises(ConfigurationError, match="The name of a job is a text, not 5"):
        numbers.execute_and_collect(5)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="These steps have no uid: 'reduce'"):
        numbers.key_by(lambda n: n, "bigint").reduce(max).execute_and_collect()
    with pytest.raises(ConfigurationError, match="no sink"):
        env.execute()
    assert sorted(numbers.execute_and_collect()) == [1, 2]


def test_transform_uses_spark_expressions_and_knows_its_columns(env: StreamExecutionEnvironment, spark: Any) -> None:
    texts = env.from_dataframe(spark.createDataFrame([("kelp rock",), ("kelp",)], "line string"))
    words = texts.transform(lambda df: df.selectExpr("explode(split(line, ' ')) as word"))
    counts = words.key_by("word").process(Count(), output_type="word string, n bigint").uid("count")

    with counts.execute_and_collect() as rows:  # type: ignore[union-attr]
        assert sorted(rows) == [("kelp", 1), ("kelp", 2), ("rock", 1)]
    with pytest.raises(ConfigurationError, match="returned 7"):
        texts.transform(lambda df: 7)


def test_transform_of_a_collection(env: StreamExecutionEnvironment) -> None:
    pairs = env.from_collection([("kelp", 1), ("rock", 2)], "word string, n bigint")
    doubled = pairs.transform(lambda df: df.selectExpr("word", "n * 2 as twice"))
    with doubled.execute_and_collect() as rows:  # type: ignore[union-attr]
        assert sorted((row.word, row.twice) for row in rows) == [("kelp", 2), ("rock", 4)]


def test_for_each_epoch_gets_a_dataframe(env: StreamExecutionEnvironment, spark: Any, tmp_path: Path) -> None:
    words = env.from_collection([("kelp",), ("rock",), ("kelp",)], "word string").uid("words")
    counts = words.key_by("word").process(Count(), output_type="word string, n bigint").uid("count")
    table = str(tmp_path / "table")
    counts.for_each_epoch(lambda df, epoch: df.write.mode("overwrite").parquet(f"{table}/epoch={epoch}")).uid("table")

    assert env.execute("table").status is JobStatus.FINISHED

    rows = spark.read.parquet(table).collect()
    assert sorted((row.word, row.n) for row in rows) == [("kelp", 1), ("kelp", 2), ("rock", 1)]


def test_a_function_that_raises_ends_the_job_with_its_traceback(env: StreamExecutionEnvironment) -> None:
    def broken(row: Any) -> Any:
        raise KeyError(f"no such thing as {row.word}")

    env.from_collection([("kelp",)], "word string").map(broken, output_type="bigint").uid("broken").print().uid("p")
    with pytest.raises(JobExecutionError, match="no such thing as kelp") as caught:
        env.execute("broken")
    assert "broken" in str(caught.value)


def test_a_failed_batch_is_not_logged_by_py4j_again(
    env: StreamExecutionEnvironment, spark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rates = env.from_dataframe(spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load())
    rates.map(lambda row: row.value // 0, output_type="bigint").print()
    with pytest.raises(JobExecutionError, match="ZeroDivisionError"):
        env.execute("failing batch")
    assert [record for record in caplog.records if record.name.startswith("py4j")] == []


def test_execute_starts_empty_again(env: StreamExecutionEnvironment, capsys: pytest.CaptureFixture[str]) -> None:
    env.from_collection(["once"], "string").print()
    env.execute("once")
    with pytest.raises(ConfigurationError, match="no sink"):
        env.execute("twice")
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith("once"), "a prefix names the subtask where there are several"


def packed(place: Path) -> None:
    """A wheel of a package that reads a file beside its module, which it cannot in a zip."""
    with zipfile.ZipFile(place / "seaweeds-1.0-py3-none-any.whl", "w") as wheel:
        code = "from pathlib import Path\nNAMES = Path(__file__).with_name('names').read_text().split()\n"
        wheel.writestr("seaweeds/__init__.py", code)
        wheel.writestr("seaweeds/names", "kelp wrack\n")
        about = "seaweeds-1.0.dist-info"
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: seaweeds\nVersion: 1.0\n")
        wheel.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{about}/RECORD", "")


def test_workers_have_the_packages_that_a_program_requires(env: StreamExecutionEnvironment, tmp_path: Path) -> None:
    requirements, cache = tmp_path / "requirements.txt", tmp_path / "cache"
    cache.mkdir()
    packed(cache)
    requirements.write_text("seaweeds==1.0\n")

    def name_of(number: int) -> str:
        import seaweeds  # type: ignore[import-not-found]

        return str(seaweeds.NAMES[number])

    with pytest.raises(ConfigurationError, match="there is no file"):
        env.set_python_requirements(str(tmp_path / "none"))
    with pytest.raises(ConfigurationError, match=r"there is no directory '.*/no_cache'"):
        env.set_python_requirements(str(requirements), str(tmp_path / "no_cache"))
    requirements.write_text("seaweeds==2.0\n")
    with pytest.raises(ConfigurationError, match=r"(?s)pip could not install it.*seaweeds==2\.0"):
        env.set_python_requirements(str(requirements), str(cache))
    requirements.write_text("seaweeds==1.0\n")
    env.set_python_requirements(str(requirements), str(cache))
    names = env.from_collection([0, 1], "bigint").map(name_of, output_type="string")
    assert sorted(names.execute_and_collect()) == ["kelp", "wrack"]
    with pytest.raises(ImportError):
        name_of(0)


def test_workers_have_the_modules_directories_and_archives_that_a_program_adds(
    env: StreamExecutionEnvironment, tmp_path: Path
) -> None:
    (tmp_path / "holdfast_module.py").write_text("WORD = 'module'\n")
    with zipfile.ZipFile(tmp_path / "zipped.zip", "w") as zipped:
        zipped.writestr("holdfast_zipped/__init__.py", "WORD = 'zipped'\n")
    package = tmp_path / "directory" / "holdfast_in_directory"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "from pathlib import Path\nWORD = Path(__file__).with_name('word').read_text()"
    )
    (package / "word").write_text("directory")
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as data:
        data.writestr("below/word", "archive")
    for added in ("holdfast_module.py", "zipped.zip", "directory"):
        env.add_python_file(str(tmp_path / added))
    env.add_python_archive(str(tmp_path / "data.zip"), "of_the_test")
    for add in (env.add_python_file, env.add_python_archive):
        with pytest.raises(ConfigurationError, match=rf"^{add.__name__}\(\): there is no file '.*/none\.zip'\.$"):
            add(str(tmp_path / "none.zip"))

    def words(number: int) -> list[str]:
        from importlib import import_module

        from pyspark import SparkFiles

        names = ("holdfast_module", "holdfast_zipped", "holdfast_in_directory")
        found = [str(import_module(name).WORD) for name in names]
        return [*found, (Path(SparkFiles.get("of_the_test")) / "below" / "word").read_text()]

    told = env.from_collection([0], "bigint").flat_map(words, output_type="string")
    assert sorted(told.execute_and_collect()) == ["archive", "directory", "module", "zipped"]


def test_spark_warns_of_late_batches_once_in_ten_minutes(env: StreamExecutionEnvironment) -> None:
    limit_late_trigger_warnings(env.spark)
    limit_late_trigger_warnings(env.spark)
    jvm = env.spark.sparkContext._jvm
    assert jvm is not None
    names = jvm.org.apache.logging.log4j.LogManager.getContext(False).getConfiguration()
    executor = "org.apache.spark.sql.execution.streaming.runtime.ProcessingTimeExecutor"
    limit = re.fullmatch(r"level=WARN, interval=(\d+), max=0", names.getLoggerConfig(executor).getFilter().toString())
    assert limit is not None and round(int(limit[1]) / 1e9) == 600
    assert names.getLoggerConfig(f"{executor}s").getFilter() is None, "other warnings are not limited"
