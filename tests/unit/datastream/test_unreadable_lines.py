"""Lines of files that cannot be read: named with file and byte, aside or as the reason why a job fails."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

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
from holdfast.errors import ConfigurationError
from holdfast.runtime.job.engine import InputError

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
        for line in lines:
            if line in bad:
                expected.append((str(path), at, line))
            at += len(line + end)
        assert sorted((letter.path, letter.position, letter.line) for letter in refused) == expected
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
    with pytest.raises(InputError) as told:
        list(FileSplits(input_format).read(task))
    begin = f"the line at byte {first.position} of the file {str(path)!r} cannot be read as {input_format.name}: "
    assert str(told.value) == begin + first.reason


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


def test_places_count_what_is_uncompressed_and_begin_behind_the_header(folder: Path) -> None:
    path = folder / "a.csv.gz"
    path.write_bytes(gzip.compress(b"key,n\na,1\nb\n"))
    refused: list[Any] = []
    file, with_header = InputFile.of(str(path)), CsvReaderFormat.for_schema(COLUMNS, header=True)
    [batch] = with_header.read_lines(file, 0, file.length, refused.append)
    assert (batch.num_rows, refused[0].position, refused[0].line) == (1, 10, b"b")


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
