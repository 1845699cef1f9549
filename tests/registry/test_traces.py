from __future__ import annotations

import json
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from bcd_registry.errors import CorruptBlob
from bcd_registry.testing.values import TRACE, hex_of
from bcd_registry.traces import MAX_TRACE_BYTES, pack_trace, unpack_trace

KEY = hex_of("workload")
GOLDEN = Path(__file__).parent / "golden" / "trace_format_1.zst"

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def compressed(text: str | bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(text.encode() if isinstance(text, str) else text)


def envelope(**changes: object) -> bytes:
    return compressed(json.dumps({"format": 1, "workload_key": KEY, "trace": TRACE, **changes}))


@given(json_values)
def test_reads_back_what_was_packed(trace: object) -> None:
    assert unpack_trace(pack_trace(KEY, trace), KEY) == trace


def test_the_golden_blob_of_format_1_is_read() -> None:
    assert unpack_trace(GOLDEN.read_bytes(), KEY) == TRACE


def test_equal_traces_give_equal_bytes() -> None:
    assert pack_trace(KEY, {"a": 1, "b": (2,)}) == pack_trace(KEY, {"b": [2], "a": 1})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "cannot be decompressed"),
        (b"abc", "cannot be decompressed"),
        (pack_trace(KEY, TRACE)[:-1], "cannot be decompressed"),
        (pack_trace(KEY, TRACE) + b"\0", "cannot be decompressed"),
        (pack_trace(KEY, TRACE) * 2, "cannot be decompressed"),
        (compressed("{"), "not JSON"),
        (compressed(b"\xff\xfe{"), "not JSON"),
        (compressed("[" * 100_000), "not JSON"),
        (compressed("1" * 5000), "not JSON"),
        (envelope(trace=float("nan")), "not JSON"),
        (compressed(f'{{"format":1,"trace":[1e999],"workload_key":"{KEY}"}}'), "not JSON"),
        (compressed("[1]"), "no trace"),
        (compressed('{"format":1}'), "no trace"),
        (envelope(format=2), "format 2, this release reads 1"),
        (envelope(format=None), "format None"),
        (envelope(workload_key="other"), "another workload"),
    ],
)
def test_refuses_bad_content(data: bytes, message: str) -> None:
    with pytest.raises(CorruptBlob, match=message):
        unpack_trace(data, KEY)


def test_a_bomb_is_refused_by_its_stated_size() -> None:
    with pytest.raises(CorruptBlob, match="more than"):
        unpack_trace(compressed(b" " * (MAX_TRACE_BYTES + 1)), KEY)


def test_a_bomb_that_states_no_size_is_refused_too() -> None:
    compressor = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    bomb = compressor.compress(b" " * (4 * MAX_TRACE_BYTES)) + compressor.flush()
    assert zstandard.frame_content_size(bomb) == -1
    with pytest.raises(CorruptBlob):
        unpack_trace(bomb, KEY)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    with pytest.raises(CorruptBlob):
        unpack_trace(data, KEY)
