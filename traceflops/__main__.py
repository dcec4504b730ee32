"""Where the command starts: `traceflops` and `python -m traceflops`."""

from __future__ import annotations

import sys

_INTERRUPTED = 130


def run() -> None:
    """Run the command line; Ctrl-C ends it without a traceback, even while it is loading."""
    try:
        from traceflops.cli import main

        main()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    run()
