"""What the annotations of serving engines say of a forward pass: prefill, decode, how many tokens.

vLLM    execute_context_1(888)_generation_0(0): so many requests (and their tokens) that are read
        in, and so many that generate; newer ones with sums (sq: queries, sk: keys of all requests)
SGLang  step[DECODE bs=32]
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["prefill", "decode", "mixed"]
"""prefill: several tokens per sequence at once; decode: one each; mixed: sequences of both."""


@dataclass(frozen=True, slots=True)
class ServingMark:
    """What an annotation says of one pass, None where it does not.

    `queries` are the tokens computed, `keys` those that they attend to, both over all `sequences`.
    """

    kind: Kind | None
    sequences: int | None = None
    queries: int | None = None
    keys: int | None = None


_NUMBER: Final = r"([0-9]{1,15})"
_VLLM: Final = re.compile(
    rf"execute_(?:[0-9]{{1,15}}_)?context_{_NUMBER}\(([^()]{{0,200}})\)"
    rf"_generation_{_NUMBER}\(([^()]{{0,200}})\)"
)
_SGLANG: Final = re.compile(rf"step\[([A-Z_]{{1,40}}) bs={_NUMBER}(?: [^\[\]]{{0,200}})?\]")
_MODES: Final[dict[str, Kind]] = {
    "DECODE": "decode",
    "EXTEND": "prefill",
    "SPLIT_PREFILL": "prefill",
    "MIXED": "mixed",
}
"""Modes of SGLang; others, such as the verification of drafted tokens, are neither."""
_QUERIES: Final = re.compile(rf"(?:sq)?{_NUMBER}")
_KEYS: Final = re.compile(rf"(?<!sq)sk{_NUMBER}")
_LONGEST: Final = 1_000


def _vllm(found: re.Match[str]) -> ServingMark:
    context, generation = int(found[1]), int(found[3])
    inner = (found[2], found[4])
    both = context and generation
    kind: Kind | None = "mixed" if both else "prefill" if context else "decode"
    return ServingMark(
        kind if context or generation else None,
        context + generation,
        _sum([_first(_QUERIES.match(text)) for text in inner]),
        _sum([_first(_KEYS.search(text)) for text in inner]),
    )


def _sglang(found: re.Match[str]) -> ServingMark:
    kind, sequences = _MODES.get(found[1]), int(found[2])
    return ServingMark(kind, sequences, sequences if kind == "decode" else None)


def _first(found: re.Match[str] | None) -> int | None:
    return int(found[1]) if found is not None else None


def _sum(numbers: list[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


_READERS: Final[tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], ServingMark]], ...]] = (
    (_VLLM, _vllm),
    (_SGLANG, _sglang),
)
"""The first that matches any annotation of a trace is the one whose marks are its passes."""


def engines_of(labels: list[str]) -> list[dict[int, ServingMark]]:
    """Return, per engine that wrote any of these labels, what the labels with these places say."""
    found = []
    for pattern, read in _READERS:
        matched = {
            place: read(match)
            for place, label in enumerate(labels)
            if len(label) <= _LONGEST and (match := pattern.fullmatch(label)) is not None
        }
        found += [matched] if matched else []
    return found
