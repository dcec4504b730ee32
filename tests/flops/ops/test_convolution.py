"""Convolutions and their gradients, computed by hand; the cases of the reference table."""

from typing import Any

import pytest

from tests.build import table_of
from tests.flops.ops.made import HALF, correlation, op, parts, why_unknown, work_of
from traceflops.flops.ops.count import count_ops
from traceflops.flops.ops.work import Correlation, Unknown, Work

# Batch 2, 8 channels in, 16 out, kernel 3, padding 1, input 10 x 10: the output is 10 x 10 too.
X, Y = [2, 8, 10, 10], [2, 16, 10, 10]
FLOPS = 2 * 2 * 100 * 16 * 8 * 9
assert FLOPS == 460_800


def values(
    stride: Any = (1, 1),
    padding: Any = (1, 1),
    dilation: Any = (1, 1),
    transposed: bool = False,
    output_padding: Any = (0, 0),
    groups: int = 1,
) -> list[object]:
    """Return the values of aten::convolution behind input, weight and bias."""
    lists = [list(stride), list(padding), list(dilation), transposed, list(output_padding), groups]
    return [None, None, None, *lists]


CASES = [
    pytest.param(X, [16, 8, 3, 3], values(), 460_800, id="Conv2d"),
    pytest.param(X, [8, 16, 3, 3], values(transposed=True), 460_800, id="ConvTranspose2d"),
    pytest.param(X, [16, 2, 3, 3], values(groups=4), 115_200, id="Conv2d, groups 4"),
    pytest.param(
        X, [8, 4, 3, 3], values(transposed=True, groups=4), 115_200, id="ConvTranspose2d, groups 4"
    ),
    pytest.param(
        [2, 16, 5, 5],
        [16, 8, 3, 3],
        values((2, 2), (1, 1), transposed=True, output_padding=(1, 1)),
        2 * 2 * 25 * 16 * 8 * 9,
        id="ConvTranspose2d 16 -> 8, stride 2",
    ),
    pytest.param(
        [2, 4, 9, 9, 9],
        [6, 4, 3, 3, 2],
        values((2, 1, 1), (1, 0, 1), (1, 2, 1), output_padding=(0, 0, 0)),
        2 * 2 * (5 * 5 * 10) * 6 * 4 * 18,  # 432,000
        id="Conv3d",
    ),
    pytest.param([2, 4, 9], [8, 4, 3], values([1], [1], [1], False, [0]), 2 * 2 * 9 * 96, id="1d"),
    pytest.param([3, 10, 10], [5, 3, 1, 1], values(padding=[0]), 2 * 100 * 15, id="no batch"),
    pytest.param(X, [0, 8, 3, 3], values(), 0, id="no filters"),
    pytest.param([0, 8, 10, 10], [16, 8, 3, 3], values(), 0, id="no samples"),
    pytest.param(
        [1, 32, 6, 6], [64, 1, 3, 3], values(groups=32), 2 * 36 * 64 * 9, id="depthwise, twice"
    ),
]


