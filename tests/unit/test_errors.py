"""Errors cross the borders of processes, and a caller decides by their class and fields what to do."""

import json
import pickle

import cloudpickle
import pytest

from holdfast import errors
from holdfast.errors import (
    CheckpointError,
    CheckpointFailureReason,
    ConfigurationError,
    CorruptFileError,
    EngineError,
    EngineUnavailableError,
    FormatVersionError,
    HoldfastError,
    InconsistentEpochError,
    InputError,
    InputGoneError,
    JobExecutionError,
    NullKeyError,
    OutputTypeError,
    RestoreError,
    StateError,
    StateMigrationError,
    StopWithSavepointStoppingError,
    UserFunctionError,
    error_from_json,
    error_to_json,
)

EXAMPLES = [
    UserFunctionError("count", ("a", 1), 7, "it raised"),
    OutputTypeError("count", "not a long", row=3, field="n", declared="bigint"),
    NullKeyError("count", row=4),
    CheckpointError(CheckpointFailureReason.CHECKPOINT_EXPIRED, "chk-7"),
    StopWithSavepointStoppingError("savepoints/savepoint-1", "0a1b"),
    RestoreError(["old"], ["new"]),
    CorruptFileError("a/b.run", 17, "bad magic"),
    FormatVersionError("a/b.run", 9, 1),
    InconsistentEpochError({"count": [1, 2]}),
    JobExecutionError("job 'x' failed"),
    ConfigurationError("unknown"),
    StateMigrationError("no"),
]


def all_classes(root: type = HoldfastError) -> list[type]:
    return [root, *(found for child in root.__subclasses__() for found in all_classes(child))]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("dump", [pickle.dumps, cloudpickle.dumps], ids=["pickle", "cloudpickle"])
def test_an_error_arrives_whole_in_another_process(error, dump):
    arrived = pickle.loads(dump(error))
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)


def over_a_connection(error):
    return error_from_json(json.loads(json.dumps(error_to_json(error))))


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_reaches_a_process_that_must_not_unpickle(error):
    arrived = over_a_connection(error)
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert vars(arrived).keys() == vars(error).keys()


@pytest.mark.parametrize("cls", [EngineError, InputError, InputGoneError, EngineUnavailableError])
def test_json_keeps_the_errors_of_inputs_and_engines(cls):
    """What the driver of a real-time job does after the failure of a task depends on them."""
    assert type(over_a_connection(cls("the file is gone"))) is cls


def test_json_keeps_the_nearest_class_of_ours_simple_fields_and_the_causes():
    class Narrower(StateMigrationError):
        pass

    error = UserFunctionError("count", ("a", {"b": 1}), 7, "it raised", is_final=True)
    try:
        raise Narrower("no") from ValueError("the value")
    except Narrower as raised:
        error.__cause__ = raised
    arrived = over_a_connection(error)
    assert (arrived.uid, arrived.key, arrived.epoch, arrived.is_final) == ("count", ["a", "{'b': 1}"], 7, True)
    assert type(arrived.__cause__) is StateMigrationError
    assert "ValueError: the value" in str(arrived.__cause__.__cause__)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "HoldfastError",
        {"class": "HoldfastError"},
        {"class": "Enum", "arguments": ["x"], "attributes": {}, "cause": None},
        {"class": ["HoldfastError"], "arguments": [], "attributes": {}, "cause": None},
        {"class": "StateError", "arguments": 5, "attributes": {}, "cause": None},
        {"class": "StateError", "arguments": [], "attributes": 5, "cause": None},
        {"class": "StateError", "arguments": [], "attributes": {}, "cause": 5},
        {"class": "RemoteTraceback", "arguments": ["x"], "attributes": {}, "cause": None},
    ],
)
def test_json_that_is_no_error_is_refused(value):
    with pytest.raises(ValueError, match="this is no error"):
        error_from_json(value)


