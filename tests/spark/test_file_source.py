"""`FileSource` on Spark: files in epochs, what a checkpoint keeps of them, and files that do not stay as they were."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import SparkContext

from holdfast.common import Duration, WatermarkStrategy
from holdfast.datastream import OutputTag, ParquetFileSink
from holdfast.datastream.connectors.file_system import DEAD_LETTER, FileSource, FileSourceBuilder, StreamFormat
from holdfast.datastream.formats.csv import CsvReaderFormat
from holdfast.datastream.formats.parquet import ParquetColumnarRowInputFormat
from holdfast.errors import ConfigurationError, InputError, InputGoneError, JobExecutionError
from holdfast.rest.client import RestClient
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.scheme import file_system_for
from tests.spark.test_shapes import Numbered, environment, name

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
WORDS = ParquetColumnarRowInputFormat("word string")
OUTPUT = "word string, n bigint"


class Files:
    """A directory of Parquet files with words, each file a second younger than the one before."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.words: Counter[str] = Counter()
        (root / "in" / "deep er").mkdir(parents=True)

    def put(self, name: str, *words: str) -> Path:
        at = self.root / "in" / name
        at.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"more": range(len(words)), "word": words}), self.root / "new", row_group_size=2)
        moment = 1_700_000_000 + len(list((self.root / "in").rglob("*.parquet")))
        os.utime(self.root / "new", (moment, moment))
        (self.root / "new").rename(at)
        self.words.update(words)
        return at

    def source(self, *paths: str) -> FileSourceBuilder:
        return FileSource.for_bulk_file_format(WORDS, *(paths or (str(self.root / "in"),)))

    def stream(self, *paths: str) -> FileSource:
        return self.source(*paths).monitor_continuously(Duration.of_millis(50)).set_max_files_per_epoch(2).build()

    def run(self, spark: Any, source: FileSource, parallelism: int = 2, **options: Any) -> None:
        env = environment(
            spark, self.root, **{"execution_trigger": "available-now", "parallelism_default": parallelism, **options}
        )
        words = env.from_source(source, WatermarkStrategy.no_watermarks(), "words").uid("words")
        counted = words.key_by("word").process(Numbered(), OUTPUT).uid("count")
        counted.sink_to(ParquetFileSink(str(self.root / "out"))).uid("out")
        env.execute("words")

    def require_each_once(self) -> None:
        found = pq.read_table(str(self.root / "out")).to_pylist()
        wanted = [(word, n) for word, count in self.words.items() for n in range(1, count + 1)]
        assert sorted((row["word"], row["n"]) for row in found) == sorted(wanted)

    def positions(self) -> list[list[Any]]:
        """What the newest checkpoint has recorded of the files of its epoch."""
        [job] = (self.root / "checkpoints").iterdir()
        newest = max(job.glob("chk-*"), key=lambda path: int(path.name[4:]))
        sources = json.loads((newest / "_metadata").read_text())["source_positions"]["streaming"]["sources"]
        [handle] = [handle for named, handle in sources.items() if "/splits/" in named]
        files: list[list[Any]] = json.loads((job / handle["path"]).read_text())["files"]
        return files


@pytest.fixture
def files(tmp_path: Path) -> Files:
    found = Files(tmp_path)
    found.put("a.parquet", "kelp", "rock", "kelp")
    found.put("deep er/b%20c.parquet", "kelp", *(f"w{n}" for n in range(40)))
    found.put("c.parquet", "sand", "rock")
    return found


def test_a_stream_of_files_resumes_with_another_parallelism(files: Files, spark: Any) -> None:
    files.run(spark, files.stream())
    files.require_each_once()
    [[path, time, length, cuts]] = files.positions()
    last = files.root / "in" / "c.parquet"
    assert (path, time, length) == (str(last), 1_700_000_002_000, last.stat().st_size)
    assert cuts == [0, length]
    files.put("d.parquet", "kelp", "new")
    files.put("e.parquet", "rock")
    last.unlink()  # of a checkpoint that is complete
    by_bytes = files.source().monitor_continuously(Duration.of_millis(50)).set_max_bytes_per_epoch(1).build()
    files.run(spark, by_bytes, parallelism=3)
    files.require_each_once()
    assert [Path(path).name for path, *_ in files.positions()] == ["e.parquet"]


