"""What findings say in words: the same on the page, in the terminal, in Markdown and in JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate, islice
from typing import Final, NamedTuple

from msgspec import Struct

from traceflops.analysis.result import Analysis
from traceflops.characters import function_name
from traceflops.facts import Fact, fact
from traceflops.findings.case import limit
from traceflops.findings.communication import slow_link_fact
from traceflops.findings.counted_kernels import COUNTED_KERNEL
from traceflops.findings.finding import Finding, Gain, Where, row_name, short_name
from traceflops.findings.late_rank import late_rank_fact
from traceflops.findings.losses import LOSS
from traceflops.findings.main_kernel import MAIN_KERNEL
from traceflops.findings.nothing_recorded import SAID_FIRST
from traceflops.findings.rules import all_rules
from traceflops.findings.start_up import LITTLE_WORK, START_UP
from traceflops.findings.unevenness import UNEVEN_STEPS
from traceflops.remedies import is_cut_off
from traceflops.reports.view.figures import duration, percent
from traceflops.reports.view.step_split import begins_late, outside
from traceflops.reports.view.texts import words
from traceflops.reports.view.wording import window

_OWNERS: Final = {"yours": "your code"}
_OF_KERNELS: Final = ("framework", "library")
"""Owners of kernels that the table of categories knows."""
_WORTH_A_TITLE: Final = ("high", "medium")
_GRAVE: Final = "high"
_UNKNOWN: Final = "other"
_FIGURE: Final = "verdict.figure"
_IN_NOTES: Final = "notes"
_LONGEST_PLACE: Final = 40
_LONGEST_HEADING: Final = 120
_REASONS: Final = 2
_NEARLY_ALL: Final = 0.95


class Saving(NamedTuple):
    """A gain in words: "80.0 to 90.0 ms", "12.0 to 14.0 %", and "step" if it is per step."""

    time: str
    share: str
    per: str | None


class FindingWords(Struct, frozen=True):
    """A finding in words, "" for what is unknown; the best place (`where`) comes first."""

    finding: Finding
    saving: Saving | None
    saves: str
    mfu: str
    where: tuple[str, ...]
    owner_name: str
    owner: str
    level: str
    reasons: str
    sure: str


class Headline(NamedTuple):
    """What a report says first; `finding` is its place in the report, None for the verdict."""

    cls: str
    code: str
    sentence: str
    finding: int | None


class Opening(NamedTuple):
    """The statements that open a report, and the rest; `tells` is the finding that they state."""

    statements: tuple[str, ...]
    rest: str
    tells: Finding | None

    @property
    def title(self) -> str:
        """All statements as one title."""
        return " ".join(self.statements)

    def heading(self) -> tuple[str, str]:
        """Return the statements that fit a heading, at least the first, and the others."""
        lengths = accumulate(len(statement) + 1 for statement in self.statements)
        fit = max(sum(length <= _LONGEST_HEADING for length in lengths), 1)
        return " ".join(self.statements[:fit]), " ".join(self.statements[fit:])


def causes(analysis: Analysis) -> list[FindingWords]:
    """Return the findings with a cause and a remedy, that with the largest gain first."""
    return [_words(analysis, one) for one in analysis.findings if one.confidence is not None]


def other_findings(analysis: Analysis, *, losses: bool = True) -> list[Finding]:
    """Return findings without a cause; `losses`: also those on components and uneven steps."""
    title = opening(analysis).tells
    return [
        finding
        for finding in analysis.findings
        if finding.confidence is None
        and (finding is not title or finding.details)
        and _IN_NOTES not in finding.evidence
        and (losses or not finding.rule.startswith((LOSS, UNEVEN_STEPS)))
    ]


def _saving_sentence(analysis: Analysis) -> str:
    """Return what the first finding surely saves, "" if that is little or a file is cut off."""
    best = None if is_cut_off(analysis) else next(iter(analysis.findings), None)
    if best is None or best.gain is None or best.priority != _GRAVE:
        return ""
    step_ns = analysis.mean_ns(analysis.components.window_ns)
    if best.gain.low_ns < limit(analysis, "priority", "least_sure") * step_ns:
        return ""
    place = _code(best.where)
    return words(
        fact(
            "finding.headline-each" if analysis.windows_used > 1 else "finding.headline",
            name=best.name,
            time=_saving(analysis, best.gain).time,
            step_ns=step_ns,
            window=window(analysis),
            place=place if len(place) <= _LONGEST_PLACE else None,
        )
    )


def background(analysis: Analysis) -> tuple[Fact, ...]:
    """Return what takes the time, without the late rank if the title's finding already has it."""
    late = late_rank_fact(analysis.ranks) or slow_link_fact(analysis.ranks)
    parts = tuple(part for part in analysis.verdict.parts if part.code not in SAID_FIRST)
    if late is None or not _saving_sentence(analysis):
        return parts
    best = analysis.findings[0]
    is_said = late in (best.claim, *best.details)
    return tuple(part for part in parts if part != late) if is_said else parts


