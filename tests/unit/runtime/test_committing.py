"""Committers are driven in epoch order, as often as they ask, and nothing a checkpoint names is dropped by accident."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigurationError, FencedError, StorageError
from holdfast.kernel import fault
from holdfast.kernel.clock import ManualClock
from holdfast.runtime.commit.commit_manager import CommitManager, CommitReport, CommitSettings, CommittingJob
from holdfast.runtime.commit.sink_metrics import SinkMeter
from holdfast.runtime.function.sink import (
    BatchSinkWriter,
    CommitRequest,
    Committer,
    CommitterInitContext,
    Sink,
    SinkWriter,
    WriterInitContext,
)
from holdfast.storage.job_directory import FileName


class Outside:
    """The outside world: an append-only journal, and what is visible in it (each committable once)."""

    def __init__(self) -> None:
        self.journal: list[tuple[int, int, Any]] = []
        self.visible: set[str] = set()
        self.calls = 0

    def take(self, request: CommitRequest) -> bool:
        self.journal.append((request.epoch, request.subtask, request.committable))
        new = request.committable not in self.visible
        self.visible.add(request.committable)
        return new


class JournalCommitter(Committer):
    def __init__(self, outside: Outside, behave: Callable[[CommitRequest], None] | None) -> None:
        self._outside = outside
        self._behave = behave
        self.closed = False

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        self._outside.calls += 1
        for request in requests:
            if self._behave is not None:
                self._behave(request)
            if request.answer == "committed" and not self._outside.take(request):
                request.signal_already_committed()

    def close(self) -> None:
        self.closed = True


class JournalSink(Sink):
    """Test sink over an `Outside` in this process."""

    def __init__(self, outside: Outside, behave: Callable[[CommitRequest], None] | None = None) -> None:
        self.outside = outside
        self.behave = behave
        self.committers: list[JournalCommitter] = []
        self.swept: list[str] = []

    def create_writer(self, context: WriterInitContext) -> SinkWriter | BatchSinkWriter:
        raise AssertionError("the driver creates no writers")

    def create_committer(self, context: CommitterInitContext) -> Committer:
        self.committers.append(JournalCommitter(self.outside, self.behave))
        return self.committers[-1]

    def sweep(self, context: CommitterInitContext, is_dead: Callable[[FileName], bool]) -> int:
        self.swept.append(context.uid)
        return 1


class ShowSink(JournalSink):
    """A sink without a committer."""

    def create_committer(self, context: CommitterInitContext) -> Any:
        return None


class Impatient(ManualClock):
    """A manual clock on which whoever sleeps is woken at once; it remembers the pauses."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    def sleep(self, seconds: float, wake: threading.Event | None = None) -> bool:
        self.pauses.append(seconds)
        self.advance(round(seconds * 1000))
        return False


def entries(*pairs: tuple[int, int]) -> list[dict[str, Any]]:
    return [{"epoch": epoch, "subtask": subtask, "value": f"{epoch}/{subtask}"} for epoch, subtask in pairs]


def committing(sinks: dict[str, Sink], meter: SinkMeter | None = None, **settings: Any) -> CommitManager:
    return CommitManager(sinks, CommittingJob("0" * 32, "/nowhere"), CommitSettings(**settings), meter)


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    yield
    fault.clear()


def test_a_checkpoint_of_several_epochs_is_committed_in_their_order_once_per_epoch() -> None:
    outside = Outside()
    driver = committing({"out": JournalSink(outside)})

    report = driver.commit(7, {"out": entries((3, 1), (2, 0), (3, 0), (2, 1))})

    assert outside.journal == [(2, 0, "2/0"), (2, 1, "2/1"), (3, 0, "3/0"), (3, 1, "3/1")]
    assert outside.calls == 2
    assert report == CommitReport(committed=4)


def test_output_committed_again_after_a_recovery_is_visible_once() -> None:
    outside = Outside()
    for checkpoint_id in (7, 7, 8):
        report = committing({"out": JournalSink(outside)}).commit(checkpoint_id, {"out": entries((2, 0), (2, 1))})
        assert report == CommitReport(committed=2)

    assert outside.visible == {"2/0", "2/1"}


