"""The image as an engine builds and runs it: its command, and a standalone cluster whose parts are containers."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
from collections.abc import Iterator

import pyarrow.dataset as ds
import pytest

from tests.spark.test_ledger_stories import Story
from tests.spark.test_standalone_stories import BOTH_WORKERS, wait_for
from tests.stories.cluster import until
from tests.stories.image import Image, processes, require_engine
from tests.stories.process import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

DEPLOY = "org.apache.spark.deploy"
EXECUTOR = "CoarseGrainedExecutorBackend"
EXTRAS = "confluent_kafka, kazoo, lightkube, obstore, prometheus_client"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    require_engine()
    with Image(tmp_path_factory.mktemp("shared")) as image:
        image.build()
        yield image


def test_a_container_says_what_it_can_do_and_has_what_it_needs(image: Image) -> None:
    assert "jobmanager" in image.run(*image.command)
    assert image.run("python", "-c", f"import holdfast, {EXTRAS}; print(holdfast.__file__)").startswith("/opt/holdfast")


def test_the_documented_command_runs_the_program_of_the_readme(image: Image) -> None:
    """A second run with the same volume continues where the first one stopped."""
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    [line] = re.findall(r"^    docker run --rm ((?:.*\\\n)*.*)$", page, re.MULTILINE)
    job, data = image.shared / "job", image.shared / "data"
    (job / "texts").mkdir(parents=True)
    (job / "word_count.py").write_bytes((ROOT / "examples" / "word_count.py").read_bytes())
    data.mkdir()
    # A new volume of Docker gets the owner of the directory that it covers.
    owner = image.run("stat", "--format", "%u", "/data").strip()
    shutil.chown(data, int(owner))

    words = shlex.split(line.replace("\\\n", " "))
    options = words.index("holdfast")
    volumes = [word for word in words[:options] if word != "-v"]
    assert volumes == ["$PWD:/job:ro", "holdfast:/data"]
    mounted = [volume.replace("$PWD", str(job)).replace("holdfast:", f"{data}:") for volume in volumes]
    for texts in ("a.txt", "b.txt"):
        (job / "texts" / texts).write_text("kelp rock kelp\n")
        image.run(*words[options + 1 :], volumes=mounted)
    rows = ds.dataset(data / "out", format="parquet").to_table().to_pylist()
    assert sorted((row["word"], row["n"]) for row in rows) == [
        *(("kelp", n) for n in range(1, 5)),
        ("rock", 1),
        ("rock", 2),
    ]


def test_an_executor_is_killed_in_the_container_of_its_worker(image: Image) -> None:
    """Both executors work when one is killed; the worker starts another, and the output is as if nothing had been."""
    shared = image.shared
    master_log, log = shared / "master.log", shared / "driver.log"
    ports = ("--port", 0, "--webui-port", 0)
    image.start("spark-class", f"{DEPLOY}.master.Master", *ports, host="127.0.0.1", log=master_log)
    url = wait_for(master_log, r"Starting Spark master at (spark://\S+)")
    workers, logs = [], []
    for host in ("127.0.0.2", "127.0.0.3"):
        logs.append(shared / f"{host}.log")
        worker = (f"{DEPLOY}.worker.Worker", *ports, "--cores", 1, "--memory", "700m", url)
        workers.append(image.start("spark-class", *worker, host=host, log=logs[-1]))
        wait_for(logs[-1], r"(Successfully registered)")

    story = Story(shared, epochs=12)
    submit = ("spark-submit", "--master", url, "--conf", "spark.executor.memory=512m", *BOTH_WORKERS)
    job = ("/programs/tests/programs/ledger_job.py", *story.arguments("--master", url, "--hazard", "slow"))
    driver = image.start(*submit, *job, host="127.0.0.1", log=log, environment={"PYTHONPATH": "/programs"})
    story.wait_for(2, driver, seconds=600)

    assert all(any(processes(worker, "python", "pyspark.daemon")) for worker in workers), "one does all the work"
    os.kill(next(processes(workers[0], "java", EXECUTOR)), signal.SIGKILL)
    until(lambda: logs[0].read_text().count("Asked to launch executor") == 2, "the worker starts another executor")
    assert driver.wait(timeout=300) == 0, log.read_text(errors="replace")[-6000:]
    story.audit()
