"""Reads the state in a checkpoint without Holdfast: the format of `docs/format.md` with json, pyarrow and xxhash.

It checks every byte that it reads, and prints one JSON line for each key of each state.

    python examples/read_checkpoint.py DIRECTORY_OF_A_JOB_OR_OF_A_CHECKPOINT
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import struct
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import xxhash

ATTEMPTS = 100
PUT, DELETE, APPEND, CLEAR = range(4)
EPOCH = datetime(1970, 1, 1)
NAN = float("nan")  # one object for all of them, so that dictionaries find it
ALWAYS = float("inf")
Document = dict[str, Any]


def document(path: Path) -> Document:
    """A JSON document, after a check of its checksum."""
    data = path.read_bytes()
    head = len('{"checksum":"sha256:') + 64
    fields: Document = json.loads(data)
    check(fields["checksum"] == "sha256:" + hashlib.sha256(data[head + 1 :]).hexdigest(), f"{path} is damaged")
    known = (1, 2) if fields["kind"] == "register" else (1,)
    check(fields["format_version"] in known, f"{path} has format version {fields['format_version']}")
    return fields


def register(job: Path) -> Document:
    """The newest version of a job's register."""
    check(not (job / "register.json").exists(), f"the register of {job} is in another store: see its register.json")
    for _ in range(ATTEMPTS):
        found = sorted((job / "register").glob("v-*"))
        check(bool(found), f"{job} has no register")
        try:
            version = document(found[-1])
            check(found[-1].name == f"v-{version['version']:020}", f"{found[-1]} is another version than its name says")
            # A writer that slept may have made one where others are deleted; the version before proves that it counts.
            if version["version"] == 1 and not (job / "register" / "trimmed").exists():
                return version
            before = document(job / "register" / f"v-{version['version'] - 1:020}")
            if before["history"][0] == version["history"][1]:
                return version
        except FileNotFoundError:
            continue  # while the job runs, old versions are deleted
    raise SystemExit(f"the newest version of the register of {job} is not proved by the one before it")


def newest(job: Path) -> Path:
    """The `_metadata` of a job's newest completed checkpoint, as its register says."""
    pointers = register(job)["checkpoints"]
    check(bool(pointers), f"no checkpoint of {job} is complete")
    pointer = pointers[-1]
    data = (job / pointer["path"]).read_bytes()
    whole = len(data) == pointer["length"] and hashlib.sha256(data).hexdigest() == pointer["digest"]
    check(whole, f"{pointer['path']} is not what was completed")
    return job / str(pointer["path"])


def checkpoint(place: Path) -> tuple[Document, Path]:
    """The document of a checkpoint, or of a job's newest one, and the directory to which its paths are relative."""
    path = place / "_metadata" if (place / "_metadata").exists() else newest(place)
    metadata = document(path)
    check(metadata["kind"] == "checkpoint", f"{path} is no checkpoint")
    savepoint = metadata["properties"]["type"].endswith("SAVEPOINT")
    return metadata, path.parent if savepoint else path.parent.parent


def states(place: Path, now: int | None = None) -> Iterator[tuple[str, str, Document, dict[Any, Any]]]:
    """(uid, state, schema, content) of each state in a checkpoint or savepoint, or in the newest one of a job.

    The content is {key: value}, {key: [element, ...]} or {key: {map key: value}}; of timers {key: [time, ...]}. Where
    state has namespaces, its keys are (key, namespace). State of subtasks has the number of the subtask as its key.
    What has expired at the time `now` is left out, if it is given, and if the files say how long values live.
    """
    metadata, root = checkpoint(place)
    for operator in metadata["operators"]:
        yield from subtask_states(root, operator)
        runs = [Run(root, handle) for handle in operator["runs"]]
        for name in sorted({name for run in runs for name in run.segments}):
            schema = next(run.segments[name]["schema"] for run in reversed(runs) if name in run.segments)
            content = timers(name, operator, runs) if schema["kind"] == "timers" else replay(name, operator, runs, now)
            yield operator["uid"], name, schema, content


