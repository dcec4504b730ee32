"""`traceflops devices`: the device table, and which row of it the devices of a trace are."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from traceflops.cli.common import say, say_object, terminal_style
from traceflops.cli.options import INPUT, Json, ReadingOptions, argument, option
from traceflops.errors import UsageError

if TYPE_CHECKING:
    from traceflops.devices.device_facts import SeenDevice
    from traceflops.devices.matching import Match
    from traceflops.devices.peaks import DeviceSpec

EXAMPLES = (
    "traceflops devices",
    "traceflops devices h100",
    "traceflops devices mi300x --json",
    'traceflops devices "NVIDIA A100-SXM4-80GB"',
    "traceflops devices --trace trace.json.gz",
)
SCHEMA = "traceflops.devices/1"
_LABEL, _LEAST_ROOM = 11, 20
_OPTIONS = "--device ID and --peak TFLOPS are options of `traceflops report`, `summary` and `mfu`."
_LISTS = "traceflops devices lists the table"
_SHOWN_RATES = ("fp16", "bf16", "fp8")
_TO_THE_LEFT = ("id", "product")
_DISPENSABLE = ("product", "src", "GB", "GB/s")
"""Columns that are left out in a narrow terminal, the first ones first."""
_LONGEST_PRODUCT = 30
_NONE = "-"


def devices(
    text: str | None = argument(
        "[TEXT]",
        "Part of an id, a product or an architecture; or a GPU's name in a trace.",
        default=None,
    ),
    trace: list[str] | None = option(
        "FILE", "Match the GPUs of this trace against the table. May be repeated.", **INPUT
    ),
    json: Json = False,
) -> None:
    """List devices and their peaks, or match a trace's GPUs."""
    if text is not None and trace:
        raise UsageError("TEXT and --trace are mutually exclusive", "give one of them")
    if trace:
        from traceflops.devices.matching import match

        seen = _seen_in(trace)
        _print_matches([(match(device), labels) for device, labels in seen.items()], json)
        return
    from traceflops.devices.device_facts import SeenDevice, is_full_name, named_row
    from traceflops.devices.matching import match
    from traceflops.devices.peaks import find, load_devices

    specs = load_devices()
    if text is not None:
        # The row with this id, else all rows that contain the text, else the one it names.
        wanted = " ".join(text.lower().split())
        specs = tuple(
            row
            for row in specs
            if wanted in f"{row.id} {row.vendor} {row.product} {row.arch}".lower()
        )
        exact = find(wanted) or (named_row(text) if not specs else None)
        specs = (exact,) if exact is not None else specs
    if text is not None and (not specs or is_full_name(text)):
        # The name of a GPU as a trace has it.
        matched = match(SeenDevice(text))
        if matched.spec is None:
            is_path = os.path.exists(text)
            hint = "--trace FILE matches the GPUs of a trace" if is_path else _LISTS
            raise UsageError(matched.explanation, hint)
        _print_matches([(matched, [])], json)
    elif json:
        say_object({"schema": SCHEMA, "devices": [_spec_object(spec) for spec in specs]})
    elif len(specs) == 1:
        say("\n".join(_details(specs[0])))
    else:
        say("\n".join(_table(specs, terminal_style().width)))


def _table(specs: tuple[DeviceSpec, ...], width: int) -> Iterator[str]:
    """Yield a line per device and the legend; columns without room are left out."""
    from traceflops.reports.terminal.lines import columns as fitting
    from traceflops.reports.view.figures import shorten_middle

    cells = [
        {
            "id": spec.id,
            "product": shorten_middle(spec.product, _LONGEST_PRODUCT),
            **{dtype: _rate(spec.peak(dtype)) for dtype in _SHOWN_RATES},
            "GB": "/".join(dict.fromkeys(memory.size for memory in spec.memories)),
            "GB/s": "/".join(dict.fromkeys(str(memory.bandwidth) for memory in spec.memories)),
            "src": spec.confidence,
        }
        for spec in specs
    ]
    rows = [{name: name for name in cells[0]}, *cells]
    # Each column is two wider than its texts; the last two blanks of a line are not printed.
    all_widths = {name: 2 + max(len(row[name]) for row in rows) for name in cells[0]}
    widths = fitting(all_widths, width + 2, _DISPENSABLE)
    for row in rows:
        padded = []
        for name, column_width in widths.items():
            pad = str.ljust if name in _TO_THE_LEFT else str.rjust
            padded.append(pad(row[name], column_width - 2))
        yield "  ".join(padded).rstrip()
    yield ""
    for line in (
        f"{len(specs)} devices. Rates are dense TFLOP/s; {_NONE}: not supported or not published.",
        "src: A from the vendor, B second-hand or uncertain, D no public rate.",
        "`traceflops devices ID` shows the whole row.",
    ):
        yield from textwrap.wrap(line, width)


