"""Writes the script that repeats a recorded call, copy or collective.

A script is a text of this folder with its facts filled in. It holds shapes, types and times, names
of operators and devices, and no other text of the recording.
"""

from __future__ import annotations

import math
import re
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import groupby
from string import Template
from typing import Final

from traceflops.analysis.result import Analysis
from traceflops.flops.ops.arguments import FLOAT, Tensor, Value
from traceflops.mfu.budget import DevicePeaks
from traceflops.repro.calls import (
    MEMORY_FORMATS,
    TORCH_TYPES,
    Argument,
    Call,
    TensorList,
    dense,
    index_bound,
    keywords,
)
from traceflops.repro.chains import Chain, Loading
from traceflops.repro.transfers import ELEMENT_TYPES, Copy, Exchange
from traceflops.units import duration, several

_COLLECTIVES: Final = {
    "all_reduce": "dist.all_reduce(source)",
    "reduce_scatter": "dist.reduce_scatter_tensor(target, source)",
    "all_gather": "dist.all_gather_into_tensor(target, source)",
    "all_to_all": "dist.all_to_all_single(target, source)",
    "broadcast": "dist.broadcast(source, 0)",
    "reduce": "dist.reduce(source, 0)",
}
_LISTS: Final = "The types of tensors in lists are not recorded: float32 is assumed."
_TOGETHER: Final = "In long lists, tensors of one shape stand together."
_DEFAULT: Final = "Argument {} is not recorded: its default is used."
_UP: Final = "up = lambda size: (-(-resize(size) // 64) * 64 if size in {} else resize(size))"
_STRIDES: Final = re.compile(r"tensor\(torch\.\w+, \[[^]]*\], \[")
_INTEGERS: Final = re.compile(r"torch\.(u?int|bool)")
_FEW: Final = 8  # arguments that have a line each
Work = Call | Copy | Exchange | Chain | Loading
"""What a script can repeat."""
_SMALL: Final = 8  # sizes up to this are no size of a matrix that alignment is about
_LONG: Final = 8  # lists of more tensors are ordered, if their operator takes any order
_ANY_ORDER: Final = re.compile(r"aten::(?:_foreach_|_fused_|_?cat$|concat|stack$|[hvd]stack$)")
_WIDTH: Final = 98  # characters of a line
_UNBROKEN: Final = re.compile(r"""'[^']*'|"[^"]*"| \* |tensor\([^()]{1,80}\)|\[[^][]{1,60}\]""")


def script(work: Work, analysis: Analysis, file: str) -> str:
    """Return the text of the script named `file` that repeats some work that is not refused."""
    peaks = next(p for p in analysis.measured.devices if p.device == work.device)
    product = _plain(peaks.product)
    facts = {
        "file": _plain(file),
        "recorded_us": _us(max(work.mean_ns, 1)),
        "count": f"{work.count:,}",
        "story": f"{several(work.count, 'call')} took {duration(work.mean_ns)} each on {product}.",
    }
    if isinstance(work, Copy):
        return _filled("copy", facts | _of_copy(work))
    if isinstance(work, Exchange):
        return _filled("collective", facts | _of_exchange(work))
    if isinstance(work, Chain):
        return _filled("chain", facts | _of_chain(work, product))
    if isinstance(work, Loading):
        return _filled("loader", facts | _of_loading(work))
    return _filled("operator", facts | _of_call(work, peaks, facts["story"]))


def _filled(name: str, facts: Mapping[str, str]) -> str:
    text = (files("traceflops.reports.scripts") / f"{name}.txt").read_text(encoding="utf-8")
    story = "\n".join(textwrap.wrap(facts["story"], _WIDTH))
    return Template(text).substitute(facts, story=story)


