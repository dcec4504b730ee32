"""Recording a loop of PyTorch; what a recording holds and lacks, how to record the rest, its cost.

Takes a loop; gives a trace that describes itself. Takes a trace; gives an inventory of its tables,
gaps in them, and notes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.recording.capture_gaps import Missing, missing_from
    from traceflops.recording.inventory import DeviceEntry, Inventory, inventory_of, profiler_time
    from traceflops.recording.recipes import Recipe, known_recipes, recipe_named
    from traceflops.recording.recorder import Overhead, Recorder, record
else:
    __getattr__ = lazy(__name__, __file__)
