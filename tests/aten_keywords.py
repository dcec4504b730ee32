"""`python -m tests.aten_keywords` writes traceflops/repro/keywords.toml from PyTorch's schemas."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

from tests.conftest import ROOT

PATH: Final = ROOT / "traceflops" / "repro" / "keywords.toml"
_HEAD: Final = """\
# Arguments of aten operators that are given by name: those that have to be, and types, which
# profilers write as numbers. Per operator and number of arguments the names of the last ones, from
# the first of these on. Facts from the schemas of torch 2.13, by `python -m tests.aten_keywords`.
"""
_KINDS: Final = {"ScalarType": "type", "MemoryFormat": "format", "Layout": "layout", "str": "text"}
_NAMED: Final = ("type", "format", "layout")
_WITH_OUT: Final = (
    *("add", "sub", "mul", "div", "mm", "bmm", "addmm", "baddbmm", "addcmul", "addcdiv"),
    *("cat", "sum", "mean", "index_select"),
)
"""Operators that frameworks call with an output."""
_LEFT_OUT: Final = re.compile(
    "sparse|fft|special|quantile|nested|tri.*_indices|_cslt|foreach_map|Generator|foobar|sobol|sym_|"
    "promote|can_cast|quantiz|from_file|mkldnn|_make_dep|autocast|cs[rc]|prune|histogram|window|"
    "segment|strides_like|is_contiguous|overrideable|spsolve|cudnn_init|chalf|_test|for_mps|_range"
)


def lines() -> Iterator[str]:
    """Yield the lines of the table."""
    import torch

    found = defaultdict(set)
    for schema in torch._C._jit_get_all_schemas():
        name, arguments = schema.name.removeprefix("aten::"), schema.arguments
        is_left_out = not schema.name.startswith("aten::") or _LEFT_OUT.search(name)
        has_out = any(argument.is_out for argument in arguments)
        if is_left_out or (has_out and name not in _WITH_OUT):
            continue
        named = [argument.kwarg_only or _kind(argument) in _NAMED for argument in arguments]
        if any(named):
            last = arguments[named.index(True) :]
            found[name, len(arguments)].add(" ".join(map(_written, last)))
    for (name, count), texts in sorted(found.items()):
        # Of several schemas that with the most names, without a generator: that is not recorded.
        best = max(texts, key=lambda text: ("generator" not in text, len(text), text))
        yield f'"aten::{name} {count}" = "{best}"'


def _kind(argument: Any) -> str:
    """Return the kind of an argument whose value is recorded as a number, or not at all."""
    return next((word for kind, word in _KINDS.items() if kind in str(argument.real_type)), "")


def _written(argument: Any) -> str:
    kind = _kind(argument)
    return f"{argument.name}:{kind}" if kind else str(argument.name)


if __name__ == "__main__":
    PATH.write_text(_HEAD + "\n".join(lines()) + "\n", encoding="utf-8")
