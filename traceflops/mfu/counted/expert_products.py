"""Matrix products of experts (mixture of experts), whose sizes the grids of their launches tell.

The operator around them has the tokens, the experts and the hidden size; routing or the grid gives
the rows. The grid has the number of tiles of columns, and so the width of an expert to within a
tile. Both products of a layer must fit the hidden size, else nothing is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Final

import numpy as np
from msgspec import Struct

from traceflops.attribution.datatypes import UNKNOWN_TYPE
from traceflops.flops.ops.arguments import Arguments, arguments_of
from traceflops.mfu.counted.launches import UNKNOWN, Kind, Launches, WorkPart
from traceflops.table.columns import IntArray
from traceflops.windows.prepared import Prepared

PRODUCT: Final = "model.matmul.forward"
EXPERTS: Final = re.compile(r"vllm::moe_forward(?:_shared)?")
_ROUTING: Final = "TopK"


class _Expert(Struct, frozen=True):
    """A family of kernels for products of experts.

    `name` has the groups `rows` and `columns` (the size of a tile), `gated` (only in names of the
    first product) and `operands`; `types` are data types, each with the word in `operands` that
    means it. If `tall`, axis y of the grid is the tiles of rows. `step` divides the gated columns.
    """

    name: re.Pattern[str]
    types: tuple[tuple[str, str], ...]
    tall: bool = False
    step: int = 1


_PRODUCTS: Final = (
    # Triton kernels of OpenAI; not those that split a product along K (whose name has no x1).
    _Expert(
        re.compile(
            r"_matmul_ogs_[NT]{3}_[a-z0-9]{1,16}?x(?P<operands>[a-z0-9]{1,16}?)x[a-z0-9]{1,16}"
            r"_(?P<rows>[0-9]{1,6})x(?P<columns>[0-9]{1,6})x[0-9]{1,6}x1(?P<gated>_swiglu)?"
        ),
        (("bf16", "bf16"), ("fp16", "fp16")),
    ),
    # TensorRT-LLM, also in FlashInfer: A is the weights, so a tile's first size is its columns. A
    # product of 8-bit and 4-bit operands has the rate of FP8. Experts are a multiple of 128 wide.
    _Expert(
        re.compile(
            r"bmm_[A-Za-z0-9]{1,16}_(?P<operands>[A-Za-z0-9]{0,16}E4m3[A-Za-z0-9]{0,16})_Fp32"
            r"_t(?P<columns>[0-9]{1,6})x(?P<rows>[0-9]{1,6})x\w{0,120}?_transOut\w{0,120}?"
            r"(?P<gated>_swiGlu)?_dynBatch_\w{0,40}"
        ),
        (("fp8", "E4m3"),),
        tall=True,
        step=256,
    ),
)
_MOVES: Final = (
    # Adds up the results of a token's experts.
    (
        re.compile(r"void moe::dev::finalize::finalizeKernel\w{0,20}<.{0,40}KernelParams<.{0,400}"),
        2,
        2,
    ),
    # Converts tokens to 8 bits per value, with a scale of 8 bits for 32 values.
    (
        re.compile(
            r"void tensorrt_llm::kernels::quantize_with_block_size<"
            r"\(tensorrt_llm::BlockScaleQuantizationType\)2, (?:__nv_bfloat16|half), 32,.{0,400}"
        ),
        0,
        3 + Fraction(1, 32),
    ),
)
"""Kernels beside the products: bytes per value of an expert's row, and per value of a token."""
WorkDone = tuple[Kind, int]  # the FLOPs and the bytes of a launch


def arguments(pair: Prepared, op: int) -> Arguments:
    """Return the arguments of an op."""
    return arguments_of(pair.trace.ops.slice(op, 1).to_pylist()[0])


def expert_kinds(
    pair: Prepared, launches: Launches, ops: Iterable[tuple[int, IntArray]]
) -> dict[int, WorkDone]:
    """Return the work by launch; `ops` are the rows of ops with experts, and their launches.

    All layers of a model are alike: if one allows 4 or 8 experts per token, another 8 or 16, it is
    8. Nothing is known if several numbers fit, or if some experts are on other devices.
    """
    found = (_layer(pair, launches, op, launched) for op, launched in ops)
    layers = [layer for layer in found if layer is not None]
    # A routing is (experts on this device, experts per token). By model (all experts, hidden size):
    # the routings that fit all its layers; no entry if its layers allow any.
    routings_of: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for layer in layers:
        of_layer = layer.routings
        if of_layer is not None:
            model = (layer.experts, layer.hidden)
            routings_of[model] = routings_of.get(model, of_layer) & of_layer
    done: dict[int, WorkDone] = {}
    for layer in layers:
        routings = routings_of.get((layer.experts, layer.hidden), ())
        if len(routings) == 1:
            ((local_experts, per_token),) = routings
            if local_experts == layer.experts:
                done |= layer.work_done(rows=layer.tokens * per_token)
    return done


