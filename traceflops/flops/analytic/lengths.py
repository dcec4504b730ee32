"""Sequences of a step: their lengths s, or only sums over them.

FLOPs of matrices need sum s; those of attention need the pairs: sum s^2 without a mask, (sum s^2 +
sum s) / 2 under a causal one. So two sums are enough, unless a window or chunk cuts a sequence.
"""

from __future__ import annotations

from msgspec import Struct

from traceflops.errors import UsageError
from traceflops.flops.model.blocks import Mask
from traceflops.units import several

Lengths = tuple[tuple[int, int], ...]  # sequences as (length, how many)


class LengthSums(Struct, frozen=True):
    """The sum of the lengths of sequences, the sum of their squares, and how many there are.

    No sequence is longer than `longest`, if that is known. Sums may be means over several steps.
    """

    tokens: int
    squares: int
    count: int | None = None
    longest: int | None = None

    def __post_init__(self) -> None:
        if problem := why_impossible(self.tokens, self.squares, self.count, of_one_step=False):
            raise UsageError(problem, "correct one of them")

    def number(self) -> int:
        """Return how many sequences there are. Raises UsageError where that is not known."""
        if self.count is None:
            raise UsageError("the number of sequences per step is unknown", "set --sequences")
        return self.count

    def full_pairs(self, cached: int = 0) -> int:
        """Return the (query, key) pairs of one head without a mask."""
        return self.squares + cached * self.tokens


Sequences = Lengths | LengthSums


def why_impossible(
    tokens: int, squares: int, count: int | None = None, *, of_one_step: bool = True
) -> str:
    """Return why no lengths of at least 1 have these sums; "" if some have.

    `squares` is the sum of squared lengths. Means over several steps (`of_one_step` False) may have
    larger squares than any lengths of one step.
    """
    if count is not None and (count > tokens or (tokens and not count)):
        return f"{several(count, 'sequence')} cannot have {several(tokens, 'token')}"
    least, most = tokens, tokens**2
    if count:  # lengths as equal as can be; all of 1 token but one
        short, longer = divmod(tokens, count)
        least = (count - longer) * short**2 + longer * (short + 1) ** 2
        most = (tokens - count + 1) ** 2 + count - 1
    if squares < least or (squares > most and of_one_step):
        many = "lengths" if count is None else several(count, "length")
        either = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        return f"the squares of {many} with sum {tokens:,} sum to {either}, not {squares:,}"
    if (squares - tokens) % 2:
        return (
            f"lengths with sum {tokens:,} cannot have a sum of squares of "
            f"{squares:,}: one is even, the other odd"
        )
    return ""


def sums_of(sequences: Sequences) -> LengthSums:
    """Return the sums over sequences, however they are known."""
    if isinstance(sequences, LengthSums):
        return sequences
    tokens = sum(length * count for length, count in sequences)
    squares = sum(length**2 * count for length, count in sequences)
    return LengthSums(tokens, squares, sum(count for _, count in sequences))


def pairs(mask: Mask, sequences: Sequences, cached: int = 0) -> int:
    """Return the attended (query, key) pairs of one head. Raises UsageError if sums do not tell."""
    if not isinstance(sequences, LengthSums):
        return sum(count * mask.pairs(length, cached) for length, count in sequences)
    if mask.kind == "full":
        return sequences.full_pairs(cached)
    cut_by(mask, sequences, cached)  # raises if the mask may cut a sequence
    return (sequences.squares + sequences.tokens) // 2 + cached * sequences.tokens


def cut_by(mask: Mask, sequences: Sequences, cached: int) -> tuple[Lengths, Sequences]:
    """Return the sequences cut by a window or chunk, and others. UsageError if sums do not tell."""
    if mask.kind not in ("window", "chunk"):
        return (), sequences
    if not isinstance(sequences, LengthSums):
        cut = tuple(pair for pair in sequences if pair[0] + cached > mask.size)
        return cut, tuple(pair for pair in sequences if pair[0] + cached <= mask.size)
    if sequences.longest is None or sequences.longest + cached > mask.size:
        raise UsageError(
            f"attention in {mask.kind}s of {mask.size} tokens needs individual sequence "
            "lengths, not sums",
            "use --documents instead of --seq-sum and --seq-square-sum; or --seq if none is longer",
        )
    return (), sequences
