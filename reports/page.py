"""What the page shows, chosen and counted: rows, limits and sentences, no markup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from traceflops.reports.palette import CAUSE_LABELS, loss_label
from traceflops.reports.units import UNKNOWN, count, duration, percent, ratio, shorten_middle
from traceflops.results import COMPONENTS, Account, Components, DeviceReport

if TYPE_CHECKING:
    import pyarrow as pa

    from traceflops.results import Analysis

T = TypeVar("T")

MOST_DEVICES = 32
MOST_KERNELS = 100
MOST_GAPS = 10
MOST_NOTES = 200
MOST_NAMES = 8
BAR_UNITS = 1000


@dataclass(frozen=True, slots=True)
class Few(Generic[T]):
    """The rows that are shown of `total`."""

    rows: Sequence[T]
    total: int

    @property
    def hidden(self) -> int:
        """Return how many rows are not shown."""
        return self.total - len(self.rows)


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure with its name and what belongs beside it."""

    label: str
    value: str
    text: str


@dataclass(frozen=True, slots=True)
class Segment:
    """One part of a bar of 1000 units."""

    component: str
    start: int
    units: int
    share: float

    @property
    def middle(self) -> float:
        """Return where its label is centred, in percent of the bar."""
        return (self.start + self.units / 2) * 100 / BAR_UNITS


@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels that are shown, and the time share of those that are not."""

    rows: list[dict[str, object]]
    hidden: int
    hidden_ns: int
    hidden_share: float | None


def segments(components: Components) -> list[Segment]:
    """Return the parts of a 100 % bar; their widths are whole and sum to 1000."""
    total = components.window_ns
    parts = components.parts()
    found: list[Segment] = []
    start = 0
    for component, units in _thousandths(parts, total).items():
        if units:
            found.append(Segment(component, start, units, parts[component] / total))
        start += units
    return found


def _thousandths(parts: dict[str, int], total: int) -> dict[str, int]:
    """Return whole widths by the method of the largest remainder."""
    if total <= 0:
        return dict.fromkeys(parts, 0)
    widths = {name: ns * BAR_UNITS // total for name, ns in parts.items()}
    by_remainder = sorted(parts, key=lambda name: -(parts[name] * BAR_UNITS % total))
    for name in by_remainder[: BAR_UNITS - sum(widths.values())]:
        widths[name] += 1
    return widths


def document_title(analysis: Analysis) -> str:
    """Return the title of the window: the key figure of the verdict, then the files."""
    verdict = analysis.verdict
    files = _some([file.name for file in analysis.source.files], 1)
    if verdict.loss is None or verdict.share is None:
        return f"{shorten_middle(verdict.sentence, 60)} · {files} · traceflops"
    figure = f"{percent(verdict.share)} {loss_label(verdict.loss)}"
    return f"{shorten_middle(figure, 60)} · {files} · traceflops"


def provenance(analysis: Analysis) -> list[str]:
    """Return where the figures come from: tool, files, devices, ranks, steps, selection."""
    source = analysis.source
    parts = [
        shorten_middle(source.tool or f"{source.format} trace", 60),
        _some([file.name for file in source.files], MOST_NAMES),
        _devices(analysis.devices),
        _ranks(analysis.devices),
        _steps(analysis),
        _selection(analysis),
    ]
    return [part for part in parts if part]


def _some(names: Sequence[str], most: int) -> str:
    if not names:
        return "no file"
    shown = ", ".join(shorten_middle(name, 60) for name in names[:most])
    more = len(names) - most
    return f"{shown} and {count(more)} more" if more > 0 else shown


def _devices(devices: Sequence[DeviceReport]) -> str:
    if not devices:
        return "no device activity"
    products = Counter(device.product or f"{device.type} of unknown product" for device in devices)
    named = [f"{number} × {shorten_middle(name, 60)}" for name, number in products.most_common(4)]  # noqa: RUF001
    more = f" and {len(products) - 4} other products" if len(products) > 4 else ""
    return ", ".join(named) + more


def _ranks(devices: Sequence[DeviceReport]) -> str:
    ranks = sorted({device.rank for device in devices if device.rank is not None})
    if not ranks:
        return ""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {number_ranges(ranks)}"


def _steps(analysis: Analysis) -> str:
    steps = analysis.steps
    if not steps.seen:
        return "no steps found" if analysis.devices else ""
    used = f"{count(len(steps.used))} of {count(len(steps.seen))} steps used"
    return f"{used} ({number_ranges(steps.used)})" if steps.used else used


def _selection(analysis: Analysis) -> str:
    chosen = analysis.selection
    if chosen.is_time_range:
        start = duration(chosen.from_ns or 0)
        end = duration(chosen.to_ns) if chosen.to_ns is not None else "the end"
        return f"chosen: from {start} to {end}"
    names = {"steps": chosen.steps, "ranks": chosen.ranks, "devices": chosen.gpus}
    given = [name for name, value in names.items() if value is not None]
    return f"chosen: only some {' and '.join(given)}" if given else ""


def number_ranges(numbers: Iterable[int], most: int = MOST_NAMES) -> str:
    """Return numbers as ranges, "0-3, 7" (with en dashes), at most so many of them."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    texts = [str(a) if a == b else f"{a}{UNKNOWN}{b}" for a, b in ranges[:most]]
    return ", ".join(texts) + (", …" if len(ranges) > most else "")