def test_requests_that_ask_for_a_retry_are_tried_again_alone_with_growing_pauses() -> None:
    outside, clock = Outside(), Impatient()

    def busy(request: CommitRequest) -> None:
        if request.subtask == 1 and request.get_number_of_retries() < 3:
            request.retry_later(ConnectionError("try later"))

    report = committing({"out": JournalSink(outside, busy)}, clock=clock).commit(
        7, {"out": entries((2, 0), (2, 1), (3, 0))}
    )

    assert report == CommitReport(committed=3)
    assert outside.journal == [(2, 0, "2/0"), (2, 1, "2/1"), (3, 0, "3/0")], "epoch 3 waits for all of epoch 2"
    assert clock.pauses == [0.1, 0.2, 0.4]


def test_a_committer_may_return_the_rest_of_a_committable() -> None:
    outside = Outside()

    def half(request: CommitRequest) -> None:
        if request.get_committable() == "2/0":
            request.update_and_retry_later("the rest of 2/0")

    committing({"out": JournalSink(outside, half)}, clock=Impatient()).commit(7, {"out": entries((2, 0))})

    assert outside.visible == {"the rest of 2/0"}


def test_the_job_fails_with_the_reason_after_the_last_retry() -> None:
    outside, clock = Outside(), Impatient()

    def never(request: CommitRequest) -> None:
        request.retry_later(ConnectionError("the table is locked"))

    driver = committing({"out": JournalSink(outside, never)}, retries=2, clock=clock)
    with pytest.raises(StorageError, match=r"Failed to commit 2 committables of the sink 'out' from epoch 4.*2 retries"
                                           ".*the table is locked") as caught:  # fmt: skip
        driver.commit(7, {"out": entries((4, 0), (4, 1), (5, 0))})

    assert isinstance(caught.value.__cause__, ConnectionError)
    assert outside.calls == 3
    assert outside.visible == set(), "epoch 5 must not be visible before epoch 4"


def test_nothing_is_retried_after_a_stop() -> None:
    outside, clock = Outside(), Impatient()
    sink = JournalSink(outside, lambda request: request.retry_later())
    driver = committing({"out": sink}, clock=clock, is_stopped=lambda: True)

    with pytest.raises(StorageError, match="Failed to commit 1 committables"):
        driver.commit(7, {"out": entries((4, 0))})

    assert clock.pauses == []


def test_a_failure_with_a_known_reason_is_logged_counted_and_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    outside = Outside()

    def expired(request: CommitRequest) -> None:
        if request.subtask == 0:
            request.signal_failed_with_known_reason(TimeoutError("the transaction has expired"))

    with caplog.at_level(logging.ERROR):
        report = committing({"out": JournalSink(outside, expired)}).commit(7, {"out": entries((2, 0), (2, 1))})

    assert report == CommitReport(committed=1, dropped=1)
    assert outside.visible == {"2/1"}
    assert "'2/0' of epoch 2, subtask 0: the transaction has expired" in caplog.text


@pytest.mark.parametrize("how", ["signals", "raises"])
def test_a_failure_with_an_unknown_reason_fails_the_job_after_all_other_sinks_were_tried(how: str) -> None:
    bad, good, worse = Outside(), Outside(), Outside()

    def fail(request: CommitRequest) -> None:
        error = ValueError(f"no such table for {request.committable}")
        if how == "raises":
            raise error
        request.signal_failed_with_unknown_reason(error)

    driver = committing({"bad": JournalSink(bad, fail), "good": JournalSink(good), "worse": JournalSink(worse, fail)})
    with pytest.raises(StorageError, match=r"sink 'bad' from epoch 2 \(checkpoint 7\)") as caught:
        driver.commit(7, {uid: entries((2, 0)) for uid in ("worse", "good", "bad")})

    assert isinstance(caught.value.__cause__, ValueError)
    assert "sink 'worse'" in caught.value.__notes__[0]
    assert good.visible == {"2/0"}


