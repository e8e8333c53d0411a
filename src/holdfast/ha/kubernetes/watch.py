"""A watcher of one ConfigMap: list, watch, and continue after everything that ends a watch.

    list (version v) --> watch from v --event, bookmark--> v moves on
      ^                    |   ^
      |                    |   '-- connection broke, time limit: watch again from v
      '-- 410: v is too old, or an invalid answer: begin again

One reader a process serves all handlers. A second thread calls them, so that none of them delays the reading, and no
handler is ever called while a lock is held.
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

logger = get_logger(__name__)

_FIRST_DELAY: Final = 0.1
_LAST_DELAY: Final = 5.0
_JOIN_SECONDS: Final = 5.0


class ConfigMapHandler(ABC):
    """Is notified of a ConfigMap, by one thread, one call at a time."""

    @abstractmethod
    def on_config_map(self, config_map: KubernetesConfigMap | None) -> None:
        """The ConfigMap is now this; None: there is none. The first call reports the initial state."""

    @abstractmethod
    def on_watch_error(self, error: HoldfastError) -> None:
        """The ConfigMap cannot be followed until the rights of this client are changed."""


class ExpiredError(Exception):
    """The version from which a watch was to continue is too old."""


@dataclass(frozen=True)
class _Event:
    kind: str
    version: str
    config_map: KubernetesConfigMap | None


class Subscription:
    def __init__(self, watcher: ConfigMapWatcher, handler: ConfigMapHandler) -> None:
        self._watcher = watcher
        self._handler = handler
        self._delivery = threading.RLock()
        self._closed = False

    def deliver(self, update: KubernetesConfigMap | HoldfastError | None) -> None:
        """Call the handler, unless the subscription was closed."""
        with self._delivery:
            if self._closed:
                return
            try:
                if isinstance(update, HoldfastError):
                    self._handler.on_watch_error(update)
                else:
                    self._handler.on_config_map(update)
            except Exception:
                logger.exception("A handler of a watched ConfigMap failed; it will be called at the next change.")

    def close(self) -> None:
        """End the subscription; no call of the handler begins after this returned."""
        with self._delivery:
            self._closed = True
        self._watcher.remove(self)


class ConfigMapWatcher:
    """Follows one ConfigMap for any number of handlers.

    Args:
        connection: The API server.
        name: The ConfigMap.
        watch_seconds: The time limit after which the server ends a watch and a new one begins.
        grace_seconds: A connection that is silent for longer than that after the end of its watch is dead.
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
        self._updates: queue.SimpleQueue[tuple[Subscription | None, KubernetesConfigMap | HoldfastError | None] | None]
        self._updates = queue.SimpleQueue()
        self._closed = threading.Event()
        self._response: httpx2.Response | None = None
        self._failures = 0  # since a watch was accepted
        self._reader = threading.Thread(target=self._read, name=f"watch-{name}", daemon=True)
        self._notifier = threading.Thread(target=self._notify_handlers, name=f"watch-updates-{name}", daemon=True)
        self._started = False

    def subscribe(self, handler: ConfigMapHandler) -> Subscription:
        """Notify a handler from now on, beginning with the current state. The first one starts the threads."""
        subscription = Subscription(self, handler)
        with self._lock:
            if self._closed.is_set():
                raise RuntimeError(f"The watch of ConfigMap {self._name!r} is closed.")
            self._subscriptions.append(subscription)
            if self._synchronised:
                self._updates.put((subscription, self._newest))
            if not self._started:
                self._started = True
                self._reader.start()
                self._notifier.start()
        return subscription

    def remove(self, subscription: Subscription) -> None:
        with self._lock:
            if subscription in self._subscriptions:
                self._subscriptions.remove(subscription)

    def close(self) -> None:
        """End all subscriptions and both threads; the connection stays open."""
        self._closed.set()
        self._updates.put(None)
        with self._lock:
            response, started = self._response, self._started
        if response is not None:
            _hang_up(response)
        if started and threading.current_thread() not in (self._reader, self._notifier):
            self._notifier.join(_JOIN_SECONDS)
            self._reader.join(_JOIN_SECONDS)

    def _notify_handlers(self) -> None:
        while (item := self._updates.get()) is not None:
            subscription, update = item
            with self._lock:
                listeners = [subscription] if subscription is not None else list(self._subscriptions)
            for listener in listeners:
                listener.deliver(update)

    def _publish(self, config_map: KubernetesConfigMap | None) -> None:
        with self._lock:
            if self._synchronised and config_map == self._newest:
                return
            self._newest, self._synchronised = config_map, True
            self._updates.put((None, config_map))

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
            except Exception as error:  # noqa: BLE001 - the watch is opened again, whatever ended it
                if self._closed.is_set():
                    return
                version = self._after_failure(error, version)

    def _after_failure(self, error: Exception, version: str | None) -> str | None:
        self._failures += 1
        if self._failures == 1 and (is_forbidden(error) or is_unauthorized(error)):
            reported = StorageError(f"Error while watching the ConfigMap {self._name!r}: {describe(error)}")
            reported.__cause__ = error
            self._updates.put((None, reported))
        logger.debug("The watch of ConfigMap %r was interrupted: %r", self._name, error)
        longest = min(_LAST_DELAY, _FIRST_DELAY * 2.0 ** min(self._failures, 10))
        delay = longest * random.uniform(0.5, 1.0)  # noqa: S311 - spreads retries
        self._clock.sleep(delay, self._closed)
        # After a transport error the version is still valid. After other errors, such as 410, it begins again.
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
        ExpiredError: It is an error 410.
        StorageError: It is another error, or not an event.
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
    except Exception as error:  # the library has errors of its own for invalid objects
        raise StorageError(
            f"The API server sent {line!r:.200} in a watch, which is not an event: {error!r:.200}."
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