def open_windows(place: Path, uid: str) -> dict[Any, Any]:
    """The windows of an operator that have not ended: {(key, window): contents}.

    A window is (start, end), a number, or None for the only one. Its contents are the value of `window-contents`; of
    windows by columns a list with the accumulators of each of its panes, {state: value}.
    """
    operator = next(one for one in checkpoint(place)[0]["operators"] if one["uid"] == uid)
    found = {name: (schema, content) for of, name, schema, content in states(place) if of == uid}
    form = operator["states"]["windows"]
    if form["form"] == "elements":
        schema, contents = found["window-contents"]
        # A window that merges with others has its contents in the namespace in which one of them began.
        merged = found.get("merging-window-set", (None, {}))[1]
        of_state = {(key, where): window for key, windows in merged.items() for window, where in windows.items()}
        return {
            (key, window_of(schema, of_state.get((key, where), where))): value
            for (key, where), value in contents.items()
        }
    panes: dict[Any, dict[str, Any]] = {}
    for name, (_, content) in found.items():
        for place_of, value in content.items() if name.startswith("pane-") else ():
            panes.setdefault(place_of, {})[name] = value
    if form["windows"] == "sessions":
        flat = [(key, bounds) for (key, _), bounds in found["sessions"][1].items()]
        bounds = {(key, pair) for key, of_key in flat for pair in zip(of_key[::2], of_key[1::2], strict=True)}
        sessions = {(key, struct.unpack(">qq", window)): [pane] for (key, window), pane in panes.items()}
        check(bounds == sessions.keys(), f"the sessions of {uid} are not those of its panes")
        return sessions
    timers_of = found.get(f"_timer_state/{form['time']}_window-timers", (None, {}))[1]
    windows: dict[Any, list[dict[str, Any]]] = {}
    for (key, pane), accumulators in panes.items():
        (least,) = timers_of[key, pane]  # the last millisecond of the first window that has the pane and is open
        first, end = struct.unpack(">qq", pane)
        start = first - (first - form["offset"]) % form["slide"]
        while start + form["size"] >= end and start + form["size"] - 1 >= least:
            windows.setdefault((key, (start, start + form["size"])), []).append(accumulators)
            start -= form["slide"]
    return windows


def window_of(schema: Document, namespace: bytes) -> Any:
    """A window as the bytes of its namespace say."""
    serializer = str(schema["namespace"]["content"]).rpartition(":")[2]
    if serializer == "TimeWindowSerializer":
        return struct.unpack(">qq", namespace)
    if serializer == "CountWindowSerializer":
        return struct.unpack(">q", namespace)[0]
    return None if serializer == "GlobalWindowSerializer" else namespace


def hooks(place: Path) -> dict[str, bytes]:
    """What the hooks of the driver have in a checkpoint."""
    found = checkpoint(place)[0]["master_states"]
    return {name: base64.b64decode(state["data"], validate=True) for name, state in found.items()}


def source_files(place: Path) -> dict[str, bytes]:
    """What Spark's checkpoint directory must have to go on: entries of its offset log, and those of its sources."""
    metadata, root = checkpoint(place)
    streaming = (metadata["source_positions"] or {}).get("streaming") or {"offsets": {}, "sources": {}}
    found = {f"offsets/{batch}": text.encode() for batch, text in streaming["offsets"].items()}
    for name, handle in streaming["sources"].items():
        data = (root / handle["path"]).read_bytes()
        whole = len(data) == handle["size"] and xxhash.xxh3_64_hexdigest(data) == handle["digest"]
        check(whole, f"{handle['path']} is damaged")
        found[f"sources/{name}"] = data
    return found


def subtask_states(root: Path, operator: Document) -> Iterator[tuple[str, str, Document, dict[Any, Any]]]:
    """The same of state that belongs to subtasks: a list or a map for each, in the forms in which they were written."""
    found: dict[str, tuple[Document, dict[Any, Any]]] = {}
    for subtask, snapshot in enumerate(operator["subtasks"]):
        known = (snapshot or {}).get("format_version", 1) in (1, 2)
        check(known, f"the state of subtask {subtask} of {operator['uid']} has another format version")
        for name, state in (snapshot or {}).get("states", {}).items():
            rows = [row for chunk in state["chunks"] for row in elements(root, chunk)]
            content = found.setdefault(name, ({"kind": state["mode"], "type": state["type"]}, {}))[1]
            if state["mode"] == "broadcast":
                content[subtask] = {decode_key(state["key"], row["key"]): row["value"] for row in rows}
            else:
                content[subtask] = [row["value"] for row in rows]
    for name, (schema, content) in sorted(found.items()):
        yield operator["uid"], name, schema, content


def elements(root: Path, chunk: Document) -> list[Document]:
    """The elements of one chunk."""
    data = chunk["data"]
    if "inline" in data:
        content = base64.b64decode(data["inline"], validate=True)
    else:
        content = (root / data["path"]).read_bytes()
        whole = len(content) == data["size"] and hashlib.sha256(content).hexdigest() == data["digest"]
        check(whole, f"{data['path']} is damaged")
    payload = pa.py_buffer(content[chunk["offset"] : chunk["offset"] + chunk["length"]])
    rows: list[Document] = pa.ipc.open_stream(payload).read_all().slice(chunk["first"], chunk["count"]).to_pylist()
    return rows


