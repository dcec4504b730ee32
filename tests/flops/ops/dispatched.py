"""Ops as torch dispatches them, as the profiler would record them, with torch's own count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from tests.flops.ops.made import op

TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "c10::Half",
    torch.bfloat16: "c10::BFloat16",
    torch.int64: "long int",
    torch.int32: "int",
    torch.int8: "signed char",
    torch.bool: "bool",
    torch.float8_e4m3fn: "c10::Float8_e4m3fn",
    torch.complex64: "c10::complex<float>",
}
NUMBERS = {torch.float32: 6, torch.bfloat16: 15, torch.float16: 5, torch.float64: 7}


@dataclass(frozen=True)
class Dispatched:
    """One call: its row of the table of ops, and the FLOPs that torch's counter gives it."""

    name: str
    row: dict[str, Any]
    flops: int | None


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every call of the aten ops below it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Dispatched] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # the signature is torch's
        out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func.overloadpacket)
        flops = formula(*args, **(kwargs or {}), out_val=out) if formula else None
        name = func._schema.name
        self.calls.append(Dispatched(name, row_of(func, args, kwargs or {}), flops))
        return out


def dispatched(run: Callable[[], object]) -> list[Dispatched]:
    """Return the calls that a function makes, in order."""
    recorder = Recorder()
    with recorder:
        run()
    return recorder.calls


def row_of(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the row that the profiler would write for a call, every argument in its place."""
    left_out = func._schema.arguments[len(args) :]
    given = [*args, *(kwargs.get(one.name, one.default_value) for one in left_out)]
    return op(
        func._schema.name,
        [_each(value, lambda tensor: list(tensor.shape)) for value in given],
        [_type(value) for value in given],
        [_text(value) for value in given],
        [_each(value, _strides) for value in given],
    )


def _strides(tensor: torch.Tensor) -> list[int]:
    return list(tensor.stride())


def _each(value: object, what: Callable[[torch.Tensor], list[int]]) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return what(value)
    if isinstance(value, list | tuple) and any(isinstance(one, torch.Tensor) for one in value):
        return [what(one) for one in value]
    return []


def _type(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return TYPES[value.dtype]
    if isinstance(value, list | tuple):
        return "TensorList" if _each(value, lambda tensor: [1]) else "ScalarList"
    return "" if value is None else "Scalar"


def _text(value: object) -> object:
    if isinstance(value, torch.dtype):
        return NUMBERS[value]
    if isinstance(value, list | tuple) and not _each(value, lambda tensor: [1]):
        return list(value)
    return value if isinstance(value, bool | int | float) else ""
