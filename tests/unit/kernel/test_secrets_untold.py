"""A password in what a program says or connects to stands in no log, answer, file or output, whoever handles it."""

import io
import json
import logging
import logging.handlers
import queue
import re
import socket
import textwrap
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as package
from holdfast.datastream import (
    MapFunction,
    MasterTriggerRestoreHook,
    RichMapFunction,
    WithMasterCheckpointHook,
)
from holdfast.errors import JobExecutionError, StorageError
from holdfast.kernel.secret import get_logger
from holdfast.queryable.wire.errors import to_wire
from holdfast.rest.http import HttpError, Response
from holdfast.rest.route import Routes
from holdfast.rest.server import RestServer
from tests.stories.journal import Journal
from tests.stories.local import RESTARTING, Program, epochs, master
from tests.stories.served import Running, holdfast

URL = "https://me:HIDE@h/x"
FEW_RESTARTS = {**RESTARTING, "restart-strategy.fixed-delay.attempts": "1", "sink.committer.retries": "1"}


class Mine(logging.Formatter):
    """A formatter that makes its own of an error, as those for JSON do."""

    def format(self, record: logging.LogRecord) -> str:
        error = "".join(traceback.format_exception(*record.exc_info)) if record.exc_info else record.exc_text
        return json.dumps({"message": record.getMessage(), "error": error, "stack": record.stack_info})


@pytest.fixture
def said() -> Iterator[io.StringIO]:
    """All that the package logs, as a handler of the user writes it."""
    stream, root, ours = io.StringIO(), logging.getLogger(), logging.getLogger("holdfast")
    handler, levels = logging.StreamHandler(stream), (root.level, ours.level)
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    ours.setLevel(logging.DEBUG)  # a job that has run before in this process may have set it
    yield stream
    root.removeHandler(handler)
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


class SlipsWhenClosed(RichMapFunction):
    def map(self, value: Any) -> Any:
        return value

    def close(self) -> None:
        raise RuntimeError(URL)


class SlipsOnAnElement(MapFunction):
    def map(self, value: Any) -> Any:
        raise RuntimeError(URL)


class Hook(MasterTriggerRestoreHook):
    def __init__(self, slips_when: str) -> None:
        self.slips_when = slips_when

    def get_identifier(self) -> str:
        return "svc"

    def trigger_checkpoint(self, checkpoint_id: int, timestamp: int, executor: Any) -> None:
        if self.slips_when == "triggered":
            raise RuntimeError(URL)

    def restore_checkpoint(self, checkpoint_id: int, checkpoint_data: Any) -> None:
        pass

    def close(self) -> None:
        if self.slips_when == "closed":
            raise RuntimeError(URL)


class Hooked(MapFunction, WithMasterCheckpointHook):
    def __init__(self, slips_when: str) -> None:
        self.slips_when = slips_when

    def create_master_trigger_restore_hook(self) -> Hook:
        return Hook(self.slips_when)

    def map(self, value: Any) -> Any:
        return value


def slips(rows: Any, epoch: int) -> None:
    raise RuntimeError(URL)


@pytest.mark.parametrize(
    "function",
    [SlipsWhenClosed(), SlipsOnAnElement(), Hooked("closed"), Hooked("triggered"), None],
    ids=["close", "map", "hook-closed", "hook-triggered", "for-each-epoch"],
)
def test_errors_of_functions_and_hooks_are_logged_and_stored_without_the_password(
    function: MapFunction | None, tmp_path: Path, said: io.StringIO
) -> None:
    program = Program()
    rows = program.source("in", "string")
    if function is None:
        rows.for_each_epoch(slips).uid("out")
    else:
        rows.map(function, "string").uid("map").sink_to(Journal(tmp_path / "out")).uid("out")
    job = master(program, tmp_path / "job", epochs("in", [["a"]] * 2), FEW_RESTARTS)
    try:
        job.run()
    except JobExecutionError as error:
        assert "restart" in str(error)
    assert "RuntimeError: https://******@h/x" in said.getvalue() and "Traceback" in said.getvalue()
    assert "HIDE" not in said.getvalue()
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"HIDE" in path.read_bytes()]
    assert not [failure for failure in job.history.failures if "HIDE" in failure.message + failure.stack_trace]


def connect(url: str) -> None:
    raise ConnectionError(f"could not reach {url}")


def fail(logger: logging.Logger) -> None:
    try:
        connect(URL)
    except ConnectionError:
        logger.warning("%s: no answer of %r", "job", URL, exc_info=True, stack_info=True)


