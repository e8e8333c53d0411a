"""Which files may go: never what somebody needs or a higher token wrote, and in the end all the rest."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.checkpoint.retention import Retention, RetentionView
from holdfast.storage.job_directory import FileName
from tests.examples import examples

FILES = st.builds(FileName.new, st.integers(1, 5), st.integers(1, 9), st.just(0), st.just("op"), st.just(0))


def view(**changes):
    defaults = {
        "token": 3,
        "last_completed_epoch": 5,
        "last_completed_id": 40,
        "first_own_id": 31,
        "named": frozenset(),
        "kept_ids": frozenset(),
    }
    return RetentionView(**(defaults | changes))


@given(st.lists(FILES, max_size=20), st.data())
def test_nobody_deletes_what_is_named_or_of_a_higher_token_or_of_a_later_own_epoch(files, data):
    named = frozenset(data.draw(st.lists(st.sampled_from(files)))) if files else frozenset()
    deletions = Retention(0).decide(view(named=named), [name.format() for name in files], [], 0)
    gone = {FileName.parse(name) for name in deletions.files}
    for name in gone:
        assert name not in named
        assert name.token < 3 or (name.token == 3 and name.epoch <= 5)
    for name in set(files) - gone:
        assert name in named or name.token > 3 or (name.token == 3 and name.epoch > 5)


def test_without_a_completed_checkpoint_no_own_file_goes():
    own, older = FileName.new(3, 1, 0, "op", 0).format(), FileName.new(2, 9, 0, "op", 0).format()
    deletions = Retention(0).decide(view(last_completed_epoch=None), [own, older], [], 0)
    assert deletions.files == (older,)


def test_names_that_say_nothing_are_nobodys():
    names = ["part-0.parquet", "README", "1-2.run", "_metadata"]
    assert Retention(0).decide(view(), names, ["shared", "register", "chk-x"], 0).files == ()


def test_a_file_stays_for_the_grace_period_from_when_it_was_last_named():
    name = FileName.new(1, 1, 0, "op", 0)
    files, retention = [name.format()], Retention(100)
    assert retention.decide(view(), files, [], 0).waiting == 1
    assert retention.decide(view(), files, [], 99).files == ()
    assert retention.decide(view(named=frozenset([name])), files, [], 100).waiting == 0
    assert retention.decide(view(), files, [], 150).files == ()
    assert retention.decide(view(), files, [], 249).files == ()
    assert retention.decide(view(), files, [], 250).files == tuple(files)


def test_directories_of_checkpoints_go_when_they_were_handed_out_before_or_are_over():
    directories = [f"chk-{number}" for number in (5, 29, 31, 35, 40, 41, 99)]
    deletions = Retention(0).decide(view(kept_ids=frozenset([29, 40])), [], directories, 0)
    assert deletions.checkpoints == (5, 31, 35)


def test_files_of_sinks_follow_the_same_rules():
    dead, own_later = FileName.new(1, 1, 0, "op", 0), FileName.new(3, 9, 0, "op", 0)
    retention = Retention(100)
    assert not retention.dead(view(), 0)(dead)
    assert not retention.dead(view(), 99)(dead)
    assert retention.dead(view(), 100)(dead)
    assert not retention.dead(view(), 10_000)(own_later)
    assert not retention.dead(view(named=frozenset([dead])), 200)(dead)


class Leaders(RuleBasedStateMachine):
    """Leaders that come and go over one directory; each knows only what it read and did itself."""

    @initialize()
    def begin(self):
        self.files = set()
        self.completed = []
        self.token = 0
        self.epoch = 0
        self.now = 0
        self.take_over()

    @rule()
    def take_over(self):
        self.token += 1
        self.versions = set(self.completed[-1][1]) if self.completed else set()
        self.in_flight = set()
        self.epoch = self.completed[-1][0] if self.completed else 0
        self.own_epoch = None
        self.retention = Retention(10)

    @rule(number=st.integers(1, 3))
    def an_attempt_writes(self, number):
        self.in_flight = {FileName.new(self.token, self.epoch + 1, 0, "op", 0) for _ in range(number)}
        self.files |= self.in_flight

    @rule(token=st.integers(1, 9), epoch=st.integers(1, 9))
    def a_zombie_writes(self, token, epoch):
        """A task of a deposed leader, or of a failed attempt of an epoch that is over."""
        if token < self.token or (token == self.token and epoch <= self.epoch):
            self.files.add(FileName.new(token, epoch, 0, "zombie", 0))

    @rule(replaces=st.booleans())
    def complete(self, replaces):
        self.epoch += 1
        self.versions = self.in_flight | (set() if replaces else self.versions)
        self.in_flight = set()
        self.own_epoch = self.epoch
        self.completed = [*self.completed, (self.epoch, frozenset(self.versions))][-2:]

    @rule(ms=st.integers(0, 8))
    def time_passes(self, ms):
        self.now += ms

    @rule()
    def sweep(self):
        deletions = self.decide()
        self.files -= {FileName.parse(name) for name in deletions.files}

    def decide(self):
        named = frozenset().union(self.versions, *(names for _, names in self.completed))
        known = RetentionView(self.token, self.own_epoch, 0, 1, named, frozenset())
        return self.retention.decide(known, [name.format() for name in self.files], [], self.now)

    @invariant()
    def nothing_that_is_needed_is_gone(self):
        if not hasattr(self, "files"):
            return
        for _, names in self.completed:
            assert names <= self.files
        assert self.versions <= self.files
        assert self.in_flight <= self.files

    @precondition(lambda self: self.completed)
    @rule()
    def in_the_end_only_what_is_needed_is_left(self):
        self.take_over()
        self.complete(replaces=False)
        self.sweep()
        self.now += 10
        self.sweep()
        assert self.files == set().union(*(names for _, names in self.completed))


Leaders.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestLeaders = Leaders.TestCase
