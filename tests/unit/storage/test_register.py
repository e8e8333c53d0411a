"""The register contract over the registers of files and of memory."""

import pytest

from holdfast.kernel.ids import new_nonce
from holdfast.storage.embedded_register import EmbeddedRegister
from holdfast.storage.file_register import FileRegister
from holdfast.storage.file_system import LocalFileSystem
from holdfast.testing.gated_file_system import GatedFileSystem
from holdfast.testing.register_contract import GatedRegister, RegisterContract, RegisterSite


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
        return self.register if gate is None else GatedRegister(self.register, gate)


class TestFileRegister(RegisterContract):
    @pytest.fixture
    def new_site(self, tmp_path):
        return lambda: FileSite(tmp_path / new_nonce())


class TestEmbeddedRegister(RegisterContract):
    @pytest.fixture
    def new_site(self):
        return EmbeddedSite
