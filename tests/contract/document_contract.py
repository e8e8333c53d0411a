"""The contract of versioned documents: one suite for all stores.

A writer is stopped between any two of its requests, while another process writes; requests and answers get lost;
writers crash. As in `register_contract`, no thread and no clock is needed for that: a `Gate` acts at the chosen step.
"""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import pytest

from holdfast.errors import ConflictError, PossibleInconsistentStateError, StorageError
from holdfast.kernel.ids import new_nonce
from holdfast.storage.state_handle import decode_document, encode_document
from holdfast.storage.versioned_document import (
    WINDOW,
    DocumentFormat,
    DocumentRemovedError,
    RemovableDocument,
    VersionedDocument,
)
from tests.contract.register_contract import Crash, Gate, raiser


@dataclass(frozen=True)
class Words:
    """A version: all the words that were ever written, the last one its own."""

    number: int = 0
    words: tuple[str, ...] = ()
    history: tuple[str, ...] = ()

    @property
    def nonce(self) -> str:
        return self.history[0] if self.history else ""

    def with_word(self, word: str) -> Words:
        return Words(self.number + 1, (*self.words, word), (new_nonce(), *self.history[: WINDOW - 1]))

    def encode(self) -> bytes:
        return encode_document("words", 1, {"number": self.number, "words": self.words, "history": self.history})


def decode(data: bytes, where: str, number: int) -> Words:
    body = decode_document(data, where, "words", 1)
    assert number in (0, body["number"]), "a store that counts versions counts them as the document does"
    return Words(body["number"], tuple(body["words"]), tuple(body["history"]))


WORDS = DocumentFormat("words", Words(), Words.encode, decode)
Document = VersionedDocument[Words]


