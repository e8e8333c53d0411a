"""Jobs whose checkpoints are in an object store: killed, taken over, moved, looked at; their output is local."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast.cli import main
from holdfast.kernel import fault as faults
from holdfast.runtime.job.control import SnapshotRequest
from holdfast.storage.file_system import FileSystem
from holdfast.storage.scheme import file_system_for
from holdfast.testing import S3Server
from tests.stories import journal, ledger, local
from tests.stories.functions import Numbering
from tests.stories.journal import Journal
from tests.stories.process import run

pytestmark = pytest.mark.services

EPOCHS, ROWS, ACCOUNTS, SEED = 4, 40, 7, 1


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as serving:
        serving.make_bucket("jobs")
        yield serving


@pytest.fixture
def root(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://jobs/{uuid.uuid4()}/checkpoints"


def audit(output: Path) -> None:
    ledger.audit(output, ledger.payments(EPOCHS, ROWS, ACCOUNTS, SEED), two_stages=True)


def test_killed_at_every_step_of_a_checkpoint_it_still_comes_to_the_right_end(root: str, tmp_path: Path) -> None:
    checkpoints, output = root, tmp_path / "out"
    for fault in ("after:run.write:5=kill", "after:metadata.write:2=kill", "after:pointer.write:1=kill"):
        assert run("epoch_job.py", checkpoints, output, fault=fault).was_killed
    ended = run("epoch_job.py", checkpoints, output)
    assert ended.code == 0, ended.output
    audit(output)
    rows = CliRunner().invoke(main, ["checkpoints", checkpoints, "--json"])
    found = [json.loads(line) for line in rows.stdout.splitlines()]
    assert [row["status"] for row in found] == ["COMPLETED"] * 3
    assert all(row["path"].startswith(f"{checkpoints}/") for row in found)
    states = CliRunner().invoke(main, ["inspect", checkpoints, "--json"])
    assert {json.loads(line)["kind"] for line in states.stdout.splitlines()} >= {"value"}


def test_an_answer_that_is_lost_leads_to_a_restart_in_the_same_process(root: str, tmp_path: Path) -> None:
    options = ("-D", "restart-strategy.type=fixed-delay", "-D", "restart-strategy.fixed-delay.delay=1 ms")
    ended = run("epoch_job.py", root, tmp_path / "out", *options, fault="lost:pointer.write:2=raise")
    assert ended.code == 0, ended.output
    audit(tmp_path / "out")


def test_a_checkpoint_in_the_store_is_where_a_job_on_a_disk_may_start_and_the_other_way_round(
    root: str, tmp_path: Path
) -> None:
    disk, output = tmp_path / "checkpoints", tmp_path / "out"
    before: list[str] = []
    for place, epochs in ((root, 1), (disk, 2), (f"{root}-2", EPOCHS)):
        ended = run("epoch_job.py", place, output, "--epochs", epochs, *before)
        assert ended.code == 0, ended.output
        listed = CliRunner().invoke(main, ["checkpoints", str(place), "--json"])
        before = ["-D", f"execution.state-recovery.path={json.loads(listed.stdout.splitlines()[-1])['path']}"]
    audit(output)


def test_the_store_may_be_named_by_options_instead_of_variables(
    server: S3Server, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in server.environment:
        monkeypatch.delenv(name)
    named = {"endpoint": server.endpoint, "access-key": "test", "secret-key": "test", "region": "us-east-1"}
    options = [text for name, value in named.items() for text in ("-D", f"s3.{name}={value}")]
    assert run("epoch_job.py", root, tmp_path / "out", *options, fault="after:run.write:5=kill").was_killed
    assert run("epoch_job.py", root, tmp_path / "out", *options).code == 0
    audit(tmp_path / "out")


def test_what_no_checkpoint_names_is_deleted(root: str, tmp_path: Path) -> None:
    assert run("epoch_job.py", root, tmp_path / "out").code == 0
    fs = file_system_for(root)
    (job,) = fs.list_names(root)
    listed = CliRunner().invoke(main, ["checkpoints", root, "--json"])
    retained = {Path(json.loads(line)["path"]).name for line in listed.stdout.splitlines()}
    assert {name for name in fs.list_names(f"{root}/{job}") if name.startswith("chk-")} == retained
    assert "rest" not in fs.list_names(f"{root}/{job}")


def test_a_savepoint_in_the_store_needs_nothing_else_and_is_deleted_whole(
    server: S3Server, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [["kelp", "rock"], ["kelp"], ["rock", "sand"]]
    asked: list[Any] = []

    def program(out: str) -> local.Program:
        program = local.Program()
        words = program.source("in", "string").key_by(lambda word: word, "string")
        words.process(Numbering(), "word string, n bigint").uid("count").sink_to(Journal(tmp_path / out)).uid("out")
        return program

    job = local.master(program("first"), root, local.epochs("in", batches[:2]))

    def ask(stage: int, partition: int) -> None:
        if not asked:
            asked.append(job.control.request(SnapshotRequest(is_savepoint=True, directory=f"{root}-savepoints")))

    job.job.engine._interceptor = ask  # type: ignore[attr-defined]
    job.run()
    savepoint, fs = str(asked[0].result(0)), file_system_for(root)
    for name in list_all(fs, root):
        fs.delete(name)
    start = {"execution.state-recovery.path": savepoint, "state.backend.type": "columnar"}
    local.run(program("then"), tmp_path / "disk", local.epochs("in", batches), start)
    assert journal.as_tuples(journal.read(tmp_path / "then")) == [("kelp", 2), ("rock", 2), ("sand", 1)]

    assert list_all(fs, savepoint) != []
    # In processes of their own, which know the store by these options alone.
    for name in server.environment:
        monkeypatch.delenv(name)
    named = {"endpoint": server.endpoint, "access-key": "test", "secret-key": "test", "region": "us-east-1"}
    options = [text for name, value in named.items() for text in ("-D", f"s3.{name}={value}")]
    command = [sys.executable, "-c", "from holdfast.cli import main; main()"]
    for verb in (["inspect", savepoint], ["savepoint", "--dispose", savepoint]):
        ended = subprocess.run([*command, *verb, *options], capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
    assert list_all(fs, f"{root}-savepoints") == []


@pytest.mark.parametrize("fault", [f"{when}:subsume.delete=raise" for when in ("before", "after", "lost")])
def test_a_checkpoint_in_the_store_that_is_claimed_goes_and_what_others_need_stays(
    root: str, tmp_path: Path, fault: str
) -> None:
    batches = [["kelp", "rock"], ["kelp"], ["rock", "sand"]]

    def count(out: str, place: str, words: list[list[str]], options: dict[str, str]) -> None:
        program = local.Program()
        counted = program.source("in", "string").key_by(lambda word: word, "string")
        counted.process(Numbering(), "word string, n bigint").uid("count").sink_to(Journal(tmp_path / out)).uid("out")
        local.run(program, place, local.epochs("in", words), options)

    def retained(place: str) -> list[str]:
        listed = CliRunner().invoke(main, ["checkpoints", place, "--json"])
        return [json.loads(line)["path"] for line in listed.stdout.splitlines()]

    count("other", root, batches[:2], {})
    *others, newest = retained(root)
    assert others
    claim = {"execution.state-recovery.path": newest, "execution.state-recovery.claim-mode": "CLAIM"}
    faults.install(fault)
    try:
        count("then", f"{root}-2", batches, claim)  # no reason to fail: it is tried again
    finally:
        faults.clear()
    count("then", f"{root}-2", [*batches, ["sand"]], {})
    assert list_all(file_system_for(root), newest) == []
    assert retained(root) == others
    start = {"execution.state-recovery.path": others[-1]}
    count("third", f"{root}-3", batches, start)  # it is whole
    assert ("sand", 1) in journal.as_tuples(journal.read(tmp_path / "third"))
    assert journal.as_tuples(journal.read(tmp_path / "then"))[-1] == ("sand", 2)


def list_all(fs: FileSystem, path: str) -> list[str]:
    found: list[str] = []
    for status in fs.list(path):
        place = f"{path}/{status.name}"
        found += list_all(fs, place) if status.is_directory else [place]
    return found
