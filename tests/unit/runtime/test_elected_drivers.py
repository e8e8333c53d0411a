"""Several drivers of one job, of which the election lets one run: the others stand by, and one of them goes on.

The cluster is one process here, of a type of one's own; the stories with real backends are in tests/services.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner

from holdfast.cli import main
from holdfast.errors import ConfigurationError, FencedError, FormatVersionError, JobExecutionError, StorageError
from holdfast.ha import (
    CheckpointRecoveryFactory,
    EmbeddedCluster,
    EmbeddedHaServices,
    HighAvailabilityServices,
    HighAvailabilityServicesFactory,
    StandaloneCheckpointRecoveryFactory,
)
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.runtime.job.control import JobStatus
from holdfast.runtime.master.job_master import JobMaster
from holdfast.storage.local import LocalFileSystem
from holdfast.storage.register import FileRegister, RegisterState, RegisterWriter
from holdfast.storage.state_handle import encode_document
from holdfast.testing.epoch_runner import LocalEngine, run_job
from holdfast.testing.leader_election_contract import RecordingRetrievalListener, eventually
from tests.stories import ledger
from tests.stories.gate import Gate, GatedEngine, Leader
from tests.stories.local import OPTIONS

EPOCHS, ROWS, ACCOUNTS, SEED = 9, 12, 5, 11
JOB = JobID.from_name("job")


class OneProcess(HighAvailabilityServicesFactory):
    """Drivers of this process share a cluster."""

    cluster: ClassVar = EmbeddedCluster()

    def create_ha_services(self, configuration: Configuration, executor: Executor) -> HighAvailabilityServices:
        return EmbeddedHaServices(configuration, executor, self.cluster)


class WithoutRegister(EmbeddedHaServices):
    def create_checkpoint_recovery_factory(self) -> CheckpointRecoveryFactory:
        return StandaloneCheckpointRecoveryFactory()


class Forgetful(HighAvailabilityServicesFactory):
    """Its store cannot compare and set."""

    def create_ha_services(self, configuration: Configuration, executor: Executor) -> HighAvailabilityServices:
        return WithoutRegister(configuration, executor)


class Site:
    """One job and its drivers."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.payments = ledger.payments(EPOCHS, ROWS, ACCOUNTS, SEED)
        self.options: dict[str, Any] = {
            **OPTIONS,
            "high-availability.type": f"{__name__}.OneProcess",
            "execution.checkpointing.dir": str(place / "job"),
        }

    def driver(
        self, epochs: int = EPOCHS, *steps: str, options: Mapping[str, Any] | None = None, is_bounded: bool = False
    ) -> tuple[Leader, Gate]:
        """Starts a driver whose inputs end after some epochs, and which stops at a gate after some steps."""
        gate = Gate(*steps)
        engine = GatedEngine(ledger.inputs(self.payments[:epochs]), gate, is_bounded=is_bounded)
        return Leader(self.master(engine, options)), gate

    def master(self, engine: LocalEngine, options: Mapping[str, Any] | None = None) -> JobMaster:
        graph = ledger.graph(self.place / "out", two_stages=True)
        return run_job(graph, self.place / "job", engine, {**self.options, **(options or {})})

    @property
    def register(self) -> RegisterState:
        return OneProcess.cluster.register_for(JOB).read()

    def leave(self) -> None:
        """Whoever leads is voted out, and stands for election again."""
        election = OneProcess.cluster.election
        with election._lock:
            driver = election._candidates[0]
            driver.listener.on_revoke_leadership()
            election.leave(driver)
            election.join(driver)


@pytest.fixture
def site(place: Path) -> Iterator[Site]:
    OneProcess.cluster = EmbeddedCluster()
    yield Site(place)


def stands_by(driver: Leader) -> None:
    eventually(lambda: len(OneProcess.cluster.election._candidates) == 2, "the second driver campaigns", 30)
    assert driver.master.status is JobStatus.CREATED


def test_the_standby_driver_resumes_when_the_first_one_has_left(site: Site) -> None:
    first, gate = site.driver(5, "epoch", "epoch", "epoch")
    gate.await_arrival()
    second, _ = site.driver()
    stands_by(second)
    assert site.register.token == 1
    gate.open()
    first.await_end()
    second.await_end()
    assert (first.status, second.status) == (JobStatus.SUSPENDED, JobStatus.SUSPENDED)
    ledger.audit(site.place / "out", site.payments, two_stages=True)
    assert site.register.token == 2


