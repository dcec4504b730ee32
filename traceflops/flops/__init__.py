"""FLOPs: of one op by its shapes, of a step of a model by its description, and what they make.

    recorded op: shapes, types, values            model card + run: layers, widths, tokens, time
      | ops.count_ops, by ops.table                 | analytic.model_flops, by a convention
      v                                             v
    OpWork: FLOPs, bytes and sizes per op         Ledger: FLOPs by line (model, recompute, ...)
      | (attributed to kernels in other rooms)      | / (devices x seconds x peak)
      v                                             v
    DeviceBudget per window                       Rate: MFU and HFU
      |
      v
    Waterfall: useful, recompute, ..., idle; the lines sum to devices x window x peak

All FLOPs are exact integers or fractions; a peak is in FLOP per nanosecond. What is not known is
None, or lies between bounds.

card = preset("llama-3-8b")                        # or read_card(path), or ModelCard(params=...)
run = Run(batch=128, seq=8192, devices=8, step_seconds=Fraction("9.31"))
rate(card, run, Peak(Fraction(989_500), "bf16 dense")).sentence
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.flops.analytic.conventions import CONVENTIONS, convention
    from traceflops.flops.analytic.explain_reported import Candidate, Explanation, explain
    from traceflops.flops.analytic.lengths import Lengths, why_impossible
    from traceflops.flops.analytic.rates import (
        TERA,
        DescribedWork,
        Peak,
        Rate,
        rate,
        share,
    )
    from traceflops.flops.analytic.run import (
        FULL_CHECKPOINT,
        MEASURES,
        NO_CHECKPOINT,
        PARTS,
        SELECTIVE,
        Checkpoint,
        Lora,
        Run,
        RunShape,
        parse_checkpoint,
    )
    from traceflops.flops.analytic.run_flops import (
        default_convention,
        model_flops,
        obstacle,
        refusal,
    )
    from traceflops.flops.analytic.run_utilisation import (
        Entry,
        PeakChoice,
        Utilisation,
        check_claims,
        choose_peak,
        other_peaks,
        plain_dtype,
        unit_of,
        utilisation,
    )
    from traceflops.flops.mfu_waterfall import (
        FAMILIES,
        UNSPLIT,
        Count,
        DeviceBudget,
        Ledger,
        Line,
        Peaks,
        Portion,
        Waterfall,
        waterfall,
    )
    from traceflops.flops.model.blocks import (
        Attention,
        Block,
        Experts,
        LatentAttention,
        Mask,
    )
    from traceflops.flops.model.card import ModelCard, decode_bytes
    from traceflops.flops.model.card_table import build
    from traceflops.flops.model.models import (
        bare_model,
        card_of_config,
        find_model,
        is_public,
        listed_models,
        preset,
        preset_names,
        read_card,
        with_capacity,
        with_mtp,
        with_padded_vocab,
    )
    from traceflops.flops.ops.arguments import (
        TF32_OR_FP32,
        Arguments,
        Shape,
        Shapes,
        Tensor,
        arguments_of,
        element_type,
        read_shapes,
        read_types,
        read_values,
    )
    from traceflops.flops.ops.count import UNKNOWN, OpWork, count_ops
    from traceflops.flops.ops.gemm import matrix_type
    from traceflops.flops.ops.table import RULES
    from traceflops.flops.ops.work import (
        Core,
        FlopsPart,
        Kind,
        Layout,
        PartName,
        Product,
        Result,
        Signature,
        Unknown,
        Work,
        known_sum,
    )
else:
    __getattr__ = lazy(__name__, __file__)
