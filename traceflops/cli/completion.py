"""What the shell offers while a command is typed: devices, models, the steps of a small trace.

Nothing is offered that takes long to find, and nothing that fails is shown: a shell has no place
for errors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

import typer

_SMALL_BYTES: Final = 20_000_000
"""Less text than this is read to find its steps, which takes about a second."""


def completed(values: Callable[[typer.Context], Iterable[str]]) -> dict[str, Any]:
    """Return the keyword of typer.Option with which the shell offers these values."""

    def offered(ctx: typer.Context, incomplete: str) -> list[str]:
        with suppress(Exception):  # an error would be printed into the line that is being typed
            return [value for value in values(ctx) if value.startswith(incomplete)]
        return []

    return {"autocompletion": offered}


def device_ids(_: typer.Context) -> Iterator[str]:
    """Yield the ids of the device table."""
    from traceflops.devices.peaks import load_devices

    return (spec.id for spec in load_devices())


def model_ids(_: typer.Context) -> Iterable[str]:
    """Return the ids of the preset models."""
    from traceflops.flops.model.models import preset_names

    return preset_names()


def step_numbers(context: typer.Context) -> Iterator[str]:
    """Yield the steps of the traces on the command line if these are small local files.

    Click's parser stops at the option that has no value yet; traces behind it are in `args`.
    """
    files = [*(context.params.get("traces") or ()), *context.args]
    if not files or not all(map(os.path.isfile, files)):
        return
    from traceflops.parsers.io.places import find_inputs

    sources = [source for file in files for source in find_inputs(file)[0]]
    text_bytes = sum(source.expected_text_bytes for source in sources)
    for source in sources:
        source.close()
    if text_bytes < _SMALL_BYTES:
        from traceflops.analysis.preparation import prepare
        from traceflops.parsers.reading import read

        yield from map(str, prepare(read(files, jobs=1)).plan.choice.seen)
