"""What findings say in words: the same on the page, in the terminal, in Markdown and in JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from traceflops.characters import function_name
from traceflops.findings import COUNTED_KERNEL, LOSS, UNEVEN_STEPS, limit, row_name, short_name
from traceflops.remedies import cut_off
from traceflops.reports.view.figures import duration, percent
from traceflops.reports.view.who_waits import late_rank_words
from traceflops.units import capitalized, uncapitalized

if TYPE_CHECKING:
    from traceflops.analysis import Analysis
    from traceflops.findings import Confidence, Finding, Gain, Where

_OWNERS: Final = {"yours": "your code"}
_OF_KERNELS: Final = ("framework", "library")
"""Owners of kernels that the table of categories knows."""
_WORTH_A_TITLE: Final = ("high", "medium")
_GRAVE: Final = "high"
_UNKNOWN: Final = "other"
_IN_NOTES: Final = "notes"
_LONGEST_PLACE: Final = 40
_REASONS: Final = 2


@dataclass(frozen=True, slots=True)
class FindingWords:
    """A finding in words, "" for what is not known; `where` is names, the best first."""

    finding: Finding
    saves: str
    mfu: str
    where: tuple[str, ...]
    owner: str
    sure: str


def causes(analysis: Analysis) -> list[FindingWords]:
    """Return the findings with a cause and a remedy, that with the largest gain first."""
    return [_words(analysis, one) for one in analysis.findings if one.confidence is not None]


def other_findings(analysis: Analysis, *, losses: bool = True) -> list[Finding]:
    """Return the findings without a cause but for what notes say, with or without `losses`."""
    return [
        one
        for one in analysis.findings
        if one.confidence is None
        and _IN_NOTES not in one.evidence
        and (losses or not one.rule.startswith((LOSS, UNEVEN_STEPS)))
    ]


def headline(analysis: Analysis) -> str:
    """Return the best finding in a sentence, "" where none surely gains enough to come first.

    That a file is cut comes before any.
    """
    best = None if cut_off(analysis) else next(iter(analysis.findings), None)
    if best is None or best.gain is None or best.priority not in _WORTH_A_TITLE:
        return ""
    if best.gain.low_ns < limit(analysis, "priority", "least_sure") * analysis.mean_ns(
        analysis.components.window_ns
    ):
        return ""
    time = _gain(analysis, best).partition(" (")[0]
    step = duration(analysis.mean_ns(analysis.components.window_ns))
    each = "each" if analysis.windows_used > 1 else "the"
    return f"{best.title}: {time} of {each} {step} {_window(analysis)} can be saved{_at(best)}."


def background(analysis: Analysis) -> str:
    """Return what takes the time, without the late rank where the best finding is about that."""
    sentence, late = analysis.verdict.sentence, late_rank_words(analysis)[0]
    is_said = late and headline(analysis) and late in analysis.findings[0].sentence
    return sentence.replace(f"{late} ", "") if is_said else sentence


def opening(analysis: Analysis) -> tuple[str, str]:
    """Return the title of a report, and where that is no finding what follows it.

    Where the first finding does not surely gain enough it is the title only if it is grave and has
    a remedy, else the largest loss is, and what to fix first follows; the utilisation
    stands beside the title.
    """
    title, text = best_sentence(analysis), background(analysis)
    if headline(analysis):
        return title, ""
    if analysis.of_no_job:
        return text, ""
    figure = f"{analysis.measured.figure}. "
    told = text.removeprefix(figure) or text
    if title:
        return title, told
    first, more = _first(told)
    first, more = (f"{first}.", capitalized(more)) if more else (told, "")
    return first, f"{more} {_fix_first(analysis)}".strip()


def _fix_first(analysis: Analysis) -> str:
    """Return which finding is the one to mend first, "" where none gains much."""
    best = next(iter(causes(analysis)), None)
    if best is None or best.finding.priority not in _WORTH_A_TITLE:
        return ""
    saves = best.saves.partition(" (")[0]
    return f"What to fix first: {uncapitalized(best.finding.title)} ({saves})."


def title_finding(analysis: Analysis) -> FindingWords | None:
    """Return the finding that is the title: it gains enough, or is grave and has a remedy.

    Of counters without a timeline the first kernel is.
    """
    best = next(iter(analysis.findings), None)
    if best is None or not best.remedy or analysis.of_no_job or cut_off(analysis):
        return None
    is_title = best.severity == _GRAVE or headline(analysis) or best.rule == COUNTED_KERNEL
    return _words(analysis, best) if is_title else None


def left_to_say(best: Finding, title: str) -> str:
    """Return what the `title` leaves out of the sentence of its finding, "" if that is nothing.

    It stands below another title, so it begins with what it is about.
    """
    first, more = _first(best.sentence)
    if first not in title:
        return best.sentence
    more = more.removesuffix(best.remedy).rstrip()
    return f"{best.title}. {capitalized(more)}" if more else ""


def _answer(best: Finding) -> str:
    """Return a finding as a title: what it says first, below the name of its cause."""
    said = _first(best.sentence)[0]
    return f"{said}." if best.confidence is None else f"{best.title}. {said}."


def _first(sentence: str) -> tuple[str, str]:
    """Return what a sentence says first, without its mark, and the rest."""
    ends = [at for mark in ("; ", ". ") if (at := sentence.find(mark)) >= 0]
    at = min(ends, default=len(sentence))
    return sentence[:at].rstrip("."), sentence[at + 2 :]


def best_sentence(analysis: Analysis) -> str:
    """Return the finding that is the title in a sentence, "" where none is."""
    best = title_finding(analysis)
    return headline(analysis) or ("" if best is None else _answer(best.finding))


def title_sentence(analysis: Analysis) -> str:
    """Return the verdict: the finding that is the title, then what takes the time."""
    return f"{best_sentence(analysis)} {background(analysis)}".lstrip()


def _words(analysis: Analysis, finding: Finding) -> FindingWords:
    sure = finding.confidence
    return FindingWords(
        finding,
        _saves(analysis, finding),
        _mfu(analysis, finding),
        tuple(_where(analysis, finding)),
        f"owner: {_OWNERS.get(finding.owner, finding.owner)}" if finding.owner else "",
        "" if sure is None else f"{sure.level} ({_reasons(sure)})".removesuffix(" ()"),
    )


def _reasons(sure: Confidence) -> str:
    """Return the first reasons, which are of the finding itself where there are some."""
    return "; ".join(sure.reasons[:_REASONS])


def _at(finding: Finding) -> str:
    """Return the function that a finding is about, as the end of a sentence."""
    place = _code(finding.where)
    return f" in {place}" if 0 < len(place) <= _LONGEST_PLACE else ""


def _code(at: Where) -> str:
    """Return function, file and the line where the function begins, as far as they are known."""
    place = at.file or ""
    if place and at.line is not None:
        place += f":{at.line}"
    return f"{at.function} ({place})" if place and at.function else place


def _window(analysis: Analysis) -> str:
    return "step" if analysis.steps.used else "window"


def _saves(analysis: Analysis, finding: Finding) -> str:
    if finding.gain is None or finding.gain.high_ns <= 0:
        return "saves nothing" if finding.gain is not None else ""
    per = f" per {_window(analysis)}" if analysis.windows_used > 1 else ""
    time, share = _gain(analysis, finding).split(" (")
    return f"saves {time}{per} ({share}"


def _gain(analysis: Analysis, finding: Finding) -> str:
    """Return what is gained: "80.0 to 90.0 ms (12.0 to 14.0 %)"."""
    gain, window_ns = finding.gain, analysis.mean_ns(analysis.components.window_ns)
    assert gain is not None
    ends = max(gain.low_ns, 0), gain.high_ns
    shares = _range(ends[0] / window_ns, ends[1] / window_ns, percent)
    return f"{_least(gain)}{_range(*ends, duration)} ({shares})"


def _mfu(analysis: Analysis, finding: Finding) -> str:
    """Return the MFU now and after the remedy: "31.0 → 35.0 to 36.0 %"."""
    after, now = finding.mfu_after, analysis.measured.mfu_range
    if after is None or now is None or finding.gain is None:
        return ""
    low = after.low if finding.gain.low_ns > 0 else 0.0
    most = f"{_least(finding.gain)}{_range(low, after.high, percent)}"
    return f"MFU {_value(_range(float(now.least), float(now.most), percent))} → {most}"


def _least(gain: Gain) -> str:
    return "at most " if gain.low_ns <= 0 < gain.high_ns else ""


def _range(low: float, high: float, shown: Callable[[float], str]) -> str:
    """Return two ends, the unit once where it is the same; only the upper one above nothing."""
    least, most = shown(low), shown(high)
    if low <= 0 or least == most:
        return most
    same = least.rpartition(" ")[2] == most.rpartition(" ")[2]
    return f"{_value(least) if same else least} to {most}"


def _value(figure: str) -> str:
    return figure.rpartition(" ")[0]


def _step_of(analysis: Analysis, finding: Finding) -> Iterator[str]:
    """Yield the step that a stretch of time begins in, on the first device that has it."""
    at = finding.where.start_ns
    windows = (one for device in analysis.devices_used for one in device.steps)
    yield from (
        f"step {one.step}"
        for one in islice((w for w in windows if at is not None and w.start_ns <= at < w.end_ns), 1)
    )


def _is_place(analysis: Analysis, finding: Finding) -> bool:
    """Return whether the largest row is where a finding is."""
    name = finding.rows[0].name if finding.rows else ""
    all_ns = finding.share * analysis.components.window_ns
    if not name or (len(finding.rows) > 1 and 2 * finding.rows[0].time_ns < all_ns):
        return False
    return finding.owner in _OF_KERNELS or name not in _library_kernels(analysis)


def _library_kernels(analysis: Analysis) -> set[str]:
    """Return the kernels that the table of categories knows, as rows of findings have them."""
    known = (row.name for row in analysis.measured.kernels if row.category.top != _UNKNOWN)
    return {shown(name) for name in known for shown in (row_name, short_name)}


def _where(analysis: Analysis, finding: Finding) -> Iterator[str]:
    """Yield the place in the code, on a rank, else the largest row, or the step without rows.

    A row is a place if it has half of the time. A kernel of a library is none where others are to
    mend something.
    """
    at = finding.where
    if at.file is not None:
        yield _code(at)
    if at.module is not None:
        yield at.module
    if at.file is None and at.module is None and _is_place(analysis, finding):
        yield function_name(finding.rows[0].name)
    if at.rank is not None and f"rank {at.rank}" not in (row.name for row in finding.rows[:1]):
        yield f"rank {at.rank}"
    if not finding.rows:
        yield from _step_of(analysis, finding)
