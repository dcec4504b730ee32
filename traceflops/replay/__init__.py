"""What a run would take if parts of it were different: the replay of recorded operations.

Takes a prepared trace and edits; gives the time of its steps, and what decides it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.replay.critical_path import PathPart
    from traceflops.replay.edits import parse_edit
    from traceflops.replay.what_if import Outcome, Replay, WhatIf
else:
    __getattr__ = lazy(__name__, __file__)
