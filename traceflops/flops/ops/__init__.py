"""What each op of a trace computes and moves, from the shapes the profiler recorded.

`count_ops` takes the table of ops of a trace; the table of formulas is `RULES`. docs/flops.md says
what is counted.
"""

from traceflops.flops.ops.arguments import Arguments, Tensor
from traceflops.flops.ops.count import UNKNOWN, OpWork, count_ops
from traceflops.flops.ops.table import RULES
from traceflops.flops.ops.work import (
    MATRIX_KINDS,
    NOTES,
    Core,
    Correlation,
    Kind,
    Part,
    PartName,
    Product,
    Reason,
    Result,
    Role,
    Rule,
    Unknown,
    Work,
)

__all__ = [
    "MATRIX_KINDS",
    "NOTES",
    "RULES",
    "UNKNOWN",
    "Arguments",
    "Core",
    "Correlation",
    "Kind",
    "OpWork",
    "Part",
    "PartName",
    "Product",
    "Reason",
    "Result",
    "Role",
    "Rule",
    "Tensor",
    "Unknown",
    "Work",
    "count_ops",
]
