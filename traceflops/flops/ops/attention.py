"""Attention cores: 2 pairs H (d_qk + d_v) FLOPs forward, twice as many backward.

Pairs are the (query, key) pairs that the mask leaves, H is the number of query heads; shared keys
and values save bytes, not FLOPs. A fused backward also recomputes the scores, 2 pairs H d_qk FLOPs
(FlashAttention, arXiv:2205.14135).
"""

from __future__ import annotations

from math import prod
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from traceflops.flops.ops import work
from traceflops.flops.ops.arguments import Arguments, Tensor
from traceflops.flops.ops.gemm import matrix_type
from traceflops.flops.ops.work import CannotCount, Core, FlopsPart, Kind, NoteCode, Work

Order = Literal["heads-first", "tokens-first"]
"""[B, H, S, D], or [B, S, H, D] and [total, H, D] for packed sequences."""
_STATISTICS_BYTES = 4  # a log-sum-exp per query and head, float


class Masking(Struct, frozen=True):
    """The positions in the schema of the arguments that describe the mask.

    `causal` are positions of a flag: the first one that has a flag counts, as versions differ.
    `kind` is instead the position of a number: 0 none, 1 causal from the top left, 2 from the
    bottom right. `window` are the positions of the numbers of keys to the left and right (negative
    or none: all), or of one width that includes the query's own key. `tensor` is the position of a
    mask or bias. If `bottom_right`, the last query is aligned with the last key.
    """

    causal: tuple[int, ...] = ()
    kind: int | None = None
    window: tuple[int, ...] = ()
    tensor: int | None = None
    bottom_right: bool = False

    def band(self, args: Arguments) -> Band | None:
        """Return the recorded mask, None if it is not recorded."""
        if self.kind is not None:
            number = args.integer(self.kind)
            if number not in (0, 1, 2):
                return None
            return self._windowed(args, number > 0, number == 2)
        flags = (args.boolean(position) for position in self.causal)
        causal = next((flag for flag in flags if flag is not None), None)
        return None if causal is None else self._windowed(args, causal, self.bottom_right)

    def _windowed(self, args: Arguments, causal: bool, bottom_right: bool) -> Band:
        """Return the mask with its window; a side is None (all keys) if negative or missing."""
        sides = [args.integer(position) for position in self.window]
        bounds = [None if side is None or side < 0 else side for side in sides]
        left, right = (*bounds, None, None)[:2]
        if len(self.window) == 1 and left is not None:
            left = left - 1 if left else None  # a width with the query's own key; 0: no window
        return Band(left, 0 if causal else right, bottom_right)


class Packing(Struct, frozen=True):
    """The positions in the schema of the arguments that describe packed sequences.

    `offsets` are the positions of the cumulative lengths of queries and keys, `longest` those of
    the longest lengths. A tensor at one of `used` has the valid length of each key sequence. A
    tensor at `paged` means that keys are in pages.
    """

    offsets: tuple[int, int] | None = None
    longest: tuple[int, int] | None = None
    used: tuple[int, ...] = ()
    paged: tuple[int, ...] = ()


DENSE: Final = Packing()  # no packed sequences


