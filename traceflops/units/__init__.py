"""Every way to print a time, a share or a count, and the words around them.

Takes integers (ns, bytes, FLOPs) and exact shares (0 to 1); gives text in one spelling everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.units.parse_units import (
        LARGEST,
        Reported,
        decimal_thousands,
        parse_count,
        parse_lengths,
        parse_rate,
        parse_reported,
        parse_seconds,
        parse_share,
    )
    from traceflops.units.words import (
        DESCRIPTION_WORDS,
        PART_NAMES,
        capitalized,
        command_lines,
        decimal,
        does,
        duration,
        exact_percent,
        function_name,
        kernel_name,
        listed,
        one_of,
        percent,
        plural,
        several,
        significant,
        some_of,
        time_amount,
        uncapitalized,
    )
else:
    __getattr__ = lazy(__name__, __file__)
