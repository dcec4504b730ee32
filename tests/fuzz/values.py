"""What can be wrong with the values of a trace that is whole JSON: absurd numbers, wrong words."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

from tests.fuzz.damage import Mutation

_WEEK_US = 7 * 24 * 3600 * 10**6
_EPOCH_US = 1_704_067_200_000_000
_NUMBER = re.compile(rb'("[^"\\\n]{1,60}"\s*:\s*)("?-?[0-9][0-9.eE+-]*"?)')
_WORD = re.compile(rb'("(?:ph|cat|name|tid|pid|s|bp|kind|id)"\s*:\s*)("[^"\\\n]{0,200}")')
_KEY = re.compile(rb'"([A-Za-z][^"\\\n]{0,40})"(?=\s*:)')
_KEYS_HIT_OFTEN = (b"ts", b"dur", b"dur", b"ts", b"device", b"stream", b"correlation", b"id")
_SHIFTED = re.compile(rb'("ts"\s*:\s*"?)(-?[0-9]+)')

ABSURD: tuple[bytes, ...] = (
    b"0",
    b"-0",
    b"-0.0",
    b"-1",
    b"0.0004",
    b"0.5",
    b"1e-320",
    b"1e15",
    b"1e18",
    b"1e308",
    b"1e999",
    b"-1e999",
    b"NaN",
    b"Infinity",
    b"null",
    b"true",
    b'""',
    b'"7"',
    b'"-3.5"',
    b'"NaN"',
    b'"text"',
    b"[]",
    b"[1, 2, 3]",
    b"{}",
    b'{"ts": 1}',
    *(str(sign * (2**power + off)).encode() for power in (31, 32, 53, 62, 63, 64) for off in (-1, 0)
      for sign in (1, -1)),
    b"1" + b"0" * 30,
    b"7" * 400,
    b"4611686018427387",
    b"-4611686018427387.903",
    *(str(weeks * _WEEK_US).encode() for weeks in (1, 7, 520, 5200)),
    str(-_WEEK_US).encode(),
    str(_EPOCH_US).encode(),
    str(_EPOCH_US).encode() + b".123",
    str(_EPOCH_US // 1000).encode(),
    str(_EPOCH_US * 1000).encode(),
    b"1704067200.5",
    b"9007199254740993.5",
    b"0x10",
    b"1_000",
    b"00012",
    b"+5",
    b"5.",
    b".5",
)  # fmt: skip

WORDS: tuple[bytes, ...] = (
    *(b"X", b"B", b"E", b"M", b"i", b"s", b"f", b"C", b"", b"XX"),
    *(b"kernel", b"gpu_memcpy", b"gpu_memset", b"cuda_runtime", b"cuda_driver", b"cpu_op"),
    *(b"user_annotation", b"gpu_user_annotation", b"python_function", b"ac2g", b"fwdbwd"),
    *(b"cuda_sync", b"overhead", b"Trace", b"Operator", b"Kernel", b"cpu_instant_event"),
    *(b"ProfilerStep#3", b"ProfilerStep#99999999999999999999", b"ProfilerStep#-1"),
    *(b"ProfilerStep#", b"ProfilerStep#0", b"ProfilerStep#9223372036854775807"),
    *(b"Optimizer.step#AdamW.step", b"ncclDevKernel_AllReduce_Sum_bf16_RING_LL", b"[memory]"),
    *(b"Memcpy PtoP (Device -> Device)", b"Memcpy DtoH (Device -> Pinned)", b"Memset (Device)"),
    *(b"cudaLaunchKernel", b"cudaGraphLaunch", b"hipGraphLaunch", b"Context Sync"),
    *(b"cudaDeviceSynchronize", b"cudaStreamWaitEvent", b"process_name", b"process_labels"),
    *(b"stream 7", b"stream", b"7", b"-7", b"9223372036854775808", b"GPU 0", b"Spans"),
    b"a" * 3000,
    b"/home/someone/x.py(3): f",
    "\u202e\u2028\x1b[31m".encode(),
)


def _amount(draw: Random, found: int) -> int:
    """Return how many of the places found to change: one, some or all."""
    return min(found, draw.choice((1, 1, 1, 2, 5, 20, found)))


def _rewritten(
    draw: Random, data: bytes, pattern: re.Pattern[bytes], new: Callable[[bytes], bytes]
) -> tuple[bytes, int]:
    """Return the data with the second group of some matches made anew, and of how many."""
    found = list(pattern.finditer(data))
    if not found:
        return data, 0
    first = draw.randrange(len(found))
    amount = _amount(draw, len(found))
    row = found[first : first + amount]  # neighbours, or any
    chosen = row if draw.random() < 0.5 else draw.sample(found, amount)
    parts, at = [], 0
    for match in sorted(chosen, key=lambda one: one.start()):
        parts += [data[at : match.start(2)], new(match[2])]
        at = match.end(2)
    return b"".join((*parts, data[at:])), len(chosen)


def _pattern_of(draw: Random) -> tuple[re.Pattern[bytes], str]:
    """Return what finds the numbers of one key, or all numbers."""
    if draw.random() < 0.3:
        return _NUMBER, "any key"
    key = draw.choice(_KEYS_HIT_OFTEN)
    return re.compile(rb'("%s"\s*:\s*)("?-?[0-9][0-9.eE+-]*"?)' % key), key.decode()


def absurd(draw: Random, data: bytes) -> tuple[bytes, str]:
    """Replace numbers by an absurd one."""
    pattern, key = _pattern_of(draw)
    value = draw.choice(ABSURD)
    new, count = _rewritten(draw, data, pattern, lambda _: value)
    return new, f"{count} numbers of {key} become {value[:40].decode()}"


def reckon(draw: Random, data: bytes) -> tuple[bytes, str]:
    """Replace numbers by something made of them."""
    pattern, key = _pattern_of(draw)
    words, make = draw.choice(_RECKONED)
    new, count = _rewritten(draw, data, pattern, make)
    return new, f"{count} numbers of {key}: {words}"


_RECKONED: tuple[tuple[str, Callable[[bytes], bytes]], ...] = (
    ("negative", lambda old: b"-" + old.strip(b'"').lstrip(b"-")),
    ("as text", lambda old: b'"' + old.strip(b'"') + b'"'),
    ("a digit more before", lambda old: b"9" + old.strip(b'"').lstrip(b"-")),
    ("six digits more before", lambda old: b"170406" + old.strip(b'"').lstrip(b"-")),
    ("a thousandfold", lambda old: old.strip(b'"') + b"e3"),
    ("a millionth", lambda old: old.strip(b'"') + b"e-6"),
    ("without decimals", lambda old: old.strip(b'"').split(b".")[0]),
    ("nine decimals", lambda old: old.strip(b'"').split(b".")[0] + b".123456789"),
    ("as a list", lambda old: b"[" + old + b"]"),
)


def shift(draw: Random, data: bytes) -> tuple[bytes, str]:
    """Let the clock jump: all times behind a place are later or earlier."""
    by = draw.choice((1, -1)) * draw.choice((1, 10**6, _WEEK_US, 10**12, _EPOCH_US, 10**18))
    at = draw.randint(0, len(data))
    moved = _SHIFTED.sub(lambda found: found[1] + str(int(found[2]) + by).encode(), data[at:])
    return data[:at] + moved, f"times behind {at} are {by} us later"


def word(draw: Random, data: bytes) -> tuple[bytes, str]:
    """Replace a category, a name, a phase or an id by another."""
    value = b'"' + draw.choice(WORDS) + b'"'
    new, count = _rewritten(draw, data, _WORD, lambda _: value)
    return new, f"{count} words become {value[:40]!r}"


def key(draw: Random, data: bytes) -> tuple[bytes, str]:
    """Call some values of one key by another key of the trace."""
    keys = sorted({found[1] for found in _KEY.finditer(data)})
    if not keys:
        return data, "no key to rename"
    old, value = draw.choice(keys), draw.choice(keys)
    pattern = re.compile(rb'(")(%s)(?="\s*:)' % re.escape(old))
    new, count = _rewritten(draw, data, pattern, lambda _: value)
    return (
        new,
        f"{count} keys {old.decode(errors='replace')} become {value.decode(errors='replace')}",
    )


_ARGUMENT = (
    rb'("(?:Input [Dd]ims|Input type|Input Strides|Concrete Inputs|Collective name|dtype|'
    rb"Process Group (?:Name|Ranks|Description)|Group size|In msg nelems|Seq|Call stack|"
    rb'grid|block|stream|bytes|name|kernel_\w+|Python \w+|External id|correlation)"\s*:\s*)'
    rb'(\[(?:[^\[\]]|\[[^\[\]]*\])*\]|"[^"\\\n]*"|-?[0-9.]+)'
)
_ARGUMENTS = re.compile(_ARGUMENT)
TYPES: tuple[bytes, ...] = (
    *(b"7", b"-1", b"0.5", b"true", b"null", b'""', b'"x"', b"[]", b"{}", b'{"a": [1]}'),
    *(b"[1, 2]", b"[[]]", b"[[1, 2], 3]", b"[true, null]", b'["float", "c10::Half"]'),
    *(b'[["float"], {"a": 1}]', b"[[-5, 9223372036854775807], [99999999999999999999]]"),
    *(b'"[[2, 3], [3, 4]]"', b"[" * 60 + b"]" * 60, b'[[2, 3], "x"]', b'["float", 7]'),
)


def retype(draw: Random, data: bytes) -> tuple[bytes, str]:
    """Give recorded arguments another JSON type."""
    value = draw.choice(TYPES)
    new, count = _rewritten(draw, data, _ARGUMENTS, lambda _: value)
    return new, f"{count} arguments become {value[:40].decode()}"


VALUES: tuple[Mutation, ...] = (
    *(absurd, absurd, absurd, reckon, reckon, shift, word, word, key),
    *(retype, retype, retype),
)
