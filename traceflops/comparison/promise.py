"""What findings of the run before promised, and what came of them.

    findings before -> those whose cause shrank by half of their gain -> their promised gain
    difference of the mean steps, with its interval                   -> as promised, less, more

Gains of several findings do not add up, so those of several are replayed together if possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct

from traceflops.comparison.matching import (
    KERNELS,
    OF_WORK,
    Match,
    may_do_other_work,
    replaced_kernels,
)
from traceflops.comparison.side import Side, Told
from traceflops.comparison.spread import Interval
from traceflops.errors import UsageError
from traceflops.facts import Fact, fact, in_words, quoted
from traceflops.findings.finding import row_name

Outcome = Literal["as-promised", "less", "more", "still-there", "other", "not-judged"]
"""
as-promised  the gain may lie in the promised range
less, more   the gain lies below, above that range
still-there  the finding that was to be fixed is still there
other        the time changed, but no finding with a gain went; or it went and the run is slower
not-judged   machine, model or batch differ, so the change has other reasons than a fix
"""
UNJUDGED: Final = frozenset({"GPUs", *OF_WORK})
"""What must be alike in both recordings for a promise to hold."""
_FIXED: Final = 0.5  # of the gain that was promised or came, by which the cause of a fix shrinks
_LEAST: Final = 0.01  # of a step; smaller changes of a cause are no fix
_NEAR: Final = 0.95  # of the ends of what was promised, between which it is kept for sure
_SLACK: Final = 0.005  # of a step, for calls that cost next to nothing


class Promise(Struct, frozen=True):
    """The findings that were fixed, their promised gain and what came, in ns per window.

    `gained_ns` is how much shorter a window is, with its 95 % `interval` or None; `next` the first
    finding of the run after; `unlike` what forbids a judgement. Bounds are 0 without `findings`.
    Without steps, a window is the whole recording.
    """

    outcome: Outcome
    findings: tuple[Told, ...]
    low_ns: int
    high_ns: int
    gained_ns: int
    interval: Interval | None
    next: Told | None
    unlike: str | None = None
    has_steps: bool = True

    @property
    def fact(self) -> Fact:
        """Return what was promised, and what came."""
        promised = fact("promise.range", ends=(self.low_ns, self.high_ns))
        if self.low_ns <= 0:
            promised = fact("promise.at-most", ends=(self.high_ns,))
        # Of a promise that is kept, what came is not below 0.
        gained_ns = max(self.gained_ns, 0) if self.outcome == "as-promised" else self.gained_ns
        sure = None
        if self.interval is not None:
            low_ns, high_ns = self.interval
            ends = (low_ns, high_ns) if gained_ns >= 0 else (-high_ns, -low_ns)
            low_ns, high_ns = map(round, ends)
            sure = fact("promise.interval", ends=(low_ns, high_ns))
            if low_ns < 0 < high_ns:
                sure = fact("promise.chance", low_ns=low_ns, high_ns=high_ns)
        # Only the interval of what came meets what was promised.
        is_near = _NEAR * self.low_ns <= self.gained_ns <= self.high_ns / _NEAR
        is_unsure = self.outcome == "as-promised" and not is_near
        return fact(
            "promise.unsure" if is_unsure else f"promise.{self.outcome}",
            fixed=tuple(
                fact("promise.name", name=quoted(finding.title)) for finding in self.findings
            ),
            promised=promised,
            of=fact("promise.per-step") if self.has_steps else None,
            gained_ns=abs(gained_ns),
            way=fact("promise.shorter" if gained_ns >= 0 else "promise.longer"),
            sure=sure,
            next=quoted(self.next.title) if self.next is not None else None,
            unlike=self.unlike,
        )

    @property
    def sentence(self) -> str:
        """Return what was promised, and what came, in words."""
        return in_words(self.fact)


Judged = tuple[Side, Side, int, Interval | None, str | None]
"""The first arguments of `promise_of`: before, after, difference_ns, spread, fix."""


def judged_promise(
    judged: Judged, unjudged: Sequence[str], matched: Sequence[Match]
) -> Promise | None:
    """Return the promise of two sides, if it can be judged; else only if `fix` asks for it.

    1. Only the work differs, and the fix replaced operators (attention by one): it is judged.
    2. Something differs, or perhaps the work: not judged, None without `fix`.
    3. Else it is judged.

    `unjudged` is what differs, `matched` are the kernels. Raises UsageError as `promise_of` does.
    """
    before, after, _, _, fix = judged
    if unjudged and {*unjudged} <= {*OF_WORK}:
        promise = promise_of(*judged)
        if promise is not None and promise.findings:
            replaced = {*map(row_name, replaced_kernels(before, after))}
            if all(replaced & {*finding.rows} for finding in promise.findings):
                return promise
    unlike = unjudged[0] if unjudged else None
    if unlike is None and may_do_other_work(before, after, matched):
        unlike = KERNELS
    if unlike is not None and fix is None:
        return None  # the comparison's caveats tell that the work differs
    return promise_of(*judged, unlike)


def promise_of(
    before: Side,
    after: Side,
    difference_ns: int,
    spread: Interval | None,
    fix: str | None = None,
    unlike: str | None = None,
) -> Promise | None:
    """Return what became of the promise of the findings that were fixed.

    None if nothing changed, or if all work is operators on the CPU, which promise nothing.
    `difference_ns` is how much longer a window is in the run after, `spread` its interval. `fix`
    is the rule of the finding that was to be fixed; by default those count whose cause shrank.
    `unlike` is what differs so that nothing can be judged. Raises UsageError if no finding of the
    run before has the rule `fix`.
    """
    promising = [finding for finding in before.findings if finding.gain is not None]
    asked = [finding for finding in promising if finding.rule == fix]
    if fix is not None and not asked:
        rules = ", ".join(dict.fromkeys(finding.rule for finding in promising))
        hint = f"give one of {rules}" if rules else "compare without a fix: nothing is promised"
        if before.on_host:
            hint = "record work of a GPU: gains of operators on the CPU are not estimated"
        raise UsageError(f"no finding of the run before promises a gain and is called {fix}", hint)
    if before.on_host:
        return None
    gained_ns = -difference_ns
    shrunk = [
        finding for finding in asked or promising if _is_fixed(finding, before, after, gained_ns)
    ]
    fixed = _sufficient(shrunk, before, gained_ns)
    findings = tuple(fixed or asked)
    low_ns, high_ns = _promised(findings, before)
    # The gain is somewhere in its interval, widened by the slack: from least_ns to most_ns.
    interval = Interval(-spread.high_ns, -spread.low_ns) if spread is not None else None
    slack_ns = _SLACK * float(before.mean_ns)
    least_ns, most_ns = interval or (gained_ns, gained_ns)
    least_ns -= slack_ns
    most_ns += slack_ns
    outcome: Outcome
    if unlike is not None:
        outcome = "not-judged"
    elif asked and not fixed:
        outcome = "still-there"
    elif not fixed:
        if least_ns <= 0 <= most_ns:  # the time is perhaps the same
            return None
        outcome = "other"
    elif most_ns < 0 or gained_ns < -slack_ns:  # longer, though perhaps by chance
        outcome = "other"
    elif most_ns < low_ns:
        outcome = "less"
    elif least_ns > high_ns:
        outcome = "more"
    else:  # a gain of 80 to 120 may be one of the promised 100 to 150
        outcome = "as-promised"
    follower = after.findings[0] if after.findings else None
    steps = bool(before.steps)
    return Promise(outcome, findings, low_ns, high_ns, gained_ns, interval, follower, unlike, steps)


def _sufficient(fixed: Sequence[Told], before: Side, gained_ns: int) -> Sequence[Told]:
    """Return the best finding whose promise alone explains what came, else all.

    The others may be consequences of its cause, which go with it.
    """
    slack_ns = _SLACK * float(before.mean_ns)
    for finding in fixed:
        low_ns, high_ns = _promised([finding], before)
        if low_ns - slack_ns <= gained_ns <= high_ns + slack_ns:
            return [finding]
    return fixed


def _is_fixed(finding: Told, before: Side, after: Side, gained_ns: int) -> bool:
    """Return whether the cause of a finding takes so much less time that it counts as fixed.

    It must shrink by half of the least of three times: what was promised (10 ms), what was gained
    (6 ms), and itself (20 ms) -> by 3 ms. It must also shrink by 1 % of a mean window.
    """
    # The same finding in the run after: those of its rule with common evidence, or all of its rule.
    rows = {*finding.rows}
    alike = [other for other in after.findings if other.rule == finding.rule]
    same = [other for other in alike if rows & {*other.rows}] or alike
    window_ns = float(before.mean_ns)
    cause_ns = finding.share * window_ns
    gone_ns = cause_ns - sum(other.share for other in same) * float(after.mean_ns)
    promised_ns = finding.gain.expected_ns if finding.gain is not None else 0
    least_ns = min(cause_ns, promised_ns)
    if gained_ns > 0:
        least_ns = min(least_ns, gained_ns)
    return gone_ns >= max(_FIXED * least_ns, _LEAST * window_ns)


def _promised(findings: Sequence[Told], before: Side) -> tuple[int, int]:
    """Return the least and the most that findings promise together, in ns per window."""
    gains = [finding.gain for finding in findings if finding.gain is not None]
    if not gains:
        return 0, 0
    low_ns = min(gain.low_ns for gain in gains)  # one of them may be a consequence of another
    high_ns = sum((gain.most_ns or gain.high_ns) + gain.further_ns for gain in gains)
    edits = [edit for finding in findings for edit in finding.edits]
    replay = before.analysis.replay_or_reason[0] if before.analysis is not None else None
    if len(gains) > 1 and replay is not None and all(finding.edits for finding in findings):
        together = replay.what_if(edits).together
        windows = max(together.windows, 1)
        replayed_ns = (together.before_ns - together.least_ns) // windows
        return low_ns, max(low_ns, min(high_ns, replayed_ns))
    return low_ns, high_ns
