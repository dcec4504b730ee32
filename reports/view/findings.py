"""Findings in words, the same on the page, in the terminal, in Markdown and in JSON.

A report opens with a title: one or more statements, mostly of a finding. The verdict states what
takes the time, as facts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate, islice
from typing import Final, NamedTuple

from msgspec import Struct

from traceflops.analysis.result import Analysis
from traceflops.characters import function_name
from traceflops.facts import Fact, fact
from traceflops.findings.case import limit
from traceflops.findings.counted_kernels import COUNTED_KERNEL
from traceflops.findings.finding import Finding, Gain, Where, row_name, short_name
from traceflops.findings.gains import ONE_PASS
from traceflops.findings.late_rank import late_rank_fact
from traceflops.findings.little_work import LITTLE_WORK
from traceflops.findings.losses import LOSS
from traceflops.findings.main_kernel import MAIN_KERNEL
from traceflops.findings.nothing_recorded import LESS_MEMORY, SAID_FIRST
from traceflops.findings.rules import all_rules
from traceflops.findings.slow_links import slow_link_fact
from traceflops.findings.start_up import START_UP
from traceflops.findings.unevenness import UNEVEN_STEPS
from traceflops.findings.unjudged import told_first
from traceflops.remedies import is_cut_off
from traceflops.reports.view.figures import duration, percent
from traceflops.reports.view.step_split import is_mostly_outside, outside
from traceflops.reports.view.texts import sentences, words
from traceflops.reports.view.wording import window

_OWNERS: Final = {"yours": "your code"}
_OF_KERNELS: Final = ("framework", "library")
"""Owners of kernels that the table of categories knows."""
_WORTH_A_TITLE: Final = ("high", "medium")
_UNKNOWN: Final = "other"  # the category of kernels that match no rule
_FIGURE: Final = "verdict.figure"  # the code of the statement on utilisation
_ON_CPU: Final = "on-cpu.remedy"  # how codes of remedies for work on CPUs begin
_GRAVE, _IN_NOTES = "high", "notes"
_LONGEST_PLACE, _LONGEST_HEADING, _REASONS = 40, 100, 2
_NEARLY_ALL: Final = 0.95


class Saving(NamedTuple):
    """A gain in words: "80.0 to 90.0 ms", "12.0 to 14.0 %"; `per` is "step" if it is per step."""

    time: str
    share: str
    per: str | None


class FindingWords(Struct, frozen=True):
    """A finding in words, "" for what is unknown; `where` has places, the most specific first."""

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
    """What a report says first; `finding` is the index of what it states, None for the verdict."""

    cls: str
    code: str
    sentence: str
    finding: int | None


class Opening(NamedTuple):
    """The sentences of a report's title, what follows it, and the finding that they state.

    The first `before` of them are about the program or the recording as a whole.
    """

    statements: tuple[str, ...]
    rest: str
    tells: Finding | None
    before: int = 0

    @property
    def title(self) -> str:
        """All statements as one title."""
        return " ".join(self.statements)

    def heading(self) -> tuple[str, str]:
        """Return the statements that fit a heading, at least the first, and the others."""
        lengths = accumulate(len(statement) + 1 for statement in self.statements[self.before :])
        fitting = self.before + max(sum(length <= _LONGEST_HEADING for length in lengths), 1)
        return " ".join(self.statements[:fitting]), " ".join(self.statements[fitting:])


def causes(analysis: Analysis) -> list[FindingWords]:
    """Return the findings with a known cause and a remedy, the largest gain first."""
    known = (finding for finding in analysis.findings if finding.confidence is not None)
    return [_words(analysis, finding) for finding in known]


def other_findings(analysis: Analysis, *, losses: bool = True) -> list[Finding]:
    """Return findings without a cause that are not said elsewhere; `losses`: also on components."""
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
    place, known = _code(best.where), best.confidence.reasons if best.confidence else ()
    return words(
        fact(
            "finding.headline-each" if analysis.windows_used > 1 else "finding.headline",
            name=best.name,
            time=_saving(analysis, best.gain).time,
            step_ns=step_ns,
            window=window(analysis),
            place=place if len(place) <= _LONGEST_PLACE else None,
            once=next((why for why in known if why.code == ONE_PASS), None),
        )
    )


def background(analysis: Analysis) -> tuple[Fact, ...]:
    """Return what takes the time, as facts.

    A late rank or slow link is left out if the finding that the title states already names it.
    """
    late = late_rank_fact(analysis.ranks) or slow_link_fact(analysis.ranks)
    parts = tuple(part for part in analysis.verdict.parts if part.code not in SAID_FIRST)
    if late is None or not _saving_sentence(analysis):
        return parts
    best = analysis.findings[0]
    is_in_title = late in (best.claim, *best.details)
    return tuple(part for part in parts if part != late) if is_in_title else parts


def is_little(analysis: Analysis) -> bool:
    """Return whether a recording holds too little GPU work to be drawn or split."""
    return any(part.code.startswith(f"{LITTLE_WORK}.") for part in analysis.verdict.parts)


def opening(analysis: Analysis) -> Opening:
    """Return the title and what follows it; errors of the program come first in the title."""
    opened = _opening(analysis)
    first = [words(part) for part in analysis.verdict.parts if part.code in SAID_FIRST]
    # In a run for counters the profiler makes the time before and between kernels.
    is_counted = analysis.recorded == "serialized"
    if is_mostly_outside(analysis) and not is_little(analysis) and not is_counted:
        first.append(outside(analysis))
    before, told = sentences(*first), sentences(*opened.statements)
    return opened._replace(statements=(*before, *told), before=len(before))


def _opening(analysis: Analysis) -> Opening:
    """Return the title of a report and what follows it.

    The title is the first of these that exists: what the first finding surely saves; the first
    finding, if `title_finding` accepts it; the largest loss, followed by what to fix first.
    """
    best = title_finding(analysis)
    statements = background(analysis)
    # The utilisation stands beside the title.
    losses = tuple(part for part in statements if part.code != _FIGURE)
    kernel = _main_kernel(analysis, best)
    if sentence := _saving_sentence(analysis):
        return Opening((sentence,), _joined(kernel), None)
    if analysis.of_no_job or not losses:
        return Opening(tuple(map(words, statements)), "", None)
    if best is None:
        first, *more = losses
        kernel = kernel or told_first(analysis.findings, losses)
        return Opening((words(first),), _joined((*more, *kernel, *_fix_first(analysis))), None)

    # The name of a cause says what is wrong; a finding without a cause has nothing but its claim.
    finding = best.finding
    name = () if finding.confidence is None else (fact("finding.name", name=finding.name),)
    stated = tuple(map(words, (*name, finding.claim)))
    rest = tuple(part for part in losses if part != finding.claim)
    # If nearly all is start-up and no figures are of the rest, that is not worth a split.
    is_nearly_all = finding.rule == START_UP and finding.share >= _NEARLY_ALL
    if is_nearly_all and finding.claim.values.get("rest_ns") is None:
        rest = ()
    # The gain of a main kernel is unknown: add the finding whose gain is known.
    known = tuple(_fix_first(analysis, surely=True)) if finding.rule == MAIN_KERNEL else ()
    return Opening(stated, _joined((*kernel, *rest, *known)), finding)


def _main_kernel(analysis: Analysis, title: FindingWords | None) -> tuple[Fact, ...]:
    """Return the claim on the main kernel if it takes more time than the title is about.

    Start-up excludes the time of kernels: below it, the kernel is always told, with its remedy.
    """
    is_start_up = title is not None and title.finding.rule == START_UP
    title_share = title.finding.share if title is not None and not is_start_up else 0.0
    facts: list[Fact] = []
    for finding in analysis.findings:
        if finding.rule == MAIN_KERNEL and finding.share > title_share:
            facts.append(finding.claim)
            if is_start_up and finding.advice is not None:
                facts.append(finding.advice)
    return tuple(facts)


def headline(analysis: Analysis) -> Headline:
    """Return what a report says first."""
    best, title = title_finding(analysis), opening(analysis).title
    if best is None:
        parts = analysis.verdict.parts
        # The utilisation is no headline, unless there is nothing else.
        first = next((part for part in parts if part.code != _FIGURE), parts[0])
        return Headline(analysis.verdict.headline, first.code, title, None)
    rule = all_rules().rules.get(best.finding.rule)  # None for a rule of the user
    index = analysis.findings.index(best.finding)
    return Headline(rule.headline if rule else "own-rule", best.finding.rule, title, index)


def _fix_first(analysis: Analysis, *, surely: bool = False) -> Iterator[Fact]:
    """Yield the first cause, if it is worth a title; if `surely`, only with a sure gain."""
    best = next(iter(causes(analysis)), None)
    if best is None or best.saving is None or best.finding.priority not in _WORTH_A_TITLE:
        return
    gain = best.finding.gain
    if surely and (gain is None or gain.low_ns <= 0):
        return
    saving = best.saving
    kind = "known" if surely else "also" if _is_led(analysis, best.finding.share) else "first"
    code, name = f"finding.{kind}", best.finding.name
    whole_ns = None if saving.per else analysis.mean_ns(analysis.components.window_ns)
    yield fact(code, name=name, time=saving.time, per=saving.per, whole_ns=whole_ns)


def title_finding(analysis: Analysis) -> FindingWords | None:
    """Return the first finding if it is worth being the title, else None.

    It must have a remedy and be more than a loss. Besides, it must be grave, gain enough for sure,
    or be about a counted kernel.
    """
    best = next(iter(analysis.findings), None)
    if best is None or best.advice is None or best.rule.startswith(LOSS):
        return None
    # Other things are more urgent: to choose a job, that a file is cut, what was not recorded.
    is_urgent = analysis.of_no_job or is_cut_off(analysis) or analysis.recorded == "collectives"
    # Where memory ran out, start-up may take most of the time only as the rest never ran.
    lacks_memory = any(part.code == LESS_MEMORY for part in analysis.verdict.parts)
    if is_urgent or (lacks_memory and best.rule == START_UP) or _is_led(analysis, best.share):
        return None
    is_title = best.severity == _GRAVE or best.rule == COUNTED_KERNEL or _saving_sentence(analysis)
    return _words(analysis, best) if is_title else None


def _is_led(analysis: Analysis, share: float) -> bool:
    """Return whether what leads on CPUs has a remedy and takes more than a share, not saved."""
    parts = {part.code: part for part in analysis.verdict.parts}
    if "verdict.cpu-leads" not in parts or not any(code.startswith(_ON_CPU) for code in parts):
        return False
    largest = parts["verdict.cpu-leads"].values["share"]
    return isinstance(largest, float) and largest > share and not _saving_sentence(analysis)


def left_to_say(best: Finding, opened: Opening) -> str:
    """Return what the title does not say of a finding: name and details, or the whole sentence."""
    if opened.tells is not best:
        return best.sentence
    name = fact("finding.name", name=best.name)
    return _joined((name, *best.details)) if best.details else ""


def title_sentence(analysis: Analysis) -> str:
    """Return the verdict in words, after the title if a finding is worth being one."""
    if title_finding(analysis) is None:
        return _joined(analysis.verdict.parts)
    return f"{opening(analysis).title} {_joined(background(analysis))}"


def _joined(facts: tuple[Fact, ...]) -> str:
    return " ".join(map(words, facts))


def _words(analysis: Analysis, finding: Finding) -> FindingWords:
    """Return a finding in words: what it saves, the MFU afterwards, where, owner, confidence."""
    saves, saving, mfu, gain = None, None, "", finding.gain
    if gain is not None:
        saves = fact("finding.saves-nothing")
        if gain.high_ns > 0:
            saving = _saving(analysis, gain)
            saves = fact("finding.saves", time=saving.time, per=saving.per, share=saving.share)
        now, after = analysis.measured.mfu_range, finding.mfu_after
        if now is not None and after is not None:
            # Without a sure gain only the upper end is told, as "at most".
            low = after.low if gain.low_ns > 0 else 0.0
            mfu_after = f"{_bound(gain)}{_range(low, after.high, percent)}"
            mfu_now = _range(float(now.least), float(now.most), percent)
            mfu = f"MFU {mfu_now.removesuffix(' %')} → {mfu_after}"
    level = reasons = ""
    if finding.confidence is not None:
        level = finding.confidence.level
        reasons = "; ".join(map(words, finding.confidence.reasons[:_REASONS]))
    owner = _OWNERS.get(finding.owner or "", finding.owner or "")
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
    """Return a gain in words; with several windows it is per step or window."""
    window_ns = analysis.mean_ns(analysis.components.window_ns)
    low_ns, high_ns = max(gain.low_ns, 0), gain.high_ns
    time = f"{_bound(gain)}{_range(low_ns, high_ns, duration)}"
    share = _range(low_ns / window_ns, high_ns / window_ns, percent)
    return Saving(time, share, window(analysis) if analysis.windows_used > 1 else None)


def _bound(gain: Gain) -> str:
    """Return the words before a gain if only one end of its range is told, else ""."""
    if gain.may_be_more:
        return "at least "
    return "at most " if gain.low_ns <= 0 < gain.high_ns else ""


def _range(low: float, high: float, shown: Callable[[float], str]) -> str:
    """Return a range as text, "80 to 90 ms" with a unit in common; only the end if low is 0."""
    least, most = shown(low), shown(high)
    if low <= 0 or least == most:
        return most
    _, _, unit = most.rpartition(" ")
    return f"{least.removesuffix(f' {unit}')} to {most}"


def _where(analysis: Analysis, finding: Finding) -> Iterator[str]:
    """Yield where a finding is: in code or in a module, else its first row; a rank; a step."""
    where, rows = finding.where, finding.rows
    yield from filter(None, [_code(where), where.module])
    if where.file is None and where.module is None and rows:
        yield from _first_row(analysis, finding)
    # The first row may already be that rank.
    if where.rank is not None and f"rank {where.rank}" not in (row.name for row in rows[:1]):
        yield f"rank {where.rank}"
    if not rows and where.start_ns is not None:
        steps = (step for device in analysis.devices_used for step in device.steps)
        inside = (s for s in steps if s.start_ns <= where.start_ns < s.end_ns)
        yield from (f"step {step.step}" for step in islice(inside, 1))


def _first_row(analysis: Analysis, finding: Finding) -> Iterator[str]:
    """Yield the name of a finding's first row if it says where the finding is.

    It must be the only row or have half of the time, and mean something to the finding's owner: the
    name of a known kernel of a library does not help those who are to change other code.
    """
    first, is_single = finding.rows[0], len(finding.rows) == 1
    has_half = 2 * first.time_ns >= finding.share * analysis.components.window_ns
    known = (row.name for row in analysis.measured.kernels if row.category.top != _UNKNOWN)
    known_names = {shown(name) for name in known for shown in (row_name, short_name)}
    is_meaningful = finding.owner in _OF_KERNELS or first.name not in known_names
    if first.name and (is_single or has_half) and is_meaningful:
        name = function_name(first.name)
        # If more may be gained than the time of the first row, the finding is "mostly" there.
        gain_ns = finding.gain.high_ns if finding.gain is not None else 0
        is_part = not is_single and analysis.mean_ns(first.time_ns) < gain_ns
        yield words(fact("finding.mostly", name=name)) if is_part else name
