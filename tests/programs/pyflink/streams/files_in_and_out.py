"""Copy the lines of a file from a FileSource to a FileSink, and print the written files."""

import pathlib
import tempfile

from pyflink.common import Encoder, Types, WatermarkStrategy
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.connectors.file_system import FileSink, FileSource, OutputFileConfig, StreamFormat

place = pathlib.Path(tempfile.mkdtemp())
(place / "in.txt").write_text("to be or\nnot to be\n")
env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
lines = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(place / "in.txt")).build()
sink = (
    FileSink.for_row_format(str(place / "out"), Encoder.simple_string_encoder("UTF-8"))
    .with_output_file_config(OutputFileConfig.builder().with_part_prefix("words").with_part_suffix(".txt").build())
    .build()
)
(
    env.from_source(lines, WatermarkStrategy.no_watermarks(), "lines")
    .flat_map(lambda line: line.split(), output_type=Types.STRING())
    .map(lambda word: (word, len(word)), output_type=Types.TUPLE([Types.STRING(), Types.INT()]))
    .sink_to(sink)
)
env.execute("files in and out")
for file in (place / "out").rglob("words*.txt"):
    for line in file.read_text().splitlines():
        print(line)
