"""Large traces: a bundled sample repeated end to end, with times, ids and step numbers made new."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.conftest import SAMPLES

SAMPLE = SAMPLES / "gpt_1rank.json.gz"
_IDS = ("correlation", "External id", "Record function id", "Ev Idx", "Python id")
_STEP = "ProfilerStep#"


def tiled(megabytes: float, layout: str = "pretty", sample: Path = SAMPLE) -> Iterator[str]:
    """Yield the text of a trace of about so many million bytes; `layout` is pretty or compact."""
    document = json.loads(gzip.decompress(sample.read_bytes()))
    events = document.pop("traceEvents")
    separator = {"pretty": ",\n", "compact": ","}[layout]
    options: dict[str, Any] = {"indent": 2} if layout == "pretty" else {"separators": (",", ":")}
    yield json.dumps(document)[:-1] + ', "traceEvents": ['
    named = [event for event in events if "cat" in event]
    written, copy = 0, 0
    while written < megabytes * 1e6:
        text = separator.join(json.dumps(e, **options) for e in _copies(named, copy))
        yield text + separator
        written, copy = written + len(text), copy + 1
    # What has no category (names of processes and threads) stands once, at the end, as in a file
    # that the profiler wrote.
    last = [event for event in events if "cat" not in event]
    yield separator.join(json.dumps(event, **options) for event in last) + "]}\n"


def write(path: Path, megabytes: float, layout: str = "pretty") -> Path:
    """Write such a trace, through gzip where the name ends in .gz."""
    packed = path.suffix == ".gz"
    with gzip.open(path, "wt", compresslevel=1) if packed else path.open("w") as file:
        for part in tiled(megabytes, layout):
            file.write(part)
    return path


def _copies(events: list[dict[str, Any]], copy: int) -> Iterator[dict[str, Any]]:
    """Yield the events of one repetition, after all those before it."""
    times = [event["ts"] for event in events if "ts" in event]
    span = int(max(times) - min(times)) + 10_000
    steps = {event["name"] for event in events if str(event.get("name")).startswith(_STEP)}
    for event in events:
        yield _moved(event, copy, span, len(steps)) if copy else event


def _moved(event: dict[str, Any], copy: int, span: int, steps: int) -> dict[str, Any]:
    new = dict(event)
    if "ts" in event:
        # These times are far below 2^43 microseconds, where a double keeps every thousandth.
        new["ts"] = round(event["ts"] + copy * span, 3)
    if "id" in event:
        new["id"] = event["id"] + copy * 10_000_000
    if isinstance(event.get("args"), dict):
        new["args"] = {
            key: value + copy * 10_000_000 if key in _IDS and isinstance(value, int) else value
            for key, value in event["args"].items()
        }
    name = str(event.get("name"))
    if name.startswith(_STEP):
        new["name"] = f"{_STEP}{int(name.removeprefix(_STEP)) + copy * steps}"
    return new
