"""Lines of files that cannot be read: named with file and number, aside or as the reason why a job fails."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.common import Duration
from holdfast.datastream import OutputTag
from holdfast.datastream.connectors.file_system import DEAD_LETTER, FileSource, StreamFormat
from holdfast.datastream.connectors.file_system.file_source import FileSplits
from holdfast.datastream.connectors.kafka import DEAD_LETTER as LETTER_OF_KAFKA
from holdfast.datastream.formats import input_format as text_lines
from holdfast.datastream.formats.arrow import ArrowInputFormat
from holdfast.datastream.formats.csv import CsvReaderFormat
from holdfast.datastream.formats.input_format import InputFile, LineFormat
from holdfast.datastream.formats.json import JsonLinesFormat
from holdfast.errors import ConfigurationError, InputError

COLUMNS = "key string, n bigint"
CSV = CsvReaderFormat.for_schema(COLUMNS)
JSON = JsonLinesFormat(COLUMNS)
DAYS = JsonLinesFormat("key string, n bigint, day date")
TIMES = JsonLinesFormat("n bigint, at timestamp, parts array<struct<at: timestamp_ntz>>")
DATES = CsvReaderFormat.for_schema("n bigint, day date, at timestamp_ntz")
TEXT = StreamFormat.text_line_format()
GOOD = {CSV: b"a,1", JSON: b'{"key": "a", "n": 1}', DAYS: b'{"key": "a", "n": 1, "day": "2026-11-26"}', TEXT: b"a"}
GOOD |= {TIMES: b'{"n": 1, "at": "2026-11-26T07:30:00Z"}', DATES: b"1,9999-12-31,0001-01-01 00:00:00"}
BAD = {
    CSV: (b"a", b"a,1,2", b"a,b", b'"a,1', b"\xff,1"),
    JSON: (b"{", b"5", b'{"n": "b"}', b"a,1", b'{"n": 7.5}'),
    DAYS: (b"{", b"5", b"null", b'{"n": true}', b'{"day": "yesterday"}', b'{"n": 1} {"n": 2}', b'{"n": 7.5}'),
    TIMES: (
        b'{"at": "0000-12-31T23:59:59Z"}',
        b'{"at": "9999-12-31T23:59:59-02:00"}',
        b'{"parts": [{"at": "2026-11-26"}, {"at": "0000-01-01"}]}',
    ),
    DATES: (b"1,0000-12-31,2026-11-26", b"1,,0000-01-01 00:00:00", b"1,0000-01-01,"),
    TEXT: (b"\xff", b"a\xc3"),
}
TAG = OutputTag("unreadable", DEAD_LETTER)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_lines, "BLOCK", 64)
        yield


@pytest.mark.parametrize("input_format", GOOD, ids=lambda one: one.name)
def test_each_line_is_read_or_refused_with_its_place_however_the_file_is_cut(
    input_format: LineFormat, folder: Path
) -> None:
    good, bad = GOOD[input_format], BAD[input_format]

    @settings(max_examples=60, deadline=None)
    @given(
        lines=st.lists(st.sampled_from([good, good, good, *bad]), min_size=1),
        end=st.sampled_from([b"\n", b"\r\n"]),
        is_ended=st.booleans(),
        cuts=st.lists(st.integers(0, 400), max_size=3),
    )
    def check(lines: list[bytes], end: bytes, is_ended: bool, cuts: list[int]) -> None:
        content = end.join(lines) + (end if is_ended else b"")
        path = folder / "lines"
        path.write_bytes(content)
        file, refused, rows = InputFile.of(str(path)), [], 0
        for begin, stop in pairwise([0, *sorted(min(cut, len(content)) for cut in cuts), len(content)]):
            rows += sum(batch.num_rows for batch in input_format.read_lines(file, begin, stop, refused.append))
        assert rows == lines.count(good)
        expected, at = [], 0
        for number, line in enumerate(lines, 1):
            if line in bad:
                expected.append((str(path), at, line, number))
            at += len(line + end)
        found = [(letter.path, letter.position, letter.line, letter.line_number) for letter in refused]
        assert sorted(found) == expected
        assert all(letter.reason and "Row #" not in letter.reason for letter in refused)

    check()


@pytest.mark.parametrize("input_format", GOOD, ids=lambda one: one.name)
def test_without_a_side_output_the_first_of_them_ends_the_job_with_the_same_words(
    input_format: LineFormat, folder: Path
) -> None:
    good, (bad, worse, *_) = GOOD[input_format], BAD[input_format]
    path = folder / "lines"
    path.write_bytes(b"\n".join([*50 * [good], bad, *30 * [good], worse]))
    letters: list[Any] = []
    splits = FileSplits(input_format, letters="unreadable")
    [task] = splits.plan([str(path)], None, 1).tasks
    assert sum(batch.num_rows for batch in splits.read(task, letters.append)) == 80
    first, second = letters
    assert (first.position, first.line, second.line) == (50 * (len(good) + 1), bad, worse)
    assert (first.line_number, second.line_number) == (51, 82)
    with pytest.raises(InputError) as told:
        list(FileSplits(input_format).read(task))
    begin = f"line 51 of the file {str(path)!r} cannot be read as {input_format.name}: {first.reason}. The line: "
    assert str(told.value) == begin + bad.decode(errors="backslashreplace")


def test_a_quote_that_is_not_closed_swallows_no_lines(folder: Path) -> None:
    """pyarrow takes what follows for a part of the value, up to the next quote or the end."""
    path = folder / "quotes.csv"
    last = CsvReaderFormat.for_schema("n bigint, word string")
    for content, seen, aside in (
        (b'1,"a ""b"""\n2,"c\n3,d\n4,"e\n', ['a "b"', "d"], [b'2,"c', b'4,"e']),
        (b'1,a\n2,"b\n3,c\n', ["a", "c"], [b'2,"b']),
        (b'1,a\n2,"b', ["a"], [b'2,"b']),
    ):
        path.write_bytes(content)
        refused: list[Any] = []
        file = InputFile.of(str(path))
        batches = list(last.read_lines(file, 0, file.length, refused.append))
        assert [row["word"] for batch in batches for row in batch.to_pylist()] == seen
        assert [letter.line for letter in refused] == aside
        assert "the quote that begins a value of column 'word' is not closed" in refused[0].reason
        with pytest.raises(InputError, match=r"'word' is not closed in its line; multi_line=True reads"):
            list(last.read(file, 0, file.length))


