"""How many (query, key) pairs an attention mask leaves, in closed form and exact.

A mask is a band: query i sees key j if i + shift - left <= j <= i + shift + right. A causal mask
has right = 0; a window bounds left too; `shift` is 0 where the first query is aligned with the
first key (top-left) and keys - queries where the last ones are (bottom-right).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Band:
    """Keys from `left` before to `right` behind the query's own place; None is without bound."""

    left: int | None = None
    right: int | None = None
    bottom_right: bool = False

    @property
    def causal(self) -> bool:
        """Return whether no query sees a later key."""
        return self.right is not None and self.right <= 0

    def cuts(self, longest: int) -> bool:
        """Return whether it may hide more of a sequence than a full or a causal mask does."""
        left = self.left is not None and self.left < longest - 1
        return left or (self.right is not None and 0 < self.right < longest - 1)

    def pairs(self, queries: int, keys: int) -> int:
        """Return the pairs of one sequence and head.

        full            queries * keys
        causal, equal   n (n + 1) / 2
        window          n w - w (w - 1) / 2 with w = left + 1 <= n
        """
        shift = keys - queries if self.bottom_right else 0
        upto = queries * keys
        if self.right is not None:
            upto = _ramp(queries, keys, shift + self.right + 1)
        before = 0 if self.left is None else _ramp(queries, keys, shift - self.left)
        return max(0, upto - before)

    def most(self, documents: int, total: int, longest: int) -> int:
        """Return the most pairs of packed sequences whose queries are their keys.

        Pairs grow with the length by more and more, so unequal lengths have most: as many of the
        longest as fit, and one of the rest.
        """
        full, rest = divmod(total, longest) if longest else (0, 0)
        return min(full, documents) * self.pairs(longest, longest) + self.pairs(rest, rest)

    def least(self, documents: int, total: int) -> int:
        """Return the least pairs of such sequences: those of lengths as equal as can be."""
        if not documents:
            return 0
        short, longer = divmod(total, documents)
        return longer * self.pairs(short + 1, short + 1) + (documents - longer) * self.pairs(
            short, short
        )


def _ramp(queries: int, keys: int, first: int) -> int:
    """Return the sum over i < queries of i + first, each limited to 0..keys."""
    return _positive(queries, first) - _positive(queries, first - keys)


def _positive(count: int, first: int) -> int:
    """Return the sum over i < count of i + first where that is positive."""
    return _triangle(count - 1 + first) - _triangle(first - 1)


def _triangle(number: int) -> int:
    return number * (number + 1) // 2 if number > 0 else 0
