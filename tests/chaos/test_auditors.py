"""The auditors of the rounds find what is planted, and nothing where nothing is."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.datastream.connectors.file_system.file_source import FileSplits
from holdfast.datastream.connectors.file_system.file_split_source import FileSplitSource
from holdfast.datastream.formats.parquet import ParquetColumnarRowInputFormat
from holdfast.datastream.stream.stream_factory import read_by
from holdfast.queryable import QueryableStateClient
from holdfast.runtime.master.job_client import JobClient
from holdfast.testing.epoch_runner import EpochProgram
from holdfast.testing.real_time_runner import RealTimeProgram
from holdfast.testing.server.zookeeper import free_port
from tests.chaos.bank import ROWS, Auditor, Bank, rows_of
from tests.chaos.documents import MOST_FILES, DocumentAuditor
from tests.chaos.replica import Replica, ReplicaAuditor
from tests.chaos.rounds import Report
from tests.chaos.watch import Watch
from tests.programs.chaos_job import NAME, PAYMENT, RULE, keep_books

EPOCHS, EARLIER = 14, 11
Inputs = list[dict[str, list[Any]]]


class Story:
    """A bank, the job that keeps its books, and those who look."""

    def __init__(self, directory: Path) -> None:
        self.bank = Bank(directory / "inputs", 1)
        for _ in range(EPOCHS):
            self.bank.pay()
            self.bank.add_rule()
        self.disk = directory / "disk"
        self.output = Auditor(self.bank, self.disk)
        self.documents = DocumentAuditor(self.bank, self.output, self.disk, {})

    @property
    def inputs(self) -> Inputs:
        """What the job reads, epoch by epoch."""
        files = {name: sorted((self.bank.inputs / name).glob("*.parquet")) for name in ("payments", "rules")}
        return [{name: rows_of(paths[number]) for name, paths in files.items()} for number in range(EPOCHS)]

    def run(self, inputs: Inputs) -> None:
        """Let the job take so much, in this process and without a JVM."""
        program = EpochProgram()
        keep_books(program.source("payments", PAYMENT), program.source("rules", RULE), self.disk)
        program.run(self.disk / "checkpoints", inputs, name=NAME)

    def start_in_real_time(self) -> JobClient:
        """Begin to let the job take all files, also those that come later, in threads of this process."""
        program = RealTimeProgram()

        def read(name: str, schema: str) -> Any:
            rows = ParquetColumnarRowInputFormat(schema)
            source = FileSplitSource(rows, (str(self.bank.inputs / name),), 0.01, {})
            return read_by(FileSplits(rows), program.source(name, source, "splits string"), rows.element_type())

        keep_books(read("payments", PAYMENT), read("rules", RULE), self.disk, is_real_time=True)
        return JobClient(program.master(self.disk / "checkpoints", name=NAME, source_tasks=1))

    def named_run(self) -> Path:
        """A file that the newest checkpoint names: the last that was written."""
        return max(self.disk.glob("checkpoints/*/shared/*.run"), key=lambda path: path.name)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A disk on which the job has run to its end, and its checkpoints from an earlier time."""
    story = Story(tmp_path_factory.mktemp("told"))
    story.run(story.inputs[:EARLIER])
    shutil.copytree(story.disk / "checkpoints", story.disk / "earlier")
    story.run(story.inputs)
    return story.disk


@pytest.fixture
def story(told: Path, tmp_path: Path) -> Iterator[Story]:
    story = Story(tmp_path)
    shutil.copytree(told, story.disk)
    with closing(story.documents):
        yield story


def go_back(story: Story) -> None:
    shutil.rmtree(story.disk / "checkpoints")
    shutil.copytree(story.disk / "earlier", story.disk / "checkpoints")