class DocumentSite(ABC):
    """One document in one store, opened by several processes."""

    @abstractmethod
    def open(self, gate: Gate | None = None) -> Document:
        """Open the document; with a gate, every request to the store passes it before and after."""

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Remove what the store keeps of it."""


NewSite = Callable[[], DocumentSite]


def every_step(new_site: NewSite) -> Iterator[tuple[DocumentSite, Gate]]:
    """Yield a new site and a gate again and again, each time armed one step later; the caller ends the loop."""
    for step in itertools.count():
        site = new_site()
        yield site, Gate(step)
        site.close()


def write(document: Document, word: str) -> None:
    base = document.read()
    document.replace(base, base.with_word(word))


def write_in_turn(site: DocumentSite, words: int) -> Callable[[], None]:
    """Return what another process does meanwhile: write so many words."""

    def others() -> None:
        document = site.open()
        for number in range(words):
            write(document, f"other {number}")

    return others


class VersionedDocumentContract:
    """The suite; a subclass provides the fixture `new_site`, a function that makes a new, empty site at each call."""

    ahead: tuple[int, ...] = (1, 2, 70)
    """How many versions another process writes while the writer is stopped."""

    @pytest.fixture
    def site(self, new_site: NewSite) -> Iterator[DocumentSite]:
        site = new_site()
        yield site
        site.close()

    def test_an_unwritten_document_has_version_0(self, site: DocumentSite) -> None:
        assert site.open().read() == Words()

    def test_other_processes_read_a_written_version(self, site: DocumentSite) -> None:
        document = site.open()
        for number in range(1, 4):
            write(document, f"word {number}")
            found = site.open().read()
            assert (found.number, found.words[-1]) == (number, f"word {number}")
        assert len(set(found.history)) == 3

    def test_a_version_is_replaced_only_by_a_writer_that_read_it(self, site: DocumentSite) -> None:
        first, second = site.open(), site.open()
        base = first.read()
        write(second, "second")
        for _ in range(2):
            with pytest.raises(ConflictError):
                first.replace(base, base.with_word("first"))
        assert first.read().words == ("second",)
        write(first, "first")
        assert second.read().words == ("second", "first")

    def test_a_version_of_another_document_object_can_be_the_base(self, site: DocumentSite) -> None:
        write(site.open(), "first")
        base = site.open().read()
        site.open().replace(base, base.with_word("second"))
        assert site.open().read().words == ("first", "second")

    def test_a_conflict_returns_the_newest_version(self, site: DocumentSite) -> None:
        document = site.open()
        base = document.read()
        write(site.open(), "other")
        newest = document.try_replace(base, base.with_word("own"))
        assert newest is not None
        assert newest.words == ("other",)
        assert document.try_replace(newest, newest.with_word("own")) is None

    def test_a_writer_that_sleeps_at_any_step_is_recorded_or_refused(self, new_site: NewSite) -> None:
        for others in self.ahead:
            for site, gate in every_step(new_site):
                document = site.open(gate)
                write(document, "first")
                base = document.read()
                gate.arm(write_in_turn(site, others))
                try:
                    document.replace(base, base.with_word("sleeper"))
                    outcome = {True}
                except ConflictError:
                    outcome = {False}
                except PossibleInconsistentStateError:
                    assert others >= WINDOW - 1
                    outcome = {True, False}
                if not gate.has_acted:
                    break
                found = site.open().read()
                assert ("sleeper" in found.words) in outcome, f"{gate}, {others} versions"
                assert found.words[0] == "first"
                assert found.words[-others:] == tuple(f"other {number}" for number in range(others)) or (
                    found.words[-1] == "sleeper"
                )
                assert len(found.words) == found.number, "no version is lost or written twice"

    def test_a_reader_that_sleeps_at_any_step_sees_one_version_whole(self, new_site: NewSite) -> None:
        for others in self.ahead:
            for site, gate in every_step(new_site):
                write(site.open(), "first")
                reader = site.open(gate)
                gate.arm(write_in_turn(site, others))
                found = reader.read()
                if not gate.has_acted:
                    break
                assert found.number in (1, others + 1), gate
                assert len(found.words) == found.number
                assert reader.read() == site.open().read()

    def test_a_writer_that_dies_at_any_step_leaves_the_old_or_the_new_version(self, new_site: NewSite) -> None:
        seen = set()
        for site, gate in every_step(new_site):
            document = site.open(gate)
            write(document, "first")
            base = document.read()
            gate.arm(raiser(Crash()))
            with suppress(Crash):
                document.replace(base, base.with_word("second"))
            if not gate.has_acted:
                break
            found = site.open().read()
            assert found.words in (("first",), ("first", "second")), gate
            seen.add(found.words)
            write(site.open(), "next")
            assert site.open().read().words == (*found.words, "next"), gate
        assert len(seen) == 2, "it died before the write, and after it"

    def test_a_crash_of_the_creator_at_any_step_blocks_no_other_process(self, new_site: NewSite) -> None:
        for site, gate in every_step(new_site):
            document = site.open(gate)
            gate.arm(raiser(Crash()))
            with suppress(Crash):
                write(document, "first")
            if not gate.has_acted:
                break
            found = site.open().read()
            assert found.words in ((), ("first",)), gate
            write(site.open(), "next")
            assert site.open().read().words == (*found.words, "next"), gate

    def test_the_outcome_of_a_lost_request_or_answer_is_reported_correctly(self, new_site: NewSite) -> None:
        for site, gate in every_step(new_site):
            document = site.open(gate)
            write(document, "first")
            base = document.read()
            gate.arm(raiser(PossibleInconsistentStateError("The connection broke.")))
            possible: list[tuple[str, ...]] = [("first", "second")]
            try:
                document.replace(base, base.with_word("second"))
            except PossibleInconsistentStateError:
                possible.append(("first",))
            except StorageError:
                possible = [("first",)]
            if not gate.has_acted:
                break
            assert site.open().read().words in possible, gate

    def test_no_write_of_concurrent_threads_is_lost(self, site: DocumentSite) -> None:
        written: list[str] = []
        mutex = threading.Lock()

        def work(number: int) -> None:
            document = site.open()
            for turn in range(8):
                word = f"{number} {turn}"
                while True:
                    try:
                        write(document, word)
                        break
                    except ConflictError:
                        continue
                with mutex:
                    written.append(word)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = site.open().read()
        assert sorted(found.words) == sorted(written)
        assert found.number == len(written) == 24

    def test_a_watch_gets_the_newest_version_and_every_lasting_one(self, site: DocumentSite) -> None:
        seen: list[int] = []
        changed = threading.Condition()

        def on_version(version: Words) -> None:
            with changed:
                seen.append(version.number)
                changed.notify_all()

        errors: list[Exception] = []
        watch = site.open().watch(on_version, 0.01, on_error=errors.append)
        writer = site.open()
        with changed:
            for number in range(4):
                assert changed.wait_for(lambda expected=number: seen[-1:] == [expected], 20)  # type: ignore[misc]
                write(writer, f"word {number}")
        watch.close()
        seen.clear()
        write(writer, "after the watch")
        assert (seen, errors) == ([], [])


class RemovableDocumentContract:
    """What a document that can be removed must do beside that."""

    def test_a_document_is_removed_only_in_the_version_that_was_read(self, new_site: NewSite) -> None:
        site = new_site()
        document = removable(site)
        document.remove(document.read())
        write(document, "first")
        base = document.read()
        write(site.open(), "second")
        with pytest.raises(ConflictError):
            document.remove(base)
        assert document.read().words == ("first", "second")
        document.remove(document.read())
        assert site.open().read() == Words()
        site.close()

    def test_a_writer_that_read_before_a_removal_changes_nothing(self, new_site: NewSite) -> None:
        for made_anew in (False, True):
            site = new_site()
            writer, other = site.open(), removable(site)
            write(writer, "old")
            base = writer.read()
            other.remove(other.read())
            if made_anew:
                write(other, "new")
            for _ in range(2):
                with suppress(DocumentRemovedError):
                    newest = writer.try_replace(base, base.with_word("lost"))
                    assert newest is not None
                    assert newest.words == (("new",) if made_anew else ())
            assert site.open().read().words == (("new",) if made_anew else ())
            site.close()

    def test_a_removal_interrupted_at_any_step_can_be_repeated(self, new_site: NewSite) -> None:
        for error in (Crash(), PossibleInconsistentStateError("The connection broke.")):
            for site, gate in every_step(new_site):
                write(site.open(), "old")
                document = removable(site, gate)
                base = document.read()
                gate.arm(raiser(error))
                with suppress(Crash, PossibleInconsistentStateError, StorageError):
                    document.remove(base)
                if not gate.has_acted:
                    break
                again = removable(site)
                again.remove(again.read())
                assert site.open().read() == Words(), gate
                write(site.open(), "new")
                assert site.open().read().words == ("new",), gate


def removable(site: DocumentSite, gate: Gate | None = None) -> RemovableDocument[Words]:
    document = site.open(gate)
    assert isinstance(document, RemovableDocument)
    return document
