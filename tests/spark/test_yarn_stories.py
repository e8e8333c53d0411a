"""A YARN of two hosts: packages that travel with the job, and containers that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from tests.spark.test_ledger_stories import Story
from tests.spark.test_standalone_stories import PACKED, packed_environment
from tests.stories.cluster import until
from tests.stories.process import ROOT
from tests.stories.yarn import DRIVER, EXECUTOR, HOSTS, SPARK, YarnCluster, require_jars

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

SUBMIT = (str(SPARK / "bin" / "spark-submit"), "--master", "yarn", "--deploy-mode")
WORKER = "./env/bin/python"


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[YarnCluster]:
    require_jars()
    cluster = YarnCluster(tmp_path_factory.mktemp("yarn"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The Python of a packed environment, and the archive."""
    return packed_environment(tmp_path_factory.mktemp("packed"))


@pytest.mark.parametrize("form", ["client", "cluster", "holdfast run"])
def test_yarn_ships_the_files_of_a_job(tmp_path: Path, yarn: YarnCluster, packed: tuple[Path, Path], form: str) -> None:
    """The Python of the containers is the packed one, which has the only Holdfast that they see."""
    driver, archive = packed
    program, texts, out = tmp_path / "packed.py", tmp_path / "texts", tmp_path / "out"
    program.write_text(PACKED)
    texts.mkdir()
    (texts / "a.txt").write_text("\n".join(f"w{n % 20}" for n in range(200)))
    places = [str(texts), str(out), str(tmp_path / "checkpoints")]
    leaves = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "VIRTUAL"))
    }
    environment = {**leaves, **yarn.environment}
    if form == "holdfast run":
        options = ["spark.master=yarn", f"spark.archives={archive}#env", f"spark.pyspark.python={WORKER}"]
        of_job = [word for option in options for word in ("-D", option)]
        command = [str(driver.with_name("holdfast")), "run", *of_job, str(program), "--", *places]
        environment["PYTHONPATH"] = os.pathsep.join(map(str, SPARK.glob("python/lib/*.zip")))
    else:
        command = [*SUBMIT, form, "--archives", f"{archive}#env", str(program), *places]
        environment |= {
            "PYSPARK_DRIVER_PYTHON": str(driver) if form == "client" else WORKER,
            "PYSPARK_PYTHON": WORKER,
        }
    submitted = subprocess.run(
        command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False, timeout=600,
    )  # fmt: skip
    assert submitted.returncode == 0, submitted.stdout[-6000:]
    rows = ds.dataset(out, format="parquet").to_table().to_pylist()
    assert sorted((row["word"], row["n"]) for row in rows) == sorted(
        (f"w{n}", i) for n in range(20) for i in range(1, 11)
    )
    assert all(f"{row['place']}/env/lib/" in row["holdfast"] for row in rows), rows[0]
    assert {Path(row["place"]).relative_to(yarn.directory).parts[0] for row in rows} == set(HOSTS)


def test_an_executor_and_the_driver_are_killed_in_their_containers(tmp_path: Path, yarn: YarnCluster) -> None:
    """YARN gives the driver another executor, and starts another driver, which goes on from the newest checkpoint."""
    story = Story(tmp_path, epochs=20)
    log = tmp_path / "log"
    path = f"{ROOT / 'src'}:{ROOT}"
    program = str(ROOT / "tests" / "programs" / "ledger_job.py")
    with log.open("wb") as output:
        submitted = subprocess.Popen(
            [*SUBMIT, "cluster", "--conf", f"spark.yarn.appMasterEnv.PYTHONPATH={path}", program,
             *map(str, story.arguments("--master", "yarn", "--hazard", "slow"))],
            env={**os.environ, **yarn.environment, "PYSPARK_PYTHON": sys.executable},
            cwd=tmp_path, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        story.wait_for(2, submitted, seconds=300)
        os.kill(next(yarn.processes(EXECUTOR)), signal.SIGKILL)
        before = yarn.containers()
        until(lambda: yarn.containers() - before, "YARN starts another executor")
        os.kill(next(yarn.processes(DRIVER)), signal.SIGKILL)
        assert submitted.wait(timeout=300) == 0, log.read_text()[-6000:]
    finally:
        submitted.kill()
    assert yarn.attempts() == 2
    story.audit()
