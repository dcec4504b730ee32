"""The same question asked of other analysers, where an environment that has them is named."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_HOLISTIC = """
import sys
from hta.trace_analysis import TraceAnalysis
TraceAnalysis(trace_files={0: sys.argv[1]}).get_temporal_breakdown(visualize=False)
"""
_TRACELENS = """
import sys
from TraceLens import TreePerfAnalyzer
TreePerfAnalyzer.from_file(sys.argv[1]).get_df_gpu_timeline()
"""


@dataclass(frozen=True, slots=True)
class Peer:
    """Another analyser: what tells whether it is there, and a program that asks it."""

    name: str
    asked: str
    imports: str
    program: str


PEERS = (
    Peer(
        "HolisticTraceAnalysis",
        "temporal breakdown",
        "from hta.trace_analysis import TraceAnalysis",
        _HOLISTIC,
    ),
    Peer("TraceLens", "GPU timeline", "from TraceLens import TreePerfAnalyzer", _TRACELENS),
)


def is_installed(peer: Peer, python: str) -> bool:
    """Return whether an interpreter has a peer; a namesake on a package index has other names."""
    words = [python, "-c", peer.imports]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def words(peer: Peer, python: str, trace: Path) -> list[str]:
    """Return the command that asks a peer about a trace."""
    return [python, "-c", peer.program, str(trace)]
