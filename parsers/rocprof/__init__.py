"""Readers of what rocprof and RPD write: CSV, JSON and databases of all generations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.parsers.rocprof.formats import (
        ROCPROF_JSON,
        ROCPROF_PERFETTO,
        ROCPROF_TABLES,
        ROCPROF_V1_JSON,
    )
    from traceflops.parsers.rocprof.rocpd_read import read_rocpd
    from traceflops.parsers.rocprof.rpd import read_rpd
    from traceflops.parsers.rocprof.tables.parts import PASS
    from traceflops.parsers.rocprof.trace import without_repeated_passes
    from traceflops.parsers.rocprof.v1_database import read_v1_database
else:
    __getattr__ = lazy(__name__, __file__)
