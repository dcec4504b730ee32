"""Where each rule is proven: the lists of docs/trust.md.

    python -m tests.findings.proofs [FOLDER...]

Each file or folder in a FOLDER is one public recording; without any, their list stays as it is. A
rule is proven where it finds something in these, or where the simulator plants what it is about
and its gain is that of the repair.
"""

import argparse
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

import traceflops as tf
from tests.conftest import ROOT
from tests.findings.faults import FAULTS
from tests.findings.test_ranks_and_serving import CASES
from traceflops.errors import TraceflopsError
from traceflops.findings.rules import all_rules

PAGE: Final = ROOT / "docs" / "trust.md"
TABLE: Final = re.compile(r"(<!-- proofs -->)\n(.*?)\n(<!-- end of proofs -->)", re.S)
SIMULATED: Final[Mapping[str, str]] = {
    **{rule: "test_ranks_and_serving.py" for _, _, rule, _ in CASES.values()},
    **{rule: "test_scenarios.py" for fault in FAULTS.values() for rule in fault.rules},
    "low-clock": "test_low_clocks.py",
    "graph-gaps": "../attribution/test_culprits.py",
    "nothing-stands-out": "test_diagnosis.py",
    "loss-softmax": "test_kernel_rules.py",
    "training-mode": "test_training_mode.py",
    "fills": "test_device_memory.py",
    "on-cpu": "test_on_cpu.py",
    "small-pieces": "test_small_pieces.py",
    "standstill": "test_standstill.py",
    **dict.fromkeys(("tiny-kernels", "elementwise-kernels"), "test_many_kernels.py"),
    **dict.fromkeys(("loss-recompute", "loss-overcompute"), "../mfu/test_reconciliation.py"),
}
"""By rule the tests with simulated runs whose truth is exact."""


def main() -> None:
    """Write the lists."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="*")
    read, found, folders = 0, Counter[str](), parser.parse_args().folder
    for path in _recordings(folders):
        try:
            told = {finding.rule for finding in tf.analyze(path).findings}
        except TraceflopsError:
            continue
        read += 1
        found.update(told)
    rules = all_rules().rules
    recorded = ", ".join(f"`{rule}` {found[rule]}" for rule in rules if found[rule])
    simulated = ", ".join(f"`{rule}`" for rule in rules if rule in SIMULATED)
    text = PAGE.read_text(encoding="utf-8")
    public = f"Public recordings, of {read}: {recorded}."
    if not folders:
        public = next(line for line in text.splitlines() if line.startswith("Public recordings, "))
    table = "\n".join(("", public, "", f"Simulated: {simulated}.", ""))
    PAGE.write_text(TABLE.sub(rf"\g<1>\n{table}\n\g<3>", text), encoding="utf-8")


def _recordings(folders: list[Path]) -> Iterator[Path]:
    """Yield the recordings in folders, those with the same bytes once."""
    seen = set()
    for path in sorted(path for folder in folders for path in folder.iterdir()):
        files = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
        known = frozenset(sha256(one.read_bytes()).digest() for one in files)
        if known not in seen:
            seen.add(known)
            yield files[0] if len(files) == 1 else path


if __name__ == "__main__":
    main()
