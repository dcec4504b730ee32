"""Steps by repeated signature: the longest round of activities that repeats again and again.

A step of a model contains its layers, so kernels repeat inside it, too. To avoid that layers are
taken for steps, rounds count as steps only if they contain shorter rounds, or if they are longer or
come more often in a row than the layers of any model.
Everything here is sorting and counting: n log n in the number of activities.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from traceflops.table.columns import IntArray
from traceflops.table.grouping import differ_from_before, distinct, runs
from traceflops.timeline.intervals import ENDLESS

FEWEST_ROUNDS: Final = 3
FEWEST_ACTIVITIES: Final = 4
TOLERANCE: Final = 0.2
"""Two rounds are alike where they differ by no more than this share."""
REGULAR_SHARE: Final = 0.8
MOST_LAYERS: Final = 256
"""No model has more layers. A layer with more kernels has kernels that repeat inside it."""
_LEAST_COVERED: Final = 0.5  # rounds that are steps are at least this share of all work
_LEAST_INNER: Final = 0.25  # names that repeat inside of rounds do so over this share of them
_NO_TRIFLE: Final = 0.02  # such names have at least this share of the activities
_LITTLE_MORE: Final = 0.05
_SAME_LENGTH: Final = 0.9
_LENGTHS_TRIED: Final = 12
_ROUNDS_COMPARED: Final = 512
_NAMES_COMPARED: Final = 256
_SAME_PLACE: Final = 0.05
_PARTS: Final = 2  # a longer round has so many parts
_FEWEST_NAMES: Final = 3
_BASE: Final = 2**31
"""More than there are activities: two numbers are packed as the first times this + the second."""
_MUCH_LONGER: Final = 2
_IRREGULAR: Final = 0.02
_MUCH_SURER: Final = 4


class Order(Struct, frozen=True):
    """The activities of one device in the order of their starts; `name` is a code of names.

    `call` is the call that launched each, -1 where unknown; None where no launch is known.
    """

    name: IntArray
    start_ns: IntArray
    end_ns: IntArray
    call: IntArray | None = None


class Rounds(Struct, frozen=True):
    """Rounds by their first activities: round i is the activities [begin[i], begin[i+1]).

    `length` is the usual number of activities, `spread` the mean deviation as a share of it.
    """

    begin: IntArray
    length: int
    spread: float

    def __len__(self) -> int:
        return len(self.begin) - 1


def repeated_signature(order: Order) -> Rounds | None:
    """Return the longest rounds that are certainly steps, or None without any."""
    if len(order.name) < FEWEST_ACTIVITIES * FEWEST_ROUNDS:
        return None
    occurrences = _Occurrences(order.name)
    test, steps = _RoundTest(order, occurrences), None
    for rounds in occurrences.rounds():  # shorter and shorter ones
        if test.are_better(rounds, steps) and test.are_steps(rounds):
            steps = rounds
    return None if steps is None else _from_the_longest_wait(order, steps)


def hold_rounds(order: Order, begin: IntArray) -> bool:
    """Return whether marked rounds are most of the work, alike, and have rounds inside.

    They begin at the activities `begin`; the last entry is the end of the last round.
    """
    rounds = Rounds(begin, int(np.median(np.diff(begin))), 0.0)
    test = _RoundTest(order, _Occurrences(order.name))
    if test.share_of_time(rounds) < _LEAST_COVERED or not test.are_alike(rounds):
        return False
    return test.repeat_inside(rounds, are_marked=True)


def has_layers(order: Order) -> bool:
    """Return whether the repeated signature has rounds inside, so surely its rounds are steps."""
    rounds = repeated_signature(order)
    if rounds is None:
        return False
    return _RoundTest(order, _Occurrences(order.name)).repeat_inside(rounds)


def longer_rounds(order: Order, begin: IntArray) -> Rounds | None:
    """Return the longest rounds that have those from `begin` on as parts, None without any.

        |init  a b  a b  ...  a b  shade|init  a b  a b  ...  a b  shade|    # frames of many rounds

    They are alike, and several names come once in each, which together take as long as a part.
    """
    work_ns = np.append(0, np.cumsum(order.end_ns - order.start_ns))
    occurrences = _Occurrences(order.name)
    test, part_ns = _RoundTest(order, occurrences), np.median(np.diff(work_ns[begin]))
    for rounds in occurrences.rounds():  # shorter and shorter ones
        if _PARTS * len(rounds) > len(begin) - 1:
            return None
        low, high = int(rounds.begin[0]), int(rounds.begin[-1])
        name, dur_ns = order.name[low:high], np.diff(work_ns[low : high + 1])
        round_of = np.repeat(np.arange(len(rounds)), np.diff(rounds.begin))
        times = np.bincount(name)
        in_rounds = distinct(name * len(rounds) + round_of) // len(rounds)
        comes_once = (times == len(rounds)) & (np.bincount(in_rounds) == len(rounds))
        own_ns = dur_ns[comes_once[name]].sum() / len(rounds)
        is_own = comes_once.sum() >= _FEWEST_NAMES and own_ns >= part_ns
        if len(rounds) >= FEWEST_ROUNDS and is_own and test.are_alike(rounds):
            return rounds
    return None


class _Occurrences:
    """The occurrences of each name in order, and where a run of occurrences begins.

    Neighbours of a name that are at least half as far apart as its farthest ones divide runs.
    """

    def __init__(self, name: IntArray) -> None:
        """Sort the activities by name, those of one name in order; `name` is a code per activity.

            name [7 3 7 3 7]  ->  activity [1 3 0 2 4], self.name [0 0 1 1 1], gap [0 2 0 2 2]

        Per occurrence in that order: `activity` is the index of the activity, `name` a number from
        0, `gap` the distance in activities to the previous occurrence of the name (0 for the
        first), and `_begins` whether it begins a run. `_runs` is the number of runs by name.
        """
        if int(name.max()) < 2**16:
            self.activity = np.argsort(name.astype(np.uint16), kind="stable")  # by radix
        else:  # name and index packed, sorted, unpacked: a stable sort, several times faster
            self.activity = np.sort(name * _BASE + np.arange(len(name))) % _BASE
        is_first = differ_from_before(name[self.activity])  # of its name
        self.name = np.cumsum(is_first) - 1
        self.gap = np.append(0, np.diff(self.activity))
        self.gap[is_first] = 0
        first = np.flatnonzero(is_first)
        # A run begins after a gap at least half as wide as the widest one of the name. No round is
        # as short as FEWEST_ACTIVITIES / 2, so gaps below that divide nothing.
        # gap of a name [0 1 9 1 9]: widest 9  ->  runs begin at [1 0 1 0 1]
        widest = np.maximum(np.maximum.reduceat(self.gap, first), FEWEST_ACTIVITIES)
        self._begins = is_first | (2 * self.gap >= widest[self.name])
        self._runs = np.add.reduceat(self._begins, first)

    def rounds(self) -> Iterator[Rounds]:
        """Yield the most regular rounds of each length, the longest first.

        Rounds begin where the runs of some name begin. Lengths within 10 % count as the same.
        """
        has_rounds = self._runs > FEWEST_ROUNDS  # by name
        begins_run = self._begins & has_rounds[self.name]
        activity, name = self.activity[begins_run], self.name[begins_run]
        # Per name, the usual distance between the begins of its runs is the length of a round.
        # name [0 0 0 1 1], activity [1 11 21 3 13]  ->  has_next [0 1 3], distances [10 10 10]
        has_next = np.flatnonzero(name[1:] == name[:-1])
        distances = _Regular.of(name[has_next], np.diff(activity)[has_next])
        kept = (distances.share >= REGULAR_SHARE) & (distances.usual >= FEWEST_ACTIVITIES)
        names, length, spread = distances.group[kept], distances.usual[kept], distances.spread[kept]
        limit = np.inf
        for _ in range(_LENGTHS_TRIED):
            if not (length < limit).any():
                return
            longest = int(length[length < limit].max())
            limit = _SAME_LENGTH * longest
            # Names whose length counts as the same as the longest: the most regular one is taken.
            same = np.flatnonzero((length <= longest) & (length >= limit))
            best = same[np.argmin(spread[same])]
            usual = int(length[best])
            yield Rounds(activity[name == names[best]], usual, float(spread[best]) / usual)


def contents(name: IntArray, begin: IntArray) -> IntArray:
    """Return a hash per round [begin[i], begin[i+1]) that is the same for names in any order."""
    # The hash is the sum of a pseudo-random number per name, as a difference of running sums.
    # name [0 1 1 0], weights [5 8], begin [0 2 4]  ->  running sums [0 5 13 21 26], hashes [13 13]
    weights = np.random.default_rng(0).integers(1, 2**40, int(name.max()) + 1)
    return np.diff(np.append(0, np.cumsum(weights[name]))[begin])


class _Regular(Struct, frozen=True):
    """Per group that has values: their number, their lower median `usual`, the share close to it.

    `spread` is their mean distance from the median.
    """

    group: IntArray
    count: IntArray
    usual: IntArray
    share: npt.NDArray[np.float64]
    spread: npt.NDArray[np.float64]

    @classmethod
    def of(cls, group: IntArray, value: IntArray) -> _Regular:
        """Return the figures of each group; `group` is sorted, values are below _BASE.

        group [0 0 0 4 4], value [9 2 3 8 6]  ->  first [0 3], count [3 2], usual [3 6]
        """
        ordered = np.sort(group * _BASE + value) % _BASE  # by group, then by value: [2 3 9 6 8]
        first = np.flatnonzero(np.diff(group, prepend=-1))  # where each group begins
        count = np.diff(np.append(first, len(group)))
        usual = ordered[first + (count - 1) // 2]
        usual_of_value = np.repeat(usual, count)
        distance = np.abs(ordered - usual_of_value)
        close = np.add.reduceat(distance <= TOLERANCE * usual_of_value, first)
        spread = np.add.reduceat(distance, first) / count
        return cls(group[first], count, usual, close / count, spread)


class _RoundTest:
    """Tests whether rounds of the activities of one device are steps."""

    def __init__(self, order: Order, occurrences: _Occurrences) -> None:
        """Prepare the figures that all tests of rounds of these activities need."""
        self._name = order.name
        self._call = order.call
        self._occurrences = occurrences
        dur_ns = order.end_ns - order.start_ns
        self._work_before_ns = np.append(0, np.cumsum(dur_ns))
        # To compare contents, names are put into a few bins, which bounds memory. `_mean_ns` is the
        # mean duration of the activities in each bin.
        self._bin = order.name % _NAMES_COMPARED
        count = np.bincount(self._bin, minlength=_NAMES_COMPARED)
        sum_ns = np.bincount(self._bin, weights=dur_ns, minlength=_NAMES_COMPARED)
        self._mean_ns = sum_ns / np.maximum(count, 1)

    def are_steps(self, rounds: Rounds) -> bool:
        """Return whether the rounds are most of the work, alike in content, and not just layers.

        Unless something repeats inside of them, rounds with the same content may be layers: they
        are none if they are too long or too many.
        """
        if not self.are_alike(rounds):
            return False
        if self.repeat_inside(rounds):
            return True
        if max(rounds.length, len(rounds)) <= MOST_LAYERS:
            return False
        changes = np.diff(contents(self._name, rounds.begin)) != 0
        if rounds.length > MOST_LAYERS and changes.mean() <= 1 - REGULAR_SHARE:
            return True
        # contents [5 5 5 8 8]  ->  changes [0 0 1 0], with ends [1 0 0 1 0 1]: 3 and 2 in a row
        in_a_row = np.diff(np.flatnonzero(np.concatenate([[True], changes, [True]])))
        return bool(in_a_row.max() > MOST_LAYERS)

    def are_alike(self, rounds: Rounds) -> bool:
        """Return whether the rounds are most of the work, and alike in content."""
        # Half of the activities is enough, too: the first step may take more time than all others,
        # for example if ranks wait for one another.
        covered = (int(rounds.begin[-1]) - int(rounds.begin[0])) / len(self._name)
        if max(covered, self.share_of_time(rounds)) < _LEAST_COVERED:
            return False
        if self._call is not None:
            # Rounds launched by the same call as the round before are parts of a graph (layers).
            inner = rounds.begin[1:-1]
            call = self._call[inner]
            is_same_call = (call >= 0) & (call == self._call[inner - 1])
            if is_same_call.mean() > TOLERANCE:
                return False
        counts, usual = self._content(rounds)
        alike = np.abs(counts - usual).sum(axis=1) <= TOLERANCE * usual.sum()
        return bool(alike.mean() >= REGULAR_SHARE)

    def share_of_time(self, rounds: Rounds) -> float:
        """Return the share of the time of all work that is in the rounds."""
        first_ns, last_ns = self._work_before_ns[rounds.begin[[0, -1]]]
        return float(last_ns - first_ns) / max(int(self._work_before_ns[-1]), 1)

    def are_better(self, rounds: Rounds, longer: Rounds | None) -> bool:
        """Return whether rounds should replace `longer` ones as the steps; always if it is None."""
        if longer is None:
            return True
        # Names that occur at random may seem to form a few rounds, but irregular ones.
        if longer.spread > _IRREGULAR and _MUCH_SURER * rounds.spread < longer.spread:
            return True
        # A longer round may be several steps, and little more: for example, a program that logs
        # something every tenth step seems to have rounds of ten steps. So compare the activities
        # (by name) of a longer round with those of as many rounds as fit into it.
        # Longer: 10 a, 20 b, 1 log. A round: 1 a, 2 b. 10 rounds fit  ->  surplus 0 a, 0 b, 1 log
        _, counts_of_longer = self._content(longer)
        _, counts = self._content(rounds)
        rounds_per_longer = round(longer.length / rounds.length)
        surplus = np.maximum(counts_of_longer - rounds_per_longer * counts, 0)
        is_few = surplus.sum() < _LITTLE_MORE * counts.sum()
        is_short = surplus @ self._mean_ns < _LITTLE_MORE * (counts @ self._mean_ns)
        return bool(is_few and is_short)

    def _content(self, rounds: Rounds) -> tuple[IntArray, IntArray]:
        """Return how many activities of each bin sampled rounds have, [rounds, bins]; the medians.

        The medians, one per bin, are the activities of a usual round.
        """
        sample = distinct(np.linspace(0, len(rounds) - 1, _ROUNDS_COMPARED).astype(np.int64))
        activity, round_index = runs(rounds.begin[sample], rounds.begin[sample + 1])
        # The counts are a table: round 2, bin 5 is cell 2 * 256 + 5.
        cell = round_index * _NAMES_COMPARED + self._bin[activity]
        counts = np.bincount(cell, minlength=len(sample) * _NAMES_COMPARED)
        counts = counts.reshape(-1, _NAMES_COMPARED)
        return counts, np.median(counts, axis=0).astype(np.int64)

    def repeat_inside(self, rounds: Rounds, *, are_marked: bool = False) -> bool:
        """Return whether some names come at least three times per round, at regular distances.

            |a......a......a......z........|a......a......a......z........|   7 inside, 16 across

        The repeats of such a name must cover a quarter of the rounds: layers do, a small loop does
        not. Together the names must be more than a trifle of the activities. For most of them the
        distance across to the next round must be larger than that inside: if not, the rounds are
        just layers of alternating kinds. Marked rounds may be layers alone, as many as a model has.
        """
        first, last = rounds.begin[0], rounds.begin[-1]
        # Rounds begin at [1 4]  ->  begins [0 1 0 0 1 0], round of each activity [0 1 1 1 2 2]
        begins = np.zeros(len(self._name) + 1, dtype=np.int64)
        begins[rounds.begin] = 1
        round_of = np.cumsum(begins)
        # Gaps (in activities) between occurrences of a name, inside a round or across to the next.
        name, gap = self._occurrences.name, self._occurrences.gap
        activity = self._occurrences.activity
        previous = activity - gap
        has_previous = (gap > 0) & (previous >= first) & (activity < last)
        rounds_apart = round_of[activity] - round_of[previous]
        is_inner = has_previous & (rounds_apart == 0)
        is_across = has_previous & (rounds_apart == 1)
        inner = _Regular.of(name[is_inner], gap[is_inner])
        across = _Regular.of(name[is_across], gap[is_across])
        # The names that repeat regularly inside of rounds (three occurrences leave two gaps).
        is_often = inner.count >= (FEWEST_ROUNDS - 1) * len(rounds)
        is_wide = inner.count * inner.usual >= _LEAST_INNER * (last - first)
        is_regular = (inner.usual >= FEWEST_ACTIVITIES) & (inner.share >= REGULAR_SHARE)
        repeats = is_often & is_wide & is_regular
        if are_marked:
            repeats &= inner.count <= MOST_LAYERS * len(rounds)
        repeat_count = inner.count[repeats].sum()
        if not are_marked:
            usual_across = np.zeros(int(name[-1]) + 1, dtype=np.int64)  # names ascend
            usual_across[across.group] = across.usual
            is_farther = usual_across[inner.group] >= inner.usual + FEWEST_ACTIVITIES
            if 2 * inner.count[repeats & is_farther].sum() < repeat_count:
                return False
        return bool(repeat_count >= _NO_TRIFLE * (last - first))


def _from_the_longest_wait(order: Order, rounds: Rounds) -> Rounds:
    """Return the rounds shifted so that each begins after the longest wait of the device in it.

    If the device waits before c (for data), rounds a b . c d become c d a b: a step begins with the
    work that the device waited for. The rounds stay as they are if the longest waits are not much
    longer than others, or if they are not at about the same place in most rounds. The last round
    may end with the work.
    """
    low, high = int(rounds.begin[0]), int(rounds.begin[-1])
    # start [0 5 9], end [4 7 12]  ->  wait before each activity [endless 1 2]
    gap_ns = order.start_ns[1:] - np.maximum.accumulate(order.end_ns)[:-1]
    wait_ns = np.append(ENDLESS, gap_ns)[low:high]  # before each activity of the rounds
    first = rounds.begin[:-1] - low
    longest_ns = np.maximum.reduceat(wait_ns, first)  # of each round
    # Per round: how many activities precede its longest wait (the first of equal ones).
    # Two rounds wait [1 9 2 | 3 1 8]: at_longest [1 5], minus first [0 3]  ->  offset [1 2]
    round_of = np.repeat(np.arange(len(rounds)), np.diff(rounds.begin))
    at_longest = np.flatnonzero(wait_ns == longest_ns[round_of])
    _, first_in_round = np.unique(round_of[at_longest], return_index=True)
    offset = at_longest[first_in_round] - first
    usual = int(np.median(offset))
    is_near = np.abs(offset - usual) <= _SAME_PLACE * rounds.length
    is_long = np.median(longest_ns) > _MUCH_LONGER * max(float(np.median(gap_ns)), 0.0)
    if is_near.mean() < REGULAR_SHARE or not is_long:
        return rounds
    begins = rounds.begin[:-1] + np.where(is_near, offset, usual)
    # The last round is dropped if its end would lie behind the last activity.
    end = [high + usual] if high + usual <= len(order.name) else []
    return Rounds(np.append(begins, end).astype(np.int64), rounds.length, rounds.spread)
