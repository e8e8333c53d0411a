"""The register contract over the registers of files and of memory."""

import shutil

import pytest

from holdfast.errors import FencedError
from holdfast.kernel.ids import new_nonce
from holdfast.storage.local import LocalFileSystem
from holdfast.storage.register import EmbeddedRegister, FileRegister, RemovableRegister
from tests.contract.register_contract import GatedDocument, RegisterContract, RegisterSite, completing, ids
from tests.contract.removal_contract import RegisterRemovalContract
from tests.stories.gated_file_system import GatedFileSystem


class FileSite(RegisterSite):
    def __init__(self, directory):
        self.directory = str(directory)

    def open(self, gate=None):
        fs = LocalFileSystem() if gate is None else GatedFileSystem(LocalFileSystem(), gate)
        return FileRegister(fs, self.directory)


class EmbeddedSite(RegisterSite):
    def __init__(self):
        self.register = EmbeddedRegister()

    def open(self, gate=None):
        return self.register if gate is None else RemovableRegister(GatedDocument(self.register.document, gate))


class TestFileRegister(RegisterContract):
    @pytest.fixture
    def new_site(self, tmp_path):
        return lambda: FileSite(tmp_path / new_nonce())


class TestEmbeddedRegister(RegisterContract, RegisterRemovalContract):
    @pytest.fixture
    def new_site(self):
        return EmbeddedSite


@pytest.mark.parametrize("looks_first", [False, True])
def test_a_register_that_was_removed_and_begun_anew_fences_with_the_same_token(tmp_path, looks_first):
    directory = tmp_path / "register"
    old = FileRegister(LocalFileSystem(), str(directory)).raise_token("old")
    old.write(completing(1))
    shutil.rmtree(directory)
    new = FileRegister(LocalFileSystem(), str(directory)).raise_token("new")
    for checkpoint_id in range(11, 16):
        new.write(completing(checkpoint_id))
    assert new.token == old.token
    if looks_first:
        with pytest.raises(FencedError, match="begun anew"):
            old.check()
    for _ in range(2):
        with pytest.raises(FencedError):
            old.write(completing(2))
    assert ids(new.check()) == [11, 12, 13, 14, 15]