def test_several_paths_and_globs_beside_an_input_that_spark_reads(files: Files, spark: Any, tmp_path: Path) -> None:
    env = environment(spark, tmp_path, execution_trigger="available-now")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("kelp\nfern\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "e.txt").write_text("rock\r\nfern")
    source = files.stream(f"{files.root}/in/[ab]*", f"{files.root}/in/deep*")
    lines = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(tmp_path / "more")).build()
    none = WatermarkStrategy.no_watermarks()
    parts = [
        env.from_source(source, none, "words").uid("words").map(lambda row: row.word, "string"),
        env.from_source(lines, none, "lines").uid("lines").map(lambda line: line, "string"),
        env.from_dataframe(spark.readStream.text(str(tmp_path / "text"))).uid("text").map(lambda r: r.value, "string"),
    ]
    with parts[0].union(*parts[1:]).execute_and_collect(name()) as found:
        assert Counter(found) == files.words - Counter(["sand", "rock"]) + Counter(["kelp", "fern", "rock", "fern"])


def test_a_static_set_of_files_is_read_once_and_the_job_ends(files: Files, spark: Any) -> None:
    files.run(spark, files.source().build(), execution_trigger="continuous")
    files.require_each_once()
    files.put("later.parquet", "late")
    files.words.subtract(["late"])
    files.run(spark, files.source().build(), execution_trigger="continuous")
    files.require_each_once()  # what a job has read once, it has read


def test_new_files_are_found_while_the_job_runs(files: Files, spark: Any) -> None:
    env = environment(spark, files.root)
    rows = env.from_source(files.stream(), WatermarkStrategy.no_watermarks(), "words").uid("words")
    rows.key_by("word").process(Numbered(), OUTPUT).uid("n").sink_to(ParquetFileSink(str(files.root / "out"))).uid("o")
    client = env.execute_async(name())
    try:
        client.process_all_available()
        files.put("z.parquet", "late", "kelp")
        client.process_all_available()
        files.require_each_once()
    finally:
        client.cancel()


def test_the_rows_of_a_source_are_rows_and_not_the_ranges_of_its_files(
    files: Files, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkContext, "uiWebUrl", "http://driver.example:4040")
    env = environment(spark, files.root)
    rows = env.from_source(files.stream(), WatermarkStrategy.no_watermarks(), "words").uid("words")
    rows.key_by("word").process(Numbered(), OUTPUT).uid("n").sink_to(ParquetFileSink(str(files.root / "out"))).uid("o")
    client = env.execute_async(name())
    try:
        client.process_all_available()
        root = str(files.root / "checkpoints")
        rest = RestClient.find(JobDirectory(file_system_for(root), root, client.get_job_id()))
        details = rest.get()
        [read] = [node for node in details["plan"]["nodes"] if any(one["id"] == "words" for one in node["inputs"])]
        assert read["inputs"][0]["records"] == files.words.total() == rest.get("epochs")["rows"]
        assert read["inputs"][0]["bytes"] > 5 * files.words.total()
        assert details["engine-url"] == "http://driver.example:4040"
    finally:
        client.cancel()


def test_unread_files_are_counted_while_an_epoch_reads_others(files: Files, spark: Any) -> None:
    """Three files in epochs of two, and two more that come while the first epoch is written."""
    # no epoch begins while one is written, so nothing is taken from what waits
    env = environment(spark, files.root, sink_committer_max__pending__checkpoints=0)
    began, counted = threading.Event(), []

    def write(frame: Any, epoch: int) -> None:
        assert began.wait(60)
        if epoch == 1:
            size = sum(files.put(f"x{n}.parquet", "kelp").stat().st_size for n in (1, 2))
            time.sleep(1.1)  # what was counted before is said for a second
            waits = waiting(client)
            counted.append((waits["id"], waits["files_behind"], waits["bytes_behind"] - size - third.stat().st_size))

    third = files.root / "in" / "c.parquet"
    rows = env.from_source(files.stream(), WatermarkStrategy.no_watermarks(), "words").uid("words")
    rows.for_each_epoch(write).uid("write")
    client = env.execute_async(name())
    try:
        began.set()
        client.process_all_available()
        time.sleep(1.1)
        assert counted == [("words", 3, 0)]
        assert client.last_progress["sources"] == [{"id": "words", "files_behind": 0, "bytes_behind": 0}]
    finally:
        client.cancel()


