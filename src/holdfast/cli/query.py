"""`holdfast query`: print the state of keys of a running job, from its newest completed checkpoint."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from typing import Any

import click

from holdfast.cli.output import errors_to_exit_codes, examples, moment, print_json
from holdfast.errors import ConfigurationError
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.kernel.secret import redacted_message
from holdfast.queryable import ManyResult, QueryableStateClient, StateDescription, at_least, exactly
from holdfast.queryable.server.proxy import parse_address
from holdfast.queryable.wire.errors import (
    QueryConnectionError,
    QueryTimeoutError,
    UnknownJobError,
    UnknownKvStateKeyGroupLocationError,
    UnknownKvStateLocationError,
    UnknownLocationError,
)
from holdfast.queryable.wire.request import NEWEST, Consistency
from holdfast.types.key_codec import AtomicKeyCodec, CompositeKeyCodec, KeyCodec
from holdfast.types.row import Row
from holdfast.types.type_information import TypeInformation

DEFAULT_ADDRESS = "127.0.0.1:9069"
WATCH_SECONDS = 30.0
RETRY_SECONDS = 0.3

_RETRYABLE = (
    QueryConnectionError,
    UnknownJobError,
    UnknownKvStateKeyGroupLocationError,
    UnknownKvStateLocationError,
    UnknownLocationError,
)
"""Errors that end when a job, its successor or a server has started."""


@click.command(
    epilog=examples("holdfast query flights aircraft N14228", "holdfast query flights aircraft N14228 --watch --json")
)
@click.argument("job", metavar="JOB")
@click.argument("state", metavar="STATE")
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@click.option("--address", default=DEFAULT_ADDRESS, show_default=True, metavar="HOST:PORT", help="A query server.")
@click.option("--token", envvar="HOLDFAST_QUERY_TOKEN", help="Bearer token; or HOLDFAST_QUERY_TOKEN.")
@click.option("--tls", metavar="FILE", help="Use TLS; certificates to trust, 'system' for the system's.")
@click.option("--checkpoint", type=click.IntRange(1), help="Read exactly this checkpoint, while it is retained.")
@click.option("--at-least", "minimum", type=click.IntRange(1), help="Wait for this checkpoint to complete.")
@click.option("--deadline", type=float, default=10.0, show_default=True, help="Seconds that --at-least waits.")
@click.option("--json", "as_json", is_flag=True, help="Print one object a line.")
@click.option(
    "--watch", is_flag=True, help="Print again when a checkpoint completes; wait while no server has the job."
)
def query(
    job: str,
    state: str,
    keys: tuple[str, ...],
    address: str,
    token: str | None,
    tls: str | None,
    checkpoint: int | None,
    minimum: int | None,
    deadline: float,
    as_json: bool,
    watch: bool,
) -> None:
    """Print the state of keys of a running job.

    JOB is the name or the id of a job. Write a text key as it is, and any other key as JSON: several columns as a JSON
    list, an interval as its seconds. A key without state is printed as null.
    """
    if checkpoint is not None and (minimum is not None or watch):
        raise click.UsageError("--checkpoint reads one checkpoint and goes with neither --at-least nor --watch.")
    with errors_to_exit_codes():
        consistency = NEWEST if minimum is None else at_least(minimum)
        if checkpoint is not None:
            consistency = exactly(checkpoint)
        trusted: str | bool | None = True if tls == "system" else tls
        with QueryableStateClient(*parse_address(address), trusted, token) as client:
            key_query = _KeyQuery(client, job, state, keys)
            if watch:
                _watch(key_query, consistency, as_json)
                return
            try:
                _show(*key_query.values(consistency, deadline), as_json)
            except QueryConnectionError as error:
                error.add_note(
                    "A server answers there if a job has queryable-state.enable, or with `holdfast state-server DIR`; "
                    "--address names another place."
                )
                raise


class _KeyQuery:
    """The keys of one state, as the user typed them."""

    def __init__(self, client: QueryableStateClient, job: str, state: str, keys: Sequence[str]) -> None:
        self._client = client
        self._job = job
        self._state = state
        self._keys = keys

    def values(self, consistency: Consistency, deadline: float) -> tuple[ManyResult, StateDescription]:
        """Return their values, and the description of the state."""
        what = self._client.describe(self._job, self._state, consistency=consistency, deadline=deadline)
        typed = [parse_key(what.key_codec, key) for key in self._keys]
        return self._client.get_many(self._job, self._state, typed, consistency=consistency, deadline=deadline), what


def _watch(key_query: _KeyQuery, consistency: Consistency, as_json: bool) -> None:
    """Print the values of each checkpoint, and wait while nobody serves the job; never returns."""
    shown, logged, explained = 0, "", None
    while True:
        try:
            found, what = key_query.values(consistency, WATCH_SECONDS)
        except QueryTimeoutError:
            # No checkpoint for a while; or the job has begun anew, and its checkpoints with 1.
            consistency = NEWEST
            continue
        except _RETRYABLE as error:
            if str(error) != logged:
                logged = str(error)
                click.echo(f"{redacted_message(error)} Trying again.", err=True)
            time.sleep(RETRY_SECONDS)
            continue
        if found.checkpoint_id != shown:
            shown, logged = found.checkpoint_id, ""
            _show(found, what, as_json, explained)
            explained = what.explanation
            sys.stdout.flush()
        consistency = at_least(shown + 1)


def parse_key(codec: KeyCodec, text: str) -> Any:
    """Return the key that the user typed.

    Raises:
        ConfigurationError: It is not of the type of the state's keys.
    """
    try:
        if isinstance(codec, CompositeKeyCodec):
            parts = json.loads(text)
            return [_value(kind, part) for kind, part in zip(codec.key_type.types, parts, strict=True)]
        if isinstance(codec, AtomicKeyCodec):
            return _value(codec.key_type, text)
    except PARSE_ERRORS as error:
        raise ConfigurationError(f"{text!r:.200} is no key of this state: {error}") from error
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _value(kind: TypeInformation, given: Any) -> Any:
    name = kind.ddl.split("(")[0]
    if name == "interval day to second" and given is not None:
        return timedelta(seconds=float(given))
    if given is None or not isinstance(given, str):
        return given
    if name in ("string", "char"):
        return given
    if name == "binary":
        return bytes.fromhex(given)
    if name == "date":
        return date.fromisoformat(given)
    if name in ("timestamp", "timestamp_ntz"):
        return datetime.fromisoformat(given)
    if name == "time":
        return time_of_day.fromisoformat(given)
    if name == "decimal":
        return Decimal(given)
    return json.loads(given)


def _show(found: ManyResult, what: StateDescription, as_json: bool, explained: str | None = None) -> None:
    rows = [
        {
            "checkpoint_id": found.checkpoint_id,
            "completed_at": found.completed_at,
            "lineage": found.lineage,
            "key": plain(key),
            "value": plain(value),
        }
        for key, value in zip(found.keys, found.values, strict=True)
    ]
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            value = json.dumps(row["value"], ensure_ascii=False)
            click.echo(f"{moment(found.completed_at)}  checkpoint {found.checkpoint_id}  {row['key']}  {value}")
    if what.explanation and what.explanation != explained:
        click.echo(what.explanation, err=True)


def plain(value: Any) -> Any:
    """Return a value in JSON's types."""
    if isinstance(value, Row):
        names = type(value)._names
        return (
            {name: plain(part) for name, part in zip(names, value, strict=True)} if names else list(map(plain, value))
        )
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(plain(key)): plain(part) for key, part in value.items()}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal | date | time_of_day | timedelta):
        return str(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(part) for part in value]
    return value