@pytest.mark.parametrize("error", [FencedError("a higher token commits"), ConfigurationError("no such table")])
def test_a_committer_that_knows_that_all_is_over_lets_no_other_sink_begin_a_try_or_an_epoch(error: Exception) -> None:
    begun, bad, good = threading.Event(), Outside(), Outside()

    def over(request: CommitRequest) -> None:
        assert begun.wait(10)
        raise error

    def later(request: CommitRequest) -> None:
        begun.set()
        request.retry_later(ConnectionError("not now"))

    driver = committing({"bad": JournalSink(bad, over), "good": JournalSink(good, later)}, retries=10**9)
    with pytest.raises(type(error)) as caught:
        driver.commit(7, {uid: entries((2, 0), (3, 0)) for uid in ("bad", "good")})

    assert caught.value is error
    assert good.visible == set()


def test_sinks_commit_side_by_side_and_a_slow_one_holds_up_no_other() -> None:
    last_of_fast, slow, fast = threading.Event(), Outside(), Outside()

    def wait(request: CommitRequest) -> None:
        assert last_of_fast.wait(10), "the fast sink is held up by the slow one"

    def tell(request: CommitRequest) -> None:
        if request.epoch == 3:
            last_of_fast.set()

    driver = committing({"a slow one": JournalSink(slow, wait), "fast": JournalSink(fast, tell)})
    report = driver.commit(7, {uid: entries((3, 0), (2, 0)) for uid in ("a slow one", "fast")})

    assert report == CommitReport(committed=4)
    assert [epoch for epoch, _, _ in slow.journal] == [epoch for epoch, _, _ in fast.journal] == [2, 3]


def test_all_commits_of_a_sink_are_made_by_one_thread_which_ends_with_the_attempt() -> None:
    threads: dict[str, set[threading.Thread]] = {"a": set(), "b": set()}

    def note(uid: str) -> Callable[[CommitRequest], None]:
        return lambda request: threads[uid].add(threading.current_thread())

    driver = committing({uid: JournalSink(Outside(), note(uid)) for uid in threads})
    for epoch in range(2, 6):
        driver.commit(epoch, {"a": entries((epoch, 0)), "b": entries((epoch, 0)) if epoch % 2 else []})
    driver.close()

    [a], [b] = threads["a"], threads["b"]
    assert len({a, b, threading.current_thread()}) == 3
    for thread in (a, b):
        thread.join(10)
        assert not thread.is_alive()


class Asked(JournalCommitter):
    """Answers which epoch is the last one only when it was asked so often; then the target has `last`."""

    def __init__(self, outside: Outside, behave: Callable[[CommitRequest], None] | None, silent: int) -> None:
        super().__init__(outside, behave)
        self.silent, self.questions = silent, 0
        self.last: int | None = None

    def last_epoch(self, incarnation: str) -> int | None:
        self.questions += 1
        if self.questions <= self.silent:
            raise StorageError("the broker does not answer")
        return self.last


class AskedSink(JournalSink):
    silent = 3
    last: int | None = None

    def create_committer(self, context: CommitterInitContext) -> Committer:
        made = Asked(self.outside, self.behave, self.silent)
        made.last = self.last
        self.committers.append(made)
        return made


def test_a_target_that_does_not_say_its_last_epoch_is_asked_again_as_often_as_a_commit_is_tried() -> None:
    outside, clock, numbers = Outside(), Impatient(), []
    sink = AskedSink(outside, lambda request: numbers.append(request.number_of_retries))
    committing({"out": sink}, retries=3, clock=clock).commit(7, {"out": entries((2, 0), (2, 1))})
    assert outside.visible == {"2/0", "2/1"}
    assert clock.pauses == [0.1, 0.2, 0.4]
    assert numbers == [0, 0], "a committer is told how often a commit was tried, and this is the first time"

    with pytest.raises(StorageError, match="after 2 retries: the broker does not answer") as failure:
        committing({"out": AskedSink(outside)}, retries=2, clock=clock).commit(8, {"out": entries((3, 0))})
    assert "The checkpoint is complete and names them" in str(failure.value)
    assert outside.calls == 1