class Attention(Struct, frozen=True):
    """A fused attention; query, key and value are at consecutive positions.

    `backward` is set by the kind of the row in the table. An `unfused` attention computes all pairs
    by plain products, whatever the mask. `statistics` is the position of a flag: whether the
    forward writes its log-sum-exp (None: always).
    """

    order: Order
    masking: Masking
    packing: Packing = DENSE
    backward: bool = False
    unfused: bool = False
    statistics: int | None = None

    def __call__(self, kind: Kind, args: Arguments) -> Work:
        """Return the work. Raises CannotCount if lengths are not recorded or shapes do not fit."""
        first = int(self.backward)  # the gradient of the output comes before these three
        q, k, v = work.operands(args, first, first + 1, first + 2)
        if args.given(*self.packing.paged):  # the shapes of pages do not tell how many keys count
            raise CannotCount("not-in-trace")
        core = self._core(args, q, k, v)
        most, least = core.pairs, core.pairs_at_least
        parts = [FlopsPart("forward", core.forward(most), core.forward(least))]
        # Bytes: q, k, v, o and statistics; backward also do, dq, dk and dv.
        rows = core.batch * core.heads * core.queries
        out = q.like((rows * core.d_v,))
        statistics = 0 if args.boolean(self.statistics) is False else _STATISTICS_BYTES * rows
        bias = args.tensor(self.masking.tensor)
        further_bytes = [0 if bias is None else bias.bytes]
        if self.backward:  # dV, dP, dQ and dK, and the scores once more
            further_bytes = [out.bytes, *(tensor.like(tensor.shape).bytes for tensor in (q, k, v))]
            parts = [
                FlopsPart("backward", 2 * core.forward(most), 2 * core.forward(least)),
                FlopsPart("algorithmic", core.scores(most), core.scores(least)),
            ]
        elif self.unfused:
            hidden = core.batch * core.queries * core.keys - most
            parts.append(FlopsPart.exact("mask", core.forward(hidden)))
        notes: list[NoteCode] = []
        if core.causal is None:
            notes.append("mask-not-recorded")
        if core.documents is not None and most != least:
            notes.append("variable-lengths")
        if bias is not None:
            notes.append("mask-tensor")
        moved = None  # an unfused attention also moves the scores; the ops below it have the bytes
        if not self.unfused:
            moved = work.known_sum(q.bytes, k.bytes, v.bytes, out.bytes, statistics, *further_bytes)
        return Work(kind, tuple(parts), moved, matrix_type(q, k), core, notes=tuple(notes))

    def _core(self, args: Arguments, q: Tensor, k: Tensor, v: Tensor) -> Core:
        """Return the core's sizes and pairs. Raises CannotCount if they are unknown."""
        offsets = args.tensor((self.packing.offsets or (None,))[0])
        has_used, is_packed = bool(args.given(*self.packing.used)), offsets is not None
        # No profiler records the values of tensors, such as valid lengths, or the pages in use.
        in_pages = is_packed and (len(q.shape), len(k.shape)) == (3, 4)
        if in_pages or (has_used and not is_packed):
            raise CannotCount("not-in-trace")
        core = _fitted(*(_sizes(tensor, self.order, packed=is_packed) for tensor in (q, k, v)))
        band = self.masking.band(args)
        # In a causal mask no query sees a later key.
        causal = None if band is None else band.right is not None and band.right <= 0
        # If the mask is not recorded, the pairs are between all and the fewest: those of a causal
        # mask with the narrowest window.
        narrowest = Band(0 if self.masking.window else None, 0, self.masking.bottom_right)
        loose, tight = band or Band(), band or narrowest
        if offsets is None:
            most = core.batch * loose.pairs(core.queries, core.keys)
            least = core.batch * tight.pairs(core.queries, core.keys)
            return replace(core, pairs=most, pairs_at_least=least, causal=causal)
        # Of packed sequences, only total and longest lengths are recorded.
        if core.batch != 1 or len(offsets.shape) != 1:
            raise CannotCount("odd-shapes")
        documents = max(0, offsets.shape[0] - 1)
        # The longest lengths of queries and keys, by default the totals.
        given = map(args.integer, self.packing.longest or (None, None))
        longest_queries, longest_keys = (
            total if length is None or length < 0 else min(length, total)
            for length, total in zip(given, (core.queries, core.keys), strict=True)
        )
        if core.queries == core.keys and longest_queries == longest_keys:
            # Assume that each sequence has as many queries as keys.
            most = loose.most(documents, core.queries, longest_queries)
            least = min(most, tight.least(documents, core.queries))
        else:
            # A query sees at most the longest keys. A single query per sequence sees all its keys.
            most = min(core.queries * longest_keys, core.keys * longest_queries)
            is_single = core.queries == documents and longest_queries == 1
            sees_all = tight.left is None and (tight.bottom_right or tight.right is None)
            least = min(most, core.keys) if is_single and sees_all else 0
        least = 0 if has_used else least  # a tensor may have the length 0 for valid keys
        return replace(core, pairs=most, pairs_at_least=least, causal=causal, documents=documents)