def test_of_a_job_that_does_as_it_should_nothing_is_said(story: Story) -> None:
    assert story.output.look() == EPOCHS * ROWS
    assert story.documents.look()
    story.output.judge()
    assert story.documents.look(again=True)
    assert story.documents.position == (EPOCHS * ROWS, EPOCHS)
    assert 0 < story.documents.most_files < MOST_FILES / 2


def test_of_a_job_in_real_time_nothing_is_said_either(tmp_path: Path) -> None:
    story = Story(tmp_path)
    with closing(story.documents):
        for _ in range(2):  # the second process of the job goes on where the first one has stopped
            client = story.start_in_real_time()
            deadline = time.monotonic() + 60
            for _ in range(EPOCHS):
                story.bank.pay()
                story.documents.look()
            while story.output.look() < len(story.bank.expected):
                assert time.monotonic() < deadline, f"{len(story.output.entries)} are shown"
                story.documents.look()
            client.stop()
            client.await_termination()
            story.output.judge()
            assert story.documents.look(again=True)
            assert story.documents.position == (len(story.bank.expected), EPOCHS + 1)
    assert story.output.windows


def lose_a_file(story: Story) -> None:
    story.named_run().unlink()


def shorten_a_file(story: Story) -> None:
    path = story.named_run()
    path.write_bytes(path.read_bytes()[:-1])


def change_a_file(story: Story) -> None:
    path = story.named_run()
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)


def lose_a_document(story: Story) -> None:
    max(story.disk.glob("checkpoints/*/chk-*/_metadata"), key=lambda path: int(path.parent.name[4:])).unlink()


def leave_files(story: Story) -> None:
    for number in range(MOST_FILES):
        (story.named_run().parent / f"left-{number}").touch()


@pytest.mark.parametrize(
    ("plant", "what"),
    [
        (lose_a_file, "a retained checkpoint cannot be read"),
        (shorten_a_file, "a retained checkpoint cannot be read"),
        (change_a_file, "a retained checkpoint cannot be read"),
        (lose_a_document, "a retained checkpoint cannot be read"),
        (go_back, "token, newest checkpoint and next one went from"),
        (leave_files, "the job keeps .* files"),
    ],
)
def test_what_happens_to_checkpoints_is_found(story: Story, plant: Callable[[Story], None], what: str) -> None:
    assert story.documents.look()
    plant(story)
    with pytest.raises(AssertionError, match=what):
        story.documents.look(again=True)


def test_output_that_no_checkpoint_has_is_found(story: Story) -> None:
    go_back(story)
    assert story.documents.look()
    story.output.look()
    with pytest.raises(AssertionError, match="were shown before a checkpoint had"):
        story.documents.look()


def a_payment_is_larger(inputs: Inputs) -> None:
    payment, account, amount = inputs[3]["payments"][7]
    inputs[3]["payments"][7] = (payment, account, amount + 1)


def a_payment_is_lost(inputs: Inputs) -> None:
    del inputs[3]["payments"][7]


def a_payment_of_a_whole_file_is_another(inputs: Inputs) -> None:
    inputs[3]["payments"][7] = inputs[3]["payments"][8]


def a_rule_is_lost(inputs: Inputs) -> None:
    inputs[3]["rules"] = []


@pytest.mark.parametrize(
    ("plant", "what"),
    [
        (a_payment_is_larger, "payments checkpoint .* has"),
        (a_payment_is_lost, "a part of a file"),
        (a_payment_of_a_whole_file_is_another, "payments checkpoint .* has"),
        (a_rule_is_lost, "has the rules"),
    ],
)
def test_state_that_is_not_what_was_fed_is_found(tmp_path: Path, plant: Callable[[Inputs], None], what: str) -> None:
    story = Story(tmp_path)
    inputs = story.inputs
    plant(inputs)
    story.run(inputs)
    with closing(story.documents), pytest.raises(AssertionError, match=what):
        story.documents.look()


def double_a_file(story: Story) -> None:
    path = next((story.disk / "entries").glob("*.parquet"))
    shutil.copy(path, path.with_name("part-again.parquet"))


