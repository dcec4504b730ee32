"""How long the parts of the work take, told to whoever listens; nothing is done for nobody."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, str | None, float], None]
"""Told the name of a phase, the input that it was about and its seconds when it has ended."""
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Tell `listener` of the phases that end while the context is open."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def phase(name: str, about: str | None = None) -> Iterator[None]:
    """Measure a part of the work, on the input that `about` names."""
    listener = _listener.get()
    if listener is None:
        yield
        return
    began = time.perf_counter()
    yield
    listener(name, about, time.perf_counter() - began)
