"""What takes the time, what to fix first, and the verdict in a sentence. One subject per file.

Takes accounts, tables and utilisation; gives findings with shares of the step time, and with gains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.findings.case import NO_RULES, Case, FindingRules, limit
    from traceflops.findings.counted_kernels import (
        COUNTED_KERNEL,
        estimated,
        gains_nothing,
        rule_name,
    )
    from traceflops.findings.device_memory import memory_facts, memory_verdict
    from traceflops.findings.diagnosis import diagnosed
    from traceflops.findings.finding import (
        Candidate,
        Cause,
        Confidence,
        Finding,
        Gain,
        Row,
        Verdict,
        Where,
        in_words,
        row_name,
        short_name,
    )
    from traceflops.findings.late_rank import (
        clocks_apart_ns,
        late_rank_fact,
        late_rank_findings,
        late_rank_reason,
        waiting_for,
    )
    from traceflops.findings.losses import LOSS, Loss, all_losses, loss_findings
    from traceflops.findings.low_clocks import samples_verdict
    from traceflops.findings.main_kernel import MAIN_KERNEL, main_kernel_findings
    from traceflops.findings.program import program_of, program_of_trace
    from traceflops.findings.rules import RuleRow, advice_of, all_rules, rule_of
    from traceflops.findings.slow_link import slow_link_fact, slow_link_findings
    from traceflops.findings.unevenness import UNEVEN_STEPS, largest_part, uneven_findings
    from traceflops.findings.user_rules import read_finding_rules
    from traceflops.findings.verdicts import (
        basis_of,
        cut_file,
        jobs_verdict,
        led_by,
        lost_graphs,
        records_verdict,
        untimed_verdict,
        verdict,
    )
else:
    __getattr__ = lazy(__name__, __file__)