def output_of(x: list[int], w: list[int], given: list[object]) -> list[int]:
    """Return the shape of the output, by the formula of the shapes and not by the product's."""
    _, _, _, stride, padding, dilation, transposed, extra, groups = given
    assert isinstance(groups, int)
    spatial = []
    for at, size in enumerate(x[-(len(w) - 2) :]):
        s, p, d, e = (v[at % len(v)] for v in (stride, padding, dilation, extra))  # type: ignore[index,arg-type]
        reach = d * (w[at + 2] - 1)
        if transposed:
            spatial.append((size - 1) * s - 2 * p + reach + e + 1)
        else:
            spatial.append((size + 2 * p - reach - 1) // s + 1)
    return [x[0], w[1] * groups if transposed else w[0], *spatial]


@pytest.mark.parametrize(("x", "w", "given", "flops"), CASES)
def test_forward(x: list[int], w: list[int], given: list[object], flops: int) -> None:
    for name in ("convolution", "_convolution"):
        work = work_of(name, [x, w, [], [], [], [], [], [], []], values=given)
        assert parts(work) == {"forward": flops}
        assert work.at_least == flops
    if len(x) == len(w):
        geometry = correlation(work)
        assert [geometry.batch, *geometry.output] == [x[0], *output_of(x, w, given)[2:]]


@pytest.mark.parametrize(("x", "w", "given", "flops"), CASES)
@pytest.mark.parametrize("mask", [(True, True), (True, False), (False, True), (False, False)])
def test_backward(
    x: list[int], w: list[int], given: list[object], flops: int, mask: tuple[bool, bool]
) -> None:
    if len(x) != len(w):
        x = [1, *x]
    dy = output_of(x, w, given)
    recorded = [None, None, None, [0], *given[3:], [*mask, True]]
    work = work_of("convolution_backward", [dy, x, w] + [[]] * 8, values=recorded)
    wanted = zip(("input_grad", "weight_grad"), mask, strict=True)
    assert parts(work) == {name: flops for name, asked in wanted if asked}
    assert work.exact


def test_the_last_case_of_the_reference_table() -> None:
    """Conv3d without an input gradient: 432,000 forward and 432,000 backward."""
    x, w = [2, 4, 9, 9, 9], [6, 4, 3, 3, 2]
    given = values((2, 1, 1), (1, 0, 1), (1, 2, 1), output_padding=(0, 0, 0))
    assert output_of(x, w, given) == [2, 6, 5, 5, 10]
    assert work_of("convolution", [x, w], values=given).flops == 432_000
    recorded = [None, None, None, [0], *given[3:], [False, True, False]]
    backward = work_of("convolution_backward", [[2, 6, 5, 5, 10], x, w], values=recorded)
    assert parts(backward) == {"weight_grad": 432_000}


STRIDED = {"stride": [2, 3], "padding": [1, 0], "dilation": [1, 2], "groups": 2}
W = [16, 4, 3, 3]
# out = (10 + 2 - 2 - 1) / 2 + 1 = 5, (10 - 4 - 1) / 3 + 1 = 2
STRIDED_FLOPS = 2 * 2 * (5 * 2) * 16 * 4 * 9
PLACES = [
    ("convolution", 3, "stride padding dilation transposed output_padding groups"),
    ("_convolution", 3, "stride padding dilation transposed output_padding groups"),
    ("conv2d", 3, "stride padding dilation groups"),
    ("cudnn_convolution", 2, "padding stride dilation groups"),
    ("cudnn_convolution_relu", 3, "stride padding dilation groups"),
    ("cudnn_convolution_add_relu", 5, "stride padding dilation groups"),
    ("miopen_convolution", 3, "padding stride dilation groups"),
    ("miopen_depthwise_convolution", 3, "padding stride dilation groups"),
    ("mkldnn_convolution", 3, "padding stride dilation groups"),
    ("mkldnn::_convolution_pointwise", 3, "padding stride dilation groups"),
    ("_conv_depthwise2d", 4, "stride padding dilation"),
]


@pytest.mark.parametrize(("name", "first", "order"), PLACES)
def test_places_of_the_library_ops(name: str, first: int, order: str) -> None:
    known = {**STRIDED, "transposed": False, "output_padding": [0, 0]}
    given = [None] * first + [known[one] for one in order.split()]
    dims = [X, W, *([[]] * (len(given) - 2))]
    work = work_of(name, dims, values=given)
    assert work.flops == STRIDED_FLOPS
    assert correlation(work) == Correlation(2, (10, 10), (5, 2), (16, 4, 3, 3), 2, False)


TRANSPOSED = [
    ("conv_transpose2d", 3, "stride padding output_padding groups dilation"),
    ("cudnn_convolution_transpose", 2, "padding output_padding stride dilation groups"),
    ("miopen_convolution_transpose", 3, "padding output_padding stride dilation groups"),
]


@pytest.mark.parametrize(("name", "first", "order"), TRANSPOSED)
def test_places_of_transposed_ops(name: str, first: int, order: str) -> None:
    known = {**STRIDED, "output_padding": [1, 2]}
    given = [None] * first + [known[one] for one in order.split()]
    work = work_of(name, [X, [8, 4, 3, 3], *([[]] * (len(given) - 2))], values=given)
    # out = 9 * 2 - 2 + 2 + 1 + 1 = 20, 9 * 3 + 4 + 2 + 1 = 34
    assert correlation(work) == Correlation(2, (10, 10), (20, 34), (8, 4, 3, 3), 2, True)
    assert work.flops == 2 * 2 * 100 * 8 * 4 * 9


def test_bytes() -> None:
    dims, given = [X, [16, 8, 3, 3], [16]], values()
    forward = work_of("convolution", dims, HALF, given)
    assert forward.min_bytes == 2 * (1600 + 1152 + 3200 + 16)
    assert forward.dtype == "fp16"
    recorded = [None, None, None, [0], *given[3:]]
    for mask, moved in (
        ([True, False, False], 3200 + 1152 + 1600),  # dy + w + dx
        ([False, True, False], 3200 + 1600 + 1152),  # dy + x + dw
        ([True, True, False], 3200 + 1152 + 1600 + 1600 + 1152),
        ([False, False, True], 3200),  # the bias alone
    ):
        work = work_of("convolution_backward", [Y, X, [16, 8, 3, 3]], HALF, [*recorded, mask])
        assert work.min_bytes == 2 * moved


@pytest.mark.parametrize(
    ("x", "w", "given", "reason"),
    [
        ([2, 7, 10, 10], [16, 8, 3, 3], values(), "odd-shapes"),
        (X, [16, 8, 3, 3], values(groups=2), "odd-shapes"),
        (X, [15, 4, 3, 3], values(groups=2), "odd-shapes"),
        (X, [16, 8, 3, 3], values(groups=0), "odd-shapes"),
        (X, [16, 8], values(), "odd-shapes"),
        ([10], [16, 8, 3, 3], values(), "odd-shapes"),
        (X, [16, 8, 3, 3], values(stride=(0, 1)), "odd-shapes"),
        (X, [16, 8, 3, 3], values(dilation=(-1, 1)), "odd-shapes"),
        (X, [16, 8, 30, 3], values(), "odd-shapes"),
        (X, [16, 8, 3, 3], values(padding=(1, 1, 1)), "no-values"),
        (X, [16, 8, 3, 3], [None] * 9, "no-values"),
        (X, [16, 8, 3, 3], None, "no-values"),
        (X, [16, 8, 3, 3], values(stride=(10**18, 10**18), padding=(10**18,) * 2), None),
    ],
)
def test_odd_convolutions(x: Any, w: Any, given: Any, reason: str | None) -> None:
    if reason is None:
        assert work_of("convolution", [x, w], values=given).exact
    else:
        assert why_unknown("convolution", [x, w], values=given) == reason


def test_shapes_of_a_backward_must_belong_together() -> None:
    given = [None, None, None, [0], *values()[3:], [True, True, True]]
    w = [16, 8, 3, 3]
    for dims in ([[3, 16, 10, 10], X, w], [[2, 15, 10, 10], X, w], [Y, X, [16, 7, 3, 3]], [X, Y]):
        assert why_unknown("convolution_backward", [*dims], values=given).endswith("-shapes")


def test_without_a_recorded_mask_the_backward_has_bounds() -> None:
    work = work_of("convolution_backward", [Y, X, [16, 8, 3, 3]])
    assert parts(work) == {"input_grad": FLOPS, "weight_grad": FLOPS}
    assert (work.at_least, work.flops) == (0, 2 * FLOPS)
    assert work.notes == ("output-mask-not-recorded",)


def test_what_is_transposed_shows_in_the_channels_of_a_backward() -> None:
    work = work_of("convolution_backward", [[2, 16, 20, 20], X, [8, 16, 3, 3]])
    assert correlation(work).transposed
    assert work.flops == 2 * FLOPS  # every point of the input is visited
    square = [[2, 8, 5, 5], X, [8, 8, 3, 3]]
    assert why_unknown("convolution_backward", square) == "no-values"  # both readings fit
    either = [[2, 4, 5, 5], X, [8, 4, 3, 3]]  # of the input alone: two groups, or transposed
    assert correlation(work_of("convolution_backward", either)).transposed
    neither = [[2, 9, 5, 5], X, [9, 4, 3, 3]]
    assert why_unknown("convolution_backward", neither) == "odd-shapes"


# Traces before torch 2.1 have shapes but no values.
def first_work(rows: list[dict[str, Any]]) -> object:
    counted = count_ops(table_of("ops", rows))
    return counted.works[int(counted.place[0])]


def test_the_gradient_tells_the_size_of_the_output() -> None:
    rows = [
        op("cudnn_convolution", [X, [16, 8, 3, 3]], "float", sequence=5),
        {**op("x", [[2, 16, 5, 5]], "float", sequence=5), "name": "CudnnConvolutionBackward"},
    ]
    work = first_work(rows)
    assert isinstance(work, Work)
    assert work.flops == 2 * 2 * 25 * 16 * 8 * 9
    assert work.notes == ("output-from-gradient",)
    assert work.min_bytes == 4 * (1600 + 1152 + 2 * 16 * 25)


@pytest.mark.parametrize(
    "node",
    [
        {"sequence": 6},
        {"sequence": None},
        {"process": 1},
        {"name": "AddmmBackward"},
        {"input_dims": "[[2,16]]"},
        {"input_dims": "[[3,16,5,5]]"},
        {"input_dims": "[[[2,16,5,5]]]"},
        {"input_dims": "[]"},
        {"input_dims": "what"},
        {"input_dims": None},
    ],
)
def test_any_other_node_tells_nothing(node: dict[str, Any]) -> None:
    name = {"name": "CudnnConvolutionBackward"}
    gradient = {**op("x", [[2, 16, 5, 5]], "float", sequence=5), **name, **node}
    rows = [op("cudnn_convolution", [X, [16, 8, 3, 3]], "float", sequence=5), gradient]
    assert not isinstance(first_work(rows), Work)


def test_an_op_without_a_number_has_that_of_the_convolution_around_it() -> None:
    dims = [X, [16, 8, 3, 3]]
    inner = op("cudnn_convolution", dims, start_ns=10)
    rows = [
        inner,
        op("convolution", dims, sequence=5, dur_ns=100),
        op("convolution", dims, sequence=6, dur_ns=100, thread=2),
        op("relu", [X], sequence=7, start_ns=5, dur_ns=50),
        {**op("x", [[2, 16, 5, 5]], sequence=5), "name": "ConvolutionBackward0"},
    ]
    work = first_work(rows)
    assert isinstance(work, Work)
    assert work.flops == 2 * 2 * 25 * 16 * 8 * 9
    assert first_work([{**inner, "start_ns": 200}, *rows[1:]]) == Unknown("no-values")
    assert first_work([{**inner, "thread": 2}, *rows[1:]]) == Unknown("no-values")
    assert first_work([inner, *rows[3:]]) == Unknown("no-values")


def test_two_nodes_of_one_number_tell_nothing_unless_they_agree() -> None:
    name = {"name": "ConvolutionBackward0"}
    rows = [op("cudnn_convolution", [X, [16, 8, 3, 3]], "float", sequence=5)]
    rows += [{**op("x", [[2, 16, size, 5]], sequence=5), **name} for size in (5, 5)]
    assert isinstance(first_work(rows), Work)
    rows.append({**op("x", [[2, 16, 7, 5]], sequence=5), **name})
    assert not isinstance(first_work(rows), Work)


def test_one_op_per_gradient_takes_its_shapes_from_the_op_around() -> None:
    whole = op("cudnn_convolution_backward", [X, Y, [16, 8, 3, 3]], "float", dur_ns=100)
    of_input = op("cudnn_convolution_backward_input", [[], Y, [16, 8, 3, 3]], "float", start_ns=1)
    of_weight = op("cudnn_convolution_backward_weight", [[], Y, X], "float", start_ns=3)
    alone = op("cudnn_convolution_backward_weight", [[], Y, X], "float", start_ns=200)
    other = op("miopen_convolution_backward_weight", [[], Y, X], "float", start_ns=5)
    counted = count_ops(table_of("ops", [whole, of_input, of_weight, alone, other]))
    works = [counted.works[place] for place in counted.place.tolist()]
    found = [parts(work) if isinstance(work, Work) else work.reason for work in works]
    assert found == [
        {"input_grad": FLOPS, "weight_grad": FLOPS},
        {"input_grad": FLOPS},
        {"weight_grad": FLOPS},
        "no-shapes",
        "no-shapes",
    ]
    assert counted.wrapper.tolist() == [True, False, False, False, False]
    assert [isinstance(w, Work) and w.exact for w in works[:3]] == [False, True, True]
