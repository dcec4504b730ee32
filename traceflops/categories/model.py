"""What a category is, and which categories there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

SUBS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "compute": frozenset({"gemm", "attention", "convolution", "linalg"}),
        "memory": frozenset(
            {
                *("copy", "elementwise", "embedding_index", "fft", "fused_norm", "layout"),
                *("memset", "migration", "moe_routing", "norm", "optimizer", "pooling"),
                *("quantize", "reduction", "rng_dropout", "softmax", "sort_scan"),
            }
        ),
        "communication": frozenset({"collective", "point_to_point"}),
        "other": frozenset({"other"}),
    }
)
"""The sub-categories allowed under each top category."""


@dataclass(frozen=True, slots=True)
class Category:
    """What a kernel is."""

    top: str
    """compute, memory, communication or other"""
    sub: str
    """one of `SUBS[top]`"""


@dataclass(frozen=True, slots=True)
class Decision:
    """A category and how it was found."""

    category: Category
    rule: str
    """id of the rule, or "none" where no rule applied"""
    because: str
    """the rule's one-line reason"""
    looked_at: str
    """the text that the rule matched against, such as the head identifier"""
    source: str
    """"built-in" or the base name of the user's rule file"""