def test_a_quote_in_a_column_of_bytes_swallows_no_lines(folder: Path) -> None:
    path = folder / "quotes.csv"
    path.write_bytes(b'1,"YQ==\n2,Yg==\n3,"Yw=="\n')
    refused: list[Any] = []
    file = InputFile.of(str(path))
    batches = list(CsvReaderFormat.for_schema("n bigint, raw binary").read_lines(file, 0, file.length, refused.append))
    assert [tuple(row.values()) for batch in batches for row in batch.to_pylist()] == [(2, b"b"), (3, b"c")]
    assert [letter.line for letter in refused] == [b'1,"YQ==']
    assert "the quote that begins a value of column 'raw' is not closed" in refused[0].reason


WITH_HEADER = CsvReaderFormat.for_schema(COLUMNS, header=True)


def read_error(input_format: Any, path: Path, tasks: int = 1) -> str:
    with pytest.raises(InputError) as told:
        for task in FileSplits(input_format).plan([str(path)], None, tasks).tasks:
            list(FileSplits(input_format).read(task))
    return str(told.value)


def test_places_count_what_is_uncompressed_and_the_header(folder: Path) -> None:
    path = folder / "a.csv.gz"
    path.write_bytes(gzip.compress(b"key,n\n" + 9 * b"a,1\n" + b"\nb\na,2\nc\n"))
    refused: list[Any] = []
    file = InputFile.of(str(path))
    assert sum(batch.num_rows for batch in WITH_HEADER.read_lines(file, 0, file.length, refused.append)) == 10
    assert [(one.position, one.line, one.line_number) for one in refused] == [(43, b"b", 12), (49, b"c", 14)]
    assert f"line 12 of the file {str(path)!r}" in read_error(WITH_HEADER, path)