class _Product(Struct, frozen=True):
    """One of the two products of a layer's experts: its launch, rule, name and grid."""

    launch: int
    rule: _Expert
    name: re.Match[str]
    grid: tuple[int, int]

    def tile(self, side: str) -> int:
        """Return the rows or the columns of a tile."""
        return int(self.name[side]) or 1

    def columns(self, rows: int, experts: int) -> tuple[int, int] | None:
        """Return the least and the most columns that fit the grid; None if `rows` do not fit it."""
        # The grid has as many tiles of rows as the worst routing needs: each expert has a tile
        # with only one row, and the remaining rows fill whole tiles. 128 rows, 8 experts and tiles
        # of 16 rows: 8 + 120 // 16 = 15 tiles. 5 rows and 8 experts: 5 tiles.
        row_tiles = rows if rows <= experts else experts + (rows - experts) // self.tile("rows")
        across, down = self.grid
        tiles = across * (down if self.rule.tall else 1)
        if tiles <= 0 or not row_tiles or tiles % row_tiles:
            return None
        if self.rule.tall and down != row_tiles:  # that axis counts tiles of rows alone
            return None
        column_tiles, width = tiles // row_tiles, self.tile("columns")
        return (column_tiles - 1) * width + 1, column_tiles * width

    def part(self, rows: int, least: int, most: int) -> WorkPart:
        """Return the work of some rows, each times at least `least` and at most `most` weights."""
        types = (dtype for dtype, word in self.rule.types if word in self.name["operands"])
        return WorkPart(PRODUCT, next(types, UNKNOWN_TYPE), 2 * rows * most, 2 * rows * least)


class _Layer(Struct, frozen=True):
    """The experts of one layer; `per_token` is the experts per token, None if unknown.

    `up` is the first product, `down` the second. `moves` has, by launch beside the products, the
    bytes per value of an expert's row and per value of a token.
    """

    up: _Product
    down: _Product
    tokens: int
    experts: int
    hidden: int
    per_token: int | None
    moves: Mapping[int, tuple[int, Fraction]]

    @property
    def routings(self) -> set[tuple[int, int]] | None:
        """Return all possible pairs (experts on this device, experts per token); None: any."""
        if self.per_token is not None:
            return {(self.experts, self.per_token)}
        if not self.up.rule.tall:  # the grid does not tell the tiles of rows
            return None
        # Each divisor of the experts may be the number on this device. The tiles of rows then give
        # the least and the most rows (see `_Product.columns`), and so the experts per token: 15
        # tiles of 16 rows and 8 experts are 120 to 135 rows; with 64 tokens, 2 experts per token.
        tiles, tile_rows = self.up.grid[1], self.up.tile("rows")
        possible = set[tuple[int, int]]()
        for local in (n for n in range(1, self.experts + 1) if not self.experts % n):
            if tiles < local:
                least_rows = most_rows = tiles
            else:
                least_rows = local + (tiles - local) * tile_rows
                most_rows = least_rows + tile_rows - 1
            counts = range(-(-least_rows // self.tokens), most_rows // self.tokens + 1)
            possible |= {(local, count) for count in counts if 0 < count <= self.experts}
        return possible

    def work_done(self, rows: int) -> dict[int, WorkDone]:
        """Return the work of each launch; empty if the grids do not fit the hidden size."""
        up_range = self.up.columns(rows, self.experts)
        down_range = self.down.columns(rows, self.experts)
        if not up_range or not down_range or not down_range[0] <= self.hidden <= down_range[1]:
            return {}
        # The columns of the first product, in whole steps. They hold gates and values, from which
        # the second product gets half as many.
        step = self.up.rule.step
        least, most = -(-up_range[0] // step) * step, up_range[1] // step * step
        up = self.up.part(rows, self.hidden * least, self.hidden * most)
        down = self.down.part(rows, self.hidden * -(-least // 2), self.hidden * (most // 2))
        # The bytes are UNKNOWN: nothing tells how many experts' weights were read.
        done: dict[int, WorkDone] = {self.up.launch: ((up,), UNKNOWN)}
        done[self.down.launch] = ((down,), UNKNOWN)
        for launch, (of_row, of_token) in self.moves.items():
            done[launch] = ((), int(self.hidden * (rows * of_row + self.tokens * of_token)))
        return done


def _layer(pair: Prepared, launches: Launches, op: int, launched: IntArray) -> _Layer | None:
    """Return the experts of an op, None if it did not launch a gated product, then a plain one."""
    products: list[_Product] = []
    # Bytes per value of an expert's row and of a token, by launch.
    moves: dict[int, tuple[int, Fraction]] = {}
    for launch in launched.tolist():
        name = launches.names[int(launches.name[launch])]
        across, down = launches.grid_axes[launch, :2].tolist()
        for rule in _PRODUCTS:
            if match := rule.name.fullmatch(name):
                products.append(_Product(launch, rule, match, (across, down)))
                break
        for pattern, of_row, of_token in _MOVES:
            if pattern.fullmatch(name):
                moves[launch] = (of_row, Fraction(of_token))
    if [bool(product.name["gated"]) for product in products] != [True, False]:
        return None
    # The inputs of the op: tokens x hidden, tokens x experts (the logits of the routing).
    tensors = arguments(pair, op).given(0, 1)
    shapes = [tensor.shape for tensor in tensors]
    if [len(shape) for shape in shapes] != [2, 2] or not all(t.elements for t in tensors):
        return None
    (tokens, hidden), (_, experts) = shapes
    # The experts per token are known if one child of the op chooses them by these logits.
    children, per_token = np.flatnonzero(pair.linked.op_tree.parent == op).tolist(), None
    routings = [row for row in children if pair.trace.ops["name"][row].as_py() == _ROUTING]
    if len(routings) == 1:
        routed = arguments(pair, routings[0])
        if [tensor.shape for tensor in routed.given(0)] == shapes[1:]:
            per_token = routed.integer(1) or None
    first, second = products
    return _Layer(first, second, tokens, experts, hidden, per_token, moves)
