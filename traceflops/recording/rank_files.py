"""The file that a rank writes: whose it is, what it is called, and what does not leave the machine.

PyTorch's profiler writes the name of the host and the path of the file into a trace. Here it is a
digest, by which ranks of one host are still known as such, and no path.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
from functools import partial
from pathlib import Path
from typing import Any, Final

SUFFIXES: Final = (".json.gz", ".json")
_BLOCK_BYTES: Final = 2**20
_HOST: Final = re.compile(rb'("host_name": ")([^"]*)')
_PLACE: Final = re.compile(rb'("traceName": ")[^"]*')
_GZIP: Final = partial(gzip.open, compresslevel=6)
"""A third of the time of the default, for files a few percent larger."""


def is_distributed() -> bool:
    """Return whether the processes of the job know each other."""
    from torch import distributed

    return distributed.is_available() and distributed.is_initialized()


def rank_and_world() -> tuple[int, int]:
    """Return the rank of this process and how many there are, also of those not yet connected."""
    from torch import distributed

    if is_distributed():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def file_of_rank(target: str, rank: int, world: int) -> Path:
    """Return the file of a rank: `trace.rank3.json.gz`, or `rank3.json.gz` in a folder."""
    suffix = next((one for one in SUFFIXES if target.endswith(one)), None)
    if suffix is None:
        return Path(target) / f"rank{rank}.json.gz"
    return Path(target if world == 1 else f"{target.removesuffix(suffix)}.rank{rank}{suffix}")


def write_trace(profiler: Any, path: Path, unfinished: str | None) -> None:
    """Write what was recorded: the whole file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text, packed = (path.with_name(f".{path.name}.{os.getpid()}.{n}.tmp") for n in range(2))
    try:
        profiler.export_chrome_trace(str(text))
        opened: Any = _GZIP if path.suffix == ".gz" else open
        with text.open("rb") as lines, opened(packed, "wb") as writer:
            while block := lines.readlines(_BLOCK_BYTES):
                writer.write(_anonymous(b"".join(block), unfinished))
        packed.replace(path)
    finally:
        for left in (text, packed):
            left.unlink(missing_ok=True)


def _anonymous(block: bytes, unfinished: str | None) -> bytes:
    """Return some lines of a trace without host, path, and the mark of a step that did not end."""
    if b'"host_name"' in block or b'"traceName"' in block:
        block = _PLACE.sub(rb"\1trace.json", _HOST.sub(_digest, block))
    if unfinished is not None:
        block = block.replace(f'"{unfinished}"'.encode(), b'"unfinished step"')
    return block


def _digest(said: re.Match[bytes]) -> bytes:
    return said[1] + hashlib.sha256(said[2]).hexdigest()[:8].encode()
