"""What a kernel is: name -> category, by rules that are data (`rules.toml`).

    kernel name      "void at::native::softmax_kernel<4, float>(float*)", demangled or not
      | names.parse: head, namespace, words of the arguments
      v
    rules in order   the user's, those of packages, the built-in ones; the first match decides
      |
      v
    Decision         Category("memory", "softmax"), the rule, why, the text that it matched

    activities table -> categorise() -> Categorised: a category and a rule per row; what the record
                        itself says (copy, fill, collective) comes before its name
    names of two runs -> same_kernels() -> a code per name, equal for names of one kernel

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
        toml_given,
        toml_of,
    )
else:
    __getattr__ = lazy(__name__, __file__)
