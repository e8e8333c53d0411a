"""`holdfast checkpoints` and `holdfast inspect` over the checkpoints of a real job."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from examples import read_checkpoint
from examples.seeds.coordinator import create_coordinator
from holdfast.checkpoint.completed_checkpoint import read_by_path
from holdfast.cli import main
from holdfast.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from holdfast.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from holdfast.kernel.clock import ManualClock
from holdfast.runtime.job.control import JobStatus
from holdfast.testing.epoch_runner import LocalEngine, run_job

WORDS = [["kelp", "rock", "kelp"], ["sand"], ["kelp", "gone"], ["gone"], ["rock"]]


class Remember(KeyedProcessFunction):
    """State of several kinds; the word "gone" clears what it has."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint", 0))
        self.lengths = runtime_context.get_list_state(ListStateDescriptor("lengths", "int"))
        self.letters = runtime_context.get_map_state(MapStateDescriptor("letters", "string", "bigint"))

    def process_element(self, word: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        self.count.update(self.count.value() + 1)
        self.lengths.add(len(word))
        for letter in word:
            self.letters.put(letter, (self.letters.get(letter) or 0) + 1)
        if word == "gone":
            self.count.clear()
            self.lengths.clear()
            self.letters.clear()
        yield word


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    directory = tmp_path / "checkpoints"
    env = StreamExecutionEnvironment.get_execution_environment()
    words = env.from_collection([], "string").uid("words")
    kept = words.key_by(lambda word: word, "string").process(Remember(), output_type="string").uid("remember")
    kept.print().uid("show")
    engine = LocalEngine([{"words": epoch} for epoch in WORDS])
    assert run_job(env.get_stream_graph(), directory, engine, name="words").run() is JobStatus.SUSPENDED
    return directory


def holdfast(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def objects(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_the_retained_checkpoints_are_listed_oldest_first(checkpoints: Path) -> None:
    listed = objects(holdfast("checkpoints", checkpoints, "--json"))

    assert [entry["epoch"] for entry in listed] == [3, 4, 5], "three are retained"
    assert [entry["id"] for entry in listed] == sorted(entry["id"] for entry in listed)
    for entry in listed:
        assert {"id", "epoch", "completed_at", "path", "bytes", "new_bytes", "operators", "status"} <= entry.keys()
        assert entry["status"] == "COMPLETED"
        assert (Path(entry["path"]) / "_metadata").exists()
        assert 0 < entry["new_bytes"] < entry["bytes"]
        assert set(entry["operators"]) == {"remember", "show"}


def test_the_directory_of_one_job_lists_the_same(checkpoints: Path) -> None:
    (job,) = checkpoints.iterdir()
    assert objects(holdfast("checkpoints", job, "--json")) == objects(holdfast("checkpoints", checkpoints, "--json"))


def test_people_get_a_table(checkpoints: Path) -> None:
    result = holdfast("checkpoints", checkpoints)
    head, *lines = result.stdout.splitlines()
    assert head.split()[:3] == ["job", "id", "epoch"]
    assert len(lines) == 3
    assert all(line.startswith("words") for line in lines)


def test_a_damaged_checkpoint_is_listed_as_such_with_the_reason(checkpoints: Path) -> None:
    newest = objects(holdfast("checkpoints", checkpoints, "--json"))[-1]
    document = Path(newest["path"]) / "_metadata"
    document.write_bytes(document.read_bytes()[:-40])

    result = holdfast("checkpoints", checkpoints, "--json")

    assert [entry["status"] for entry in objects(result)] == ["COMPLETED", "COMPLETED", "DAMAGED"]
    assert "cannot be restored" in result.stderr


def test_inspect_shows_every_state_with_what_is_there_now(checkpoints: Path) -> None:
    newest = objects(holdfast("checkpoints", checkpoints, "--json"))[-1]

    found = {(entry["uid"], entry["state"]): entry for entry in objects(holdfast("inspect", newest["path"], "--json"))}

    assert {key: (entry["kind"], entry["rows"]) for key, entry in found.items()} == {
        ("remember", "count"): ("value", 3),
        ("remember", "lengths"): ("list", 3),
        ("remember", "letters"): ("map", 4 + 4 + 4),
    }
    assert found["remember", "count"]["type"] == "bigint"
    assert found["remember", "lengths"]["type"] == "array<int>"
    assert found["remember", "letters"]["type"] == "map<string, bigint>"
    assert all(entry["bytes"] > 0 and entry["key_group_skew"] >= 1 for entry in found.values())


def test_inspect_takes_the_metadata_file_and_the_job_too(checkpoints: Path) -> None:
    (job,) = checkpoints.iterdir()
    newest = objects(holdfast("checkpoints", checkpoints, "--json"))[-1]["path"]
    wanted = objects(holdfast("inspect", newest, "--json"))
    for path in (f"{newest}/", f"{newest}/_metadata", job, checkpoints):
        assert objects(holdfast("inspect", path, "--json")) == wanted


def test_inspect_for_people_names_the_checkpoint(checkpoints: Path) -> None:
    result = holdfast("inspect", checkpoints)
    assert "of 'words'" in result.stdout
    assert "epoch 5" in result.stdout


def test_what_is_not_there_is_said_in_one_sentence(checkpoints: Path, tmp_path: Path) -> None:
    for arguments in (["checkpoints", tmp_path / "nothing"], ["inspect", tmp_path / "nothing"]):
        result = holdfast(*arguments)
        assert result.exit_code == 1
        assert "There is no directory" in result.stderr
    [job] = [path for path in checkpoints.iterdir() if len(path.name) == 32]
    mistyped = job.with_name(f"{job.name[:-1]}{'0' if job.name[-1] != '0' else '1'}")
    shown = holdfast("inspect", mistyped).stderr
    assert f"There is no job {mistyped.name!r} in {str(checkpoints)!r}. Did you mean {job.name!r}?" in shown


def test_a_damaged_run_is_reported_by_name(checkpoints: Path) -> None:
    run = max(checkpoints.glob("*/shared/*.run"))
    content = bytearray(run.read_bytes())
    content[100] ^= 1
    run.write_bytes(content)

    result = holdfast("inspect", checkpoints)

    assert result.exit_code == 1
    assert run.name in result.stderr


def test_operator_state_is_inspected_and_counted_as_well(tmp_path: Path) -> None:
    archive = Path(__file__).parents[2] / "golden" / "format-1-hashmap.zip"
    with zipfile.ZipFile(archive) as golden:
        golden.extractall(tmp_path)
    (savepoint,) = (tmp_path / "savepoints").iterdir()
    rows = {row["state"]: row for row in objects(holdfast("inspect", savepoint, "--json")) if row["uid"] == "collect"}
    assert {name: (row["kind"], row["type"]) for name, row in rows.items()} == {
        "split": ("split", "array<bigint>"),
        "union": ("union", "array<string>"),
        "shared": ("broadcast", "bigint"),
    }
    assert rows["split"]["rows"] == 4 and rows["union"]["rows"] == 4
    assert all(row["bytes"] > 0 for row in rows.values())
    loaded = read_by_path(str(savepoint)).metadata.operator("collect")
    assert loaded is not None
    assert loaded.operator_state_size == sum(row["bytes"] for row in rows.values())


def test_a_checkpoint_of_a_coordinator_that_is_used_by_hand_is_shown_as_well(tmp_path: Path) -> None:
    coordinator, _ = create_coordinator(str(tmp_path), clock=ManualClock())
    path = coordinator.trigger_checkpoint().result(timeout=60).get_external_pointer()
    coordinator.shutdown()
    shown = holdfast("inspect", path)
    assert shown.exit_code == 0, shown.output
    assert path in shown.stdout and objects(holdfast("inspect", path, "--json")) == []
    assert list(read_checkpoint.states(Path(path))) == []
