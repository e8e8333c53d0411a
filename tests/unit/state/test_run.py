"""Run files: what is written is what is read, anybody can read it, and no damage goes unnoticed."""

import hashlib
import json
import os
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import AlreadyExistError, CorruptFileError, FormatVersionError, NotExistError, StorageError
from holdfast.kernel import fault
from holdfast.kernel.fault import AnswerLostError, FaultInjectedError
from holdfast.kernel.key_group import KeyGroupRange, key_groups_of
from holdfast.state.run_file import (
    CODEC,
    FORMAT_VERSION,
    HEADER,
    RunHandle,
    RunMeta,
    SegmentData,
    block_digests,
    forget_runs,
    handle_of,
    open_run,
    write_run,
)
from holdfast.state.version import StateVersion
from holdfast.storage.local import LocalFileSystem

MAX_PARALLELISM = 128
ALL = KeyGroupRange(0, MAX_PARALLELISM - 1)
FS = LocalFileSystem()


@pytest.fixture(autouse=True)
def fresh_process():
    forget_runs()
    yield
    fault.clear()


def segment(rows, seed=0, name="v"):
    rng = np.random.default_rng(seed)
    hashes = np.sort(rng.integers(0, 2**64, rows, dtype=np.uint64))
    keys = [f"key-{i}" for i in range(rows)]
    table = pa.table({"hash": hashes, "key": keys, "value": pa.array(range(rows), pa.int64())})
    return SegmentData(table, {"kind": name})


def meta(key_groups=ALL, **more):
    return RunMeta(key_groups, MAX_PARALLELISM, token=3, epoch=7, key={"type": "string"}, **more)


def write(root, segments, path="shared/a.run", **more):
    return write_run(FS, str(root), path, segments, meta(**more))


def touch_everything(root, handle):
    run = open_run(FS, str(root), handle)
    for name in run.segment_names():
        run.segment(name).table.to_pylist()


def test_what_is_written_is_read_back(tmp_path):
    handle = write(tmp_path, {"a": segment(10_000), "b": segment(3, seed=1, name="list")})

    run = open_run(FS, str(tmp_path), RunHandle.from_json(json.loads(json.dumps(handle.to_json()))))

    assert run.segment("a").table.equals(segment(10_000).table)
    assert run.segment("b").table.equals(segment(3, seed=1).table)
    assert run.segment("b").entry.schema == {"kind": "list"}
    assert run.segment("c") is None
    assert handle.rows == {"a": 10_000, "b": 3}
    assert (handle.token, handle.epoch, handle.range) == (3, 7, ALL)


def test_a_range_of_key_groups_is_a_stretch_of_rows(tmp_path):
    data = segment(1_000)
    entry = open_run(FS, str(tmp_path), write(tmp_path, {"a": data})).segment("a").entry
    groups = key_groups_of(data.table["hash"].to_numpy(), MAX_PARALLELISM)
    for first, last in [(0, 127), (0, 0), (127, 127), (5, 63), (40, 41), (64, 127)]:
        rows = np.flatnonzero((groups >= first) & (groups <= last))
        found = entry.range(KeyGroupRange(first, last))
        assert list(range(found.start, found.stop)) == rows.tolist()


def test_key_groups_without_rows_are_empty_stretches(tmp_path):
    table = pa.table({"hash": np.array([1 << 63, (1 << 63) + 1], np.uint64)})
    entry = open_run(FS, str(tmp_path), write(tmp_path, {"a": SegmentData(table, {})})).segment("a").entry
    assert entry.range(KeyGroupRange(0, 63)) == slice(0, 0)
    assert entry.range(KeyGroupRange(64, 64)) == slice(0, 2)
    assert entry.range(KeyGroupRange(65, 127)) == slice(2, 2)


def test_anybody_can_read_a_run_with_arrow_and_json(tmp_path):
    """What docs say about the format, and nothing of Holdfast."""
    write(tmp_path, {"a": segment(100)})
    data = (tmp_path / "shared/a.run").read_bytes()

    footer_offset, length, digest = struct.unpack("<QQ32s", data[-64:-16])
    footer = data[footer_offset : footer_offset + length]
    assert hashlib.sha256(footer).digest() == digest
    entry = json.loads(footer)["segments"][0]
    table = pa.ipc.open_file(data[entry["offset"] : entry["offset"] + entry["length"]]).read_all()

    assert table.column("value").to_pylist() == list(range(100))