class Run:
    """One run file, checked as a whole."""

    def __init__(self, root: Path, handle: Document) -> None:
        path = root / handle["path"]
        self.data = path.read_bytes()
        start, length, digest, zeros, end = struct.unpack("<QQ32s8s8s", self.data[-64:])
        footer = self.data[start : start + length]
        check(self.data[:8] == b"HFRUN\x01\r\n" and zeros + end == bytes(8) + b"HFRUNEND", f"{path} is not a run")
        check(len(self.data) == handle["size"] and start + length == handle["size"] - 64, f"{path} is cut off")
        check(hashlib.sha256(footer).digest() == digest, f"the footer of {path} is damaged")
        check(digest.hex() == handle["digest"], f"{path} is another run than the checkpoint names")
        self.footer: Document = json.loads(footer)
        check(self.footer["format_version"] == 1, f"{path} has format version {self.footer['format_version']}")
        size = self.footer["block_size"]
        blocks = [xxhash.xxh3_64_hexdigest(self.data[at : min(at + size, start)]) for at in range(0, start, size)]
        check(blocks == self.footer["blocks"], f"a block of {path} is damaged")
        self.segments = {segment["name"]: segment for segment in self.footer["segments"]}

    def rows(self, name: str) -> list[Document]:
        """The rows of one segment."""
        segment = self.segments.get(name)
        if segment is None:
            return []
        buffer = self.data[segment["offset"] : segment["offset"] + segment["length"]]
        rows: list[Document] = pa.ipc.open_file(pa.py_buffer(buffer)).read_all().to_pylist()
        return rows


def replay(name: str, operator: Document, runs: list[Run], now: int | None) -> dict[Any, Any]:
    """What the rows of all runs, oldest first, make of one state."""
    # By keys as they stand in files: Python finds keys equal that are not the same, such as 1 and 1.0.
    content: dict[Any, Any] = {}
    schemas: dict[Any, Document] = {}
    runs = [run for run in runs if name in run.segments]
    for run in runs:
        of_run = run.segments[name]["schema"]
        is_list, is_map = of_run["kind"] == "list", of_run["kind"] == "map"
        # A clear speaks about older runs only, so it comes before the other rows of its own run.
        for row in sorted(run.rows(name), key=lambda row: row["op"] != CLEAR):
            key = (same(row["key"]), row.get("namespace"))
            if key not in schemas:
                schemas[key] = newest_schema(name, runs, key_group(row["hash"], operator))
            cell = stamped(row, later_forms(of_run, schemas[key]), is_list)
            if row["op"] == CLEAR or (row["op"] == DELETE and not is_map):
                content.pop(key, None)
            elif is_map and row["op"] == DELETE:
                content.get(key, {}).pop(same(row["map_key"]), None)
            elif is_map:
                content.setdefault(key, {})[same(row["map_key"])] = cell
            else:
                content[key] = content.get(key, []) + cell if row["op"] == APPEND else cell
    left: dict[Any, Any] = {}
    for key, cell in content.items():
        # A value expires when its stamp and the time to live, added up, are not after now.
        lives = schemas[key].get("time_to_live")
        past = now - lives if now is not None and lives is not None else -ALWAYS
        if is_list:
            found: Any = [value for value, stamp in cell if stamp > past]
        elif is_map:
            entries = {(entry, None): value for entry, (value, stamp) in cell.items() if stamp > past}
            found = decoded(schemas[key]["map_key"], entries)
        else:
            found = cell[0]
        # Without entries a map does not exist, nor a list without elements.
        if found if is_list or is_map else cell[1] > past:
            left[key] = found
    return decoded(operator["key"], left)


def key_group(hashed: int, operator: Document) -> int:
    """The key group of a hash."""
    return ((hashed >> 32) * int(operator["max_parallelism"])) >> 32


def newest_schema(name: str, runs: list[Run], group: int) -> Document:
    """What the newest run of a key group says about a state, perhaps without a row of the key group."""
    covering = (run for run in reversed(runs) if run.footer["key_groups"][0] <= group <= run.footer["key_groups"][1])
    schema: Document = next(covering).segments[name]["schema"]
    return schema


def later_forms(schema: Document, newest: Document) -> list[Document]:
    """The form of a run's rows, and those that they are brought through to the newest one."""
    own, forms = ([*one.get("former", []), one] for one in (schema, newest))
    if all(map(is_same_form, own, forms)) and len(own) <= len(forms):
        return forms[len(own) - 1 :]
    # Subtasks may have known different forms in between: then in one step.
    return [own[-1]] if is_same_form(own[-1], forms[-1]) else [own[-1], forms[-1]]


