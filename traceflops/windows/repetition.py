"""Steps by the repeated signature: the longest round of activities that repeats again and again.

A step of a model holds its layers, so its kernels repeat inside it too. Therefore rounds are steps
only if they hold rounds of their own, or are longer, or come more often in a row, than the layers
of a model. Otherwise the layers of one step would be taken for steps.
Everything here is sorting and counting: n log n in the number of activities.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from traceflops.table.columns import IntArray
from traceflops.table.grouping import distinct, runs

FEWEST_ROUNDS: Final = 3
FEWEST_ACTIVITIES: Final = 4
TOLERANCE: Final = 0.2
"""Two rounds are alike where they differ by no more than this share."""
REGULAR_SHARE: Final = 0.8
MOST_LAYERS: Final = 256
"""No model has more layers, and no layer more kernels, unless these repeat inside it."""

_LEAST_COVERED: Final = 0.5
_LEAST_INNER: Final = 0.25
_NO_TRIFLE: Final = 0.02
_LITTLE_MORE: Final = 0.05
_SAME_LENGTH: Final = 0.9
_LENGTHS_TRIED: Final = 12
_ROUNDS_COMPARED: Final = 512
_NAMES_COMPARED: Final = 256
_SAME_PLACE: Final = 0.05
_BASE: Final = 2**31
"""More than there are activities; two numbers in one are the first times this plus the second."""
_MUCH_LONGER: Final = 2
_IRREGULAR: Final = 0.02
_MUCH_SURER: Final = 4


@dataclass(frozen=True, slots=True)
class Order:
    """The activities of one device in the order of their starts; `name` are codes of names.

    `call` is the call that launched each, -1 where it is not known; None where no launch is.
    """

    name: IntArray
    start_ns: IntArray
    end_ns: IntArray
    call: IntArray | None = None


@dataclass(frozen=True, slots=True)
class Rounds:
    """Rounds by where they begin: round i is the activities [place[i], place[i+1]).

    `length` is the usual one, `spread` how far the others are from it, as a share of it.
    """

    place: IntArray
    length: int
    spread: float

    def __len__(self) -> int:
        return len(self.place) - 1


def repeated_signature(order: Order) -> Rounds | None:
    """Return the rounds that are steps, None where none surely are.

    The last place may be the number of activities: the end of the last one.
    """
    if len(order.name) < FEWEST_ACTIVITIES * FEWEST_ROUNDS:
        return None
    occurrences = _Occurrences(order.name)
    test, steps = _RoundTest(order, occurrences), None
    for rounds in occurrences.rounds():
        if test.are_better(rounds, steps) and test.are_steps(rounds):
            steps = rounds
    return None if steps is None else _from_the_longest_wait(order, steps)


class _Occurrences:
    """Where each name occurs, in order, and where a run of its occurrences begins.

    Occurrences belong to one run unless at least half as many activities lie between them as
    between the two of that name that are farthest apart.
    """

    def __init__(self, name: IntArray) -> None:
        """Sort the activities by name, those of one name in order; `name` is a code per activity.

        Per occurrence: `place` is its activity, `name` a number from 0, `gap` the distance in
        activities to the one before of the same name (0 for the first).
        """
        if int(name.max()) < 2**16:
            self.place = np.argsort(name.astype(np.uint16), kind="stable")  # by radix
        else:  # what a stable sort gives, several times as fast
            self.place = np.sort(name * _BASE + np.arange(len(name))) % _BASE
        ordered = name[self.place]
        opens = np.append(True, ordered[1:] != ordered[:-1])
        self.name = np.cumsum(opens) - 1
        self.gap = np.append(0, np.diff(self.place))
        self.gap[opens] = 0
        first = np.flatnonzero(opens)
        widest = np.maximum(np.maximum.reduceat(self.gap, first), FEWEST_ACTIVITIES)
        self._begins = opens | (2 * self.gap >= widest[self.name])
        self._runs = np.add.reduceat(self._begins, first)

    def rounds(self) -> Iterator[Rounds]:
        """Yield the most regular rounds of each length, the longest first."""
        chosen = self._begins & (self._runs > FEWEST_ROUNDS)[self.name]
        place, name = self.place[chosen], self.name[chosen]
        following = np.flatnonzero(name[1:] == name[:-1])
        regular = _Regular.of(name[following], np.diff(place)[following])
        kept = (regular.share >= REGULAR_SHARE) & (regular.usual >= FEWEST_ACTIVITIES)
        names, length, spread = regular.group[kept], regular.usual[kept], regular.spread[kept]
        limit = np.inf
        for _ in range(_LENGTHS_TRIED):
            if not (length < limit).any():
                return
            longest = int(length[length < limit].max())
            alike = np.flatnonzero((length <= longest) & (length >= _SAME_LENGTH * longest))
            best = alike[np.argmin(spread[alike])]
            usual = int(length[best])
            yield Rounds(place[name == names[best]], usual, float(spread[best]) / usual)
            limit = _SAME_LENGTH * longest


def contents(name: IntArray, place: IntArray) -> IntArray:
    """Return one number per round: the same for the same names, however ordered.

    It is the sum of a pseudo-random number per name.
    """
    weights = np.random.default_rng(0).integers(1, 2**40, int(name.max()) + 1)
    return np.diff(np.append(0, np.cumsum(weights[name]))[place])


@dataclass(frozen=True, slots=True)
class _Regular:
    """Per group of values: how many, the (lower) median, which share is close to it.

    `spread` is the mean distance from the median.
    """

    group: IntArray
    count: IntArray
    usual: IntArray
    share: npt.NDArray[np.float64]
    spread: npt.NDArray[np.float64]

    @classmethod
    def of(cls, group: IntArray, value: IntArray) -> _Regular:
        """Return the figures of each group; groups come in order, values are below _BASE."""
        ordered = np.sort(group * _BASE + value) % _BASE
        first = np.flatnonzero(np.diff(group, prepend=-1))
        count = np.diff(np.append(first, len(group)))
        usual = ordered[first + (count - 1) // 2]
        away = np.abs(ordered - np.repeat(usual, count))
        close = np.add.reduceat(away <= TOLERANCE * np.repeat(usual, count), first)
        return cls(group[first], count, usual, close / count, np.add.reduceat(away, first) / count)


class _RoundTest:
    def __init__(self, order: Order, occurrences: _Occurrences) -> None:
        self._name = order.name
        self._call = order.call
        self._occurrences = occurrences
        lasting = order.end_ns - order.start_ns
        self._work = np.append(0, np.cumsum(lasting))
        self._kind = order.name % _NAMES_COMPARED
        count = np.bincount(self._kind, minlength=_NAMES_COMPARED)
        time = np.bincount(self._kind, weights=lasting, minlength=_NAMES_COMPARED)
        self._mean_ns = time / np.maximum(count, 1)

    def are_steps(self, rounds: Rounds) -> bool:
        """Return whether the rounds are most of the work, are alike and are no layers."""
        # Most of the activities or of their time: the first step may take more time than all
        # others, as where ranks wait for one another.
        first, last = int(rounds.place[0]), int(rounds.place[-1])
        work = self._work[last] - self._work[first]
        most = max((last - first) / len(self._name), work / max(int(self._work[-1]), 1))
        if most < _LEAST_COVERED:
            return False
        if self._call is not None:
            # One call launches both a round and the next, as a graph its layers.
            begins = rounds.place[1:-1]
            same = (self._call[begins] >= 0) & (self._call[begins] == self._call[begins - 1])
            if same.mean() > TOLERANCE:
                return False
        counts, usual = self._content(rounds)
        alike = np.abs(counts - usual).sum(axis=1) <= TOLERANCE * usual.sum()
        if alike.mean() < REGULAR_SHARE:
            return False
        return self._repeat_inside(rounds) or self._are_more_than_layers(rounds)

    def are_better(self, rounds: Rounds, longer: Rounds | None) -> bool:
        """Return whether rounds are to be preferred to longer ones, if there are such."""
        if longer is None:
            return True
        # Names that occur at random may seem to come in rounds, if only a few times.
        if longer.spread > _IRREGULAR and _MUCH_SURER * rounds.spread < longer.spread:
            return True
        # The longer ones are little more than several shorter ones, as where something is logged
        # every tenth step.
        _, most = self._content(longer)
        _, usual = self._content(rounds)
        more = np.maximum(most - round(longer.length / rounds.length) * usual, 0)
        return bool(
            more.sum() < _LITTLE_MORE * usual.sum()
            and more @ self._mean_ns < _LITTLE_MORE * (usual @ self._mean_ns)
        )

    def _content(self, rounds: Rounds) -> tuple[IntArray, IntArray]:
        """Return counts [rounds, names] of activities, of a sample if there are many; the usual."""
        sample = distinct(np.linspace(0, len(rounds) - 1, _ROUNDS_COMPARED).astype(np.int64))
        place, which = runs(rounds.place[sample], rounds.place[sample + 1])
        cells = which * _NAMES_COMPARED + self._kind[place]
        counts = np.bincount(cells, minlength=len(sample) * _NAMES_COMPARED)
        counts = counts.reshape(-1, _NAMES_COMPARED)
        return counts, np.median(counts, axis=0).astype(np.int64)

    def _repeat_inside(self, rounds: Rounds) -> bool:
        """Return whether names come at least three times in a round, at regular distances.

        Not by chance: all of them together are more than a trifle of the activities. From the last
        in a round to the first in the next it must be farther, for most of them: rounds of layers
        that take turns go on as they are inside.
        """
        first, last = rounds.place[0], rounds.place[-1]
        round_of = np.zeros(len(self._name) + 1, dtype=np.int64)
        round_of[rounds.place] = 1
        round_of = np.cumsum(round_of)
        place, gap = self._occurrences.place, self._occurrences.gap
        inner = (gap > 0) & (place - gap >= first) & (place < last)
        across = inner & (round_of[place] == round_of[place - gap] + 1)
        inner &= round_of[place] == round_of[place - gap]
        name = self._occurrences.name
        regular = _Regular.of(name[inner], gap[inner])
        between = np.zeros(int(name[-1]) + 1, dtype=np.int64)
        apart = _Regular.of(name[across], gap[across])
        between[apart.group] = apart.usual
        enough = regular.count >= (FEWEST_ROUNDS - 1) * len(rounds)
        long = regular.usual >= FEWEST_ACTIVITIES
        wide = regular.count * regular.usual >= _LEAST_INNER * (last - first)
        chosen = enough & long & wide & (regular.share >= REGULAR_SHARE)
        more = chosen & (between[regular.group] >= regular.usual + FEWEST_ACTIVITIES)
        if 2 * regular.count[more].sum() < regular.count[chosen].sum():
            return False
        return bool(regular.count[chosen].sum() >= _NO_TRIFLE * (last - first))

    def _are_more_than_layers(self, rounds: Rounds) -> bool:
        """Return whether rounds of one and the same content are too long or too many for layers."""
        if max(rounds.length, len(rounds)) <= MOST_LAYERS:
            return False
        changes = np.diff(contents(self._name, rounds.place)) != 0
        if rounds.length > MOST_LAYERS and changes.mean() <= 1 - REGULAR_SHARE:
            return True
        in_a_row = np.diff(np.flatnonzero(np.concatenate([[True], changes, [True]])))
        return bool(in_a_row.max() > MOST_LAYERS)


def _from_the_longest_wait(order: Order, rounds: Rounds) -> Rounds:
    """Return the rounds from where the device waits longest, if that is at one place of them.

    So a step begins where the device was waiting for it, and not amid its work.
    """
    low, high = int(rounds.place[0]), int(rounds.place[-1])
    free = order.start_ns[1:] - np.maximum.accumulate(order.end_ns)[:-1]
    wait = np.append(np.iinfo(np.int64).max, free)[low:high]
    first = rounds.place[:-1] - low
    longest = np.maximum.reduceat(wait, first)
    round_of = np.repeat(np.arange(len(rounds)), np.diff(rounds.place))
    places = np.flatnonzero(wait == longest[round_of])
    _, of_round = np.unique(round_of[places], return_index=True)
    offset = places[of_round] - first
    usual = int(np.median(offset))
    near = np.abs(offset - usual) <= _SAME_PLACE * rounds.length
    is_long = np.median(longest) > _MUCH_LONGER * max(float(np.median(free)), 0.0)
    if near.mean() < REGULAR_SHARE or not is_long:
        return rounds
    begins = rounds.place[:-1] + np.where(near, offset, usual)
    end = [high + usual] if high + usual <= len(order.name) else []
    return Rounds(np.append(begins, end).astype(np.int64), rounds.length, rounds.spread)