def take_a_file(story: Story) -> None:
    next((story.disk / "entries").glob("*.parquet")).unlink()


def show_another_total(story: Story) -> None:
    row = {"payment": EPOCHS * ROWS, "account": "account-1", "seq": 1, "total": 1, "rules": 1}
    story.bank.expected.append(("account-1", 1, 2))
    pq.write_table(pa.Table.from_pylist([row]), story.disk / "entries" / "part-wrong.parquet")


@pytest.mark.parametrize(
    ("plant", "what"),
    [
        (double_a_file, "came twice"),
        (take_a_file, "has gone or changed"),
        (show_another_total, f"payment {EPOCHS * ROWS} is wrong"),
    ],
)
def test_what_happens_to_output_is_found(story: Story, plant: Callable[[Story], None], what: str) -> None:
    story.output.look()
    plant(story)
    with pytest.raises(AssertionError, match=what):
        story.output.look()


class Answers:
    """A client to which a replica tells what it is told to: for each question a checkpoint and how many payments."""

    def __init__(self, bank: Bank, *answers: tuple[int, int]) -> None:
        self._bank, self._answers = bank, list(answers)

    def scan(self, job: str, name: str, **_: Any) -> Any:
        number, payments = self._answers.pop(0)
        state = vars(self._bank.books(payments))[name]
        keys = [{"key": key[0], "map_key": key[1]} if isinstance(key, tuple) else {"key": key} for key in state]
        rows = [{**key, "value": value} for key, value in zip(keys, state.values(), strict=True)]
        table = SimpleNamespace(to_pylist=lambda: rows)
        return nullcontext(SimpleNamespace(to_table=lambda: table, origin=SimpleNamespace(checkpoint_id=number)))


@pytest.mark.parametrize(
    ("answers", "what"),
    [
        ([(3, 600), (3, 600), (3, 400), (3, 600)], "the replica shows of checkpoint 3"),
        ([(3, 400)] * 4, "the replica shows 400 payments of checkpoint 3, which has 600"),
        ([(4, 800)] * 4 + [(3, 600)] * 4, "the replica went back from checkpoint 4 to 3"),
        ([(4, 800)] * 4 + [(5, 600)] * 4, "the replica went back from 800 payments to 600"),
    ],
)
def test_a_replica_that_shows_a_mix_or_goes_back_is_found(
    story: Story, answers: list[tuple[int, int]], what: str
) -> None:
    auditor = ReplicaAuditor(story.bank, Answers(story.bank, *answers), {3: (600, 3)})
    with pytest.raises(AssertionError, match=what):
        for _ in answers:
            auditor.look()


def test_a_replica_is_started_again_and_shows_what_there_is(story: Story, tmp_path: Path) -> None:
    story.documents.look()
    replica = Replica(story.disk / "checkpoints", {}, free_port(), tmp_path / "replica.log")
    client = QueryableStateClient("127.0.0.1", replica.port)
    with closing(ReplicaAuditor(story.bank, client, story.documents.positions)) as auditor:
        for started in range(2):
            replica.supervise()
            deadline = time.monotonic() + 60
            while not auditor.look():
                assert time.monotonic() < deadline, replica.log.read_text()
                time.sleep(0.05)
            assert auditor.answers == started + 1
            assert auditor.position == EPOCHS * ROWS
            assert [member.kind for member in replica.members()] == ["replica"]
            replica.end()
            assert replica.members() == []


def test_what_is_found_in_a_thread_is_told() -> None:
    def find() -> None:
        raise AssertionError("something")

    with closing(Watch(lambda: None, find)) as watch, pytest.raises(AssertionError, match="something"):
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            watch.require_well()
            time.sleep(0.01)


def test_rounds_that_did_not_begin_in_time_are_reported_as_none() -> None:
    assert str(Report("filesystem", 51)).startswith("filesystem, seed 51: 0 rounds, 0 payments, each correct and once")