def waiting(client: Any) -> dict[str, Any]:
    [(uid, numbers)] = client._master.job.engine.source_metrics().items()
    return {"id": uid, **numbers.backlog()}


@pytest.mark.parametrize(
    ("damage", "kind", "said"),
    [
        (lambda path: path.unlink(), InputGoneError, "is gone"),
        (lambda path: os.truncate(path, 10), InputError, "was truncated after it was listed"),
        (lambda path: os.utime(path, (1, 1)), InputError, "was changed after it was listed"),
    ],
)
def test_a_file_damaged_after_its_listing_fails_the_job_by_name(
    files: Files, spark: Any, damage: Any, kind: type[Exception], said: str
) -> None:
    for n in range(4):
        files.put(f"x{n}.parquet", "kelp")
    source = files.source().monitor_continuously(Duration.of_millis(50)).build()
    victim = files.root / "in" / "x3.parquet"

    class Damaged(type(source.splits())):  # type: ignore[misc]
        def plan(self, paths: Any, known: Any, tasks: int) -> Any:
            found = super().plan(paths, known, tasks)
            damage(victim)
            return found

    source.splits().__class__ = Damaged
    with pytest.raises((kind, JobExecutionError), match=said) as told:
        files.run(spark, source)
    assert str(victim) in str(told.value)
    assert not list(files.root.glob("out/*.parquet"))


def test_a_file_of_another_schema_fails_the_job_by_name(files: Files, spark: Any) -> None:
    pq.write_table(pa.table({"word": [1]}), files.root / "in" / "odd.parquet")
    with pytest.raises(JobExecutionError, match=r"odd\.parquet' has the column 'word' of type int64"):
        files.run(spark, files.stream())


def test_unreadable_lines_go_to_the_side_output_once_with_their_place(spark: Any, tmp_path: Path) -> None:
    unreadable = OutputTag("unreadable", DEAD_LETTER)
    (tmp_path / "in").mkdir()

    def run(is_tolerant: bool = True) -> list[tuple[str, int, int, bytes]]:
        numbers = CsvReaderFormat.for_schema("word string, n bigint")
        builder = FileSource.for_record_stream_format(numbers, str(tmp_path / "in"))
        builder.monitor_continuously(Duration.of_millis(50)).set_max_files_per_epoch(1)
        if is_tolerant:
            builder.set_dead_letter_output(unreadable)
        env = environment(spark, tmp_path, execution_trigger="available-now", parallelism_default=2)
        lines = env.from_source(builder.build(), WatermarkStrategy.no_watermarks(), "lines").uid("lines")
        lines.key_by("word").sum("n").uid("sum").sink_to(ParquetFileSink(str(tmp_path / "out"))).uid("out")
        if not is_tolerant:
            with pytest.raises(ConfigurationError, match=r"has no side output 'unreadable': call set_dead_letter_out"):
                lines.get_side_output(unreadable)
        else:
            beside = lines.get_side_output(unreadable)
            beside.sink_to(ParquetFileSink(str(tmp_path / "letters"))).uid("letters")
        env.execute("lines")
        letters = pq.read_table(str(tmp_path / "letters")).to_pylist()
        return sorted((Path(row["path"]).name, row["line_number"], row["position"], row["line"]) for row in letters)

    (tmp_path / "in" / "a.csv").write_text("kelp,1\nkelp,one\nrock,1\n")
    assert run() == [("a.csv", 2, 7, b"kelp,one")]
    (tmp_path / "in" / "b.csv").write_text("kelp,2\n" * 1000 + "kelp\n")
    expected = [("a.csv", 2, 7, b"kelp,one"), ("b.csv", 1001, 7000, b"kelp")]
    assert run() == expected
    assert run() == expected, "nothing is told again"
    sums = pq.read_table(str(tmp_path / "out")).to_pylist()
    assert max(row["n"] for row in sums if row["word"] == "kelp") == 2001
    (tmp_path / "in" / "c.csv").write_text("sand,x\n")
    with pytest.raises(JobExecutionError, match=r"line 1 of the file '.*c\.csv' cannot be read as CSV: "):
        run(is_tolerant=False)


def test_a_missing_path_is_reported_when_the_program_is_defined(files: Files, spark: Any) -> None:
    env = environment(spark, files.root)
    for source in (files.stream("/not there"), files.source("/not there").build()):
        with pytest.raises(ConfigurationError, match="cannot list '/not there'"):
            env.from_source(source, WatermarkStrategy.no_watermarks(), "words")


