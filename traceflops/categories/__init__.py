"""Kernel name -> category, by rules that are data (`rules.toml`).

classifier = load()
classifier.kernel("ampere_sgemm_128x64_nt").category    # Category("compute", "gemm")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.categories.activities import Categorised, categorise
    from traceflops.categories.classify import Classifier, load
    from traceflops.categories.kernel_names import from_own_word, same_kernels, without_return_type
    from traceflops.categories.programs import of_ml, of_pytorch
    from traceflops.categories.rules import (
        NO_RULE,
        PLACES,
        SUBS,
        Category,
        Decision,
        built_in,
        check_pattern,
        toml_given,
        toml_of,
    )
else:
    __getattr__ = lazy(__name__, __file__)