def windows_used(analysis: Analysis) -> int:
    """Return in how many windows the figures were added up."""
    return sum(window.used for device in analysis.devices for window in device.windows)


def mean_ns(analysis: Analysis, ns: int) -> float:
    """Return a time of the chosen windows per window: per step and device where there are steps."""
    return ns / max(windows_used(analysis), 1)


def basis(analysis: Analysis) -> str:
    """Return of what the times beside the bar are means, in words."""
    devices = _number(len(analysis.devices), "device")
    window = duration(analysis.components.window_ns)
    if analysis.steps.used:
        steps = _number(len(analysis.steps.used), "step")
        return f"Times are means per step and device, over {steps} on {devices} ({window} in all)"
    if len(analysis.devices) > 1:
        return f"Times are means per device, over {devices} ({window} in all)"
    return f"Times are of one window on {devices}"


def _number(number: int, what: str) -> str:
    return f"one {what}" if number == 1 else f"{count(number)} {what}s"


def steps_sentence(analysis: Analysis) -> str:
    """Return where the steps come from, as a sentence."""
    text = analysis.steps.text.strip()
    if analysis.steps.seen:
        text = f"Steps come from {text}"
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def tiles(analysis: Analysis) -> list[Tile]:
    """Return the five figures under the bar."""
    total = analysis.total
    components = total.components
    return [
        _time_tile(analysis),
        Tile(
            "Exposed communication", percent(components.share("communication")), _hidden(analysis)
        ),
        Tile("Idle", percent(components.share("idle")), _idle(analysis)),
        Tile("Compute", percent(components.share("compute")), _kernels_beside(components)),
        Tile("Activities per launch", ratio(total.activities_per_launch), _launches(total)),
    ]


def _time_tile(analysis: Analysis) -> Tile:
    steps = analysis.steps
    if steps.typical_ns is not None:
        text = f"typical of {_number(len(steps.used), 'step')} used, {count(len(steps.seen))} seen"
        return Tile("Step time", duration(steps.typical_ns), text)
    mean = mean_ns(analysis, analysis.components.window_ns)
    return Tile("Window", duration(mean), "no step time: the window is no step")


def _hidden(analysis: Analysis) -> str:
    exposed = analysis.components.communication_ns
    hidden = analysis.total.hidden_communication_ns
    if not exposed + hidden:
        return "no communication in the window"
    share = percent(hidden / (exposed + hidden))
    seen, unseen = (duration(mean_ns(analysis, ns)) for ns in (exposed, hidden))
    return f"{seen} exposed, {unseen} hidden ({share} of communication)"


def _idle(analysis: Analysis) -> str:
    causes = analysis.total.idle_causes
    if not causes.idle_ns:
        return "no idle time in the window"
    parts = causes.parts()
    largest = max(parts, key=lambda cause: parts[cause])
    share = percent(parts[largest] / causes.idle_ns)
    gaps = analysis.gaps(1)
    longest = f"; longest gap {duration(gaps[0].dur_ns)}" if gaps else ""
    return f"{share} of it {CAUSE_LABELS[largest]}{longest}"


def _kernels_beside(components: Components) -> str:
    shares = [(name, components.share(name)) for name in ("memory", "other", "graph")]
    shown = [f"{name} {percent(share)}" for name, share in shares if share]
    return "beside it: " + ", ".join(shown) if shown else "no other kernels"


def _launches(total: Account) -> str:
    if total.launches is None:
        return "the trace has no launch calls"
    return f"{count(total.launched_activities)} activities, {count(total.launches)} launches"


def shown_devices(analysis: Analysis) -> Few[DeviceReport]:
    """Return all devices, or where there are too many those that are idle for longest."""
    devices = analysis.devices
    if len(devices) <= MOST_DEVICES:
        return Few(devices, len(devices))
    idle_first = sorted(devices, key=lambda device: -device.chosen.components.idle_ns)
    return Few(idle_first[:MOST_DEVICES], len(devices))


def kernels(table: pa.Table, most: int = MOST_KERNELS) -> Kernels:
    """Return the kernels with the most time."""
    rest = table.slice(most)
    hidden_ns = sum(rest["sum_ns"].to_pylist())
    shares = rest["share"].to_pylist()
    known = None if None in shares else sum(shares)
    return Kernels(table.slice(0, most).to_pylist(), len(rest), hidden_ns, known)


def other_share(categories: pa.Table) -> float | None:
    """Return the share of device time of kernels whose name no rule knows."""
    rows = [row for row in categories.to_pylist() if row["top"] == "other"]
    shares = [row["share"] for row in rows]
    return None if None in shares else float(sum(shares))


def used_components(analysis: Analysis) -> tuple[list[str], list[str]]:
    """Return the components that have time in the window, and those that have none."""
    parts = analysis.components.parts()
    return [c for c in COMPONENTS if parts[c]], [c for c in COMPONENTS if not parts[c]]
