"""What can go wrong, as one small tree.

TraceflopsError          base: a message and a hint for the user
├── InputError           the input cannot be read or is not recognised (exit code 3)
│   └── NotATrace        it is something else, or nothing
└── UsageError           the question cannot be asked of this input (exit code 2)
"""

from __future__ import annotations


class TraceflopsError(Exception):
    """A failure with a message (what and where) and a hint (what to do next), one line each."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InputError(TraceflopsError):
    """The input cannot be read, is damaged beyond use, or is not a trace."""


class NotATrace(InputError):
    """The input was never a trace that can be read; nothing of one is lost with it."""


class UsageError(TraceflopsError):
    """An option asks for something that this input does not have."""