def _sizes(tensor: Tensor, order: Order, *, packed: bool = False) -> tuple[int, int, int, int]:
    """Return batch, heads, length and size per head; a missing batch or heads are 1."""
    rank = len(tensor.shape)
    # Packed tokens are [total, H, D] or [1, total, H, D].
    if packed or order == "tokens-first":
        if rank != 4 and not (packed and rank == 3):
            raise CannotCount("odd-shapes")
        *lead, length, heads, size = tensor.shape
        return prod(lead), heads, length, size
    if rank < 2:
        raise CannotCount("odd-shapes")
    *lead, length, size = tensor.shape
    return prod(lead[:-1]), lead[-1] if lead else 1, length, size


def _fitted(*sides: tuple[int, int, int, int]) -> Core:
    """Return the core of query, key and value, without pairs. Raises CannotCount on a mismatch."""
    (batch, heads, queries, d_qk), (k_batch, kv_heads, keys, k_size), (v_batch, *v, d_v) = sides
    is_consistent = batch == k_batch == v_batch and [kv_heads, keys] == v
    is_divisible = heads % kv_heads == 0 if kv_heads else heads == 0
    if not (is_consistent and is_divisible and d_qk == k_size):
        raise CannotCount("odd-shapes")
    return Core(batch, heads, kv_heads, queries, keys, d_qk, d_v, 0, 0, None)


class Band(Struct, frozen=True):
    """A mask: keys from `left` before to `right` after the query's own position; None: no bound.

    Query i sees key j if i + shift - left <= j <= i + shift + right. A causal mask has right = 0; a
    window has a left bound, too. `shift` is 0 if the first query is aligned with the first key (top
    left), keys - queries if the last ones are (bottom right).
    """

    left: int | None = None
    right: int | None = None
    bottom_right: bool = False

    def pairs(self, queries: int, keys: int) -> int:
        """Return the (query, key) pairs of one sequence and head that the mask leaves.

        Full: queries x keys. Causal, with n queries and n keys: n (n + 1) / 2; if also a window of
        w = left + 1 <= n keys: n w - w (w - 1) / 2.
        """
        # Query i sees the keys up to i + shift + right, less those before i + shift - left: sums
        # over i of numbers of keys, which are limited to 0..keys.
        shift = keys - queries if self.bottom_right else 0
        up_to_right, before_left = queries * keys, 0
        if self.right is not None:
            up_to_right = _ramp(queries, keys, shift + self.right + 1)
        if self.left is not None:
            before_left = _ramp(queries, keys, shift - self.left)
        return max(0, up_to_right - before_left)

    def most(self, documents: int, total: int, longest: int) -> int:
        """Return the most pairs of packed sequences that have as many queries as keys.

        Pairs grow faster than lengths, so the most unequal lengths have most pairs: as many of the
        `longest` as fit into the `total`, and one of the remainder.
        """
        full, remainder = divmod(total, longest) if longest else (0, 0)
        of_remainder = self.pairs(remainder, remainder)
        return min(full, documents) * self.pairs(longest, longest) + of_remainder

    def least(self, documents: int, total: int) -> int:
        """Return the fewest pairs of such sequences: those of lengths as equal as possible."""
        if not documents:
            return 0
        short, longer = divmod(total, documents)
        of_short, of_longer = self.pairs(short, short), self.pairs(short + 1, short + 1)
        return longer * of_longer + (documents - longer) * of_short


def _ramp(queries: int, keys: int, first: int) -> int:
    """Return the sum over i < queries of i + first, each limited to 0..keys.

    The positive values of i + a have the sum T(queries - 1 + a) - T(a - 1), with the triangular
    numbers T(n) = n (n + 1) / 2, and 0 for n < 0. With a = first - keys it is the excess over keys.
    """
    excess = first - keys
    ends = (queries - 1 + first, first - 1, queries - 1 + excess, excess - 1)
    last, before_first, last_excess, before_excess = (
        n * (n + 1) // 2 if n > 0 else 0 for n in ends
    )
    return (last - before_first) - (last_excess - before_excess)
