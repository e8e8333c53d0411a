"""Options reach the environment from the program and from outside, and those from outside win."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.common import Configuration, Time, Types
from holdfast.datastream import (
    CheckpointingMode,
    DataStream,
    FsStateBackend,
    HashMapStateBackend,
    MemoryStateBackend,
    StreamExecutionEnvironment,
)
from holdfast.datastream.environment import stream_execution_environment
from holdfast.datastream.environment.launch import (
    ExecutedJobs,
    ProgramPlanned,
    plan_only,
    program_overrides,
    require_one_job,
)
from holdfast.datastream.environment.stream_execution_environment import _script_name
from holdfast.errors import ConfigurationError
from holdfast.runtime.graph.stream_graph import SourceNode

get_environment = StreamExecutionEnvironment.get_execution_environment


def test_an_environment_takes_a_configuration_or_a_dictionary_and_keeps_its_own_copy() -> None:
    given = Configuration({"parallelism.default": 3})
    env = get_environment(given)
    env.configure({"execution.trigger": "available-now"})
    given.set("parallelism.default", 5)

    assert env.get_parallelism() == 3
    assert get_environment({"parallelism.default": "4"}).get_parallelism() == 4
    assert get_environment().get_parallelism() is None
    assert env.get_configuration().to_dict() == {"parallelism.default": 3, "execution.trigger": "available-now"}


def test_setters_are_options() -> None:
    env = get_environment()
    env.set_parallelism(4).set_max_parallelism(64).enable_checkpointing(30_000, CheckpointingMode.EXACTLY_ONCE)
    env.get_checkpoint_config().set_checkpoint_timeout(20_000)

    options = env.get_configuration().to_dict()

    assert options["parallelism.default"] == 4
    assert options["pipeline.max-parallelism"] == 64
    assert options["execution.checkpointing.interval"] == 30_000
    assert options["execution.checkpointing.timeout"] == 20_000
    assert env.get_max_parallelism() == 64


def test_options_from_outside_win_over_the_program_whenever_it_sets_its_own(caplog: pytest.LogCaptureFixture) -> None:
    with program_overrides(Configuration({"parallelism.default": 8, "pipeline.name": "night"})):
        env = get_environment({"parallelism.default": 2})
        env.set_parallelism(3)
        with caplog.at_level(logging.INFO):
            options = env.get_configuration()

    assert options.to_dict() == {"parallelism.default": 8, "pipeline.name": "night"}
    assert "option parallelism.default: the program's value 3 is replaced from the command line" in caplog.text
    assert get_environment({"parallelism.default": 2}).get_parallelism() == 2, "no override is left"


def test_a_program_is_told_what_holds_wherever_it_asks() -> None:
    given = {
        "parallelism.default": 8,
        "pipeline.max-parallelism": 64,
        "pipeline.global-job-parameters.place": "pier",
        "execution.checkpointing.interval": "30 s",
        "execution.checkpointing.timeout": "20 s",
    }
    with program_overrides(Configuration(given)):
        env = get_environment({"parallelism.default": 2, "pipeline.global-job-parameters.sea": "north"})
        config, checkpoints = env.get_config(), env.get_checkpoint_config()
        assert (config.get_parallelism(), config.get_max_parallelism()) == (8, 64)
        assert config.get_global_job_parameters() == {"place": "pier", "sea": "north"}
        assert env.get_checkpoint_interval() == checkpoints.get_checkpoint_interval() == 30_000
        checkpoints.set_checkpoint_timeout(5_000)
        assert checkpoints.get_checkpoint_timeout() == 20_000


def test_an_option_from_outside_replaces_an_older_key_of_the_program() -> None:
    with program_overrides(Configuration({"state.backend.type": "hashmap"})):
        env = get_environment({"state.backend": "memory"})
        assert env.get_configuration().to_dict() == {"state.backend.type": "hashmap"}


def test_backends_of_the_seeds_are_options(caplog: pytest.LogCaptureFixture) -> None:
    def options(backend: Any) -> dict[str, Any]:
        return get_environment().set_state_backend(backend).get_configuration().to_dict()

    hashmap = {"state.backend.type": "hashmap"}
    assert options(HashMapStateBackend()) == hashmap
    assert options(MemoryStateBackend()) == hashmap | {"execution.checkpointing.storage": "jobmanager"}
    assert options(FsStateBackend("file:///checkpoints")) == hashmap | {
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": "file:///checkpoints",
    }
    assert caplog.text.count("is deprecated") == 2

    class Own(HashMapStateBackend):
        """A backend that only the class path of a factory can bring into a worker."""

    with pytest.raises(ConfigurationError, match="class path of a StateBackendFactory"):
        options(Own())


def test_a_missing_uid_is_derived_unless_the_option_says_otherwise(caplog: pytest.LogCaptureFixture) -> None:
    env = get_environment()
    env.from_collection([1, 2], "bigint").print()
    with caplog.at_level(logging.WARNING):
        (sink,) = env.get_stream_graph().sinks
    assert sink.uid.startswith("printsink-")
    assert "no uid was set for 'print'" in caplog.text

    strict = get_environment({"pipeline.auto-generate-uids": False})
    strict.from_collection([1, 2], "bigint").print()
    with pytest.raises(ConfigurationError, match="These steps have no uid: 'print'"):
        strict.get_stream_graph()


def test_under_which_uid_the_position_of_an_input_is_kept_is_said(caplog: pytest.LogCaptureFixture) -> None:
    env = get_environment()
    for reads, is_streaming in (("kafka of subscribe 'words'", True), ("parquet of path '/in'", False)):
        DataStream(env, SourceNode(element_type=Types.STRING(), reads=reads, is_streaming=is_streaming)).print()
    with caplog.at_level(logging.INFO):
        graph = env.get_stream_graph()
    told = {r.levelname: r.getMessage() for r in caplog.records if "no uid was set for the input" in r.getMessage()}
    for level, source in zip(("WARNING", "INFO"), (n for n in graph.nodes if isinstance(n, SourceNode)), strict=True):
        assert source.reads in told[level] and f"is kept under {source.uid!r}" in told[level]


def test_a_program_without_a_sink_is_refused() -> None:
    env = get_environment()
    env.from_collection([1, 2], "bigint")
    with pytest.raises(ConfigurationError, match="The job has no sink"):
        env.execute("nothing")


def test_unknown_options_are_refused_before_anything_runs() -> None:
    env = get_environment({"execution.chekpointing.interval": 1})
    env.from_collection([1, 2], "bigint").print()
    with pytest.raises(ConfigurationError, match=r"execution\.checkpointing\.interval"):
        env.execute("typo")


def test_a_job_without_a_name_has_that_of_its_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/flights_job.py", "--input", "x"])
    assert _script_name() == "flights_job"
    monkeypatch.setattr(sys, "argv", ["-c"])
    assert _script_name() == "holdfast-job"


def test_lengths_of_time_are_written_as_in_pyflink() -> None:
    assert Time.minutes(2).to_milliseconds() == 120_000
    assert Configuration({"execution.checkpointing.interval": Time.seconds(3)}).to_dict()


def name_of_next_job(env: StreamExecutionEnvironment, name: str | None = None) -> str:
    env.from_collection([1], "bigint").print()
    with plan_only(), pytest.raises(ProgramPlanned) as planned:
        env.execute(name)
    return planned.value.program.name


def test_each_execute_without_a_name_is_a_job_of_its_own_and_a_rerun_finds_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["/jobs/tides.py"])
    for _ in range(2):
        env = get_environment()
        given = [None, None, "named", "named", "tides-3", None]
        names = [name_of_next_job(env, name) for name in given]
        assert names == ["tides", "tides-2", "named", "named", "tides-3", "tides-4"]
    env = get_environment({"pipeline.name": "night"})
    assert [name_of_next_job(env) for _ in range(3)] == ["night", "night-2", "night-3"]


SHARED = {"execution.checkpointing.dir": "/nowhere/checkpoints"}


def readings(options: dict[str, Any]) -> StreamExecutionEnvironment:
    env = get_environment(options)
    env.from_collection([1], "bigint").map(lambda n: n, output_type="bigint").print()
    return env


def alarms(options: dict[str, Any]) -> StreamExecutionEnvironment:
    env = get_environment(options)
    env.from_collection([1], "bigint").map(lambda n: -n, output_type="bigint").print()
    return env


def names_of(*envs: StreamExecutionEnvironment) -> list[str]:
    names = []
    for env in envs:
        with plan_only(), pytest.raises(ProgramPlanned) as planned:
            env.execute()
        names.append(planned.value.program.name)
    return names


@pytest.fixture
def new_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Forgets what this process has executed, as the next one does not know it."""

    def begin() -> None:
        monkeypatch.setattr(sys, "argv", ["/jobs/tides.py"])
        monkeypatch.setattr(stream_execution_environment, "_executed", ExecutedJobs())

    begin()
    return begin


