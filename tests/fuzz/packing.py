"""The ways a trace is packed: plain, gzip, zstd, zip, in one piece or several."""

from __future__ import annotations

import gzip
import io
import zipfile
from random import Random

import pyarrow as pa

FORMS = ("plain", "gzip", "gzip members", "zstd", "zip", "zip of two", "zstd frames", "lz4 frames")
SUFFIXES = {
    "plain": ".json",
    "gzip": ".json.gz",
    "gzip members": ".json.gz",
    "zstd": ".json.zst",
    "zip": ".zip",
    "zip of two": ".zip",
    "zstd frames": ".json.zst",
    "lz4 frames": ".json.lz4",
}
_WEIGHTS = (60, 10, 6, 8, 8, 4, 4, 4)
_SKIPPED = b"\x5f\x2a\x4d\x18\x02\0\0\0no"
_OLDEST = (1980, 1, 1, 0, 0, 0)


def drawn_form(draw: Random) -> str:
    """Return one of the forms, most often the plain one."""
    return draw.choices(FORMS, _WEIGHTS)[0]


def packed(text: bytes, form: str) -> bytes:
    """Return a text in one of the forms, always the same bytes for the same text."""
    half = len(text) // 2
    match form:
        case "gzip":
            return gzip.compress(text, 6, mtime=0)
        case "gzip members":
            return gzip.compress(text[:half], 1, mtime=0) + gzip.compress(text[half:], 9, mtime=0)
        case "zstd":
            compressed: bytes = pa.compress(text, codec="zstd", asbytes=True)
            return compressed
        case "zstd frames" | "lz4 frames":
            halves = [pa.compress(t, form[:-7], asbytes=True) for t in (text[:half], text[half:])]
            return _SKIPPED + (b"\0\0" + _SKIPPED).join(halves) + b"\0"
        case "zip":
            return zipped({"trace.json": text})
        case "zip of two":
            return zipped({"rank0.json": text, "rank1.json": text[: half * 2]})
    return text


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return an archive, always the same bytes for the same members."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in members.items():
            info = zipfile.ZipInfo(name, _OLDEST)
            info.compress_type = method
            archive.writestr(info, text)
    return buffer.getvalue()