def is_same_form(one: Document, other: Document) -> bool:
    """Whether two forms differ by the defaults of fields at most."""
    return bool(one["ttl"] == other["ttl"] and without_defaults(one["type"]) == without_defaults(other["type"]))


def without_defaults(kind: Any) -> Any:
    """A type without the defaults of its fields."""
    if isinstance(kind, dict):
        return {name: without_defaults(part) for name, part in kind.items() if name != "default"}
    return [without_defaults(part) for part in kind] if isinstance(kind, list) else kind


def same(key: Any) -> Any:
    """A key as it stands in a file, of which all NaN are one."""
    return key if key == key else NAN


def stamped(row: Document, forms: list[Document], is_list: bool) -> Any:
    """What a row says, in the newest form: a value with the time of its last use, or a list of such pairs."""
    values, stamps = (row["value"] or [], row.get("stamp")) if is_list else ([row["value"]], [row.get("stamp", ALWAYS)])
    stamps = stamps or [ALWAYS] * len(values)
    for before, after in itertools.pairwise(forms):
        values = [newer(value, before["type"], after["type"]) for value in values]
        if before["ttl"] != after["ttl"]:
            stamps = [after.get("since", 0) if after["ttl"] else ALWAYS] * len(values)
    pairs = list(zip(values, stamps, strict=True))
    return pairs if is_list else pairs[0]


def decoded(codec: Document | None, content: dict[Any, Any]) -> dict[Any, Any]:
    """The same by keys as Python has them. Of keys that Python finds equal the later ones stay as the file has them."""
    found: dict[Any, Any] = {}
    for (stored, namespace), value in content.items():
        forms = [key if namespace is None else (key, namespace) for key in (decode_key(codec, stored), stored)]
        found[forms[forms[0] in found]] = value
    return found


def newer(value: Any, before: Any, after: Any) -> Any:
    """A value of an older type as one of a newer type: fields by their names, numbers widened."""
    if value is None or before == after:
        return value
    before, after = as_row(before), as_row(after)
    if after in ("float", "double"):
        return float(value)
    kind = after if isinstance(after, str) else after["type"]
    if kind == "array":
        return [newer(item, before["element"], after["element"]) for item in value]
    if kind == "map":
        return [(newer(k, before["key"], after["key"]), newer(v, before["value"], after["value"])) for k, v in value]
    if kind == "tuple":
        parts = zip(value.items(), before["types"], after["types"], strict=True)
        return {name: newer(item, old, new) for (name, item), old, new in parts}
    if kind in ("row", "dataclass", "avro"):
        return {field["name"]: newer_field(field, value, before["fields"]) for field in after["fields"]}
    check(kind not in ("pickled", "serializer"), f"only the program can turn {before} into {after}")
    return Decimal(value) if kind == "decimal" else value.ljust(after["length"]) if kind == "char" else value


def as_row(kind: Any) -> Any:
    """A type of rows with a kind as that of rows that have it in one more column; any other type as it is."""
    if isinstance(kind, str) or kind["type"] != "changelog":
        return kind
    return {"type": "row", "fields": [*kind["rows"]["fields"], {"name": "row_kind", "type": "tinyint"}]}


def newer_field(field: Document, value: Document, before: list[Document]) -> Any:
    """A field of a newer record: what one of its names has in the older record, else its default."""
    types = {old["name"]: old["type"] for old in before}
    for name in (field["name"], *field.get("aliases", [])):
        if name in types:
            return newer(value[name], types[name], field["type"])
    if "default" not in field:
        return None
    return pa.ipc.open_stream(base64.b64decode(field["default"])).read_all()["default"][0].as_py()


def timers(name: str, operator: Document, runs: list[Run]) -> dict[Any, list[int]]:
    """The timers that have not fired, by key (with the namespace, if that is not empty)."""
    alive: dict[tuple[Any, bytes, int], int] = {}
    for run in runs:
        fired = run.footer["fired_through"].get(name)
        first, last = run.footer["key_groups"]
        if fired is not None:
            alive = {timer: group for timer, group in alive.items() if timer[2] > fired or not first <= group <= last}
        for row in run.rows(name):
            timer = (same(row["key"]), row["namespace"], row["timestamp"])
            if row["op"] == PUT:
                alive[timer] = key_group(row["hash"], operator)
            else:
                alive.pop(timer, None)
    times: dict[Any, list[int]] = {}
    for key, namespace, timestamp in sorted(alive, key=lambda timer: timer[2]):
        times.setdefault((key, namespace or None), []).append(timestamp)
    return decoded(operator["key"], times)