def is_little(analysis: Analysis) -> bool:
    """Return whether a recording holds too little GPU work to be drawn or split."""
    return any(part.code.startswith(f"{LITTLE_WORK}.") for part in analysis.verdict.parts)


def opening(analysis: Analysis) -> Opening:
    """Return the title (errors of the program come first in it) and what follows it."""
    opened = _opening(analysis)
    first = [words(part) for part in analysis.verdict.parts if part.code in SAID_FIRST]
    if begins_late(analysis) and not is_little(analysis):
        first.append(outside(analysis))
    return opened._replace(statements=(*first, *opened.statements))


def _opening(analysis: Analysis) -> Opening:
    """Return the title of a report and what follows it.

    The title is the first of these that there is: what the first finding surely saves; the first
    finding, if grave and with a remedy; the largest loss, followed by what to fix first. A kernel
    that takes more time than the title is about is named below it; below a kernel, of which no gain
    is known, what is known to gain.
    """
    best = title_finding(analysis)
    statements = background(analysis)
    # The utilisation stands beside the title.
    losses = tuple(part for part in statements if part.code != _FIGURE)
    # Start-up is apart: a kernel is part of the rest, with a remedy of its own.
    is_apart = best is not None and best.finding.rule == START_UP
    title_share = best.finding.share if best is not None and not is_apart else 0.0
    kernel = tuple(
        part
        for finding in analysis.findings
        if finding.rule == MAIN_KERNEL and finding.share > title_share
        for part in (finding.claim, *(filter(None, [finding.advice]) if is_apart else ()))
    )
    if sentence := _saving_sentence(analysis):
        return Opening((sentence,), _joined(kernel), None)
    if analysis.of_no_job or not losses:
        return Opening(tuple(map(words, statements)), "", None)
    if best is None:
        first, *more = losses
        return Opening((words(first),), _joined((*more, *kernel, *_fix_first(analysis))), None)
    finding = best.finding
    # The name of a cause says what is wrong; a finding without a cause only has a claim.
    name = () if finding.confidence is None else (fact("finding.name", name=finding.name),)
    rest = tuple(part for part in losses if part != finding.claim)
    # If nearly all is start-up and no figures are of the rest, that is not worth a split.
    is_all = finding.rule == START_UP and finding.share >= _NEARLY_ALL
    if is_all and finding.claim.values.get("rest_ns") is None:
        rest = ()
    known = tuple(_fix_first(analysis, surely=True)) if finding.rule == MAIN_KERNEL else ()
    stated = tuple(map(words, (*name, finding.claim)))
    return Opening(stated, _joined((*kernel, *rest, *known)), finding)


def headline(analysis: Analysis) -> Headline:
    """Return what a report says first."""
    best, title = title_finding(analysis), opening(analysis).title
    if best is None:
        parts = analysis.verdict.parts
        # The utilisation is no headline, unless there is nothing else.
        first = next((part for part in parts if part.code != _FIGURE), parts[0])
        return Headline(analysis.verdict.headline, first.code, title, None)
    row = all_rules().rules.get(best.finding.rule)  # none for a rule of the user
    place = analysis.findings.index(best.finding)
    return Headline(row.headline if row else "own-rule", best.finding.rule, title, place)


def _fix_first(analysis: Analysis, *, surely: bool = False) -> Iterator[Fact]:
    """Yield the finding with a cause to fix first; `surely`: only if it surely gains something."""
    best = next(iter(causes(analysis)), None)
    if best is None or (surely and (best.finding.gain is None or best.finding.gain.low_ns <= 0)):
        return
    if best.finding.priority in _WORTH_A_TITLE and best.saving is not None:
        saving = best.saving
        code, name = "finding.known" if surely else "finding.first", best.finding.name
        whole_ns = None if saving.per else analysis.mean_ns(analysis.components.window_ns)
        yield fact(code, name=name, time=saving.time, per=saving.per, whole_ns=whole_ns)


def title_finding(analysis: Analysis) -> FindingWords | None:
    """Return the first finding if it is worth being the title, else None.

    It must have a remedy and be more than a loss, and be grave, surely gain enough, or be of a
    counted kernel.
    """
    best = next(iter(analysis.findings), None)
    if best is None or best.advice is None or best.rule.startswith(LOSS):
        return None
    # Then something else is said first: to choose a job, that a file is cut, what is not recorded.
    if analysis.of_no_job or is_cut_off(analysis) or analysis.recorded == "collectives":
        return None
    is_title = best.severity == _GRAVE or best.rule == COUNTED_KERNEL or _saving_sentence(analysis)
    return _words(analysis, best) if is_title else None


def left_to_say(best: Finding, opened: Opening) -> str:
    """Return the name and details of a finding if the title states it, else its sentence."""
    if opened.tells is not best:
        return best.sentence
    name = fact("finding.name", name=best.name)
    return _joined((name, *best.details)) if best.details else ""


