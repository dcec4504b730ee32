"""Tries many inputs on several benches at once and makes those that fail small."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from multiprocessing.connection import wait

from tests.fuzz.bench import Bench, Job, Result
from tests.fuzz.cases import Order

_TRIES = 600
_REDUCING_S = 60.0


def hunt(job: Job, numbers: Iterable[int], jobs: int) -> Iterator[Result]:
    """Yield what becomes of each input, in the order in which they are done."""
    left = iter(numbers)
    benches = [Bench(job) for _ in range(jobs)]
    try:
        busy = [bench for bench in benches if _began(bench, left)]
        while busy:
            first = min(bench.deadline for bench in busy)
            wait([b.connection for b in busy], max(0.0, first - time.monotonic()))
            for bench in list(busy):
                result = bench.take()
                if result is not None:
                    yield result
                    if not _began(bench, left):
                        busy.remove(bench)
    finally:
        for bench in benches:
            bench.close()


def _began(bench: Bench, numbers: Iterator[int]) -> bool:
    number = next(numbers, None)
    if number is None:
        return False
    bench.give(Order(number))
    return True


def reduced(job: Job, failed: Result) -> Order:
    """Return an input that fails in the same way and is as small as it was easy to make it."""
    bench = Bench(job)
    until = time.monotonic() + _REDUCING_S
    tries = 0

    def fails(order: Order) -> bool:
        nonlocal tries
        tries += 1
        if tries > _TRIES or time.monotonic() > until:
            return False
        return bench.ask(order).kind == failed.kind

    try:
        order = _simpler(job, failed.order, fails)
        return order if order.data is None else _smaller(order, order.data, fails)
    finally:
        bench.close()


def _simpler(job: Job, order: Order, fails: Callable[[Order], bool]) -> Order:
    """Return the order without the mutations, files and packing that do not matter."""
    for place in range(job.maker.make(order).mutations):
        fewer = replace(order, without=order.without | {place})
        order = fewer if fails(fewer) else order
    alone = replace(order, alone=True)
    order = alone if fails(alone) else order
    plain = replace(order, data=job.maker.make(order).text)
    return plain if fails(plain) else order


def _smaller(order: Order, data: bytes, fails: Callable[[Order], bool]) -> Order:
    """Return the order with the data that is left when all that can be is taken away."""
    size = len(data) // 2
    while size:
        at = 0
        while at < len(data):
            less = data[:at] + data[at + size :]
            if fails(replace(order, data=less)):
                data = less
            else:
                at += size
        size //= 2
    return replace(order, data=data)
