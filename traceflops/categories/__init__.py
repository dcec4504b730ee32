"""Kernel name -> category, by rules that are data (`rules.toml`).

classifier = load()
classifier.kernel("ampere_sgemm_128x64_nt").category    # Category("compute", "gemm")
"""

from __future__ import annotations

from traceflops.categories.classify import Classifier, load
from traceflops.categories.model import SUBS, Category, Decision

__all__ = ["SUBS", "Category", "Classifier", "Decision", "load"]
