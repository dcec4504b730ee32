"""What can go wrong, as one small tree.

TraceflopsError          base: a message and a hint for the user
├── InputError           the input cannot be read or is not recognised (exit code 3)
│   └── NotATrace        it is something else, or nothing
│       └── NoContent    it is nothing: among traces, probably what is left of one
└── UsageError           the question cannot be asked of this input (exit code 2)
"""

from __future__ import annotations

import errno
from typing import Final

MORE_MEMORY: Final = "use a machine with more memory, or fewer ranks with --ranks"
_NO_ROOM: Final = (
    *("failed to map segment", "cannot allocate memory", "can't start new thread"),
    *("failed to launch worker thread", "without exception set", "without setting an exception"),
    *("bad_alloc", "allocation failure", "out of memory"),
)
"""Messages of the system if there is no memory to load a library or to start a thread; of Python,
if a library had no memory for its message; and of libraries with errors of their own."""


class TraceflopsError(Exception):
    """A failure with a message (what and where) and a hint (what to do next), one line each."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.add_note(f"hint: {hint}")  # a traceback shows it


class InputError(TraceflopsError):
    """The input cannot be read, is damaged beyond use, or is not a trace."""


class NotATrace(InputError):
    """The input was never a trace that can be read; nothing of one is lost with it."""


class NoContent(NotATrace):
    """The input is empty, stands for a file that is elsewhere, or has bytes of no known kind."""


class UsageError(TraceflopsError):
    """An option asks for something that this input does not have: `reason` says only why."""

    def __init__(self, message: str, hint: str, reason: str = "") -> None:
        super().__init__(message, hint)
        self.reason = reason or message


def lacks(error: ImportError, package: str, install: str) -> Exception:
    """Return what to raise if a package cannot be loaded: that it is needed, or no memory."""
    return error if is_out_of_memory(error) else UsageError(package, install)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether a failure comes from a lack of memory, by itself or by its cause."""
    if error is None:
        return False
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    # Messages of these may quote the input, whose words say nothing of memory.
    is_ours = isinstance(error, TraceflopsError | ValueError | LookupError)
    says_so = not is_ours and any(words in str(error).lower() for words in _NO_ROOM)
    return says_so or is_out_of_memory(error.__cause__ or error.__context__)