def test_environments_of_one_process_have_a_job_each_which_the_next_process_finds(
    new_process: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        assert names_of(readings(SHARED), alarms(SHARED)) == ["tides", "tides-2"]
        assert "this process executed another job 'tides', so this one, without a name, is" in caplog.text
        caplog.clear()
        new_process()


def test_the_same_steps_again_are_the_same_job(
    new_process: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        assert names_of(readings(SHARED)) == ["tides"]
        assert [name_of_next_job(env) for env in [alarms(SHARED)] * 2] == ["tides-2", "tides-3"]
    assert "the same steps as job 'tides', so this is the same job" in caplog.text


def test_a_name_that_was_given_in_one_environment_is_not_taken_by_another(new_process: Callable[[], None]) -> None:
    assert name_of_next_job(get_environment(SHARED), "tides") == "tides"
    assert names_of(readings(SHARED)) == ["tides-2"]
    env = readings(SHARED)
    assert name_of_next_job(env, "tides-2") == "tides-2"
    env.from_collection([1], "bigint").map(lambda n: n, output_type="bigint").print()
    assert names_of(env) == ["tides-3"]


def test_jobs_that_cannot_meet_do_not_count_each_other(
    new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = {"execution.checkpointing.dir": "/nowhere/else"}
    assert names_of(readings(SHARED), alarms(elsewhere), readings({}), alarms({})) == ["tides"] * 4
    one_id = SHARED | {"pipeline.job-id": "0" * 32}
    assert names_of(alarms(one_id)) == ["tides"], "it is found by its id"
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert names_of(readings(SHARED), alarms(SHARED)) == ["tides"] * 2, "a program that was changed in a shell"


def test_an_id_is_that_of_one_job() -> None:
    env = get_environment({"pipeline.job-id": "0" * 32})
    assert [name_of_next_job(env, "a"), name_of_next_job(env, "a")] == ["a", "a"]
    env.from_collection([1], "bigint").print()
    with plan_only(), pytest.raises(ConfigurationError, match=r"executes 'a' and then 'b': remove the option"):
        env.execute("b")


def test_a_program_that_was_submitted_executes_one_job() -> None:
    with program_overrides(Configuration(), on_launch=lambda client: None):
        require_one_job("days")
        with pytest.raises(ConfigurationError, match="executes 'days' and then 'nights'"):
            require_one_job("nights")
    with program_overrides(Configuration()):
        require_one_job("days")
        require_one_job("nights")


def test_a_name_from_the_command_line_wins_over_that_of_execute(caplog: pytest.LogCaptureFixture) -> None:
    def planned(*names: str | None) -> str:
        """The name of the job that a program executes after others."""
        for name in names:
            env = get_environment()
            env.from_collection([1], "bigint").print().uid("out")
            with plan_only(), pytest.raises(ProgramPlanned) as ended:
                env.execute(name)
        return ended.value.program.name

    with caplog.at_level(logging.INFO):
        for names in (("day",), (None,), ("day", "day")):
            with program_overrides(Configuration({"pipeline.name": "night"})):
                assert planned(*names).startswith("night")
    assert "job 'day' runs as 'night' (pipeline.name from the command line)" in caplog.text
    assert planned("day") == "day", "no override is left"
    with (
        program_overrides(Configuration({"pipeline.name": "night"})),
        pytest.raises(ConfigurationError, match="this program executes 'day' and then 'week': remove the option"),
    ):
        planned("day", "week")


def test_a_collection_is_described_by_its_elements() -> None:
    def described(elements: list[Any], type_info: Any = None) -> str:
        return get_environment().from_collection(elements, type_info)._node.elements

    assert described([1, 2], "bigint") == described([1, 2], "bigint") != described([1, 3], "bigint")
    assert described([1, 2]) == "a collection: 2 elements"
