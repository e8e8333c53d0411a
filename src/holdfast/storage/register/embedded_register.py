"""The fenced register in the memory of one process."""

from __future__ import annotations

import threading

from holdfast.errors import ConflictError
from holdfast.storage.register.fenced_register import GENESIS, RegisterRecord, RemovableRegister


class EmbeddedRegister(RemovableRegister):
    """A register that lives as long as the object; several leaders of one process share the object."""

    def __init__(self) -> None:
        self._newest = GENESIS
        self._lock = threading.Lock()

    def _load(self) -> RegisterRecord:
        return self._newest

    def _swap(self, base: RegisterRecord, new: RegisterRecord) -> None:
        with self._lock:
            if self._newest.nonce != base.nonce:
                raise ConflictError(f"The register is at version {self._newest.state.version} already.")
            self._newest = new

    def _remove(self, base: RegisterRecord) -> None:
        self._swap(base, GENESIS)

    def __repr__(self) -> str:
        return f"EmbeddedRegister(version={self._newest.state.version})"
