"""What a kernel is: name -> category, by rules that are data (`rules.toml`).

    kernel name      "void at::native::softmax_kernel<4, float>(float*)", demangled or not
      | classify.parse: head, namespace, words of the arguments
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
