"""What leaves the machine: environment names are removed, all names if the user redacts.

Takes traces and tables; gives the same with placeholders. docs/privacy.md has the rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.privacy.environment import check_privacy, redacted
    from traceflops.privacy.placeholders import Placeholders
    from traceflops.privacy.redact import Redaction, removed
else:
    __getattr__ = lazy(__name__, __file__)
