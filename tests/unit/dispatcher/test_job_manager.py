"""Job managers as their users see them: real processes, real kills, jobs on the epoch runner."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import signal
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli import main
from holdfast.cli.locate import running_job
from holdfast.dispatcher.dispatcher_machine import Phase
from holdfast.dispatcher.job_manager import JobManager
from holdfast.dispatcher.job_manager_api import JobManagerApi, Term
from holdfast.dispatcher.job_manager_client import JobManagerClient
from holdfast.errors import ConfigurationError, StorageError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.rest.client import RestError
from tests.stories.cluster import Cluster, counted, is_gone, processes_of, rows, until
from tests.stories.process import ROOT
from tests.stories.served import Running

SYS_TGKILL = 234 if platform.machine() == "x86_64" else 131
WORDS = ROOT / "tests" / "programs" / "submitted_words.py"
TEXTS = ("kelp sand kelp", "rock kelp", "sand", "kelp kelp")

pytestmark = pytest.mark.timeout(240)


class Job:
    """A job that counts the words of files, and the client that submits it."""

    def __init__(self, directory: Path, cluster: Cluster, name: str = "words") -> None:
        self.inputs, self.output = directory / f"{name}-in", directory / f"{name}-out"
        self.inputs.mkdir()
        self.cluster, self.name = cluster, name
        self.id = str(JobID.from_name(name))

    def add(self, number: int) -> None:
        temporary = self.inputs / "temporary"
        temporary.write_text(TEXTS[number])
        temporary.rename(self.inputs / f"{number}.txt")

    def submit(self, *arguments: str, code: int = 0) -> str:
        named = f"-Dpipeline.name={self.name}"
        return self.cluster.run("submit", WORDS, named, *arguments, "--", self.inputs, self.output, code=code).strip()

    def sees(self, *texts: str) -> None:
        until(lambda: rows(self.output) == counted(*texts), f"{texts} are counted, not {rows(self.output)}")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.close()


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Cluster]:
    own = {"jobstore.max-capacity": "50", "jobmanager.max-submission-size": "1 mb", "cleanup-strategy.type": "none"}
    cluster = Cluster.without_elections(tmp_path, **own)  # which commands get, too, and no job
    yield cluster
    cluster.close()


def test_the_leader_is_killed_and_the_other_one_goes_on_with_its_jobs(tmp_path: Path, cluster: Cluster) -> None:
    leader = cluster.start()
    cluster.says(0, "leads, in session")
    job = Job(tmp_path, cluster)
    assert job.submit() == job.id
    assert "was submitted before and is" in job.submit(code=1), "a duplicate is refused"
    cluster.start()
    cluster.says(1, "is at http://")
    assert [ready(cluster, number) for number in (0, 1)] == [200, 200], "one leads, the other stands by"
    job.add(0)
    job.add(1)
    job.sees(*TEXTS[:2])
    (process,) = processes_of(leader)
    follower = cluster.follow(job.id)
    until(lambda: "counts the words" in (tmp_path / "followed").read_text(), "somebody follows the log")
    leader.kill()
    until(lambda: is_gone(process), "the process of the job ends with its job manager")
    job.add(2)
    job.sees(*TEXTS[:3])
    (row,) = cluster.jobs().values()
    assert (row["job_id"], row["status"]) == (job.id, "RUNNING")
    assert "taken-over: 1" in cluster.run("info", job.id), "since when, in milliseconds"

    job.add(3)
    (job.inputs / "end").touch()
    cluster.status(job.id, "FINISHED")
    until(lambda: cluster.kept() == [], f"everything but the checkpoints is removed, not {cluster.kept()}")
    job.sees(*TEXTS)
    assert "counts the words" in cluster.run("logs", job.id)
    assert follower.wait(60) == 0, "who follows the log does so over the change of leaders, to the end of the job"
    followed = (tmp_path / "followed").read_text()
    assert "the job continues with the job manager on" in followed
    assert followed.count("counts the words") == 2

    cluster.managers[1].kill()
    cluster.start()
    ended = cluster.status(job.id, "FINISHED")
    assert ended["name"] == "words", "also the next leader knows how it has ended"
    assert "under an earlier leader" in cluster.run("logs", job.id, code=1)
    cluster.run("cancel", job.id, code=1)
    job.submit()
    cluster.status(job.id, "FINISHED")
    job.sees(*TEXTS)


def test_a_leader_that_sleeps_for_longer_than_its_lease_harms_nobody(tmp_path: Path, cluster: Cluster) -> None:
    sleeper = cluster.start()
    cluster.says(0, "leads, in session")
    job = Job(tmp_path, cluster)
    job.submit()
    job.add(0)
    job.sees(TEXTS[0])
    (process,) = processes_of(sleeper)
    cluster.start()
    os.kill(sleeper.pid, signal.SIGSTOP)
    cluster.says(1, "leads, in session")
    job.add(1)
    job.sees(*TEXTS[:2])
    job.add(2)
    job.sees(*TEXTS[:3])
    os.kill(sleeper.pid, signal.SIGCONT)
    cluster.says(0, "does not lead any more")
    until(lambda: is_gone(process), "the process of the old term ends")
    job.add(3)
    job.sees(*TEXTS)
    cluster.run("cancel", job.id)
    cluster.status(job.id, "CANCELED")


def test_the_next_leader_and_the_next_process_have_the_parallelism_of_a_rescale(
    tmp_path: Path, cluster: Cluster
) -> None:
    """By the command and by REST, on real processes; another submission has the parallelism of its program."""
    leader = cluster.start()
    cluster.says(0, "leads, in session")
    job = Job(tmp_path, cluster)
    job.submit("-Dparallelism.default=2")
    job.add(0)
    job.sees(*TEXTS[:1])

    options = [f"{key}={value}" for key, value in cluster.options.items()]

    def parallelism() -> dict[str, int]:
        return running_job(job.id, None, options).parallelism()

    assert parallelism() == {"count": 2}
    assert cluster.run("rescale", job.id, "3") == "count  3\n"
    cluster.start()
    cluster.says(1, "is at http://")
    (process,) = processes_of(leader)
    leader.kill()
    until(lambda: is_gone(process), "the process of the job ends with its job manager")
    job.add(1)
    job.sees(*TEXTS[:2])
    assert parallelism() == {"count": 3}, "the next leader has it"
    assert "has the parallelism that was requested while it ran: count=3" in cluster.run("logs", job.id)

    running_job(job.id, None, options).rescale({"count": 4})
    (process,) = processes_of(cluster.managers[1])
    os.killpg(process, signal.SIGKILL)
    until(lambda: is_gone(process), "the process of the job is killed")
    job.add(2)
    job.sees(*TEXTS[:3])
    assert parallelism() == {"count": 4}, "the next process of the same leader has it"

    cluster.run("cancel", job.id)
    cluster.status(job.id, "CANCELED")
    until(lambda: cluster.kept() == [], "nothing of the submission is left")
    job.submit("-Dparallelism.default=2")
    until(lambda: cluster.jobs()[job.id]["status"] == "RUNNING" and parallelism(), "the job has begun")
    assert parallelism() == {"count": 2}, "another submission has that of its program"


def test_a_leader_that_is_told_to_stop_hands_its_jobs_over(tmp_path: Path, cluster: Cluster) -> None:
    leader = cluster.start()
    cluster.says(0, "leads, in session")
    job = Job(tmp_path, cluster)
    job.submit()
    job.add(0)
    job.sees(TEXTS[0])
    (process,) = processes_of(leader)
    cluster.start()
    # As a service manager does: to the job manager and to all that it has started.
    os.kill(process, signal.SIGTERM)
    leader.terminate()
    assert leader.wait(60) == 0
    job.add(1)
    job.sees(*TEXTS[:2])
    cluster.status(job.id, "RUNNING")
    assert cluster.run("stop", job.id, "-p", tmp_path / "savepoints").startswith(str(tmp_path / "savepoints"))
    cluster.status(job.id, "SUSPENDED")
    until(lambda: cluster.kept() == [], "nothing is kept of it")
    job.add(2)
    job.submit()
    job.sees(*TEXTS[:3])


def test_without_elections_one_job_manager_runs_jobs_on_its_host(tmp_path: Path, alone: Cluster) -> None:
    alone.start()
    alone.says(0, "leads, in session")
    job, other = Job(tmp_path, alone), Job(tmp_path, alone, "other")
    job.submit()
    assert other.submit("--json").startswith("{")
    job.add(0)
    job.sees(TEXTS[0])
    (other.inputs / "0.txt").write_text("poison")
    # As long as its process is there, that one tells: the first failure, and not yet what became of the job.
    reason = "JobExecutionError: job 'other' failed"
    until(lambda: alone.status(other.id, "FAILED")["last_failure"].startswith(reason), "its process has ended")
    assert "state: FAILED" in alone.run("info", other.id)
    assert ": ValueError: " in alone.run("logs", other.id)
    assert re.fullmatch(r"http://127.0.0.1:\d+/#token=[\w-]+\n", alone.run("ui", "--no-browser"))
    assert f"/#/job/{job.id}&token=" in alone.run("ui", job.id, "--no-browser")
    result = asked(tmp_path / "manager", f"jobs/{other.id}/execution-result")["job-execution-result"]
    assert (result["application-status"], result["failure-cause"]["class"]) == ("FAILED", "JobExecutionError")
    assert asked(tmp_path / "manager", f"jobs/{job.id}/execution-result") == {"status": {"id": "IN_PROGRESS"}}
    shown = metrics(tmp_path / "manager")
    assert f'holdfast_job_rows_in_total{{job_id="{job.id}",job_name="words"}} 3.0' in shown
    assert 'holdfast_jobmanager_jobs{status="FAILED"} 1.0' in shown
    alone.run("savepoint", "words", tmp_path / "savepoints")
    alone.run("rescale", "words", "4")
    assert f"/#/job/{job.id}&token=" in alone.run("ui", "words", "--no-browser")
    assert "state: FAILED" in alone.run("info", other.name)
    assert ": ValueError: " in alone.run("logs", other.name)
    unknown = alone.run("cancel", "word", code=1)
    assert "There is no job 'word' in the job manager at http://" in unknown and "Did you mean 'words'?" in unknown
    alone.run("cancel", "words")
    assert alone.status(job.id, "CANCELED")["last_failure"] is None
    alone.run("cancel", other.id, code=1)
    alone.run("cancel", JobID.from_name("nobody's"), code=1)
    until(lambda: alone.kept() == [], "nothing is kept of them")

    second = alone.start()
    assert second.wait(60) == 2
    assert "Another job manager works in" in alone.log(1).read_text()


def ready(cluster: Cluster, number: int) -> int:
    """What a job manager answers to somebody who shows no token and may be anywhere."""
    (url,) = re.findall(r"is at (http://\S+),", cluster.log(number).read_text())
    with urllib.request.urlopen(urllib.request.Request(f"{url}/health/ready", headers={"Host": "10.1.2.3"})) as answer:
        return int(answer.status)


def got(working_directory: Path, path: str) -> str:
    (file,) = (working_directory / "rest").glob("*.json")
    address = json.loads(file.read_text())
    shown = {"Authorization": f"Bearer {address['bearer_token']}"}
    with urllib.request.urlopen(urllib.request.Request(f"{address['url']}/{path}", headers=shown)) as answer:
        return str(answer.read().decode())


def metrics(working_directory: Path) -> str:
    return got(working_directory, "metrics")


def asked(working_directory: Path, path: str) -> Any:
    return json.loads(got(working_directory, path))


def test_a_new_job_that_cannot_begin_fails_and_one_that_is_taken_over_is_tried_again(
    tmp_path: Path, cluster: Cluster
) -> None:
    leader = cluster.start()
    cluster.says(0, "leads, in session")
    broken, job = Job(tmp_path, cluster, "broken"), Job(tmp_path, cluster)
    (broken.inputs / "broken").touch()
    broken.submit()
    assert "is not mounted" in cluster.status(broken.id, "FAILED")["last_failure"]

    job.submit()
    job.add(0)
    job.sees(TEXTS[0])
    (job.inputs / "broken").touch()
    leader.kill()
    cluster.start()
    cluster.says(1, "leads, in session")
    waiting = until(lambda: (row := cluster.jobs()[job.id])["restarts"] and row, "it is tried again")
    assert "is not mounted" in waiting["last_failure"]
    (job.inputs / "broken").unlink()
    cluster.status(job.id, "RUNNING")
    job.add(1)
    job.sees(*TEXTS[:2])


def test_a_process_that_is_killed_is_started_again(tmp_path: Path, alone: Cluster) -> None:
    manager = alone.start()
    alone.says(0, "leads, in session")
    job = Job(tmp_path, alone)
    job.submit()
    job.add(0)
    job.sees(TEXTS[0])
    (process,) = processes_of(manager)
    os.kill(process, signal.SIGKILL)
    job.add(1)
    job.sees(*TEXTS[:2])
    assert alone.jobs()[job.id]["restarts"] == 1


def test_a_job_whose_attempts_fail_in_its_process_is_not_listed_as_one_that_runs(
    tmp_path: Path, alone: Cluster
) -> None:
    alone.start()
    alone.says(0, "leads, in session")
    job = Job(tmp_path, alone)
    job.submit("-Drestart-strategy.type=fixed-delay", "-Drestart-strategy.fixed-delay.delay=1 min")
    (job.inputs / "0.txt").write_text("poison")
    row = alone.status(job.id, "RESTARTING")
    assert re.search(r"operator .* failed while .*: ValueError: .*poison", row["last_failure"])
    assert (row["restarts"], row["tries_in_a_row"]) == (1, 1)
    shown = alone.run("info", job.id)
    assert "restarts: 1\n" in shown and f"last-failure: {row['last_failure']}\n" in shown
    subtasks = re.findall(r"^  \S+: .*, (\d+(?: of \d+)?)$", shown, re.MULTILINE)
    assert subtasks == ["2 of 128", "1"]


def test_a_spare_process_that_cannot_get_ready_is_not_missed(
    tmp_path: Path, alone: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "nowhere"))
    alone.start("-Djobmanager.spare-processes=1")
    alone.says(0, "a spare process has ended before it was ready")
    job = Job(tmp_path, alone)
    job.submit()
    job.add(0)
    job.sees(TEXTS[0])


def test_requests_without_the_token_and_hostile_file_names_are_rejected(tmp_path: Path, alone: Cluster) -> None:
    alone.start()
    alone.says(0, "leads, in session")
    (file,) = (tmp_path / "manager" / "rest").glob("*.json")
    assert file.stat().st_mode & 0o777 == 0o600
    address = json.loads(file.read_text())

    def post(body: Any, token: str = address["bearer_token"]) -> tuple[int, str]:
        request = urllib.request.Request(
            f"{address['url']}/jobs", json.dumps(body).encode(), {"Authorization": f"Bearer {token}"}, method="POST"
        )
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request)
        return caught.value.code, json.loads(caught.value.read())["errors"][0]

    good = {"script": "a.py", "files": {"a.py": "cHJpbnQ="}, "arguments": [], "options": {}}
    assert post(good, "wrong")[0] == 401
    for change, word in (
        ({"files": {"../a.py": ""}, "script": "../a.py"}, "is not allowed as the name"),
        ({"files": {".a.py": ""}, "script": ".a.py"}, "is not allowed as the name"),
        ({"files": {"a.py": "not base64!"}}, "is not base64"),
        ({"files": {}}, "files is empty"),
        ({"script": "b.py"}, "is not one of the files"),
        ({"options": {"parallelism.defualt": "2"}}, "parallelism.default"),
        ({"options": {"high-availability.leader-session": "x"}}, "is set by the job manager"),
        ({"options": {"parallelism.default": 2}}, "'parallelism.default' is a string, not 2"),
        ({"arguments": [1]}, "arguments[0] is a string"),
        ({"jobId": "../../etc"}, "32 lower-case hexadecimal digits"),
        ({"jar": "a.jar"}, "is unknown"),
    ):
        status, told = post({**good, **change})
        assert (status, word in told) == (400, True), told
    assert alone.jobs() == {}
    assert not (tmp_path / "manager" / "uploads").exists()


def test_what_it_could_not_run_with_is_refused_before_anything_begins(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    foreign = tmp_path / "foreign"
    (foreign / "uploads").mkdir(parents=True)
    directory = "process.jobmanager.working-dir"
    for own, (wrong, message) in enumerate(
        (
            ({directory: str(tmp_path / "file")}, "cannot be used"),
            ({directory: str(tmp_path / "file" / "below")}, "cannot be used"),
            ({directory: ""}, "is empty"),
            ({directory: str(foreign)}, "would delete 'uploads'"),
            ({"rest.address": ""}, "set the name of a host"),
            ({"rest.address": "https://here"}, "set the name of a host"),
            ({"cleanup-strategy.exponential-delay.initial-backoff": "0"}, r"cleanup-strategy\.\*.*initial-backoff"),
        )
    ):
        with pytest.raises(ConfigurationError, match=message):
            JobManager(Configuration({directory: str(tmp_path / f"own-{own}"), **wrong}), []).run()
    assert (foreign / "uploads").is_dir()
    with pytest.raises(ConfigurationError, match="is empty"):
        JobManagerClient.find(Configuration({directory: ""}))


def test_who_has_no_home_is_told_to_name_a_directory_where_one_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    with pytest.raises(ConfigurationError, match=r"no home directory: set process\.jobmanager\.working-dir"):
        JobManagerClient.find(Configuration())
    elected = {"high-availability.type": "filesystem", "high-availability.storageDir": str(tmp_path)}
    with pytest.raises(RestError, match="no job manager leads"):
        JobManagerClient.find(Configuration(elected), patience=0.1)


def test_a_submission_for_which_there_is_no_room_is_refused_and_leaves_nothing(tmp_path: Path, alone: Cluster) -> None:
    alone.start()
    alone.says(0, "leads, in session")
    uploads = tmp_path / "manager" / "uploads"
    uploads.touch()  # as good as a disk that is full: nothing can be laid down there
    job = Job(tmp_path, alone)
    assert "Could not write the submitted files" in job.submit(code=1)
    uploads.unlink()
    assert job.submit() == job.id


def test_a_job_manager_that_cannot_begin_leaves_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ConfigurationError, match="storageDir"):
        JobManager(Configuration({"high-availability.type": "filesystem"}), []).run()
    assert list(tmp_path.iterdir()) == []


def test_listening_beyond_the_loopback_requires_tls(tmp_path: Path) -> None:
    cluster = Cluster.without_elections(tmp_path, **{"rest.bind-address": "0.0.0.0"})
    assert cluster.start().wait(60) == 2
    assert "rest.tls.certificate" in cluster.log(0).read_text()


def test_a_job_manager_is_reached_with_tls(tmp_path: Path) -> None:
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "chain.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    files = {"certificate": "chain.pem", "key": "key.pem", "authority": "ca.pem"}
    options = {f"rest.tls.{name}": str(tmp_path / file) for name, file in files.items()}
    cluster = Cluster.without_elections(tmp_path, **options, **{"rest.address": "localhost"})
    cluster.start()
    cluster.says(0, "is at https://localhost:")
    cluster.says(0, "leads, in session")
    try:
        job = Job(tmp_path, cluster)
        job.submit()
        job.add(0)
        job.sees(TEXTS[0])
        assert cluster.jobs()[job.id]["status"] == "RUNNING"
        del cluster.options["rest.tls.authority"]
        cluster.run("info", job.id, code=1)
    finally:
        cluster.close()


def test_as_many_failures_are_told_of_a_job_that_runs_as_were_asked_for(tmp_path: Path) -> None:
    restarts = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": 9}
    running = Running(tmp_path, **restarts, **{"restart-strategy.fixed-delay.delay": 0})
    failures = iter([StorageError("one disk is on fire"), StorageError("another one is")])

    def fail_twice(stage: int, subtask: int) -> None:
        for failure in failures:
            raise failure

    running.engine._interceptor = fail_twice
    running.say("rock")
    until(lambda: len(running.master.history.failures) == 2, "both attempts have failed")
    entry = SimpleNamespace(job_id=running.master.job.job_id, phase=Phase.RUNNING)
    dispatcher = SimpleNamespace(is_ready=True, job=lambda job_id: entry)
    processes = SimpleNamespace(client_of=lambda job_id: running.client)
    api = JobManagerApi(lambda: Term("session", 0, dispatcher, None, processes))  # type: ignore[arg-type]

    def told(query: str) -> Any:
        body = api.answer("GET", f"/jobs/{entry.job_id}/exceptions{query}", {}).body
        assert isinstance(body, dict)
        return len(body["exceptionHistory"]["entries"]), body["exceptionHistory"]["truncated"]

    assert told("?maxExceptions=1") == (1, True)
    assert told("") == (2, False)
    running.end()


def test_a_signal_that_another_thread_gets_stops_the_job_manager(alone: Cluster) -> None:
    """The kernel chooses the thread of a process; the choice is made here, so that it is not the main one."""
    alone.start()
    alone.says(0, "leads, in session")
    manager = alone.managers[0].pid
    *_, other = sorted(int(thread.name) for thread in Path(f"/proc/{manager}/task").iterdir())
    assert other != manager
    assert ctypes.CDLL(None).syscall(SYS_TGKILL, manager, other, signal.SIGTERM) == 0
    assert alone.managers[0].wait(20) == 0


def test_a_job_manager_with_a_directory_of_its_own_is_found_without_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    def listed() -> Result:
        return CliRunner().invoke(main, ["list", "-a"])

    nobody = listed()
    assert nobody.exit_code == 1
    assert "another working directory, name it with -D process.jobmanager.working-dir=DIR" in nobody.output
    one, other = (Cluster.without_elections(tmp_path / name) for name in ("one", "other"))
    try:
        for cluster in (one, other):
            cluster.directory.mkdir()
            cluster.start()
            cluster.says(0, "leads, in session")
            if cluster is one:
                assert listed().exit_code == 0
                page = CliRunner().invoke(main, ["ui", "--no-browser"])
                assert "/#token=" in page.stdout, page.output
        several = listed()
        assert "Several job managers work on this host: choose one with -D process.jobmanager." in several.output
        assert str(tmp_path / "one" / "manager") in several.output
        unknown = other.run("info", "0" * 32, code=1)
        assert f"There is no job '{'0' * 32}'. There are no jobs." in unknown
        other.managers[0].kill()
        other.managers[0].wait()
        assert listed().exit_code == 0, "the one that lives is found"
    finally:
        one.close()
        other.close()