def test_a_target_that_answers_late_and_has_the_epoch_already_is_not_committed_to() -> None:
    outside = Outside()
    sink = AskedSink(outside)
    sink.last = 2
    with pytest.raises(ConfigurationError, match="two copies of one job directory"):
        committing({"out": sink}, clock=Impatient()).commit(7, {"out": entries((2, 0))})
    assert outside.calls == 0


def test_the_last_epoch_is_not_asked_for_again_once_a_commit_was_tried() -> None:
    """What the target has then may be of that try."""
    sink = AskedSink(Outside(), lambda request: request.retry_later() if request.number_of_retries < 2 else None)
    sink.silent = 1
    committing({"out": sink}, clock=Impatient()).commit(7, {"out": entries((2, 0))})
    [committer] = sink.committers
    assert isinstance(committer, Asked) and committer.questions == 2


def test_commits_their_duration_and_pending_rows_are_counted_for_each_sink() -> None:
    clock = Impatient()
    meter = SinkMeter(clock)
    meter.begin(["away", "out"])
    away = JournalSink(Outside(), lambda request: request.retry_later(ConnectionError("not now")))
    output = {uid: [{**entry, "rows": 5} for entry in entries((2, 0), (2, 1), (3, 0))] for uid in ("away", "out")}
    meter.staged(output)
    driver = committing({"away": away, "out": JournalSink(Outside())}, retries=2, clock=clock, meter=meter)
    with pytest.raises(StorageError):
        driver.commit(7, output)

    out, away_now = meter.numbers["out"], meter.numbers["away"]
    assert (out.records, out.epochs, out.last_epoch, out.successful, out.pending) == (15, 2, 3, 3, 0)
    assert out.seconds > 0 and out.lag_ms(clock.now_ms()) == 0
    assert (away_now.records, away_now.last_epoch, away_now.retried) == (0, None, 6)
    assert (away_now.pending, away_now.pending_records, away_now.lag_ms(clock.now_ms())) == (3, 15, 300)
    clock.advance(1000)
    meter.begin(["away", "out"])
    meter.staged({"away": output["away"]})
    assert meter.numbers["away"].lag_ms(clock.now_ms()) == 1300, "another attempt does not make it younger"


def test_a_sink_that_has_committed_lags_no_more_after_a_restart_for_another_one_and_counts_its_rows_once() -> None:
    clock = ManualClock(0)
    meter = SinkMeter(clock)
    meter.begin(["a", "pg"])
    output = {uid: [{**entry, "rows": 5} for entry in entries((1, 0))] for uid in ("a", "pg")}
    is_back = threading.Event()

    def away(request: CommitRequest) -> None:
        if not is_back.is_set():
            request.retry_later(ConnectionError("not now"))

    for _ in range(3):
        meter.begin(["a", "pg"])
        driver = committing({"a": JournalSink(Outside()), "pg": JournalSink(Outside(), away)}, retries=0, meter=meter)
        driver.prepare({}, None, output)
        with pytest.raises(StorageError):
            driver.commit(7, output)
        clock.advance(300_000)
        lags = {uid: numbers.lag_ms(clock.now_ms()) for uid, numbers in meter.numbers.items()}
        assert lags["a"] == 0 < lags["pg"], "the alert names the sink that is away"
    is_back.set()
    driver.commit(7, output)
    for numbers in meter.numbers.values():
        assert (numbers.records, numbers.epochs, numbers.last_epoch, numbers.pending_since) == (5, 1, 1, None)


