"""Records as lines of strict JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distmetrics.record import Record
from distmetrics.sinks import JsonlSink
from tests.sinks.records import record, run


def strict(line: bytes) -> Any:
    """The line by a parser that refuses NaN and Infinity."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(line, parse_constant=refuse)


def lines(path: Path) -> list[bytes]:
    """The file's lines, which must all be ended."""
    content = path.read_bytes()
    assert content == b"" or content.endswith(b"\n")
    return content.split(b"\n")[:-1]


def opened(path: Path) -> JsonlSink:
    """A sink that is open at `path`."""
    sink = JsonlSink(path)
    sink.open(run())
    return sink


def test_one_strict_line_a_record(tmp_path: Path) -> None:
    """Each record is one line of strict JSON in the run directory's metrics.jsonl."""
    sink = JsonlSink()
    sink.open(run(tmp_path))
    sink.write_many([record(5), record(3)])
    sink.write(record(6, {"n": 16777217, "nan": math.nan, "inf": math.inf, "neg": -math.inf}))
    sink.close()
    rows = [strict(line) for line in lines(tmp_path / "metrics.jsonl")]
    assert [row["step"] for row in rows] == [5, 3, 6]
    assert rows[2]["values"] == {
        "n": 16777217,
        "nan": "NaN",
        "inf": "Infinity",
        "neg": "-Infinity",
    }


def test_written_means_readable(tmp_path: Path) -> None:
    """What was written can be read by others before the sink is closed or synced."""
    sink = opened(tmp_path / "metrics.jsonl")
    sink.write(record(1))
    assert len(lines(sink.path)) == 1
    sink.sync()
    sink.close()


@given(
    st.dictionaries(
        st.text(max_size=300),
        st.floats() | st.integers(),
        max_size=4,
    )
)
def test_any_key_and_number_comes_back(values: dict[str, float]) -> None:
    """Every key, also one with lone surrogates, and every number reads back as it was."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        sink = opened(Path(folder) / "metrics.jsonl")
        sink.write(record(1, values))
        sink.close()
        (line,) = lines(sink.path)
    assert repr(dict(Record.from_json(line).values)) == repr(values)


@pytest.mark.parametrize("cut", [1, 5, 8, 9, 40, -2])
def test_torn_last_line_is_cut_on_open(tmp_path: Path, cut: int) -> None:
    """A piece of a record that a crash left is gone, and every whole line is still there."""
    path = tmp_path / "metrics.jsonl"
    whole, torn = record(1).to_json(), record(2).to_json()
    path.write_text(f"{whole}\n{torn[:cut]}", encoding="utf-8")
    sink = opened(path)
    sink.write(record(3))
    sink.close()
    assert [strict(line)["step"] for line in lines(path)] == [1, 3]


def test_whole_last_line_without_line_feed_is_kept(tmp_path: Path) -> None:
    """A record that lacks only its line feed gets one."""
    path = tmp_path / "metrics.jsonl"
    path.write_text(record(1).to_json(), encoding="utf-8")
    sink = opened(path)
    sink.write(record(2))
    sink.close()
    assert [strict(line)["step"] for line in lines(path)] == [1, 2]


def test_zeros_of_a_power_failure_are_cut(tmp_path: Path) -> None:
    """Zeros at the end of the file, after a whole or a torn line, are cut off."""
    for number, tail in enumerate([b"", b'{"st', record(2).to_json().encode()]):
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(record(1).to_json().encode() + b"\n" + tail + bytes(5000))
        sink = opened(path)
        sink.write(record(3))
        sink.close()
        steps = [strict(line)["step"] for line in lines(path)]
        assert steps == ([1, 2, 3] if tail.endswith(b"}}") else [1, 3])


def test_text_that_is_not_ours_is_kept(tmp_path: Path) -> None:
    """A last line that no record begins with is ended, never cut."""
    path = tmp_path / "notes.txt"
    path.write_bytes(b"my notes")
    sink = opened(path)
    sink.write(record(1))
    sink.close()
    assert lines(path)[0] == b"my notes"


def test_long_torn_line_is_found_whole(tmp_path: Path) -> None:
    """A torn line longer than the blocks in which its beginning is searched is cut whole."""
    path = tmp_path / "metrics.jsonl"
    long = record(2, {f"key{number}": 0.5 for number in range(20_000)}).to_json()
    path.write_text(f"{record(1).to_json()}\n{long[:-1]}", encoding="utf-8")
    opened(path).close()
    assert [strict(line)["step"] for line in lines(path)] == [1]


def test_without_a_place_it_says_so() -> None:
    """A sink with neither path nor run directory names both ways to give one."""
    with pytest.raises(ValueError, match="run_dir"):
        JsonlSink().open(run())
    with pytest.raises(ValueError, match="not open"):
        JsonlSink("x").write(record(1))


def test_a_value_that_cannot_be_written_costs_its_key_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The line is there, those beside it too, and one warning has step, keys and reason."""
    sink = opened(tmp_path / "metrics.jsonl")
    values: list[dict[str, Any]] = [
        {"a": 1},
        {"a": 2, "wide": 10**5000, "odd": {1j}},
        {"a": 3, "wide": 10**5000},
    ]
    sink.write_many(
        [
            Record(step=step, first_step=step, window=step, time=0.0, values=each)
            for step, each in enumerate(values)
        ]
    )
    sink.close()
    found = [Record.from_json(line).values for line in lines(sink.path)]
    assert found == [{"a": 1}, {"a": 2}, {"a": 3}]
    (text,) = caplog.messages
    assert text.startswith("the line of step 1 in metrics.jsonl lacks 'wide', 'odd': ")
