"""Methods of PyFlink that are accepted without effect, and why they have none.

The methods of a class are generated from its rows here, so a row is all there is of them. `docs/from-pyflink.md` has
the same rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

C = TypeVar("C", bound=type[Any])

_ONE_TASK: Final = "the next operator runs in the tasks of this one, or receives its elements by key"
_NO_QUEUES: Final = "operators that share a task pass elements on without a queue, so separating them gains nothing"
_NO_SLOTS: Final = "there are no slots; Spark's executors have the resources (spark.executor.*)"
_NO_BUFFERS: Final = "elements cross an exchange when its stage has ended, so no buffer waits for a timeout"
_SPARK_ENDS_TASKS: Final = "Spark cancels tasks"
_NO_JAVA_OBJECTS: Final = "no element is a Java object"
_CHANGELOG: Final = "each epoch already writes only what it changed"
_NO_ROCKSDB: Final = "the columnar backend maps files where they are cached, and has no database"


@dataclass(frozen=True)
class NoEffect:
    """Methods that belong together, and why they have no effect.

    Attributes:
        why: The reason.
        accepts: Methods that return the object itself, with their parameters: `"set_buffer_timeout(timeout_millis)"`.
        returns: Methods and what each returns.
        setters: Methods that keep their argument for the getter; or a constant, as `enable_x()` does.
        getter: Returns what was set last.
        default: The value that the getter returns before.
    """

    why: str
    accepts: tuple[str, ...] = ()
    returns: tuple[tuple[str, Any], ...] = ()
    setters: tuple[tuple[str, Any], ...] = ()
    getter: str | None = None
    default: Any = None

    def methods(self) -> list[str]:
        """Return the names of the methods."""
        named = (*self.accepts, *(one for one, _ in (*self.returns, *self.setters)), *filter(None, [self.getter]))
        return [one.partition("(")[0] for one in named]


_ARGUMENT: Final = object()
"""In `setters`: the argument is what the getter returns."""


def _setting(name: str, parameter: str, default: Any, why: str) -> NoEffect:
    return NoEffect(why, setters=((f"set_{name}({parameter})", _ARGUMENT),), getter=f"get_{name}", default=default)


def _switch(name: str, why: str, *, default: bool = False) -> NoEffect:
    setters = ((f"enable_{name}()", True), (f"disable_{name}()", False))
    return NoEffect(why, setters=setters, getter=f"is_{name}_enabled", default=default)


_OF_STEPS: Final = (
    NoEffect(_NO_QUEUES, accepts=("disable_chaining()", "start_new_chain()")),
    NoEffect(_NO_SLOTS, accepts=("slot_sharing_group(slot_sharing_group)",)),
    NoEffect(_NO_BUFFERS, accepts=("set_buffer_timeout(timeout_millis)",)),
)

NO_EFFECT: Final[dict[str, tuple[NoEffect, ...]]] = {
    "DataStream": (
        *_OF_STEPS,
        NoEffect(_ONE_TASK, accepts=("shuffle()", "rebalance()", "rescale()", "forward()")),
        NoEffect("a stream that several operators read is computed once an epoch", accepts=("cache()",)),
    ),
    "DataStreamSink": _OF_STEPS,
    "StreamExecutionEnvironment": (
        NoEffect(
            _NO_BUFFERS,
            accepts=("set_buffer_timeout(timeout_millis)",),
            returns=(("get_buffer_timeout()", -1),),
        ),
        NoEffect(
            _NO_QUEUES,
            accepts=("disable_operator_chaining()",),
            returns=(
                ("is_chaining_enabled()", True),
                ("is_chaining_of_operators_with_different_max_parallelism_enabled()", True),
            ),
        ),
        NoEffect(_NO_SLOTS, accepts=("register_slot_sharing_group(slot_sharing_group)",)),
        NoEffect(
            _CHANGELOG,
            accepts=("enable_changelog_state_backend(enabled)",),
            returns=(("is_changelog_state_backend_enabled()", None),),
        ),
    ),
    "ExecutionConfig": (
        _setting("auto_watermark_interval", "interval", 200, "watermarks advance at the end of each epoch"),
        _setting("task_cancellation_interval", "interval", 30_000, _SPARK_ENDS_TASKS),
        _setting("task_cancellation_timeout", "timeout", 180_000, _SPARK_ENDS_TASKS),
        _switch("object_reuse", "functions of one task always pass on the same objects"),
        _switch("closure_cleaner", "functions are pickled with what they close over", default=True),
        _switch("force_kryo", _NO_JAVA_OBJECTS),
        _switch("force_avro", _NO_JAVA_OBJECTS),
        NoEffect(
            "elements without a declared type are pickled",
            accepts=("enable_generic_types()",),
            returns=(("has_generic_types_disabled", False),),
        ),
        NoEffect(
            _NO_JAVA_OBJECTS,
            returns=(
                ("get_default_kryo_serializer_classes()", {}),
                ("get_registered_kryo_types()", []),
                ("get_registered_pojo_types()", []),
            ),
        ),
        NoEffect(
            "run files have a compression of their own",
            setters=(("set_use_snapshot_compression(use_snapshot_compression)", _ARGUMENT),),
            getter="is_use_snapshot_compression",
            default=False,
        ),
    ),
    "EmbeddedRocksDBStateBackend": (
        NoEffect(_CHANGELOG, returns=(("is_incremental_checkpoints_enabled()", True),)),
        NoEffect(
            _NO_ROCKSDB,
            returns=(("set_db_storage_paths(*paths)", None), ("get_db_storage_paths()", None), ("get_options()", None)),
        ),
        NoEffect(
            "a checkpoint transfers nothing",
            returns=(
                ("set_number_of_transfer_threads(number_of_transfering_threads)", None),
                ("get_number_of_transfer_threads()", 0),
            ),
        ),
    ),
}
"""By the name of the class."""


def accept_without_effect(kind: C) -> C:
    """Give a class its methods of `NO_EFFECT`; a decorator."""
    for row in NO_EFFECT[kind.__name__]:
        for name, function in _functions(row):
            function.__name__, function.__qualname__ = name, f"{kind.__name__}.{name}"
            function.__module__ = kind.__module__
            setattr(kind, name, function)
    return kind


def _functions(row: NoEffect) -> Iterable[tuple[str, Any]]:
    for written in row.accepts:
        yield _function(written, f"Accepted without effect: {row.why}.", lambda self, _: self)
    for written, value in row.returns:
        text = f"Return {value!r}" if written.endswith("()") else "Accepted without effect"
        yield _function(written, f"{text}: {row.why}.", _returning(value))
    slot = f"_{row.getter}"
    for written, value in row.setters:
        yield _function(written, f"Kept without effect: {row.why}.", _keeping(slot, value))
    if row.getter is not None:
        text = f"Return what was set, {row.default!r} by default; without effect: {row.why}."
        yield _function(row.getter, text, lambda self, _: getattr(self, slot, row.default))


def _returning(value: Any) -> Callable[[Any, tuple[Any, ...]], Any]:
    # A new list or dict for each call, which the caller may change.
    return lambda self, _: value.copy() if isinstance(value, (dict, list)) else value


def _keeping(slot: str, value: Any) -> Callable[[Any, tuple[Any, ...]], Any]:
    def keep(self: Any, arguments: tuple[Any, ...]) -> Any:
        setattr(self, slot, arguments[0] if value is _ARGUMENT else value)
        return self

    return keep


def _function(written: str, text: str, call: Callable[[Any, tuple[Any, ...]], Any]) -> tuple[str, Any]:
    """Return the name and the function of a method written as `name(parameter, *more)`."""
    name, _, rest = written.partition("(")
    kinds = inspect.Parameter
    named = [kinds("self", kinds.POSITIONAL_OR_KEYWORD)]
    for parameter in filter(None, rest.rstrip(")").split(", ")):
        kind = kinds.VAR_POSITIONAL if parameter.startswith("*") else kinds.POSITIONAL_OR_KEYWORD
        named.append(kinds(parameter.lstrip("*"), kind))
    signature = inspect.Signature(named)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return call(self, signature.bind(self, *args, **kwargs).args[1:])

    method.__doc__ = text
    method.__signature__ = signature  # type: ignore[attr-defined]  # so that help() and editors show the parameters
    return name, method
