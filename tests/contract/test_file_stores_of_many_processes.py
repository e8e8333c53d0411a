"""Several processes share one directory: no write is lost or counted twice."""

import multiprocessing
from pathlib import Path

from holdfast.errors import AlreadyExistError, ConflictError, NotExistError
from holdfast.ha.shared_directory import FileSystemStateHandleStore
from holdfast.storage.local import LocalFileSystem
from holdfast.testing.state_handle_store_contract import FlakyStorage

PROCESSES = 4
ROUNDS = 15


def open_store(directory: str) -> FileSystemStateHandleStore[str]:
    storage = FlakyStorage(Path(directory) / "states")
    return FileSystemStateHandleStore(LocalFileSystem(), f"{directory}/pointers", storage)


def work(number: int, directory: str) -> int:
    """Add entries of one's own, take part in a race for common ones, and count in a common entry."""
    store = open_store(directory)
    won = 0
    for turn in range(ROUNDS):
        store.add_and_lock(f"own-{number}-{turn}", f"{number} {turn}")
        try:
            store.add_and_lock(f"race-{turn}", f"{number}")
            won += 1
        except AlreadyExistError:
            pass
        while True:
            version = store.exists("counter")
            try:
                count = int(store.get_and_lock("counter").retrieve_state())
                store.replace("counter", version, str(count + 1))
                break
            except (ConflictError, NotExistError):
                # Somebody was faster; the state of a replaced entry may be gone before it was read.
                continue
        if turn % 3 == 0:
            assert store.release_and_try_remove(f"own-{number}-{turn}")
    return won


def test_many_processes_share_a_directory(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.add_and_lock("counter", "0")
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        won = pool.starmap(work, [(number, str(tmp_path)) for number in range(PROCESSES)])
    entries = {name: handle.retrieve_state() for handle, name in store.get_all_and_lock()}
    assert entries.pop("counter") == str(PROCESSES * ROUNDS)
    races = {name: winner for name, winner in entries.items() if name.startswith("race-")}
    assert sum(won) == len(races) == ROUNDS
    assert [list(races.values()).count(str(number)) for number in range(PROCESSES)] == won
    own = {name for name in entries if name.startswith("own-")}
    expected = {f"own-{number}-{turn}" for number in range(PROCESSES) for turn in range(ROUNDS) if turn % 3}
    assert own == expected
    states = list((tmp_path / "states").glob("state*"))
    assert len(states) == len(own) + len(races) + 1, "no state is left that nothing points to"
