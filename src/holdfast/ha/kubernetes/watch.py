"""Following one ConfigMap: list, watch, and go on after everything that ends a watch.

    list (version v) --> watch from v --event, bookmark--> v moves on
      ^                    |   ^
      |                    |   '-- connection broke, time limit: watch again from v
      '-- 410: v is too old, or an answer that makes no sense: begin again

One reader a process feeds all who are interested. A second thread tells them, so that none of them delays the reading,
and nobody is ever told while a lock is held.
"""

from __future__ import annotations

import json
import queue
import random
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, cast

import httpx2
from lightkube.resources.core_v1 import ConfigMap

from holdfast.errors import HoldfastError, StorageError
from holdfast.ha.kubernetes.client import KubernetesConnection, describe, is_forbidden, is_unauthorized
from holdfast.ha.kubernetes.config_map import KubernetesConfigMap
from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.secret import get_logger

_logger = get_logger(__name__)

_FIRST_DELAY: Final = 0.1
_LAST_DELAY: Final = 5.0
_JOIN_SECONDS: Final = 5.0


class ConfigMapHandler(ABC):
    """Hears of a ConfigMap; one thread calls, one call at a time."""

    @abstractmethod
    def on_config_map(self, config_map: KubernetesConfigMap | None) -> None:
        """The ConfigMap is now this; None: there is none. The first call tells what was there at the beginning."""

    @abstractmethod
    def on_watch_error(self, error: HoldfastError) -> None:
        """The ConfigMap cannot be followed, and trying again is of no use until somebody changes the rights."""


class ExpiredError(Exception):
    """The version from which a watch wanted to go on is too old."""


@dataclass(frozen=True)
class _Event:
    kind: str
    version: str
    config_map: KubernetesConfigMap | None


class Subscription:
    """One handler of a watcher."""

    def __init__(self, watcher: ConfigMapWatcher, handler: ConfigMapHandler) -> None:
        self._watcher = watcher
        self._handler = handler
        self._delivery = threading.RLock()
        self._closed = False

    def deliver(self, news: KubernetesConfigMap | HoldfastError | None) -> None:
        """Tell the handler, unless the subscription was closed."""
        with self._delivery:
            if self._closed:
                return
            try:
                if isinstance(news, HoldfastError):
                    self._handler.on_watch_error(news)
                else:
                    self._handler.on_config_map(news)
            except Exception:
                _logger.exception("A handler of a watched ConfigMap failed; it will hear of the next change.")

    def close(self) -> None:
        """End it; no call of the handler begins after this returned."""
        with self._delivery:
            self._closed = True
        self._watcher.remove(self)


