"""Traces as blobs: zstd over canonical JSON with a version of its own, read within fixed bounds."""

from __future__ import annotations

import json
import math

import zstandard

from .errors import CorruptBlob
from .model import Json, canonical_json

FORMAT = 1
"""Version of the envelope around a trace."""

MAX_TRACE_BYTES = 2 << 20
"""Largest envelope, decompressed: the largest of PP-OCRv6's have 12 KB."""

_HINT = "the record cannot be used; tune again to replace it"


def pack_trace(workload_key: str, trace: Json) -> bytes:
    """The bytes to store."""
    envelope = {"format": FORMAT, "workload_key": workload_key, "trace": trace}
    return zstandard.ZstdCompressor(level=3, write_checksum=True).compress(canonical_json(envelope).encode())


def unpack_trace(data: bytes, workload_key: str) -> Json:
    """The trace in the bytes.

    Raises:
        CorruptBlob: It is too large, not such an envelope, of an unknown format, or of another workload.
    """
    envelope = _parse(_decompress(data))
    if not isinstance(envelope, dict) or "trace" not in envelope:
        raise CorruptBlob("a trace blob has no trace in it", hint=_HINT)
    if envelope.get("format") != FORMAT:
        raise CorruptBlob(f"a trace blob has the format {envelope.get('format')!r}, this release reads {FORMAT}", hint=_HINT)
    if envelope.get("workload_key") != workload_key:
        raise CorruptBlob("a trace blob belongs to another workload", hint=_HINT)
    return envelope["trace"]


def _decompress(data: bytes) -> bytes:
    # `max_output_size` is not looked at when the frame states its size, so the stated size is checked first.
    try:
        if zstandard.frame_content_size(data) > MAX_TRACE_BYTES:
            raise CorruptBlob(f"a trace blob states more than {MAX_TRACE_BYTES} bytes", hint=_HINT)
        decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_TRACE_BYTES)
        return decompressor.decompress(data, max_output_size=MAX_TRACE_BYTES, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptBlob(f"a trace blob cannot be decompressed: {error}", hint=_HINT) from error


def _parse(text: bytes) -> Json:
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise CorruptBlob(f"a trace blob is not JSON: {error}", hint=_HINT) from error


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:20]} is too large a number")
    return number


def _refuse_constant(name: str) -> Json:
    raise ValueError(f"{name} is not a JSON number")