def _details(spec: DeviceSpec) -> Iterator[str]:
    """Yield the whole row of a device."""
    kind = [spec.vendor, spec.arch]
    if spec.compute is not None:
        kind.append(f"compute capability {spec.compute[0]}.{spec.compute[1]}")
    if spec.units is not None:
        kind.append(f"{spec.units} {spec.unit_name}")
    if spec.has_matrix_units is False:
        kind.append("no matrix units")
    kind.append(f"one device is a {spec.one_device_is}")
    yield _line("id", spec.id)
    yield _line("product", f"{spec.product}; {', '.join(kind)}")
    yield from _rates_and_source(spec)
    yield _line("pattern", spec.pattern)


def _rates_and_source(spec: DeviceSpec, matched: Match | None = None) -> Iterator[str]:
    """Yield the lines on the peaks of a row; `matched` is its device in a trace, if any."""
    from traceflops.devices.matching import REFERENCE

    rates = ", ".join(f"{dtype} {_rate(rate)}" for dtype, rate in spec.dense.items())
    yield _line("dense", f"{rates} TFLOP/s" if rates else "no public figure")
    if spec.memories:
        sizes = (
            f"{'shared' if memory.gb is None else f'{memory.gb} GB'} at {memory.bandwidth} GB/s"
            for memory in spec.memories
        )
        link = f"; links {float(spec.link):g} GB/s" if spec.link is not None else ""
        yield _line("memory", f"{' or '.join(sizes)}{link}")
    if spec.host_link is not None:
        each_way = f"{float(spec.host_link.bandwidth):.3g} GB/s each way"
        yield _line("host link", f"{spec.host_link.name}, {each_way}")
    texts = [
        f"{dtype} {float(balance):.0f}"
        for dtype in _SHOWN_RATES
        if (balance := spec.balance(dtype)) is not None
    ]
    if texts:
        yield _line("balance", f"{', '.join(texts)} FLOP per byte")
    # Check the rate by clock and number of units: those of the device in the trace, if it has both,
    # else those of the table.
    per_clock = f"{spec.unit_name} x {spec.flops_per_clock} FLOP per clock x"
    if matched is not None and matched.by_clock is not None:
        seen, rate = matched.seen, float(matched.by_clock) / 1000
        dtype = next(dtype for dtype in REFERENCE if spec.peak(dtype))
        yield _line(
            "check",
            f"{seen.units} {per_clock} {(seen.clock_hz or 0) / 1e6:g} MHz (from the trace) = "
            f"{rate:.1f} TFLOP/s ({dtype}); the table's {_rate(spec.peak(dtype))} is used",
        )
    elif spec.formula is not None and spec.part == 1:  # a part's rate was made from its units
        rate = float(spec.formula) / 1000
        yield _line("check", f"{spec.units} {per_clock} {spec.clock_mhz} MHz = {rate:.1f} TFLOP/s")
    dated = f", taken over {spec.date}" if spec.date is not None else ""
    yield _line("source", f"{spec.source} (confidence {spec.confidence}{dated})")
    if spec.note:
        yield _line("note", spec.note)


def _seen_in(traces: list[str]) -> dict[SeenDevice, list[str]]:
    """Return the GPUs of the traces, each with its labels; equal ones share one entry."""
    from traceflops.devices.device_facts import SeenDevice
    from traceflops.devices.processes import ranks_of_devices, ranks_text
    from traceflops.privacy.environment import redacted

    trace = redacted(ReadingOptions(python_stacks=False).read(traces))
    rank_of_process, ranks_of_device = trace.ranks, ranks_of_devices(trace)
    seen: dict[SeenDevice, list[str]] = {}
    for row in trace.devices.to_pylist():
        if row["type"] == "cpu":
            continue
        rank = rank_of_process[row["process"]]
        ranks = ranks_of_device[row["device"]] or ((rank,) if rank is not None else ())
        label = f"{ranks_text(ranks)} gpu {row['local_id']}".strip()
        seen.setdefault(SeenDevice.of(row), []).append(label)
    return seen