def test_log_handlers_get_tracebacks_without_the_password(said: io.StringIO, caplog: pytest.LogCaptureFixture) -> None:
    logger = get_logger("holdfast.test.somewhere")
    own, lines = io.StringIO(), queue.SimpleQueue[Any]()
    of_child, of_package = logging.StreamHandler(own), logging.handlers.QueueHandler(lines)
    of_child.setFormatter(Mine())
    logger.addHandler(of_child)
    logging.getLogger("holdfast").addHandler(of_package)
    try:
        fail(logger)
    finally:
        logger.removeHandler(of_child)
        logging.getLogger("holdfast").removeHandler(of_package)
    seen = [said.getvalue(), own.getvalue(), lines.get().getMessage(), caplog.text]
    assert [text for text in seen if "HIDE" in text] == []
    for text in seen:
        assert "job: no answer of 'https://******@h/x'" in text and "in connect" in text
        assert "ConnectionError: could not reach https://******@h/x" in text
        assert f'File "{__file__}", line' in text.replace('\\"', '"')


def test_lines_without_a_password_are_as_they_were(caplog: pytest.LogCaptureFixture) -> None:
    logger = get_logger("holdfast.test.somewhere")
    try:
        connect("http://h:80/x")
    except ConnectionError as error:
        logger.exception("no answer in %d s", 5)
        record = caplog.records[-1]
        assert (record.msg, record.args) == ("no answer in %d s", (5,))
        assert record.exc_info is not None and record.exc_info[1] is error


def test_a_line_that_cannot_be_made_stops_nobody(said: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    logger = get_logger("holdfast.test.somewhere")
    logger.propagate = False
    logger.warning("%d of %d", "one")  # noqa: PLE1206 - the wrong call is the test
    logger.propagate = True


def test_loggers_of_others_are_left_alone(said: io.StringIO) -> None:
    fail(logging.getLogger("mine"))
    assert "HIDE" in said.getvalue()


def test_each_module_has_such_a_logger() -> None:
    source = Path(package.__file__).parent
    plain = [
        path
        for path in source.rglob("*.py")
        if re.search(r"getLogger\([^)]*(__name__|__module__\)$)", path.read_text())
    ]
    assert plain == []


def test_rest_answers_and_logs_errors_without_the_password(said: io.StringIO) -> None:
    routes = Routes("0" * 32, lambda state: None)
    errors = {"/a": StorageError(URL), "/b": ValueError(URL), "/c": HttpError(404, URL)}

    def answered(path: str) -> Response:
        raise errors[path]

    for path in errors:
        routes.add("GET", path, lambda request, path=path: answered(path))
    server = RestServer(routes, "x")
    port = int(server.start().rpartition(":")[2])
    try:
        answers = []
        for path in errors:
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(
                    f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer x\r\n\r\n".encode()
                )
                answers.append(json.loads(connection.makefile("rb").read().partition(b"\r\n\r\n")[2])["errors"])
    finally:
        server.close()
    shown = "https://******@h/x"
    assert answers == [[f"StorageError: {shown}"], [f"Internal error: ValueError('{shown}')."], [shown]]
    assert f"ValueError: {shown}" in said.getvalue() and "HIDE" not in said.getvalue()


def test_queries_are_answered_without_the_password() -> None:
    assert to_wire(StorageError(URL))["message"] == "StorageError: https://******@h/x"


PROGRAM = """
    from holdfast.datastream import RichMapFunction, StreamExecutionEnvironment
    from holdfast.datastream.state import ValueStateDescriptor

    class Slips(RichMapFunction):
        def open(self, runtime_context):
            raise OSError("could not reach https://me:HIDE@h/x")

        def map(self, value):
            return value

    env = StreamExecutionEnvironment.get_execution_environment({"s3.secret-key": "HIDE", "s3.access-key": "HIDE"})
    rows = env.from_collection(["a"], "string").uid("in")
    rows.key_by(lambda row: row, "string").map(Slips(), "string").uid("slips").print().uid("out")
    env.execute("job")
"""


def test_info_list_and_inspect_show_no_secret(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(textwrap.dedent(PROGRAM))
    parameter = f"pipeline.global-job-parameters.db={URL}"
    told = [holdfast("info", script, "-D", "s3.secret-key=HIDE", "-D", parameter, *more) for more in ([], ["--json"])]
    secrets = {"s3.secret-key": "HIDE", "s3.access-key": "HIDE", "pipeline.global-job-parameters.db": URL}
    job = Running(tmp_path, **secrets)
    try:
        checkpoints = tmp_path / "checkpoints"
        listed = holdfast("checkpoints", checkpoints, "--json")
        newest = json.loads(listed.stdout.splitlines()[-1])["path"]
        told += [listed, *(holdfast("list", checkpoints, *more) for more in ([], ["--json"]))]
        told += [holdfast("inspect", newest, *more) for more in ([], ["--json"])]
    finally:
        job.end()
    assert [result.output for result in told if result.exit_code != 0] == []
    assert [result.output for result in told if "HIDE" in result.output + str(result.exception)] == []