def title_sentence(analysis: Analysis) -> str:
    """Return the verdict: the title if it is a finding, then what takes the time."""
    if title_finding(analysis) is None:
        return _joined(analysis.verdict.parts)
    return f"{opening(analysis).title} {_joined(background(analysis))}"


def _joined(facts: tuple[Fact, ...]) -> str:
    return " ".join(map(words, facts))


def _words(analysis: Analysis, finding: Finding) -> FindingWords:
    """Return a finding in words: what it saves, the MFU afterwards, where, owner, confidence."""
    sure, gain, mfu = finding.confidence, finding.gain, ""
    saving = _saving(analysis, gain) if gain is not None and gain.high_ns > 0 else None
    saves = fact("finding.saves-nothing") if gain is not None else None
    if saving is not None:
        saves = fact("finding.saves", time=saving.time, per=saving.per, share=saving.share)
    now, after = analysis.measured.mfu_range, finding.mfu_after
    if now is not None and after is not None and gain is not None:
        # Without a sure gain only the upper end is told, as "at most".
        low = after.low if gain.low_ns > 0 else 0.0
        mfu_after = f"{_bound(gain)}{_range(low, after.high, percent)}"
        mfu = f"MFU {_value(_range(float(now.least), float(now.most), percent))} → {mfu_after}"
    owner = _OWNERS.get(finding.owner or "", finding.owner or "")
    level = sure.level if sure is not None else ""
    reasons = "; ".join(map(words, sure.reasons[:_REASONS])) if sure is not None else ""
    return FindingWords(
        finding,
        saving,
        words(saves),
        mfu,
        tuple(_where(analysis, finding)),
        owner,
        words(fact("finding.owner", owner=owner)) if owner else "",
        level,
        reasons,
        words(fact("finding.sure", level=level, reasons=reasons)),
    )


def _code(where: Where) -> str:
    """Return a place in code: "train (train.py:12)", or as much of it as is known."""
    place = where.file or ""
    if place and where.line is not None:
        place += f":{where.line}"
    return f"{where.function} ({place})" if place and where.function else place


def _saving(analysis: Analysis, gain: Gain) -> Saving:
    """Return a gain in words; without several windows it is not said per what."""
    window_ns = analysis.mean_ns(analysis.components.window_ns)
    low_ns, high_ns = max(gain.low_ns, 0), gain.high_ns
    time = f"{_bound(gain)}{_range(low_ns, high_ns, duration)}"
    share = _range(low_ns / window_ns, high_ns / window_ns, percent)
    return Saving(time, share, window(analysis) if analysis.windows_used > 1 else None)


def _bound(gain: Gain) -> str:
    """Return what to say before a gain of which only one end is told, else ""."""
    if gain.may_be_more:
        return "at least "
    return "at most " if gain.low_ns <= 0 < gain.high_ns else ""


def _range(low: float, high: float, shown: Callable[[float], str]) -> str:
    """Return two ends as text, a common unit once ("80 to 90 ms"), or only one end above 0."""
    least, most = shown(low), shown(high)
    if low <= 0 or least == most:
        return most
    same = least.rpartition(" ")[2] == most.rpartition(" ")[2]
    return f"{_value(least) if same else least} to {most}"


def _value(figure: str) -> str:
    """Return a figure without its unit."""
    return figure.rpartition(" ")[0]


def _where(analysis: Analysis, finding: Finding) -> Iterator[str]:
    """Yield where a finding is: in code or in a module, else its first row; a rank; a step."""
    where, rows = finding.where, finding.rows
    yield from filter(None, [_code(where), where.module])
    if where.file is None and where.module is None and rows:
        first = rows[0]
        # The first row tells where it is if it is the only one, or has half of the time. The name
        # of a library's kernel tells nothing to those who are to change other code.
        has_most = 2 * first.time_ns >= finding.share * analysis.components.window_ns
        known = (row.name for row in analysis.measured.kernels if row.category.top != _UNKNOWN)
        is_ours = finding.owner in _OF_KERNELS or first.name not in {
            shown(name) for name in known for shown in (row_name, short_name)
        }
        if first.name and (len(rows) == 1 or has_most) and is_ours:
            name = function_name(first.name)
            # If all that may be gained is more than the first row has, it is "mostly" there.
            gain_ns = finding.gain.high_ns if finding.gain is not None else 0
            is_part = len(rows) > 1 and analysis.mean_ns(first.time_ns) < gain_ns
            yield words(fact("finding.mostly", name=name)) if is_part else name
    # The first row may be that rank.
    if where.rank is not None and f"rank {where.rank}" not in (row.name for row in rows[:1]):
        yield f"rank {where.rank}"
    if not rows and where.start_ns is not None:
        steps = (step for device in analysis.devices_used for step in device.steps)
        inside = (s for s in steps if s.start_ns <= where.start_ns < s.end_ns)
        yield from (f"step {step.step}" for step in islice(inside, 1))
