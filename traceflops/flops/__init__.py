"""FLOPs of an op by its shapes, and of a step of a model by its description; rates and waterfalls.

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

All FLOPs are exact integers or fractions; a peak is in FLOP per nanosecond. Unknown values are
None, or between bounds.

card = preset("llama-3-8b")                        # or read_card(path), or ModelCard(params=...)
run = Run(batch=128, seq=8192, devices=8, step_seconds=Fraction("9.31"))
rate(card, run, Peak(Fraction(989_500), "bf16 dense")).sentence
"""
