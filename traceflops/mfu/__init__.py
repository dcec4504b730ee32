"""Utilisation of a trace: what was executed, what its devices could do, and the share of it used.

    traced    Prepared -> Executed      FLOPs of operators by their shapes: cells by device, window,
                                        component, data type and line; compute time without FLOPs
    counted   launches -> MeasuredWork  FLOPs and bytes of kernels without an operator: hardware
                                        counters, another recording (--pair), annotated passes
    budget    devices  -> DevicePeaks   FLOP and bytes per ns, by data type
    measure() puts them together:

      budget = devices x window x peak   100 %
      useful | recompute | overcompute | unattributed | memory | communication | idle
      `-- MFU   `-- HFU with the next two

      -> Measurement: waterfall (or why there is none), tables of kernels and operators,
         RoofTimes (what FLOPs and bytes need), Inference (prefill, decode, MBU)

    checked   Measurement + a description of the run -> Reconciliation: where the two differ

`traceflops.flops` has runs that are only described.
"""