class Store:
    """A file system with one file that is not local."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def open_input(self, path: str) -> io.BufferedReader:
        return io.BufferedReader(io.BytesIO(self.content))  # type: ignore[arg-type]


@pytest.mark.parametrize("compress", [None, gzip.compress])
def test_a_line_of_a_file_in_a_store_is_numbered(monkeypatch: pytest.MonkeyPatch, compress: Any) -> None:
    content = b"a,1\n" * 100 + b"b\n" + b"a,1\n" * 100
    store = Store(compress(content) if compress else content)
    monkeypatch.setattr(text_lines, "file_system_for", lambda path: store)
    path = "s3://bucket/a.csv.gz" if compress else "s3://bucket/a.csv"
    with pytest.raises(InputError, match=f"line 101 of the file '{path}'"):
        list(CSV.read(InputFile(path, 0, len(store.content)), 0 if compress else 300, len(store.content)))


def test_a_file_is_read_again_only_for_an_unreadable_line_and_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "opened.csv"
    opened = []
    monkeypatch.setattr(InputFile, "open", lambda file: opened.append(file) or pa.OSFile(file.path))
    for content, times in ((b"a,1\n" * 100, 1), (b"a,1\nb\n" * 100, 2)):
        path.write_bytes(content)
        refused: list[Any] = []
        list(CSV.read_lines(InputFile.of(str(path)), 0, len(content), refused.append))
        assert len(opened) == times
        assert [one.line_number for one in refused] == list(range(2, 2 * len(refused) + 1, 2))
        opened.clear()


def test_lines_that_go_aside_have_no_numbers_far_behind_the_begin_of_a_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_lines, "NUMBERED", 5)
    path = folder / "far.csv"
    path.write_bytes(b"a,1\nb\nc\n")
    refused: list[Any] = []
    list(CSV.read_lines(InputFile.of(str(path)), 0, 8, refused.append))
    assert [(one.position, one.line_number) for one in refused] == [(4, 2), (6, None)]
    path.write_bytes(b"a,1\na,1\nb\n")
    assert read_error(CSV, path).startswith("line 3 of the file"), "the error has it in any case"


@pytest.mark.parametrize("header", [False, True])
@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        (b'"a\nb\n",1\n\na,2\nc,d\n', 6, "field 'n': invalid literal for int() with base 10: 'd'"),
        (b'a,1\r\n"a\r\n",x', 2, "field 'n'"),
        (b"a,1\na,2,3\n", 2, "it has 3 values, and the type 2"),
        (b'a,1\n"b\n\n,1', 2, "a quote is not closed"),
        (b'a,1\n"b"c,1\na,1\n', 2, "text follows the one that ends a value"),
        (b"a,1\n\xff,1\n", 2, "can't decode byte 0xff"),
        (b'a,1\n"' + b"b\n" * 100_000 + b'",1\na,b\n', 100_003, "field 'n'"),
    ],
)
def test_a_file_with_values_of_several_lines_is_refused_with_the_line(
    folder: Path, header: bool, content: bytes, line: int, reason: str
) -> None:
    path = folder / "several.csv"
    path.write_bytes((b"key,n\n" if header else b"") + content)
    several = CsvReaderFormat.for_schema(COLUMNS, header=header, multi_line=True)
    told = read_error(several, path)
    assert told.startswith(f"the file {str(path)!r} cannot be read as CSV: line {line + header}: ")
    assert reason in told


def test_a_text_in_another_encoding_is_refused_with_the_line(folder: Path) -> None:
    path = folder / "text"
    path.write_bytes("a\nb\n".encode("utf-16") + b"\x00\xd8a\0")
    assert "cannot be read as text: line 3: 'utf-16" in read_error(StreamFormat.text_line_format("utf-16"), path)


def test_a_long_line_is_shown_in_part_and_positions_in_json_are_characters(folder: Path) -> None:
    path = folder / "long"
    path.write_bytes(b'{"key": "a"}\n{"key": "' + 1000 * b"b" + b"\n")
    told = read_error(JSON, path)
    assert told.startswith("line 2 of the file") and told.endswith(190 * "b" + "...")
    assert "Unterminated string starting at at character 9" in told
    assert told.count("line 1") == 0


def test_what_is_wrong_with_a_whole_file_is_no_letter(folder: Path) -> None:
    for name, content, input_format in (
        ("cut.gz", gzip.compress(b"line\n" * 100_000)[:-20], TEXT),
        ("names.csv", b"n,key\n1,a\n", CsvReaderFormat.for_schema(COLUMNS, header=True)),
    ):
        (folder / name).write_bytes(content)
        splits = FileSplits(input_format, letters="unreadable")
        [task] = splits.plan([str(folder / name)], None, 1).tasks
        with pytest.raises(InputError, match=name):
            list(splits.read(task, pytest.fail))


@pytest.mark.parametrize(
    ("input_format", "tag", "said"),
    [
        (TEXT, OutputTag("x", LETTER_OF_KAFKA), "takes OutputTag"),
        (TEXT, "unreadable", "takes OutputTag"),
        (CsvReaderFormat.for_schema(COLUMNS, multi_line=True), TAG, "of CSV a file is read or not, as a whole"),
        (StreamFormat.text_line_format("utf-16"), TAG, "of text a file"),
        (ArrowInputFormat(COLUMNS), TAG, "of Arrow a file"),
    ],
)
def test_what_cannot_go_aside_is_refused(input_format: Any, tag: Any, said: str) -> None:
    is_stream = isinstance(input_format, StreamFormat)
    begin = FileSource.for_record_stream_format if is_stream else FileSource.for_bulk_file_format
    builder = begin(input_format, "a").monitor_continuously(Duration.of_seconds(1))
    with pytest.raises(ConfigurationError, match=said):
        builder.set_dead_letter_output(tag)
