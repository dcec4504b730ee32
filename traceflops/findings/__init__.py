"""What takes the time, the largest first, and the verdict in a sentence. One rule per file.

Takes accounts, tables and utilisation; gives findings with shares of the step time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.findings.finding import Finding, Verdict
    from traceflops.findings.late_rank import (
        clocks_words,
        lasting_late_rank_sentence,
        late_rank_findings,
        late_rank_reason,
        late_rank_sentence,
        waiting_words,
    )
    from traceflops.findings.losses import Loss, all_losses, loss_findings
    from traceflops.findings.main_kernel import MAIN_KERNEL, main_kernel_findings
    from traceflops.findings.slow_link import (
        SLOW_LINK_REMEDY,
        slow_link_findings,
        slow_link_sentence,
    )
    from traceflops.findings.unevenness import uneven_findings
    from traceflops.findings.verdicts import (
        basis_of,
        jobs_verdict,
        records_verdict,
        untimed_verdict,
        verdict,
    )
else:
    __getattr__ = lazy(__name__, __file__)