@pytest.mark.parametrize("step", ["before tasks", "before positions", "after positions"])
def test_a_leader_that_loses_the_election_in_an_epoch_may_lead_again(site: Site, step: str) -> None:
    first, gate = site.driver(EPOCHS, "epoch", "epoch", step)
    gate.await_arrival()
    second, other_gate = site.driver(7, "epoch", "epoch")
    stands_by(second)
    site.leave()
    other_gate.await_arrival()
    gate.open()
    eventually(lambda: first.master.status is JobStatus.CREATED, "the first driver stands by", 30)
    other_gate.open()
    second.await_end()
    first.await_end()
    assert (first.status, first.error) == (JobStatus.SUSPENDED, None)
    ledger.audit(site.place / "out", site.payments, two_stages=True)
    assert site.register.token == 3


def test_a_leader_that_is_voted_out_between_epochs_and_elected_again_goes_on(site: Site) -> None:
    driver, gate = site.driver(EPOCHS, "epoch", "epoch", "epoch")
    gate.await_arrival()
    site.leave()
    gate.open()
    driver.await_end()
    assert (driver.status, driver.error) == (JobStatus.SUSPENDED, None)
    ledger.audit(site.place / "out", site.payments, two_stages=True)
    assert site.register.token == 2


def test_a_standby_driver_can_be_stopped(site: Site) -> None:
    first, gate = site.driver(5, "epoch", "epoch")
    gate.await_arrival()
    second, _ = site.driver()
    stands_by(second)
    second.master.control.stop()
    second.await_end()
    assert second.status is JobStatus.SUSPENDED
    assert site.register.token == 1
    gate.open()
    first.await_end()
    assert first.status is JobStatus.SUSPENDED


@pytest.mark.parametrize("end", [JobStatus.CANCELED, JobStatus.FINISHED])
def test_a_finished_job_ends_for_standby_drivers(site: Site, end: JobStatus) -> None:
    first, gate = site.driver(3, "epoch", "epoch", is_bounded=end is JobStatus.FINISHED)
    gate.await_arrival()
    second, _ = site.driver()
    stands_by(second)
    if end is JobStatus.CANCELED:
        first.master.control.cancel()
    gate.open()
    first.await_end()
    second.await_end()
    assert (first.status, second.status) == (end, end)


def test_the_address_is_published_while_a_driver_leads(site: Site) -> None:
    listener = RecordingRetrievalListener()
    observer = EmbeddedHaServices(Configuration(), None, OneProcess.cluster)  # type: ignore[arg-type]
    retriever = observer.get_job_manager_leader_retriever(JOB)
    retriever.start(listener)
    master = site.master(GatedEngine(ledger.inputs(site.payments), gate := Gate("epoch")))
    assert master.job.leadership is not None
    master.job.leadership.address = "host:4711"
    driver = Leader(master)
    gate.await_arrival()
    eventually(lambda: listener.address == "host:4711", "the leader's address is published", 30)
    gate.open()
    driver.await_end()
    eventually(lambda: listener.address is None, "it is withdrawn", 30)
    retriever.stop()


def test_a_requested_start_applies_to_the_first_leader_only(site: Site) -> None:
    """Service managers start every driver with the same arguments."""
    fresh = {"execution.state-recovery.fresh": "true"}
    first, gate = site.driver(5, "epoch", "epoch", "epoch", options=fresh)
    gate.await_arrival()
    second, _ = site.driver(options=fresh)
    stands_by(second)
    gate.open()
    first.await_end()
    second.await_end()
    ledger.audit(site.place / "out", site.payments, two_stages=True)


def test_repeated_fencing_by_an_unelected_process_is_logged(site: Site) -> None:
    driver, gate = site.driver(EPOCHS, "epoch", "epoch")
    gate.await_arrival()
    assert driver.master.job.leadership is not None
    driver.master.job.leadership.patience = 0.1
    register, stop = OneProcess.cluster.register_for(JOB), threading.Event()

    def raise_it_again() -> None:
        while not stop.wait(0.01):
            register.raise_token("somebody else")

    intruder = threading.Thread(target=raise_it_again)
    intruder.start()
    gate.open()
    driver.await_end()
    stop.set()
    intruder.join()
    assert isinstance(driver.error, FencedError)
    assert driver.master.status is JobStatus.SUSPENDED


# Bad input: each an error before the job starts.


def test_a_store_that_cannot_compare_and_set_is_refused(site: Site) -> None:
    with pytest.raises(ConfigurationError, match="could not be kept apart"):
        site.master(LocalEngine([]), {"high-availability.type": f"{__name__}.Forgetful"})


def test_a_directory_that_lets_a_file_be_created_twice_is_refused(place: Path) -> None:
    class Careless(LocalFileSystem):
        def create_exclusive(self, path: str, data: bytes) -> None:
            self.delete(path)
            super().create_exclusive(path, data)

    graph = ledger.graph(place / "out")
    with pytest.raises(StorageError, match="could not be kept apart"):
        run_job(graph, place / "job", LocalEngine([]), OPTIONS, file_system=Careless())


