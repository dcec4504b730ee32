"""Edits of what-if: parsed from text, and applied to a world.

An edit is a target and its new time: `kernel:softmax/2`, `data_input=0`, `sync=0`,
`sync:Memcpy=0`, `eager_overhead=0`, `launch_latency=5us`, `communication=hidden`, `recompute=off`,
`rank 4=median`. `=` sets the time of each match, `/2` divides it, `*2` multiplies it. Names of
idle classes as reports print them are targets, too: `launching operators=0`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from fractions import Fraction
from functools import partial
from itertools import combinations
from statistics import median_low
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from traceflops.attribution.host_events import FACTS
from traceflops.attribution.idle_classes import CLASSES
from traceflops.errors import UsageError
from traceflops.replay.changes import Changed, Recorded, Value, matches_of, named
from traceflops.replay.recorded_graph import HOST, LAUNCH, LONG_AGO, SYNC
from traceflops.replay.stretches import Stretches
from traceflops.table.arrays import ABSENT, BoolArray, FloatArray, IntArray
from traceflops.table.columns import Columns, codes, matching, names, numbers
from traceflops.table.grouping import distinct, groups
from traceflops.table.nesting import taken
from traceflops.windows.selection import parse_duration

_EDIT: Final = re.compile(r"(?s)(.+)([=/*])([^=/*]+)")
_RANK: Final = re.compile(r"rank (\d{1,6})")
_SHORT: Final = re.compile(r"[^eE]{1,40}(?:[eE][+-]?\d{1,2})?")
_LONGEST_NS, _MOST_TIMES, _FINEST = 10**12, 1_000, 10**6
_NOWHERE: Final = LONG_AGO // 2
"""A lag so far in the past that the edge never decides when its target begins."""
_SLOWED: Final = 0.99
"""Communication slows the work beside it if that takes less than this share of its time alone."""
_HOST: Final[Mapping[str, str]] = {
    "data_input": "data_input",
    "optimizer_loop": "optimizer",
    "compiled_runtime": "compiled",
    "own_sleep": "sleeps",
    "external_wait": "waits",
    "memory_alloc": "allocates",
}
"""Targets on the host, and the fact by which names of calls, operators and ranges match them."""
_NOT_EAGER: Final = "|".join(
    f"(?:{FACTS[fact]})" for fact in (*_HOST.values(), "waits_for_device", "copies")
)


def _plain(words: str) -> str:
    """Return the name of a target that a user may write with spaces, hyphens or capitals."""
    return re.sub(r"[\s_-]+", "_", words.strip().lower())


_OF_CLASSES: Final = {
    **{name: name for name in (*_HOST, "eager_overhead", "launch_latency", "start_up")},
    "sync_call": "sync",
}
"""The target that edits each class of idle time."""
_CALLED: Final = {
    _plain(word): target for name, target in _OF_CLASSES.items() for word in (name, CLASSES[name])
}
_LABELS: Final = ", ".join(f"'{CLASSES[name]}=0'" for name in _OF_CLASSES)
_HELP: Final = (
    "write e.g. 'kernel:softmax/2', 'host:aten::cat=0', 'eager_overhead=0', 'data_input=0', "
    "'sync=0', 'launch_latency=5us', 'communication=hidden', 'recompute=off' or 'rank 4=median'; "
    f"or as reports call it: {_LABELS}"
)


class Edit(Struct, frozen=True):
    """One edit: its text, target and value; `is_word` tells of a word such as `off` as value."""

    text: str
    target: str
    value: Value
    is_word: bool


def parse_edit(text: str) -> Edit:
    """Return the edit that a text describes. Raises UsageError if it describes none."""
    match = _EDIT.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"no edit: {text!r}", _HELP)
    target, sign, word = (part.strip() for part in match.groups())
    target = _CALLED.get(_plain(target), target)
    kind, _, pattern = target.partition(":")
    # Only some targets may have a pattern, and some must have one.
    if _kind(target) not in _APPLIED or (pattern and kind not in _NAMED):
        near = get_close_matches(_plain(target), (*_APPLIED, *_CALLED), 1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"nothing is called {target!r}", f"{meant}{_HELP}")
    if kind in _NAMED and not pattern and target != "sync":
        raise UsageError(
            f"no name in {text!r}", f"'{kind}:.*' is all, '{kind}:{_NAMED[kind]}' some"
        )
    # Targets with words take only these; communication takes a time, too.
    words = _WORDS.get(_kind(target), ())
    if words and word not in words and (kind != "communication" or word.isalpha()):
        raise UsageError(f"{target} cannot be {word!r}", f"write {f'{target}={words[0]}'!r}")
    is_word = word in words
    value = Value() if is_word else _value(text, sign, word)
    if kind == "sync" and value != Value(0):
        raise UsageError(f"a wait can only go: {text!r}", f"write {f'{target}=0'!r}")
    return Edit(text.strip(), target, value, is_word)


def parse_edits(texts: Sequence[str]) -> list[Edit]:
    """Return the edits of some texts. Raises UsageError if two of them set the same target."""
    edits = [parse_edit(text) for text in texts]
    for edit, other in combinations(edits, 2):
        if edit.target == other.target and edit.is_word == other.is_word:
            both = f"{edit.text!r} and {other.text!r}"
            raise UsageError(f"two edits of one target: {both}", "ask one after the other")
    return edits


def _value(text: str, sign: str, word: str) -> Value:
    """Return the value that `word` gives after a sign (=, / or *). Raises UsageError if none."""
    if sign == "=":
        value = Value(0 if word == "0" else parse_duration(f"the value of {text!r}", word))
    else:
        try:
            number = Fraction(word if _SHORT.fullmatch(word) else "")  # "" is a ValueError
            share = 1 / number if sign == "/" else number
        except ZeroDivisionError:
            whole = f"{text.rpartition('/')[0].strip()}=0"
            raise UsageError(f"nothing is divided by 0: {text!r}", f"write {whole!r}") from None
        except ValueError:
            raise UsageError(f"no number in {text!r}: {word!r}", _HELP) from None
        value = Value(share=share.limit_denominator(_FINEST))
    if (value.ns or 0) > _LONGEST_NS or not 0 <= value.share <= _MOST_TIMES:
        limits = f"write a time up to 1000s, or a number of times from 0 to {_MOST_TIMES}"
        raise UsageError(f"out of range in {text!r}: {word!r}", limits)
    return value


def _kind(target: str) -> str:
    return "rank" if _RANK.fullmatch(target) else target.partition(":")[0]


_WORDS: Final = {"communication": ("hidden",), "recompute": ("off",), "rank": ("median",)}
_NAMED: Final = {"kernel": "softmax", "host": "aten::cat", "sync": "Memcpy"}


def apply(edit: Edit, changed: Changed) -> Changed:
    """Return the world with one more edit. Raises UsageError if its target was not recorded."""
    return _APPLIED[_kind(edit.target)](edit, changed)


def _kernel(edit: Edit, changed: Changed) -> Changed:
    """Return the world with other durations of the kernels and copies that match the target.

    The target is a pattern of names or categories. Raises UsageError if nothing matches.
    """

    def matching_nodes() -> IntArray:
        linked = changed.recorded.prepared.linked
        categories = [
            f"{category.top}/{category.sub}" for category in linked.categorised.categories
        ]
        by_name = named(edit.target, linked.trace.activities["name"])
        by_category = np.append(matches_of(edit.target, categories), False)
        return changed.work_of(by_name | by_category[linked.categorised.category])

    nodes = changed.recorded.once(edit.target, matching_nodes)
    _check(len(nodes) > 0, edit, "no kernel or copy is called so")
    return changed.with_work(nodes, edit.value.of(changed.world.dur_ns[nodes]))


def _check(is_recorded: bool, edit: Edit, reason: str) -> None:
    if not is_recorded:
        message = f"cannot answer {edit.text!r}: {reason}"
        raise UsageError(message, "ask for what was recorded", reason)


def _on_host(edit: Edit, changed: Changed) -> Changed:
    """Return the world with other times of matching calls, operators, ranges and functions.

    The target is a class such as `data_input`, whose names a fact reveals, or `host:PATTERN`.
    """
    fact, recorded = _HOST.get(edit.target), changed.recorded
    rows = partial(_has_fact, FACTS[fact], re.IGNORECASE) if fact else partial(named, edit.target)
    when = recorded.once(edit.target, lambda: recorded.named_on_host(rows))
    nothing = "no call, operator, range or function of the host is called so"
    _check(len(when.known) > 0, edit, nothing)
    return changed.with_host(when, edit.value)


def _has_fact(pattern: str, flags: int, column: pa.ChunkedArray) -> BoolArray:
    """Return which rows of a column of names match an expression."""
    return matching(column, re.compile(pattern, flags).search)


def _eager(edit: Edit, changed: Changed) -> Changed:
    """Return the world with other times of operators, except parts with a target of their own."""
    recorded = changed.recorded

    def of_operators() -> Stretches:
        not_eager = recorded.named_on_host(partial(_has_fact, _NOT_EAGER, 0))
        ops = recorded.on_host({"ops": np.arange(recorded.prepared.trace.ops.num_rows)})
        return ops.subtract(not_eager)

    when = recorded.once(edit.target, of_operators)
    if not len(when.known):
        in_ranges = recorded.named_on_host(partial(_has_fact, FACTS["is_function"], 0))
        beside = " outside ranges" if len(in_ranges.known) else ""
        _check(False, edit, f"no operator was recorded{beside}")
    return changed.with_host(when, edit.value)


def _start_up(edit: Edit, changed: Changed) -> Changed:
    """Return the world with another time of start-up."""
    when = changed.recorded.starts_up
    _check(len(when.known) > 0, edit, "no start-up was recorded")
    return changed.with_host(when, edit.value)


def _sync(edit: Edit, changed: Changed) -> Changed:
    """Return a world in which calls of some names do not wait, and their work starts at once."""
    edges, nodes = changed.graph.edges, changed.graph.nodes
    # All waits (`sync`), or the waits in named calls and the work that these launch, as copies do
    is_wait = edges.kind == SYNC  # per edge
    is_launched = np.zeros(len(nodes.time_ns), dtype=np.bool_)  # per node
    if edit.target != "sync":
        called = named(edit.target, changed.recorded.prepared.trace.calls["name"]).astype(np.int8)
        is_wait &= taken(called, nodes.call[edges.target], 0) > 0
        launches = (edges.kind == LAUNCH) & (taken(called, nodes.call[edges.source], 0) > 0)
        is_launched[edges.target[launches]] = True
    is_recorded = bool(is_wait.any() or is_launched.any())
    _check(is_recorded, edit, "no call that waits for the device was recorded")
    # Waits never decide when a call ends; the thread goes on at once; launched work has no delay.
    ends_wait = np.zeros(len(nodes.time_ns), dtype=np.bool_)
    ends_wait[edges.target[is_wait]] = True
    inside_wait = ends_wait[edges.target] & (edges.kind == HOST)
    delay = np.where(is_launched, np.minimum(changed.world.delay_ns, 0), changed.world.delay_ns)
    changed = replace(changed, world=replace(changed.world, delay_ns=delay))
    return changed.with_lags(is_wait, _NOWHERE).with_lags(inside_wait, 0)


def _launch_latency(edit: Edit, changed: Changed) -> Changed:
    """Return a world with other launch latencies, and no delay of work that waited for one."""
    edges, world = changed.graph.edges, changed.world
    is_launch = edges.kind == LAUNCH
    _check(bool(is_launch.any()), edit, "no launch call was recorded")
    # Launches that decided when work could begin; an ordinary delay is part of their latency.
    end_ns = changed.graph.nodes.time_ns[edges.source] + edges.lag_ns
    decides = is_launch & (end_ns == changed.graph.ready_ns[edges.target])
    waited = np.zeros(len(world.dur_ns), dtype=np.bool_)  # per node
    waited[edges.target[decides]] = True
    waited &= ~changed.graph.is_unexplained
    delay = np.where(waited, 0, world.delay_ns)
    changed = replace(changed, world=replace(world, delay_ns=delay))
    latency_ns = edges.lag_ns + np.where(decides, changed.graph.delay_ns[edges.target], 0)
    return changed.with_lags(is_launch, edit.value.of(latency_ns))


def _communication(edit: Edit, changed: Changed) -> Changed:
    nodes = changed.work_of(changed.recorded.communicates)
    _check(len(nodes) > 0, edit, "no communication was recorded")
    if edit.is_word:
        return replace(changed, is_hidden=True)
    return changed.with_work(nodes, edit.value.of(changed.world.dur_ns[nodes]))


def _recompute(edit: Edit, changed: Changed) -> Changed:
    work, ops = changed.recorded.recomputes
    _check(bool(work.any()), edit, "no work of a recomputation is known")
    when = changed.recorded.on_host({"ops": np.flatnonzero(ops)})
    less = changed.with_work(changed.work_of(work), 0)
    return less.with_host(when, Value(0))


def _rank(edit: Edit, changed: Changed) -> Changed:
    """Return a world in which kernels and host of a rank take the times of the median rank.

    Of two ranks the median is the faster one. Kernels are compared by name. Kernels of other ranks
    speed up, too, if communication that waited for this rank slowed them.
    """
    match = _RANK.fullmatch(edit.target)
    assert match is not None
    rank, recorded = int(match[1]), changed.recorded
    ranks = recorded.rank_of_row
    has_work = bool(((ranks == rank) & ~recorded.communicates).any())
    others = distinct(ranks[(ranks != rank) & (ranks >= 0)])
    _check(has_work and len(others) > 0, edit, "its work, or that of others, is missing")
    # A factor per activity; the ratios are times of other ranks over own ones, by name. A kernel
    # with ratios [1, 0.5, 0.8] of this and two other ranks takes 0.8 of its time, the median.
    table = recorded.prepared.trace.activities
    count = len(names(table["name"]))
    factor = np.ones(table.num_rows)
    ratios = [np.ones(count)]  # this rank's own
    own = _runs_of(recorded, rank)
    for other in others.tolist():
        theirs = _runs_of(recorded, other)
        ratio, remaining = own.compared(theirs, count)
        ratios.append(ratio)  # NaN for names that one of the two does not run
        beside = theirs.only(theirs.is_beside)
        factor[beside.row] = remaining[beside.name]
    factor[own.row] = np.nanquantile(np.array(ratios), 0.5, axis=0, method="lower")[own.name]
    nodes = changed.work_of(factor != 1)
    dur = changed.world.dur_ns[nodes] * factor[changed.graph.nodes.row[nodes]]
    changed = changed.with_work(nodes, np.rint(dur).astype(np.int64))
    # The host of the rank takes the median time of all ranks' hosts.
    calls, edges = recorded.prepared.trace.calls, changed.graph.edges
    process = taken(numbers(calls["process"]), changed.graph.nodes.call)
    rank_of_node = np.where(process >= 0, recorded.rank_of_process[process], ABSENT)
    rank_of_edge = np.where(edges.kind == HOST, rank_of_node[edges.target], ABSENT)
    lag_ns = changed.world.lag_ns
    by_rank = groups(rank_of_edge)
    host_ns = {number: int(lag_ns[rows].sum()) for number, rows in by_rank if number >= 0}
    if not host_ns.get(rank):
        return changed
    share = median_low(host_ns.values()) / host_ns[rank]
    return changed.with_lags(rank_of_edge == rank, np.rint(lag_ns * share).astype(np.int64))


class _Runs(Columns, frozen=True):
    """Runs of kernels of a rank, without communication, sorted by name and start.

    `is_beside` tells whether communication ran at the same time.
    """

    row: IntArray
    name: IntArray
    dur_ns: IntArray
    is_beside: BoolArray

    def sums(self, count: int) -> FloatArray:
        """Return the time by name."""
        return np.bincount(self.name, self.dur_ns, count).astype(np.float64)

    def compared(self, others: _Runs, count: int) -> tuple[FloatArray, FloatArray]:
        """Return two factors for each of `count` names: `ratio` and `remaining`.

        The ratio is the time of the others' runs over that of own runs. The remaining part is what
        is left of the others' runs beside communication if that no longer slows them: 1 if it does
        not. If it does, the ratio is that of runs without communication, if there are any.
        """
        own_count, other_count = (np.bincount(r.name, minlength=count) for r in (self, others))
        own_mean = _over(self.sums(count), own_count)
        other_mean = _over(others.sums(count), other_count)
        # Pairs: the n-th runs of a name on both ranks, if both have equally many.
        is_paired = own_count == other_count
        own_runs, other_runs = self.only(is_paired[self.name]), others.only(is_paired[others.name])
        is_alone = ~own_runs.is_beside & ~other_runs.is_beside
        own_alone, other_alone = (r.only(is_alone).sums(count) for r in (own_runs, other_runs))
        ratio, has_alone = _over(other_alone, own_alone), own_alone > 0
        # How long the others' runs beside communication take, and would take alone by that ratio
        beside, expected = (
            r.only(other_runs.is_beside).sums(count) for r in (other_runs, own_runs)
        )
        expected *= np.where(has_alone, ratio, 0)
        usual = float(_over(expected.sum(), beside[has_alone].sum()))
        if not usual < _SLOWED:  # not slowed, or not known (NaN)
            return _over(other_mean, own_mean), np.ones(count)
        remaining = np.where(has_alone & (beside > 0), _over(expected, beside), usual)
        other_mean -= (1 - usual) * _over(others.only(others.is_beside).sums(count), other_count)
        return np.where(has_alone, ratio, _over(other_mean, own_mean)), remaining


def _over(some: FloatArray, others: FloatArray | IntArray) -> FloatArray:
    """Return `some / others`, NaN where `others` is 0."""
    return np.divide(some, others, out=np.full(np.shape(others), np.nan), where=others > 0)


def _runs_of(recorded: Recorded, rank: int) -> _Runs:
    table = recorded.prepared.trace.activities
    name, dur = codes(table["name"]), numbers(table["dur_ns"])
    row = np.flatnonzero((recorded.rank_of_row == rank) & ~recorded.communicates & (name >= 0))
    row = row[np.lexsort((numbers(table["start_ns"])[row], name[row]))]
    return _Runs(row, name[row], dur[row], recorded.is_beside[row])


_APPLIED: Final[Mapping[str, Callable[[Edit, Changed], Changed]]] = {
    "kernel": _kernel,
    "host": _on_host,
    **dict.fromkeys(_HOST, _on_host),
    "eager_overhead": _eager,
    "start_up": _start_up,
    "sync": _sync,
    "launch_latency": _launch_latency,
    "communication": _communication,
    "recompute": _recompute,
    "rank": _rank,
}