def test_every_flipped_bit_is_noticed(tmp_path):
    handle = write(tmp_path, {"a": segment(3), "b": segment(2, seed=1)})
    path = tmp_path / "shared/a.run"
    good = path.read_bytes()
    for offset in range(len(good)):
        damaged = bytearray(good)
        damaged[offset] ^= 1 << (offset % 8)
        path.write_bytes(damaged)
        forget_runs()
        with pytest.raises(CorruptFileError) as error:
            touch_everything(tmp_path, handle)
        assert error.value.path == str(path)
        assert error.value.offset is not None
    path.write_bytes(good)
    forget_runs()
    touch_everything(tmp_path, handle)


def test_a_small_segment_may_be_compressed_and_is_read_like_any_other(tmp_path):
    handle = write(tmp_path, {"a": segment(1000)})
    segments = {"a": segment(1000), "large": segment(3000)}
    limit = segments["a"].table.nbytes
    packed = write_run(FS, str(tmp_path), "shared/packed.run", segments, meta(), compressed_up_to=limit)
    run = open_run(FS, str(tmp_path), packed)
    assert run.segment("a").hash.tolist() == segments["a"].table["hash"].to_pylist()
    assert run.segment("a").table == segments["a"].table
    assert run.segment("large").table == segments["large"].table
    assert (run.segment("a").entry.codec, run.segment("large").entry.codec) == (CODEC, None)
    assert run.segment("a").entry.length < 0.7 * open_run(FS, str(tmp_path), handle).segment("a").entry.length


def test_every_flipped_bit_of_a_compressed_segment_is_noticed(tmp_path):
    handle = write_run(FS, str(tmp_path), "a.run", {"a": segment(40)}, meta(), compressed_up_to=10_000)
    entry = open_run(FS, str(tmp_path), handle).segment("a").entry
    good = (tmp_path / "a.run").read_bytes()
    for offset in range(entry.offset, entry.offset + entry.length):
        damaged = bytearray(good)
        damaged[offset] ^= 1 << (offset % 8)
        (tmp_path / "a.run").write_bytes(damaged)
        forget_runs()
        with pytest.raises(CorruptFileError):
            touch_everything(tmp_path, handle)


def test_every_truncation_is_noticed(tmp_path):
    handle = write(tmp_path, {"a": segment(3)})
    path = tmp_path / "shared/a.run"
    good = path.read_bytes()
    for length in range(len(good)):
        path.write_bytes(good[:length])
        forget_runs()
        with pytest.raises(CorruptFileError) as error:
            touch_everything(tmp_path, handle)
        assert error.value.offset == length
        with pytest.raises(CorruptFileError):
            handle_of(FS, str(tmp_path), "shared/a.run")
    path.write_bytes(good + b"x")
    with pytest.raises(CorruptFileError):
        touch_everything(tmp_path, handle)


def test_damage_in_a_large_segment_names_its_block(tmp_path):
    handle = write(tmp_path, {"a": segment(50_000)})
    path = tmp_path / "shared/a.run"
    assert handle.size > 3 * 256 * 1024
    with path.open("r+b") as file:
        file.seek(2 * 256 * 1024 + 17)
        file.write(b"?")
    with pytest.raises(CorruptFileError) as error:
        touch_everything(tmp_path, handle)
    assert error.value.offset == 2 * 256 * 1024


def test_only_what_is_touched_is_checked_and_the_whole_file_on_demand(tmp_path):
    handle = write(tmp_path, {"a": segment(50_000), "b": segment(50_000, seed=1)})
    with (tmp_path / "shared/a.run").open("r+b") as file:
        file.seek(handle.footer_offset - 1000)
        file.write(b"?")
    run = open_run(FS, str(tmp_path), handle)
    assert run.segment("a").table.num_rows == 50_000
    with pytest.raises(CorruptFileError):
        run.verify()
    with pytest.raises(CorruptFileError):
        len(run.segment("b").table)


def test_another_run_in_its_place_is_noticed(tmp_path):
    handle = write(tmp_path, {"a": segment(3)})
    other = write(tmp_path, {"a": segment(3, seed=9)}, path="shared/b.run")
    assert other.digest != handle.digest
    (tmp_path / "shared/b.run").replace(tmp_path / "shared/a.run")
    with pytest.raises(CorruptFileError):
        touch_everything(tmp_path, handle)