PROGRAM = """
import sys
from holdfast.common import Duration, WatermarkStrategy
from tests.spark.test_file_source import Files, FileSource, ParquetFileSink, WORDS, OUTPUT
from tests.spark.test_shapes import Numbered
from holdfast.datastream import StreamExecutionEnvironment

root = sys.argv[1]
env = StreamExecutionEnvironment.get_execution_environment(
    {"execution.checkpointing.dir": root + "/checkpoints", "execution.trigger": "available-now",
     "parallelism.default": 2, "spark.master": "local[2]", "spark.ui.enabled": "false"})
source = FileSource.for_bulk_file_format(WORDS, root + "/in").monitor_continuously(Duration.of_millis(50))
words = env.from_source(source.set_max_files_per_epoch(1).build(), WatermarkStrategy.no_watermarks(), "words")
words.uid("words").key_by("word").process(Numbered(), OUTPUT).uid("count").sink_to(
    ParquetFileSink(root + "/out")).uid("out")
env.execute("words")
"""


@pytest.mark.long
def test_a_driver_that_is_killed_between_checkpoints_leaves_each_count_once(files: Files) -> None:
    temporary = files.root / "temporary"
    temporary.mkdir()
    for n in range(10):  # so many that Spark compacts its log of files
        files.put(f"d{n}.parquet", *(f"w{k}" for k in range(10 * n)), "kelp")
    for fault, ended in (
        ("before:source.copy:4=kill", -signal.SIGKILL),
        ("after:pointer.write:3=kill", -signal.SIGKILL),
        ("", 0),
    ):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(files.root)],
            cwd=ROOT,
            env={**os.environ, "HOLDFAST_FAULT": fault, "PYSPARK_PYTHON": sys.executable, "TMPDIR": str(temporary)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == ended, done.stderr
        require_nothing(temporary)
    files.require_each_once()


def require_nothing(folder: Path) -> None:
    """Folders of a process that was killed are removed by its JVM, a moment later."""
    deadline = time.monotonic() + 60
    while left := [path.name for path in folder.iterdir() if not path.name.startswith("holdfast-run-files-")]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


FOLDERS = """
import os, signal, sys
from pathlib import Path
from pyspark.sql import SparkSession
from holdfast.spark.session import new_folder, remove_folder

session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
others = [sys.argv[1] + "/later", sys.argv[1] + "/never"]
for number in range(2):
    folder = new_folder(session, "of a job ", *others)
    (folder / "file").touch()
    remove_folder(session, folder) if number else None
Path(others[0]).mkdir()
print(sorted(os.listdir(sys.argv[1])), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_is_killed_leaves_no_folders(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FOLDERS, str(tmp_path)],
        env={**os.environ, "TMPDIR": str(tmp_path), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert "later" in done.stdout and "of a job" in done.stdout
    require_nothing(tmp_path)


def holdfast(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", "from holdfast.cli import main; main()", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_an_old_epoch_is_replayed_from_its_record_unless_a_file_has_changed(files: Files) -> None:
    script = files.root / "job.py"
    script.write_text(PROGRAM.replace("env = ", 'options = {"execution.checkpointing.num-retained": 9}\nenv = ', 1))
    script.write_text(
        script.read_text().replace('{"execution.checkpointing.dir"', '{**options, "execution.checkpointing.dir"')
    )
    ran = holdfast("run", str(script), "--", str(files.root))
    assert ran.returncode == 0, ran.stderr
    [job] = (files.root / "checkpoints").iterdir()
    first = min(job.glob("chk-*"), key=lambda path: int(path.name[4:]))
    again = holdfast("replay", str(first), str(script), "--", str(files.root))
    assert again.returncode == 0, again.stderr
    assert "w39" in again.stdout
    of_that_epoch = files.root / "in" / "deep er" / "b%20c.parquet"
    os.utime(of_that_epoch, (1_800_000_000, 1_800_000_000))
    for said in ("was changed after it was listed", "is gone"):
        refused = holdfast("replay", str(first), str(script), "--", str(files.root))
        assert refused.returncode != 0
        assert said in refused.stderr + refused.stdout
        assert str(of_that_epoch) in refused.stderr + refused.stdout
        of_that_epoch.unlink(missing_ok=True)