def test_every_class_of_the_tree_can_be_raised_with_a_message_and_pickled():
    with_fields = {type(example) for example in EXAMPLES} | {HoldfastError}
    plain = [cls for cls in all_classes() if cls not in with_fields and cls.__module__ == errors.__name__]
    assert len(plain) > 5
    for cls in plain:
        arrived = pickle.loads(pickle.dumps(cls("what happened")))
        assert (type(arrived), str(arrived)) == (cls, "what happened")


def test_the_users_traceback_travels_with_the_error():
    def of_the_user():
        raise KeyError("price")

    try:
        try:
            of_the_user()
        except KeyError as cause:
            raise UserFunctionError("enrich", "k", 3, "KeyError: 'price'") from cause
    except UserFunctionError as error:
        arrived = pickle.loads(pickle.dumps(error))
    assert "of_the_user" in str(arrived.__cause__)
    assert "KeyError: 'price'" in str(arrived.__cause__)
    twice = pickle.loads(pickle.dumps(arrived))
    assert "of_the_user" in str(twice.__cause__)


def test_a_cause_of_our_own_stays_what_it_is():
    error = JobExecutionError("failed", CorruptFileError("f", 3, "flipped"))
    arrived = pickle.loads(pickle.dumps(error))
    assert isinstance(arrived.__cause__, CorruptFileError)
    assert arrived.__cause__.offset == 3


def test_notes_survive():
    error = StateError("x")
    error.add_note("seen in epoch 4")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["seen in epoch 4"]


def test_a_checkpoint_error_is_made_as_in_flink():
    cause = OSError("disk")
    reason = CheckpointFailureReason.IO_EXCEPTION
    assert CheckpointError(reason).get_checkpoint_failure_reason() is reason
    assert str(CheckpointError(reason)) == reason.message
    by_reason = CheckpointError(reason, cause)
    assert (by_reason.get_checkpoint_failure_reason(), by_reason.__cause__) == (reason, cause)
    by_text = CheckpointError("no luck", cause)
    assert (str(by_text), by_text.get_checkpoint_failure_reason(), by_text.__cause__) == ("no luck", None, cause)
    assert "chk-3" in str(CheckpointError(reason, "chk-3"))


def test_the_reasons_of_the_contract_are_told_apart():
    # The contract's table: 24 reasons, six of them pre-flight, five count; the seeds bring three more. What
    # hooks of the driver fail with counts as well, and one reason is only theirs.
    pre_flight = {reason.name for reason in CheckpointFailureReason if reason.is_pre_flight}
    counted = {reason.name for reason in CheckpointFailureReason if reason.counts_as_failure}
    assert len(CheckpointFailureReason) == 28
    assert pre_flight == {
        "PERIODIC_SCHEDULER_SHUTDOWN",
        "TOO_MANY_CHECKPOINT_REQUESTS",
        "MINIMUM_TIME_BETWEEN_CHECKPOINTS",
        "NOT_ALL_REQUIRED_TASKS_RUNNING",
        "IO_EXCEPTION",
        "BLOCKING_OUTPUT_EXIST",
    }
    assert counted == {
        "IO_EXCEPTION",
        "CHECKPOINT_ASYNC_EXCEPTION",
        "CHECKPOINT_DECLINED",
        "CHECKPOINT_EXPIRED",
        "FINALIZE_CHECKPOINT_FAILURE",
        "CHECKPOINT_DECLINED_TIME_OUT",
        "MASTER_HOOK_FAILURE",
    }


def test_the_names_of_flink_are_aliases():
    assert errors.CheckpointException is errors.CheckpointError
    assert errors.IllegalConfigurationError is errors.ConfigurationError
    assert errors.AlreadyExistException is errors.AlreadyExistError
    assert errors.NotExistException is errors.NotExistError
    assert errors.PossibleInconsistentStateException is errors.PossibleInconsistentStateError
    assert issubclass(StateMigrationError, StateError)


def test_the_docstring_draws_every_class():
    for cls in all_classes():
        if cls.__module__ == errors.__name__:
            assert cls.__name__ in (errors.__doc__ or "")