def _print_matches(matches: list[tuple[Match, list[str]]], json: bool) -> None:
    """Print which row of the table each device is; labels are its names in the trace."""
    if not json:
        blocks = ["\n".join(_explanation(matched, labels)) for matched, labels in matches]
        say("\n\n".join(blocks) or "The trace has no GPU.")
        if blocks:
            advice = textwrap.wrap(_OPTIONS, terminal_style().width, break_on_hyphens=False)
            say("\n".join(["", *advice]))
        return
    from traceflops.reports.view.figures import fields

    seen = [
        {
            "devices": labels,
            "name": matched.seen.name,
            "compute_capability": list(matched.seen.compute) if matched.seen.compute else None,
            **fields(matched.seen, "units", "warp_size", "memory_bytes"),
            "match": _spec_object(matched.spec) if matched.spec is not None else None,
            **fields(matched, "how", "confidence", "confirmed"),
            "candidates": [spec.id for spec in matched.candidates],
            "explanation": matched.explanation,
        }
        for matched, labels in matches
    ]
    say_object({"schema": SCHEMA, "seen": seen})


def _explanation(matched: Match, labels: list[str]) -> Iterator[str]:
    """Yield lines that say which row of the device table was matched, and why.

    `labels` are the trace's devices that match; up to four are named. A name typed by the user has
    no devices and no properties.
    """
    if labels:
        more = f" and {len(labels) - 4} more" if len(labels) > 4 else ""
        yield _line("devices", f"{', '.join(labels[:4])}{more}")
    yield _line("name", matched.seen.name or "not in the trace")
    if labels:
        yield _line("properties", matched.seen.properties() or "not in the trace")
    confirmed = matched.spec if matched.confirmed else None
    if confirmed is not None:
        outcome = f"{confirmed.id} by {matched.how}, confidence {matched.confidence}"
    else:
        candidates = matched.candidates if matched.spec is None else (matched.spec,)
        maybe = ", ".join(spec.id for spec in candidates)
        outcome = f"none without confirmation{f'; may be {maybe}' if maybe else ''}"
    yield _line("match", outcome)
    yield _line("because", matched.explanation)
    if confirmed is not None:
        yield from _rates_and_source(confirmed, matched)


def _spec_object(spec: DeviceSpec) -> dict[str, Any]:
    """Return the row of a device for JSON."""
    from traceflops.reports.view.figures import as_float, fields

    link, formula = spec.host_link, as_float(spec.formula)
    return {
        **fields(spec, "id", "vendor", "product", "arch"),
        "compute_capability": list(spec.compute) if spec.compute is not None else None,
        **fields(spec, "units", "part", "one_device_is"),
        "matrix_units": spec.has_matrix_units,
        "dense_tflops": {dtype: rate / 1000 for dtype, rate in spec.dense.items()},
        "memories": [
            {"gb": memory.gb, "bandwidth_gbps": memory.bandwidth} for memory in spec.memories
        ],
        "link_gbps": as_float(spec.link),
        "host_link": link.name if link is not None else None,
        "host_link_gbps": float(link.bandwidth) if link is not None else None,
        "formula_tflops": formula / 1000 if formula is not None else None,
        **fields(spec, "pattern", "confidence", "source"),
        "date": spec.date.isoformat() if spec.date is not None else None,
        "note": spec.note,
    }


def _rate(rate: int | None) -> str:
    from traceflops.devices.peaks import rate_text

    return _NONE if rate is None else rate_text(rate)


def _line(label: str, value: str) -> str:
    """Return a label and a text; the text is wrapped only if COLUMNS says how wide."""
    from traceflops.reports.view.figures import shorten_middle

    text = shorten_middle(value, 400)
    room = terminal_style().width - _LABEL if "COLUMNS" in os.environ else len(text)
    lines = textwrap.wrap(text, max(room, _LEAST_ROOM), break_on_hyphens=False) or [""]
    return f"{label:<{_LABEL}}" + f"\n{'':{_LABEL}}".join(lines)