def test_a_directory_that_cannot_be_written_is_an_error_at_start_and_not_a_restart_without_end(place: Path) -> None:
    (place / "job" / str(JOB)).mkdir(parents=True)
    (place / "job" / str(JOB) / "register").write_text("a file where a directory has to be")
    with pytest.raises(StorageError, match="register"):
        run_job(ledger.graph(place / "out"), place / "job", LocalEngine([]), {})


@pytest.mark.parametrize("options", [{"high-availability.type": "embedded"}, {"execution.checkpointing.dir": None}])
def test_a_job_that_standby_drivers_could_not_take_over_is_rejected(site: Site, options: dict[str, Any]) -> None:
    for key, value in options.items():
        if value is None:
            del site.options[key]
            options = {"execution.checkpointing.storage": "jobmanager"}
    with pytest.raises(ConfigurationError, match=r"another process cannot take over|other processes could not read"):
        site.master(LocalEngine([]), options)


def test_a_job_keeps_to_its_register(site: Site) -> None:
    """Two drivers with two registers would not fence each other."""
    driver, _ = site.driver(3)
    driver.await_end()
    none = {"high-availability.type": "none"}
    with pytest.raises(ConfigurationError, match="coordination store of cluster"):
        site.master(LocalEngine([]), none)
    with pytest.raises(ConfigurationError, match="belongs to"):
        site.master(LocalEngine([]), {"high-availability.cluster-id": "another"})
    OneProcess.cluster = EmbeddedCluster()
    with pytest.raises(ConfigurationError, match="but no register in the store"):
        site.master(LocalEngine([]))


@pytest.mark.parametrize("create_subdir", ["true", "false"])
def test_the_checkpoints_of_a_job_are_listed_where_its_register_is_named(site: Site, create_subdir: str) -> None:
    driver, _ = site.driver(5, options={"execution.checkpointing.create-subdir": create_subdir})
    driver.await_end()
    path = str(site.place / "job")
    options = [f"-Dhigh-availability.type={site.options['high-availability.type']}"]
    listed = CliRunner().invoke(main, ["checkpoints", path, "--json", *options])
    assert (listed.exit_code, len(listed.stdout.splitlines())) == (0, 3), listed.output
    assert json.loads(listed.stdout.splitlines()[0])["job_id"] == str(JOB)
    unnamed = CliRunner().invoke(main, ["inspect", path])
    assert unnamed.exit_code == 2
    assert "coordination store" in unnamed.output


def test_a_job_whose_register_is_in_its_directory_is_not_led_from_elsewhere(site: Site) -> None:
    elected = site.options["high-availability.type"]
    site.options["high-availability.type"] = "none"
    driver, _ = site.driver(3)
    driver.await_end()
    with pytest.raises(ConfigurationError, match="has its register there"):
        site.master(LocalEngine([]), {"high-availability.type": elected})
    again, _ = site.driver()
    again.await_end()
    ledger.audit(site.place / "out", site.payments, two_stages=True)


@pytest.mark.parametrize("what", ["register", "marker"])
def test_a_register_of_a_newer_release_is_an_error_at_start(site: Site, place: Path, what: str) -> None:
    directory = place / "job" / str(JOB)
    if what == "register":
        register = FileRegister(LocalFileSystem(), str(directory / "register"))
        register.raise_token("an older release")
        (directory / "register" / "v-00000000000000000002").write_bytes(encode_document("register", 99, {}))
        site.options["high-availability.type"] = "none"
    else:
        directory.mkdir(parents=True)
        (directory / "register.json").write_bytes(encode_document("job-register", 99, {}))
    with pytest.raises(FormatVersionError, match="99"):
        site.master(LocalEngine([]))


def test_a_failed_job_without_checkpoints_is_not_begun_anew_by_standby_drivers(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    deletes = {"execution.checkpointing.externalized-checkpoint-retention": "NO_EXTERNALIZED_CHECKPOINTS"}
    first, gate = site.driver(5, "epoch", "epoch", options=deletes)
    gate.await_arrival()
    second, _ = site.driver(options=deletes)
    stands_by(second)

    def fail(stage: int, subtask: int) -> None:
        raise StorageError("the disk is on fire")

    def note_slowly(writer: RegisterWriter, status: JobStatus) -> JobStatus:
        time.sleep(1)  # as while the outcome of a savepoint is fetched over REST
        return JobMaster._terminal(first.master, writer, status)

    monkeypatch.setattr(first.master, "_terminal", note_slowly)
    engine = first.master.job.engine
    assert isinstance(engine, LocalEngine)
    engine._interceptor = fail
    gate.open()
    first.await_end()
    second.await_end()
    assert isinstance(first.error, JobExecutionError)
    assert second.status is JobStatus.FAILED
    assert (site.register.terminal, site.register.checkpoints) == ("FAILED", ())