def test_only_the_sink_with_an_unavailable_target_lags_at_the_start() -> None:
    class Away(JournalSink):
        def prepare(self, context: CommitterInitContext, kept: Any) -> Any:
            raise StorageError("pg does not answer")

    clock = ManualClock(0)
    meter = SinkMeter(clock)
    output = {uid: entries((1, 0)) for uid in ("a", "pg", "z")}
    for _ in range(3):
        meter.begin(list(output))
        sinks = {uid: (Away if uid == "pg" else JournalSink)(Outside()) for uid in output}
        with pytest.raises(StorageError, match="pg does not answer"):
            committing(sinks, meter=meter).prepare({}, None, output)
        clock.advance(300_000)
    assert {uid: numbers.lag_ms(clock.now_ms()) for uid, numbers in meter.numbers.items()} == {
        "a": 0, "pg": 900_000, "z": 0,
    }  # fmt: skip
    committing({uid: JournalSink(Outside()) for uid in output}, meter=meter).prepare({}, None, output)
    assert {numbers.pending for numbers in meter.numbers.values()} == {1}, "what may not be committed is pending"


def test_output_that_is_in_no_checkpoint_waits_for_nothing_when_its_attempt_has_failed() -> None:
    clock = ManualClock(0)
    meter = SinkMeter(clock)
    meter.begin(["a"])
    meter.staged({"a": entries((1, 0), (2, 0))})
    meter.discarded({"a": entries((2, 0))})
    assert meter.numbers["a"].pending_epochs == 1
    clock.advance(1000)
    meter.staged({"a": entries((2, 0))})
    assert meter.numbers["a"].pending_epochs == 2, "the next attempt runs the epoch again"


def test_an_epoch_of_two_incarnations_is_committed_in_one_call_for_each() -> None:
    """As it was: the committer got the first subtask of each incarnation, and then the second."""
    outside = Outside()
    named = [
        {**entry, "value": f"{name}-{entry['value']}", "incarnation": name}
        for name in ("old", "new")
        for entry in entries((2, 0), (2, 1))
    ]
    committing({"out": JournalSink(outside)}).commit(7, {"out": named})
    assert (outside.calls, len(outside.visible)) == (2, 4)


def test_committables_of_a_removed_sink_are_never_dropped_silently() -> None:
    with pytest.raises(StorageError, match="1 committables of the sink 'old', which the program does not have"):
        committing({"new": JournalSink(Outside())}).commit(7, {"old": entries((2, 0))})


def test_committables_without_a_committer_are_an_error_of_the_sink() -> None:
    with pytest.raises(StorageError, match=r"create_committer\(\) returns None"):
        committing({"show": ShowSink(Outside())}).commit(7, {"show": entries((2, 0))})


def test_sinks_with_nothing_to_commit_need_no_committer() -> None:
    sink = ShowSink(Outside())
    assert committing({"show": sink}).commit(7, {"show": []}) == CommitReport()


def test_one_committer_serves_a_job_attempt_and_is_closed_with_it() -> None:
    sink = JournalSink(Outside())
    driver = committing({"out": sink})
    driver.commit(7, {"out": entries((2, 0))})
    driver.commit(8, {"out": entries((3, 0))})
    driver.close()

    assert [committer.closed for committer in sink.committers] == [True]


def test_a_sweep_calls_every_sink() -> None:
    sinks: dict[str, Sink] = {"a": JournalSink(Outside()), "b": JournalSink(Outside())}
    assert committing(sinks).sweep(lambda name: True) == 2


def test_a_crash_at_the_fault_point_is_repaired_by_committing_again() -> None:
    for spec in ("before:sink.commit:2=raise", "after:sink.commit:2=raise", "lost:sink.commit:2=raise"):
        outside = Outside()
        wanted = {"out": entries((2, 0), (3, 0), (4, 0))}
        fault.install(spec)
        with pytest.raises(StorageError, match="Fault injected"):
            committing({"out": JournalSink(outside)}).commit(7, wanted)
        committing({"out": JournalSink(outside)}).commit(7, wanted)

        assert outside.visible == {"2/0", "3/0", "4/0"}, spec