def _lines(code: str, indent: int) -> str:
    """Return code that stands in brackets, in lines of at most _WIDTH characters."""
    # Texts, products, tensors and short lists are whole: their blanks are hidden from `wrap`.
    hidden = _UNBROKEN.sub(lambda part: part[0].replace(" ", "\0"), code)
    lines = textwrap.wrap(
        hidden,
        _WIDTH,
        initial_indent=indent * " ",
        subsequent_indent=(indent + 4) * " ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace("\0", " ")


def _plain(name: str) -> str:
    """Return a name from a trace with nothing that could end a text of the script."""
    return re.sub(r"[^A-Za-z0-9 ._()/-]", "", name)[:100]


def _of_copy(copy: Copy) -> dict[str, str]:
    to_device = copy.direction == "HtoD"
    way = "host to GPU" if to_device else "GPU to host"
    return {
        "title": f"Copies of {copy.bytes:,} bytes from {way}",
        "bytes": f"{copy.bytes:_}",
        "source": "host" if to_device else "device",
        "target": "device" if to_device else "host",
    }


def _of_exchange(exchange: Exchange) -> dict[str, str]:
    """Return the facts of a collective by their names in collective.txt."""
    dtype = ELEMENT_TYPES[exchange.dtype.lower()]
    what = f"{exchange.collective} of {exchange.in_elements:,} {dtype}"
    return {
        "title": f"{what} on {exchange.ranks} ranks",
        "ranks": str(exchange.ranks),
        "input": f"{exchange.in_elements:_}",
        "output": f"{exchange.out_elements:_}",
        "dtype": dtype,
        "call": _COLLECTIVES[exchange.collective],
    }


def _of_chain(chain: Chain, product: str) -> dict[str, str]:
    """Return the facts of operators in a row by their names in chain.txt."""
    wall, work = duration(chain.wall_ns), duration(chain.sum_ns)
    lines = []
    for _, equal in groupby(chain.calls, key=lambda call: (call.op, call.arguments)):
        first, *others = equal
        op, count = (first.op or "").removeprefix("aten::"), 1 + len(others)
        made = f"partial(aten.{', '.join([op, *_given(first, [*_made(first)])])})"
        lines.append(_lines(f"*{count} * [{made}]," if count > 1 else f"{made},", 8))
    return {
        "title": f"{len(chain.calls)} operators in a row",
        "story": f"Once they took {wall} on the host, and their kernels {work} on {product}.",
        "work_us": _us(chain.sum_ns),
        "first": str(_first_size([v for call in chain.calls for v in call.arguments])),
        "calls": "\n".join(lines),
        "tensor": _tensor_maker([text for call in chain.calls for text in _made(call)]),
    }


def _of_loading(loading: Loading) -> dict[str, str]:
    """Return the facts of waiting for data by their names in loader.txt."""
    wait, step = duration(loading.wait_ns), duration(loading.step_ns)
    prepare_ns = loading.step_ns if loading.has_workers else loading.wait_ns
    return {
        "title": "A data loader beside a step",
        "story": f"A step of {step} waited {wait} for data.",
        "step_us": _us(loading.step_ns - loading.wait_ns),
        "wait_us": _us(loading.wait_ns),
        "prepare_us": _us(prepare_ns),
        "assumed": "more with several workers" if loading.has_workers else "the wait",
        "bytes": f"{loading.bytes:_}",
    }


def _us(ns: int) -> str:
    return f"{ns / 1e3:.3f}"


def _first_size(values: Sequence[Argument]) -> int:
    """Return the size that is scaled: the first one of a tensor that no list of numbers has."""
    told = {number for value in values if isinstance(value, tuple) for number in value}
    lists = [value.tensors if isinstance(value, TensorList) else (value,) for value in values]
    tensors = [one for inner in lists for one in inner if isinstance(one, Tensor)]
    first = [tensor.shape[0] for tensor in tensors if tensor.shape]
    return next((size for size in first if size > 1 and size not in told), (*first, 1)[0])


def _of_call(call: Call, peaks: DevicePeaks, story: str) -> dict[str, str]:
    """Return the facts of a call by their names in operator.txt."""
    made = [*_made(call)]
    assumed = [_LISTS] if any(isinstance(v, TensorList) for v in call.arguments) else []
    assumed += [_TOGETHER] if _long_lists(call) else []
    named = keywords(call.op or "", len(call.arguments))
    assumed += [
        _DEFAULT.format(name)
        for position, (name, kind) in named.items()
        if kind == "text" and position < len(call.arguments) and call.arguments[position] is None
    ]
    names, op = [f"x{number}" for number in range(len(made))], (call.op or "")
    given = ", ".join(_given(call, names))
    does, parameters = f"torch.ops.aten.{op.removeprefix('aten::')}", ", ".join(names)
    run = does if given == parameters else f"lambda {parameters}: {does}({given})"
    is_short = len(run) <= _WIDTH - len("call = ")
    broken = f"{_lines(f'lambda {parameters}: {does}(', 0)}\n{_lines(given, 4)}\n)"
    variants = "".join(_variants(call))
    return {
        "title": f"{call.op} alone",
        "story": " ".join([story, *assumed]),
        "roof": _roof(call, peaks),
        "first": str(_first_size(call.arguments)),
        "call": run if is_short else broken,
        "arguments": _arguments(made),
        "tensor": _tensor_maker(made),
        "variants": variants and _parts("variants")["begin"] + variants + "\n",
        "measure": _parts("measure")["variants" if variants else "alone"],
    }


def _tensor_maker(made: Sequence[str]) -> str:
    """Return the function that makes tensors written so, with what they need and no more."""
    layout = "strided" if any(map(_STRIDES.match, made)) else "dense"
    return _parts("tensor")[layout if any(map(_INTEGERS.search, made)) else f"{layout}_floats"]


@cache
def _parts(of: str) -> dict[str, str]:
    """Return the parts of scripts of one kind by name."""
    text = (files("traceflops.reports.scripts") / "parts.toml").read_text(encoding="utf-8")
    parts: dict[str, str] = tomllib.loads(text)[of]
    return parts


def _roof(call: Call, peaks: DevicePeaks) -> str:
    """Return the code of the least time of a call on its GPU, as a text."""
    amounts = (call.flops, peaks.rates.get(call.dtype or "")), (call.min_bytes, peaks.bandwidth)
    times = [f"{amount:_} / {1e9 * rate:g}" for amount, rate in amounts if amount and rate]
    longest = f"max({', '.join(times)})" if len(times) > 1 else "".join(times)
    if not times:
        return 'ROOF = "unknown"'
    reason = "# The least time of a call: FLOPs over FLOP/s, or bytes over bytes/s."
    return f'{reason}\nROOF = f"{{1e6 * {longest}:.1f}} us"'


def _arguments(texts: Sequence[str]) -> str:
    """Return arguments in a list, each few in a line; equal ones in a row are made at once."""
    parts: list[str] = []
    for text, equal in groupby(texts):
        count = len([*equal])
        parts += [f"*({text} for _ in range({count}))"] if count > 2 else count * [text]
    whole = f"    return [{', '.join(parts)}]"
    if len(whole) <= _WIDTH:
        return whole
    rows = parts if len(parts) <= _FEW else [", ".join(parts)]
    return "\n".join(["    return [", *(_lines(f"{row},", 8) for row in rows), "    ]"])


def _made(call: Call) -> Iterator[str]:
    """Yield how each tensor, or list of tensors, of a call is made."""
    for position, value in enumerate(_by_shape(call)):
        if isinstance(value, Tensor):
            assert value.type is not None
            dtype = TORCH_TYPES[value.type.number or 0]
            yield _tensor(value, dtype, index_bound(call, position))
        elif isinstance(value, TensorList):
            yield _list(value.tensors)


def _long_lists(call: Call) -> list[TensorList]:
    """Return the long lists of a call of an operator that takes them in any order.

    Those of others, such as the weights of an LSTM, have a meaning by place.
    """
    lists = [value for value in call.arguments if isinstance(value, TensorList)]
    is_long = _ANY_ORDER.match(call.op or "") is not None
    return [value for value in lists if len(value.tensors) > _LONG] if is_long else []


def _by_shape(call: Call) -> list[Argument]:
    """Return arguments with long lists ordered alike, so that equal shapes stand together."""
    arguments, long = call.arguments, _long_lists(call)
    places: dict[int, list[int]] = {}
    for length in {len(value.tensors) for value in long}:
        alike = [value.tensors for value in long if len(value.tensors) == length]
        shapes = [tuple(tensor.shape for tensor in row) for row in zip(*alike, strict=True)]
        first = {shape: place for place, shape in reversed([*enumerate(shapes)])}
        places[length] = sorted(range(length), key=lambda place: first[shapes[place]])
    return [
        TensorList(tuple(value.tensors[place] for place in places[len(value.tensors)]))
        if value in long
        else value
        for value in arguments
    ]


def _list(tensors: Sequence[Tensor]) -> str:
    """Return how a list of tensors is made, equal ones in a row at once."""
    runs = []
    for shape, equal in groupby(tensor.shape for tensor in tensors):
        count = len([*equal])
        runs.append(f"*{count} * [{[*shape]}]" if count > 1 else f"{[*shape]}")
    return f"[tensor(torch.float32, shape) for shape in [{', '.join(runs)}]]"


def _tensor(tensor: Tensor, dtype: str, below: int | None) -> str:
    is_dense = tensor.strides is None or tensor.strides == dense(tensor.shape)
    strides = "" if is_dense else f", {list(tensor.strides or ())}"
    bound = "" if below is None else f", below={below}"
    return f"tensor(torch.{dtype}, {[*tensor.shape]}{strides}{bound})"


def _given(call: Call, tensors: list[str]) -> list[str]:
    """Return the arguments of a call as code, with that of its tensors."""
    left, texts = list(tensors), []
    named = keywords(call.op or "", len(call.arguments))
    for position, value in enumerate(call.arguments):
        name, kind = named.get(position, (None, None))
        if isinstance(value, Tensor | TensorList):
            text = left.pop(0)
        elif kind == "layout":
            continue
        elif kind in ("type", "format") and type(value) is int:
            text = f"torch.{TORCH_TYPES[value] if kind == 'type' else MEMORY_FORMATS[value]}"
        else:
            name = None if kind in ("type", "format") and value is not None else name
            text = _literal(value)
        if name is None:
            texts.append(text)
        elif text != "None":
            texts.append(f"{name}={text}")
    return texts


def _literal(value: Value | str) -> str:
    """Return a value as Python code; infinity and NaN have no literal."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_literal, value))}]"
    is_special = isinstance(value, float) and not math.isfinite(value)
    return f'float("{value}")' if is_special else repr(value)


def _matrix_sizes(op: str, tensors: Sequence[Tensor]) -> list[int]:
    """Return the sizes of matrices that a product or convolution multiplies, without batches."""
    if "conv" in op:
        shapes = [
            tensor.shape[1 if number == 0 else 0 : 2] for number, tensor in enumerate(tensors)
        ]
    else:
        shapes = [tensor.shape[-2:] for tensor in tensors]
    return sorted({size for shape in shapes for size in shape if size > _SMALL})


def _variants(call: Call) -> Iterator[str]:
    """Yield the lines that run a call in ways that may be faster."""
    tensors = [value for value in call.arguments if isinstance(value, Tensor)]
    floats = [tensor for tensor in tensors if tensor.type is not None and tensor.type.matrix]
    parts = _parts("variants")
    op, is_product = call.op or "", call.dtype is not None and bool(floats)
    if is_product and "conv" in op and any(len(tensor.shape) == 4 for tensor in floats):
        yield parts["channels_last"]
    sizes = _matrix_sizes(op, floats)
    if is_product and any(size % 8 for size in sizes):
        up = _UP.format([size for size in sizes if size % 64])
        yield f"{_lines(up, 4)}\n{parts['rounded_up']}"
    if is_product and all(tensor.type == FLOAT for tensor in floats):
        yield "" if "conv" in op else parts["tf32"]  # PyTorch convolves in TF32 anyway
        yield parts["bfloat16"]
    if op == "aten::scaled_dot_product_attention":
        yield parts["backends"]