def decode_key(codec: Document | None, key: Any) -> Any:
    """A key as Python has it: of a simple type it stands in the file as it is."""
    if codec is None or codec["kind"] == "atomic" or key is None:
        return key if key == key else NAN
    return decode_tagged(key, 0)[0] if codec["kind"] == "tagged" else decode_composite(codec["type"], key)


def decode_composite(kind: Document, data: bytes) -> tuple[Any, ...]:
    """A key of several columns: each part after its length."""
    parts: list[Any] = []
    at, kind = 0, as_row(kind)
    for part in kind["types"] if kind["type"] == "tuple" else [field["type"] for field in kind["fields"]]:
        (length,) = struct.unpack_from(">I", data, at)
        at += 4
        if length == 0xFFFF_FFFF:
            parts.append(None)
        else:
            parts.append(decode_part(part, data[at : at + length]))
            at += length
    return tuple(parts)


def decode_part(kind: Any, data: bytes) -> Any:
    """One part of a composite key."""
    name = kind if isinstance(kind, str) else kind["type"]
    if name in ("row", "tuple", "dataclass", "avro", "changelog"):
        return decode_composite(kind, data)
    if name in ("string", "char"):
        return data.decode()
    if name == "binary":
        return data
    if name == "decimal":
        unscaled = int.from_bytes(data, "big") - (1 << 127)
        return unscaled if kind.get("as_int") else Decimal(unscaled).scaleb(-kind["scale"])
    number = int.from_bytes(data, "big") - (1 << 63)
    if name in ("float", "double"):
        layouts = ("<f", "<i") if name == "float" else ("<d", "<q")
        found = struct.unpack(layouts[0], struct.pack(layouts[1], number))[0]
        return found if found == found else NAN
    if name == "date":
        return date(1970, 1, 1) + timedelta(days=number)
    if name in ("timestamp", "timestamp_ntz"):
        moment = EPOCH + timedelta(microseconds=number)
        return moment.replace(tzinfo=UTC) if name == "timestamp" else moment
    if name == "time":
        return (EPOCH + timedelta(microseconds=number // 1000)).time()
    if name == "interval day to second":
        return timedelta(microseconds=number)
    return bool(number) if name == "boolean" else number


def decode_tagged(data: bytes, at: int) -> tuple[Any, int]:
    """A key without a declared type, and where it ends."""
    tag, at = data[at : at + 1], at + 1
    if tag in (b"N", b"T", b"F"):
        return {b"N": None, b"T": True, b"F": False}[tag], at
    if tag == b"d":
        found = struct.unpack_from(">d", data, at)[0]
        return found if found == found else NAN, at + 8
    if tag == b"D":
        return date(1970, 1, 1) + timedelta(days=struct.unpack_from(">i", data, at)[0]), at + 4
    if tag in (b"n", b"z", b"h", b"e"):
        since = timedelta(microseconds=struct.unpack_from(">q", data, at)[0])
        moment = EPOCH + since if tag != b"e" else EPOCH
        return {b"n": moment, b"z": moment.replace(tzinfo=UTC), b"h": moment.time(), b"e": since}[tag], at + 8
    if tag == b"u":
        return UUID(bytes=data[at : at + 16]), at + 16
    count = shift = 0
    while True:
        byte, at = data[at], at + 1
        count |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if tag in (b"t", b"l", b"m", b"f"):  # as what a dictionary can have as its key
        items = []
        for _ in range(2 * count if tag == b"m" else count):
            item, at = decode_tagged(data, at)
            items.append(item)
        if tag == b"m":
            return tuple(zip(items[::2], items[1::2], strict=True)), at
        return frozenset(items) if tag == b"f" else tuple(items), at
    check(tag in (b"i", b"s", b"b", b"c"), f"{tag!r} is no tag of a key")
    content, at = data[at : at + count], at + count
    if tag == b"i":
        return int.from_bytes(content, "big", signed=True), at
    if tag == b"c":
        return Decimal(content.decode()), at
    return content.decode() if tag == b"s" else content, at


def check(holds: bool, what: str) -> None:
    """Stops at the first thing that is not what was written."""
    if not holds:
        raise SystemExit(what)


def main(place: str) -> None:
    """Prints the content of a checkpoint."""
    for uid, name, schema, content in states(Path(place)):
        for key, value in content.items():
            line = {"uid": uid, "state": name, "kind": schema["kind"], "key": key, "value": value}
            print(json.dumps(line, default=str))


if __name__ == "__main__":
    main(*sys.argv[1:])