@given(
    pairs=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3)), unique=True, max_size=12),
    moods=st.lists(st.sampled_from(["commit", "retry", "raise", "unknown"]), max_size=30),
)
def test_committing_until_it_succeeds_makes_everything_visible_in_order(
    pairs: list[tuple[int, int]], moods: list[str]
) -> None:
    outside, left = Outside(), list(moods)

    def moody(request: CommitRequest) -> None:
        mood = left.pop() if left else "commit"
        if mood == "raise":
            raise RuntimeError("bad day")
        if mood == "retry":
            request.retry_later()
        if mood == "unknown":
            request.signal_failed_with_unknown_reason(RuntimeError("bad day"))

    while True:
        try:
            committing({"out": JournalSink(outside, moody)}, clock=Impatient()).commit(7, {"out": entries(*pairs)})
            break
        except StorageError:
            continue

    assert outside.visible == {f"{epoch}/{subtask}" for epoch, subtask in pairs}
    first_seen = list(dict.fromkeys(epoch for epoch, _, _ in outside.journal))
    assert first_seen == sorted(first_seen)


def test_a_sink_that_has_failed_begins_no_later_checkpoint_and_the_others_do() -> None:
    bad, good, may_fail = Outside(), Outside(), threading.Event()

    def fail(request: CommitRequest) -> None:
        assert may_fail.wait(10)
        if request.epoch == 2:
            raise ConnectionError("the service is down")

    driver = committing({"bad": JournalSink(bad, fail), "good": JournalSink(good)})
    commits = [driver.begin(epoch, {uid: entries((epoch, 0)) for uid in ("bad", "good")}) for epoch in (2, 3, 4)]
    assert commits[0].unfinished_sinks == ["bad"] or good.visible != {"2/0", "3/0", "4/0"}
    may_fail.set()
    for commit in commits:
        with pytest.raises(StorageError, match="'bad'"):
            commit.result()
    driver.close()

    assert (bad.visible, bad.calls) == (set(), 1)
    assert good.visible == {"2/0", "3/0", "4/0"}


def held(begun: threading.Event, may_end: threading.Event) -> Callable[[CommitRequest], None]:
    def hold(request: CommitRequest) -> None:
        begun.set()
        assert may_end.wait(10)

    return hold


def test_when_another_leader_commits_pending_commits_end_and_no_other_begins() -> None:
    outside, begun, may_end = Outside(), threading.Event(), threading.Event()
    driver = committing({"out": JournalSink(outside, held(begun, may_end))}, has_threads=True)
    commits = [driver.begin(7, {"out": entries((2, 0), (3, 0))}), driver.begin(8, {"out": entries((4, 0))})]
    assert begun.wait(10)
    threading.Timer(0.1, may_end.set).start()
    driver.halt()
    driver.finish()

    assert outside.visible == {"2/0"}
    for commit in commits:
        with pytest.raises(StorageError, match="committed when the job runs again"):
            commit.result()


def test_when_the_attempt_ends_everything_that_was_begun_is_committed() -> None:
    outside, begun, may_end = Outside(), threading.Event(), threading.Event()
    driver = committing({"out": JournalSink(outside, held(begun, may_end))}, has_threads=True)
    commits = [driver.begin(7, {"out": entries((2, 0), (3, 0))}), driver.begin(8, {"out": entries((4, 0))})]
    assert begun.wait(10)
    threading.Timer(0.1, may_end.set).start()
    driver.finish()

    assert outside.visible == {"2/0", "3/0", "4/0"}
    assert not any(commit.unfinished_sinks for commit in commits)


def test_when_the_attempt_ends_nothing_is_tried_a_second_time() -> None:
    outside, begun, may_end = Outside(), threading.Event(), threading.Event()

    def be_away(request: CommitRequest) -> None:
        held(begun, may_end)(request)
        request.retry_later()

    driver = committing({"out": JournalSink(outside, be_away)}, has_threads=True)
    commit = driver.begin(7, {"out": entries((2, 0))})
    assert begun.wait(10)
    threading.Timer(0.1, may_end.set).start()
    driver.finish()

    assert (outside.visible, outside.calls) == (set(), 1)
    with pytest.raises(StorageError):
        commit.result()
