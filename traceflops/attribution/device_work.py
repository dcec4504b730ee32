"""Whose work the devices did: by module, function, annotation, operator. See `attributed`.

Work belongs to the first of RULES that gives an answer. A module is told by the stack of the launch
call; what a backward node launched belongs to the module of its forward op.
"""

from __future__ import annotations

from typing import Final

RULES: Final = (
    *("module", "backward_module", "gradient_accumulation", "optimizer", "user_function"),
    *("annotation", "compiled_region", "op", "call", "none"),
)
"""What work is attributed to, the first that is known."""