class ConfigMapWatcher:
    """Follows one ConfigMap for any number of handlers.

    Args:
        connection: The API server.
        name: The ConfigMap.
        watch_seconds: After so long the server ends a watch and a new one begins.
        grace_seconds: A connection that is silent for longer than that beyond the end of its watch is dead.
        clock: Sleeps between two tries.
    """

    def __init__(
        self,
        connection: KubernetesConnection,
        name: str,
        *,
        watch_seconds: float = 30.0,
        grace_seconds: float = 5.0,
        clock: Clock | None = None,
    ) -> None:
        self._connection = connection
        self._name = name
        self._watch_seconds = max(1, round(watch_seconds))
        self._grace_seconds = grace_seconds
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._subscriptions: list[Subscription] = []
        self._newest: KubernetesConfigMap | None = None
        self._synchronised = False
        self._news: queue.SimpleQueue[tuple[Subscription | None, KubernetesConfigMap | HoldfastError | None] | None]
        self._news = queue.SimpleQueue()
        self._closed = threading.Event()
        self._response: httpx2.Response | None = None
        self._failures = 0  # since a watch was accepted
        self._reader = threading.Thread(target=self._read, name=f"watch-{name}", daemon=True)
        self._teller = threading.Thread(target=self._tell, name=f"watch-news-{name}", daemon=True)
        self._started = False

    def subscribe(self, handler: ConfigMapHandler) -> Subscription:
        """Tell a handler from now on, beginning with what is there. The first one starts the threads."""
        subscription = Subscription(self, handler)
        with self._lock:
            if self._closed.is_set():
                raise RuntimeError(f"The watch of ConfigMap {self._name!r} is closed.")
            self._subscriptions.append(subscription)
            if self._synchronised:
                self._news.put((subscription, self._newest))
            if not self._started:
                self._started = True
                self._reader.start()
                self._teller.start()
        return subscription

    def remove(self, subscription: Subscription) -> None:
        """Forget a subscription."""
        with self._lock:
            if subscription in self._subscriptions:
                self._subscriptions.remove(subscription)

    def close(self) -> None:
        """End all subscriptions and both threads; the connection stays."""
        self._closed.set()
        self._news.put(None)
        with self._lock:
            response, started = self._response, self._started
        if response is not None:
            _hang_up(response)
        if started and threading.current_thread() not in (self._reader, self._teller):
            self._teller.join(_JOIN_SECONDS)
            self._reader.join(_JOIN_SECONDS)

    def _tell(self) -> None:
        while (item := self._news.get()) is not None:
            subscription, news = item
            with self._lock:
                listeners = [subscription] if subscription is not None else list(self._subscriptions)
            for listener in listeners:
                listener.deliver(news)

    def _publish(self, config_map: KubernetesConfigMap | None) -> None:
        with self._lock:
            if self._synchronised and config_map == self._newest:
                return
            self._newest, self._synchronised = config_map, True
            self._news.put((None, config_map))

    def _read(self) -> None:
        version: str | None = None
        while not self._closed.is_set():
            try:
                if version is None:
                    version = self._list()
                for event in self._watch(version):
                    version = event.version
                    if event.kind != "BOOKMARK":
                        self._publish(event.config_map)
            except Exception as error:
                if self._closed.is_set():
                    return
                version = self._after_failure(error, version)

    def _after_failure(self, error: Exception, version: str | None) -> str | None:
        self._failures += 1
        if self._failures == 1 and (is_forbidden(error) or is_unauthorized(error)):
            told = StorageError(f"Error while watching the ConfigMap {self._name!r}: {describe(error)}")
            told.__cause__ = error
            self._news.put((None, told))
        _logger.debug("The watch of ConfigMap %r was interrupted: %r", self._name, error)
        delay = min(_LAST_DELAY, _FIRST_DELAY * 2.0 ** min(self._failures, 10)) * random.uniform(0.5, 1.0)
        self._clock.sleep(delay, self._closed)
        # Transport errors leave the version good. After everything else, 410 of course, it begins again.
        return version if isinstance(error, httpx2.TransportError) else None

    def _list(self) -> str:
        listed = self._connection.requests.list(ConfigMap, fields={"metadata.name": self._name})
        items = list(listed)
        self._publish(KubernetesConfigMap.of(items[0]) if items else None)
        return str(listed.resourceVersion)

    def _watch(self, version: str) -> Iterator[_Event]:
        connection = self._connection
        parameters: dict[str, str | int] = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "fieldSelector": f"metadata.name={self._name}",
            "resourceVersion": version,
            "timeoutSeconds": self._watch_seconds,
        }
        # A live server ends the watch at the time limit; silence beyond it means that the connection is dead.
        timeout = httpx2.Timeout(connection.request_seconds, read=self._watch_seconds + self._grace_seconds)
        path = f"/api/v1/namespaces/{connection.namespace}/configmaps"
        with connection.watches.stream("GET", path, params=parameters, timeout=timeout) as response:
            if response.status_code >= 400:
                response.read()
                response.raise_for_status()
            self._failures = 0
            with self._lock:
                self._response = response
            try:
                for line in response.iter_lines():
                    if self._closed.is_set():
                        return
                    if line.strip():
                        yield _parse(line)
            finally:
                with self._lock:
                    self._response = None


def _parse(line: str) -> _Event:
    """Read one line of a watch.

    Raises:
        ExpiredError: The server says 410 in it.
        StorageError: It says something else that is wrong, or is no event.
    """
    try:
        event: dict[str, Any] = json.loads(line)
        kind, value = str(event["type"]), event["object"]
        if kind == "ERROR":
            code, message = value.get("code"), value.get("message")
        else:
            version = str(value["metadata"]["resourceVersion"])
            is_empty = kind in ("BOOKMARK", "DELETED")
            found = None if is_empty else KubernetesConfigMap.of(cast(ConfigMap, ConfigMap.from_dict(value)))
            return _Event(kind, version, found)
    except Exception as error:  # the library has errors of its own for objects that are none
        raise StorageError(
            f"The API server sent {line!r:.200} in a watch, which is no event: {error!r:.200}."
        ) from error
    if code == 410:
        raise ExpiredError(message)
    raise StorageError(f"The API server ended a watch: {message!r:.200} (code {code!r:.40}).")


def _hang_up(response: httpx2.Response) -> None:
    """Wake a thread that waits for a line of this response.

    Closing from another thread would not wake it; shutting the socket down does. The plain socket's method is used,
    because the one of a TLS socket would take the TLS state away from under the reader.
    """
    stream = response.extensions.get("network_stream")
    raw = stream.get_extra_info("socket") if stream is not None else None
    if raw is None:
        return
    try:
        socket.socket.shutdown(raw, socket.SHUT_RDWR)
    except OSError:
        return