def test_a_run_of_a_newer_version_is_refused_by_that_name(tmp_path):
    handle = write(tmp_path, {"a": segment(3)})
    path = tmp_path / "shared/a.run"
    data = path.read_bytes()
    footer = data[handle.footer_offset : -64].replace(b'"format_version":1', b'"format_version":9')
    digest = hashlib.sha256(footer).digest()
    trailer = struct.pack("<QQ32s8s8s", handle.footer_offset, len(footer), digest, bytes(8), b"HFRUNEND")
    path.write_bytes(data[: handle.footer_offset] + footer + trailer)
    newer = RunHandle.from_json({**handle.to_json(), "digest": digest.hex()})
    with pytest.raises(FormatVersionError) as error:
        open_run(FS, str(tmp_path), newer)
    assert (error.value.found, error.value.supported) == (9, FORMAT_VERSION)


def test_a_run_that_is_gone_is_said_to_be_gone(tmp_path):
    handle = write(tmp_path, {"a": segment(3)})
    open_run(FS, str(tmp_path), handle)
    (tmp_path / "shared/a.run").unlink()
    with pytest.raises(NotExistError):
        open_run(FS, str(tmp_path), handle)


def test_mapped_runs_hold_no_file_descriptors(tmp_path):
    """A version may have more runs than a process may have open files."""
    handles = [write(tmp_path, {"a": segment(3)}, path=f"{number}.run") for number in range(50)]
    before = len(list(Path("/proc/self/fd").iterdir()))
    runs = [open_run(FS, str(tmp_path), handle) for handle in handles]
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1
    assert sum(run.segment("a").table.num_rows for run in runs) == 150


def test_a_path_is_never_written_twice(tmp_path):
    handle = write(tmp_path, {"a": segment(3)})
    with pytest.raises(AlreadyExistError):
        write(tmp_path, {"a": segment(5)})
    touch_everything(tmp_path, handle)


def test_the_handle_can_be_found_again_from_the_file(tmp_path):
    handle = write(tmp_path, {"a": segment(3)}, least_timers={"event": 5, "processing": None})
    assert handle_of(FS, str(tmp_path), "shared/a.run") == handle


def test_a_run_is_there_whole_or_not_at_all_when_the_writer_fails(tmp_path):
    fault.install("before:run.write=raise")
    with pytest.raises(FaultInjectedError):
        write(tmp_path, {"a": segment(3)})
    assert not (tmp_path / "shared/a.run").exists()

    fault.install("lost:run.write=raise")
    with pytest.raises(AnswerLostError):
        write(tmp_path, {"a": segment(3)})
    fault.clear()
    touch_everything(tmp_path, handle_of(FS, str(tmp_path), "shared/a.run"))


def test_a_full_disk_is_said_to_be_full(tmp_path):
    fault.install("before:run.write=enospc")
    with pytest.raises(StorageError, match="No space left"):
        write(tmp_path, {"a": segment(3)})
    assert not (tmp_path / "shared/a.run").exists()


def test_a_run_without_segments_is_legal(tmp_path):
    handle = write(tmp_path, {})
    run = open_run(FS, str(tmp_path), handle)
    run.verify()
    assert run.segment_names() == []


def test_block_digests_do_not_depend_on_how_the_bytes_arrive():
    data = os.urandom(1000)
    whole = list(block_digests([data], 256))
    assert len(whole) == 4
    assert list(block_digests([data[:1], data[1:255], b"", data[255:513], data[513:]], 256)) == whole
    assert list(block_digests([HEADER], 256)) == list(block_digests([HEADER[:5], HEADER[5:]], 256))


def test_a_version_keeps_the_runs_of_a_range_in_order(tmp_path):
    runs = [
        write(tmp_path, {"a": segment(1)}, path=f"{i}.run", key_groups=KeyGroupRange(first, last))
        for i, (first, last) in enumerate([(0, 63), (64, 127), (0, 127), (100, 110)])
    ]
    version = StateVersion(tuple(runs[:3])).plus(runs[3]).plus(None)
    assert version.run_ids == ("0.run", "1.run", "2.run", "3.run")
    assert version.for_range(KeyGroupRange(0, 10)).run_ids == ("0.run", "2.run")
    assert version.for_range(KeyGroupRange(105, 105)).run_ids == ("1.run", "2.run", "3.run")
    assert Path(runs[0].path).name == "0.run"
