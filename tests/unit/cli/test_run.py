"""`holdfast run`: its options win, the script sees its own arguments, and exit codes mean what they say."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli import main
from holdfast.cli.output import exit_code_of
from holdfast.errors import (
    ConfigurationError,
    CorruptFileError,
    FencedError,
    JobExecutionError,
    RestoreError,
    UserFunctionError,
)
from holdfast.storage import object_store
from holdfast.storage.object_store import S3Options


@pytest.fixture
def script(tmp_path: Path) -> Any:
    def write(body: str) -> str:
        path = tmp_path / "job.py"
        path.write_text(textwrap.dedent(body), encoding="utf-8")
        return str(path)

    return write


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["run", *arguments])


SHOW = """
    import json, sys
    from holdfast.datastream import StreamExecutionEnvironment
    env = StreamExecutionEnvironment.get_execution_environment({"parallelism.default": 2, "pipeline.name": "mine"})
    if __name__ == "__main__":
        print(json.dumps({"argv": sys.argv[1:], "options": env.get_configuration().to_dict()}))
"""


def test_options_of_the_command_line_win_and_the_script_gets_its_arguments(script: Any) -> None:
    result = run(script(SHOW), "-D", "parallelism.default=7", "-D", "spark.master=local[1]", "--", "--input", "here")

    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    assert shown["argv"] == ["--input", "here"]
    assert shown["options"] == {"parallelism.default": "7", "pipeline.name": "mine", "spark.master": "local[1]"}


def test_the_recovery_flags_are_options(script: Any, tmp_path: Path) -> None:
    result = run(script(SHOW), "-s", str(tmp_path / "chk-7"), "-n", "--claim-mode", "no_claim")
    assert json.loads(result.stdout)["options"] == {
        "parallelism.default": 2,
        "pipeline.name": "mine",
        "execution.state-recovery.path": str(tmp_path / "chk-7"),
        "execution.state-recovery.ignore-unclaimed-state": True,
        "execution.state-recovery.claim-mode": "NO_CLAIM",
    }
    flinks = ("--fromSavepoint", str(tmp_path / "chk-7"), "--allowNonRestoredState", "--claimMode", "no_claim")
    assert run(*flinks, script(SHOW)).stdout == result.stdout
    assert json.loads(run("-p", "7", script(SHOW)).stdout)["options"]["parallelism.default"] == 7
    fresh = run(script(SHOW), "--fresh")
    assert json.loads(fresh.stdout)["options"]["execution.state-recovery.fresh"] is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-D", "parallelism.defualt=1"], "parallelism.default"),
        (["-D", "parallelism.default"], "not of the form key=value"),
        (["-D", "parallelism.default=many"], "'many' is not a whole number"),
        (["--fresh", "-s", "x"], "choose one of them"),
        (["--claim-mode", "CLAIM"], "the snapshot of -s PATH, which is missing"),
        (["--claim-mode", "MINE", "-s", "x"], "is not one of"),
        (["--claim-mode", "LEGACY", "-s", "x"], "a job copies what it needs"),
        (["--frehs"], "No such option"),
        (["-p", "many"], "'many' is not a valid integer"),
        (["-m", "host:8081"], "high-availability.type"),
        (["-pyfs", "helpers.py", "-py"], "python.files"),
        (["--python"], "SCRIPT -- ARGS"),
        (["-d"], "holdfast submit"),
    ],
)
def test_wrong_usage_is_exit_code_2_before_the_script_runs(script: Any, arguments: list[str], message: str) -> None:
    result = run(*arguments, script("raise SystemExit('the script ran')"))
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cancel", "-s", "checkpoints"], "holdfast stop DIR -p TARGET"),
        (["list", "--scheduled"], "-a shows those that do not run"),
        (["checkpoint", "-full", "checkpoints"], "holdfast savepoint DIR TARGET"),
        (["submit", "-py", "job.py"], "SCRIPT -- ARGS"),
        (["submit", "-s", "savepoint", __file__], "-D execution.state-recovery.path=PATH"),
        (["submit", "-d", __file__], "that is what it does"),
    ],
)
def test_flags_of_flink_that_mean_nothing_here_say_what_to_write(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "is Flink's, and has no meaning here" in result.stderr
    assert message in result.stderr


@pytest.mark.parametrize("verb", ["state-server checkpoints", "logs 0123456789abcdef0123456789abcdef"])
def test_an_option_that_nobody_knows_is_refused_by_every_command(verb: str) -> None:
    result = CliRunner().invoke(main, [*verb.split(), "-D", "queryable-state.tokn=secret"])
    assert result.exit_code == 2
    assert "Did you mean 'queryable-state.token'" in result.stderr


def test_a_script_that_does_not_exist_is_wrong_usage(tmp_path: Path) -> None:
    assert run(str(tmp_path / "nothing.py")).exit_code == 2


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        ("errors.FencedError('somebody else leads')", 3),
        ("errors.RestoreError(['old'], ['new'])", 4),
        ("errors.JobExecutionError('the job failed')", 1),
        ("errors.ConfigurationError('a uid is used twice')", 2),
        ("SystemExit(9)", 9),
        ("SystemExit()", 0),
        ("ValueError('a bug in the script')", 1),
    ],
)
def test_how_the_script_ends_is_how_the_command_ends(script: Any, raised: str, code: int) -> None:
    assert run(script(f"from holdfast import errors\nraise {raised}")).exit_code == code


def test_the_message_and_the_uids_of_a_refused_restore_are_shown(script: Any) -> None:
    result = run(script("from holdfast.errors import RestoreError\nraise RestoreError(['old-uid'], ['new-uid'])"))
    assert "RestoreError:" in result.stderr
    assert "old-uid" in result.stderr
    assert "new-uid" in result.stderr


def test_a_failed_job_is_judged_by_what_made_it_fail() -> None:
    def failed(cause: BaseException | None) -> int:
        return exit_code_of(JobExecutionError("the job failed", cause))

    assert failed(None) == 1
    assert failed(UserFunctionError("uid", None, 1, "a bug")) == 1
    assert failed(ConfigurationError("a bad option")) == 2
    assert failed(FencedError("deposed")) == 3
    assert failed(RestoreError(["a"], [])) == 4
    assert exit_code_of(CorruptFileError("run", 1, "flipped")) == 1


def test_a_script_may_import_what_lies_beside_it(script: Any, tmp_path: Path) -> None:
    (tmp_path / "beside_the_script.py").write_text("VALUE = 42\n", encoding="utf-8")
    result = run(script("import beside_the_script\nprint(beside_the_script.VALUE)"))
    assert result.stdout == "42\n"


def test_functions_of_the_script_can_be_shipped_to_workers(script: Any) -> None:
    body = """
        import cloudpickle, pickle, subprocess, sys
        class Doubled:
            def map(self, value):
                return value * 2
        if __name__ == "__main__":
            data = cloudpickle.dumps(Doubled())
            program = "import sys, pickle; print(pickle.load(sys.stdin.buffer).map(21))"
            subprocess.run([sys.executable, "-c", program], input=data, check=True)
    """
    result = run(script(body))
    assert result.exit_code == 0, result.output


def test_help_lists_the_verbs() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    for verb in ("run", "checkpoints", "inspect"):
        assert verb in result.output


def test_ctrl_c_has_the_exit_code_that_shells_give_it(script: Any) -> None:
    assert run(script("raise KeyboardInterrupt")).exit_code == 130


def test_a_submission_says_which_options_are_not_its_own(script: Any, tmp_path: Path) -> None:
    where = ["-D", f"process.jobmanager.working-dir={tmp_path}"]
    result = CliRunner().invoke(main, ["submit", script(SHOW), *where, "-D", "jobmanager.spare-processes=1"])
    assert result.exit_code == 1, "there is no job manager"
    assert "Ignored, because a job manager has its own: jobmanager.spare-processes." in result.stderr


def test_a_state_server_has_no_other_levels_of_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_LOG_LEVEL", "LOUD")
    result = CliRunner().invoke(main, ["state-server", "jobs"])
    assert result.exit_code == 2
    assert "HOLDFAST_LOG_LEVEL" in result.output


@pytest.mark.parametrize("verb", ["stop", "cancel", "checkpoint", "rescale", "savepoint"])
def test_a_command_for_a_running_job_reaches_the_object_store_that_it_was_told_of(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "_current", S3Options())
    directory = ["no-such-directory", *(["2"] if verb == "rescale" else [])]
    result = CliRunner().invoke(main, [verb, *directory, "-D", "s3.endpoint=http://minio:9000"])
    assert result.exit_code == 1
    assert object_store.current_s3_options().endpoint == "http://minio:9000"
    result = CliRunner().invoke(main, [verb, *directory, "-D", "s3.endpiont=http://minio:9000"])
    assert result.exit_code == 2
    assert "Did you mean 's3.endpoint'" in result.stderr


@pytest.mark.parametrize(
    ("share", "message"),
    [
        (["--part", "3/2"], "no part 3 of 2"),
        (["--part", "0/2"], "no part 0 of 2"),
        (["--part", "2"], "Write --part as 1/2"),
        (["--key-groups", "63-0"], "63-0"),
    ],
)
def test_a_state_server_of_no_part_is_wrong_usage(share: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["state-server", "no-such-directory", "--leader", "nobody", *share])
    assert (result.exit_code, result.exception.__class__) == (2, SystemExit)
    assert message in result.stderr
