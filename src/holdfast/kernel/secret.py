"""Redaction of secrets in everything that a person may read: REST, logs, error messages, checkpoints, `info`, `repr`.

Redacted are the values of options whose keys have a word such as `password`; the user and password of URLs; and the
values after such a name in URL parameters, `name=value` pairs and entries of dictionaries.
"""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from typing import Any, Final

HIDDEN: Final = "******"
_SECRET: Final = re.compile(
    r"secret|token|passw|passphrase|authorization|credential|jaas|signature"
    r"|auth-params|basic[-.]auth|http-headers|azure\.sas"
    r"|(access|account|api|private|service|tls)[-.]?key|key\.pem"
    r"|(encryption|customer|keystore)[-.]?key(?![a-z])"  # spark.io.encryption.keySizeBits is not a secret
    r"|(^|[-.])(pass|pwd)$"
)
_NAMED: Final = frozenset({"user", "username", "sig"})
"""Redacted in URLs only; elsewhere these names may mean anything."""

_CHARACTER: Final = r"(?:[^\s'\"]|(?<=\w)['\"](?=\w))"  # an apostrophe inside a word is not a quote
_URL: Final = re.compile(
    # In Azure's paths the part before @ is the container.
    rf"(?<!abfs)(?<!abfss)(?<!wasb)(?<!wasbs)://(?P<rest>(?:(?!://){_CHARACTER})+)"
)
_ORACLE: Final = re.compile(rf"\b(?P<before>jdbc:oracle:\w+:)(?P<rest>[^@\s'\"](?:(?!://|jdbc:){_CHARACTER})*)@")
_NAME: Final = re.compile(r"(?<![A-Za-z0-9_./-])(?P<key>[A-Za-z0-9_.-]+)(?:=|(?P<mark>\\*['\"])\s*:\s*(?=\\*['\"]))")
_QUOTED: Final = r"(?P<quote>\\*['\"])(?:\\.|.)*?(?:(?P=quote)|$)"
_VALUE: Final = re.compile(rf"{_QUOTED}|{_CHARACTER}+", re.MULTILINE)
_PARAMETER: Final = re.compile(rf"{_QUOTED}|\{{[^}}\n]*\}}|(?:(?![&;]){_CHARACTER})+", re.MULTILINE)
_PEM: Final = re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----)(?s:.*?)(-----END|$)")
_QUERY: Final = re.compile(r"[?;][\w.%-]+=")
_PATH: Final = re.compile(r"[/?#;]")
_PORT: Final = re.compile(r"\[.*|[^:]*(:\d*)?")
_HOST: Final = re.compile(r"[\w-]+(\.[\w-]+)+(:\d+)?|[\w-]+:\d+|\[.*\](:\d+)?")
_CONNECTION: Final = re.compile(r"\b(host|hostaddr|dbname)=")
"""Marks a connection string of libpq."""


def is_secret(key: str) -> bool:
    """Return whether the value of an option must be redacted, by the words in its key."""
    return _SECRET.search(key.lower().replace("_", "-")) is not None


def redacted_value(key: str, value: Any) -> str:
    """Return the value of an option, redacted."""
    return HIDDEN if is_secret(key) else without_credentials(str(value))


def without_credentials(text: str) -> str:
    """Return a text without the users and passwords of URLs and settings in it."""
    if "@" in text:
        text = _URL.sub(_without_user, _ORACLE.sub(rf"\g<before>{HIDDEN}@", text))
    if "PRIVATE KEY-----" in text:
        text = _PEM.sub(rf"\1{HIDDEN}\2", text)
    return _without_values(text) if "=" in text or ":" in text else text


def location_without_credentials(text: str) -> str:
    """Return a location without credentials, so that it is the same for every user who reads it."""
    return without_credentials(text).replace(f"//{HIDDEN}@", "//")


def _without_user(found: re.Match[str]) -> str:
    """Remove the user of a URL. A password may contain any delimiter; a host has a dot or a port, or is one word."""
    rest = found["rest"]
    if "@" not in rest:
        return found[0]
    before_query = _QUERY.split(rest, maxsplit=1)[0]
    searched = before_query if "@" in before_query else rest
    authority = _PATH.split(searched, maxsplit=1)[0]
    user, _, host = authority.rpartition("@")
    if "@" not in authority:
        end = -1 if all(map(_PORT.fullmatch, authority.split(","))) else searched.rfind("@")
    elif ":" in user and not _HOST.fullmatch(host):
        end = searched.rfind("@")
    else:
        end = len(user)
    return found[0] if end < 0 else f"://{HIDDEN}{rest[end:]}"


def _without_values(text: str) -> str:
    parts: list[str] = []
    end = 0
    is_connection = _CONNECTION.search(text) is not None
    for name in _NAME.finditer(text):
        is_parameter = text[max(0, name.start() - 1) : name.start()] in ("?", "&", ";")
        is_user = name["key"].lower() in _NAMED and (is_parameter or is_connection)
        if name.start() < end or not (is_user or is_secret(name["key"])):
            continue
        value = (_PARAMETER if is_parameter else _VALUE).match(text, name.end())
        if value is not None:
            quote = value["quote"] or ""
            parts += text[end : name.end()], quote, HIDDEN, quote
            end = value.end()
    return "".join([*parts, text[end:]])


def redacted_message(error: BaseException) -> str:
    """Return an error's message, redacted: errors of other libraries quote what they connect to."""
    return without_credentials(str(error))


class _WithoutCredentials(logging.Filter):
    """Redacts a log record and its traceback before any handler sees them."""

    def filter(self, record: logging.LogRecord) -> bool:
        with suppress(Exception):  # the handler reports a record that cannot be formatted
            message = record.getMessage()
            hidden = without_credentials(message)
            if hidden != message:
                record.msg, record.args = hidden, None
        if record.exc_info and record.exc_info[1] is not None:
            trace = logging.Formatter().formatException(record.exc_info)
            hidden = without_credentials(trace)
            if hidden != trace:  # else a handler would format the error again
                record.exc_info, record.exc_text = None, hidden
        if record.stack_info:
            record.stack_info = without_credentials(record.stack_info)
        return True


_FILTER: Final = _WithoutCredentials()


def get_logger(name: str) -> logging.Logger:
    """Return a logger of this package whose records are redacted."""
    logger = logging.getLogger(name)
    logger.addFilter(_FILTER)
    return logger
