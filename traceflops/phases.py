"""How long the phases of the work take, for a listener; without one nothing is measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, str | None, float], None]
"""Called when a phase has ended with its name, the input that it was about, and its seconds."""
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call `listener` for the phases that end while the context is open."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def phase(name: str, about: str | None = None) -> Iterator[None]:
    """Measure the block as a phase of the work, on the input that `about` names."""
    listener = _listener.get()
    if listener is None:
        yield
        return
    began = time.perf_counter()
    yield
    listener(name, about, time.perf_counter() - began)
