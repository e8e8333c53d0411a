"""The contract of registers that can be removed: only an ended job is cleaned up, and completely."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from holdfast.errors import FencedError, PossibleInconsistentStateError, StorageError
from holdfast.storage.register import RegisterState, RegisterWriter, RemovableRegister
from tests.contract.register_contract import (
    Crash,
    Gate,
    RegisterSite,
    Rival,
    completing,
    every_step,
    ids,
    raiser,
)


def removable(site: RegisterSite, gate: Gate | None = None) -> RemovableRegister:
    """Open the register of a site that has one of these."""
    register = site.open(gate)
    assert isinstance(register, RemovableRegister)
    return register


def finished(site: RegisterSite) -> RegisterWriter:
    """Lead a job to its end, and keep none of its checkpoints."""
    writer = site.open().raise_token("old")
    writer.write(completing(1, token=writer.token))
    writer.write(lambda state: replace(state, checkpoints=(), terminal="FINISHED"))
    return writer


class RegisterRemovalContract:
    """The suite; a subclass provides the fixture `new_site`, as for `RegisterContract`."""

    def test_a_job_that_keeps_no_checkpoint_leaves_nothing(self, new_site: Callable[[], RegisterSite]) -> None:
        site = new_site()
        assert removable(site).remove()
        writer = finished(site)
        for _ in range(2):
            assert removable(site).remove()
            assert site.open().read() == RegisterState()
        with pytest.raises(FencedError):
            writer.write(completing(2))
        site.close()

    def test_a_register_that_names_checkpoints_stays(self, new_site: Callable[[], RegisterSite]) -> None:
        site = new_site()
        writer = site.open().raise_token("leader")
        writer.write(completing(1))
        assert not removable(site).remove()
        assert ids(writer.write(completing(2))) == [1, 2]
        site.close()

    def test_the_former_leader_is_fenced_when_the_job_begins_anew(self, new_site: Callable[[], RegisterSite]) -> None:
        site = new_site()
        old = finished(site)
        removable(site).remove()
        new = site.open().raise_token("new")
        new.write(completing(7))
        for _ in range(2):
            with pytest.raises(FencedError):
                old.write(completing(2))
        assert ids(new.write(completing(8))) == [7, 8]
        site.close()

    @pytest.mark.parametrize("versions", [1, 3])
    def test_a_checkpoint_completed_at_any_step_of_a_removal_stays(
        self, new_site: Callable[[], RegisterSite], versions: int
    ) -> None:
        for site, gate in every_step(new_site):
            finished(site)
            rival = Rival(site, versions)
            register = removable(site, gate)
            gate.arm(rival)
            register.remove()
            if not gate.has_acted:
                break
            story = f"{gate}, the rival wrote {versions} versions"
            assert ids(site.open().read()) == rival.completed, story
            try:
                rival.goes_on(5000)
            except FencedError:
                assert site.open().read() == RegisterState(), story
                assert versions == 1, story
            else:
                assert ids(site.open().read()) == [*rival.completed, 5000], story

    def test_a_leader_is_fenced_or_stays_when_a_cleanup_runs_at_any_step_of_a_write(
        self, new_site: Callable[[], RegisterSite]
    ) -> None:
        for site, gate in every_step(new_site):
            writer = site.open(gate).raise_token("leader")
            gate.arm(lambda site=site: removable(site).remove())  # type: ignore[arg-type, misc]
            expected: list[int] = [1]
            try:
                writer.write(completing(1))
            except FencedError:
                expected = []
            if not gate.has_acted:
                break
            assert ids(site.open().read()) == expected, gate

    def test_a_process_that_starts_during_a_cleanup_leads(self, new_site: Callable[[], RegisterSite]) -> None:
        for site, gate in every_step(new_site):
            finished(site)
            register = site.open(gate)
            gate.arm(lambda site=site: removable(site).remove())  # type: ignore[arg-type, misc]
            writer = register.raise_token("beginner")
            if not gate.has_acted:
                break
            with suppress(FencedError):  # it was removed right after the token was raised
                writer.write(completing(1))
                assert ids(site.open().read()) == [1], gate

    @pytest.mark.parametrize("error", [Crash(), PossibleInconsistentStateError("The connection broke.")])
    def test_a_removal_interrupted_at_any_step_can_be_repeated(
        self, new_site: Callable[[], RegisterSite], error: BaseException
    ) -> None:
        for site, gate in every_step(new_site):
            finished(site)
            register = removable(site, gate)
            gate.arm(raiser(error))
            with suppress(Crash, PossibleInconsistentStateError, StorageError):
                register.remove()
            if not gate.has_acted:
                break
            assert removable(site).remove(), gate
            assert site.open().read() == RegisterState(), gate
            assert ids(site.open().raise_token("new").write(completing(4))) == [4], gate
