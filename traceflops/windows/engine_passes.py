"""Annotations of forward passes by serving engines: prefill or decode, requests and tokens.

vLLM          execute_context_1(888)_generation_0(0): number of requests (and of their tokens) in
              prefill, and in decode; some with sums (sq: queries, sk: keys)
              execute_new_1_cached_31: number of new requests, and of those scheduled before
              gpu_model_runner: forward: no counts
SGLang        step[DECODE bs=32], step[EXTEND bs=4 toks=900], some with sums (c_sq, g_sk, ...)
ATOM          decode[bs=30/32 tok=30], prefill[bs=2 tok=900 ctx=[600, 300]]
TensorRT-LLM  [Executor] _forward_step 7: 1 ctx reqs, 900 ctx tokens, 31 gen reqs
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal

from msgspec import Struct

Kind = Literal["prefill", "decode", "mixed"]
"""prefill: several tokens per sequence at once; decode: one each; mixed: sequences of both."""


class ServingMark(Struct, frozen=True):
    """The facts that an annotation states of one pass, None for those that it does not state.

    `queries` is the number of tokens computed, `keys` of those that they attend to, both over all
    `sequences`; `pairs` is the number of pairs (query, key) that a causal mask leaves.
    """

    kind: Kind | None
    sequences: int | None = None
    queries: int | None = None
    keys: int | None = None
    pairs: int | None = None


_NUMBER: Final = r"([0-9]{1,15})"
_MODES: Final[dict[str, Kind]] = {
    "DECODE": "decode",
    "EXTEND": "prefill",
    "SPLIT_PREFILL": "prefill",
    "MIXED": "mixed",
}
"""Modes of SGLang; others, such as the verification of drafted tokens, have no kind."""
_QUERIES: Final = re.compile(rf"(?:sq)?{_NUMBER}")
_KEYS: Final = re.compile(rf"(?<!sq)sk{_NUMBER}")
_SQUARES: Final = re.compile(rf"sqsq{_NUMBER}")
_PRODUCTS: Final = re.compile(rf"sqsk{_NUMBER}")
_FIELD: Final = re.compile(rf"\b([a-z_]{{1,20}})={_NUMBER}")
_LONGEST: Final = 1_000


def _kind(context: int, generation: int) -> Kind | None:
    """Return the kind of a pass from the number of requests in prefill and in decode."""
    if context and generation:
        return "mixed"
    if context:
        return "prefill"
    return "decode" if generation else None


def _vllm(match: re.Match[str]) -> ServingMark:
    """Read prefill requests, their sums, decode requests, their sums."""
    context, generation = int(match[1]), int(match[3])
    sums = (match[2], match[4])  # of prefill and of decode, such as sq8sk9sqsq16sqsk18
    queries = _total(map(_QUERIES.match, sums))
    keys, squares, products = (
        _total(map(pattern.search, sums)) for pattern in (_KEYS, _SQUARES, _PRODUCTS)
    )
    pairs = _pairs(queries, squares, products)
    return ServingMark(_kind(context, generation), context + generation, queries, keys, pairs)


def _pairs(queries: int | None, squares: int | None, products: int | None) -> int | None:
    """Return the pairs that a causal mask leaves: sum of q k - (q q - q) / 2 over all sequences.

    The last query of a sequence attends to all keys, each query before it to one less: 3 queries
    and 5 keys leave 3 + 4 + 5 = 12 = 3 * 5 - (9 - 3) / 2 pairs. `queries`, `squares` and `products`
    are the sums of q, q q and q k. None if they fit no causal mask.
    """
    if queries is None or squares is None or products is None:
        return None
    pairs = products - (squares - queries) // 2
    return pairs if pairs >= queries and squares >= queries else None


def _vllm_new(match: re.Match[str]) -> ServingMark:
    """Read new and cached requests; the latter may be in prefill or in decode."""
    new, cached = int(match[1]), int(match[2])
    return ServingMark("prefill" if new and not cached else None, new + cached)


def _sglang(match: re.Match[str]) -> ServingMark:
    """Read the mode, the number of requests, and sums."""
    kind = _MODES.get(match[1])
    sequences = int(match[2])
    sums = _sums(match[3])
    one_token_each = sequences if kind == "decode" else None
    queries = sums.get("sq", sums.get("toks", one_token_each))
    # Pairs need the sums of all requests, both in prefill (c_) and in decode (g_).
    is_complete = match[3].count("_sq=") == match[3].count("_sqsk=")
    pairs = _pairs(queries, sums.get("sqsq"), sums.get("sqsk")) if is_complete else None
    return ServingMark(kind, sequences, queries, sums.get("sk"), pairs)


def _atom(match: re.Match[str]) -> ServingMark:
    """Read the kind, the number of requests, and sums; a decode with prefill requests is mixed."""
    sums = _sums(match[3])
    kind: Kind = "mixed" if sums.get("p") else "decode"
    if match[1] == "prefill":
        kind = "prefill"
    pairs = _pairs(sums.get("tok"), sums.get("sqsq"), sums.get("sqsk"))
    return ServingMark(kind, int(match[2]), sums.get("tok"), sums.get("sk"), pairs)


def _tensorrt(match: re.Match[str]) -> ServingMark:
    """Read prefill requests, their tokens if stated, and decode requests."""
    context, generation = int(match[1]), int(match[3])
    queries = None
    if not context:
        queries = generation
    elif match[2] is not None:
        queries = int(match[2]) + generation
    return ServingMark(_kind(context, generation), context + generation, queries)


def _sums(text: str) -> dict[str, int]:
    """Return the number per field of a mark; those of prefill (c_) and decode (g_) are added up."""
    sums: dict[str, int] = {}
    for name, number in _FIELD.findall(text):
        key = name[2:] if name.startswith(("c_", "g_")) else name
        sums[key] = sums.get(key, 0) + int(number)
    return sums


def _total(matches: Iterable[re.Match[str] | None]) -> int | None:
    """Return the sum of the first groups of matches, None if there is a None among them."""
    terms = [match and int(match[1]) for match in matches]
    return None if None in terms else sum(filter(None, terms))


_READERS: Final[tuple[tuple[str, Callable[[re.Match[str]], ServingMark]], ...]] = (
    (
        rf"execute_(?:[0-9]{{1,15}}_)?context_{_NUMBER}\(([^()]{{0,200}})\)"
        rf"_generation_{_NUMBER}\(([^()]{{0,200}})\)",
        _vllm,
    ),
    (rf"execute_new_{_NUMBER}_cached_{_NUMBER}", _vllm_new),
    (rf"step\[([A-Z_]{{1,40}}) bs={_NUMBER}((?: [^\[\]]{{0,300}})?)\]", _sglang),
    (rf"(prefill|decode)\[bs={_NUMBER}(?:/[0-9]{{1,15}})?((?: .{{0,300}})?)\]", _atom),
    (
        rf"\[Executor\] _forward_step [0-9]{{1,15}}: {_NUMBER} ctx reqs,"
        rf"(?: {_NUMBER} ctx tokens,)? {_NUMBER} gen reqs",
        _tensorrt,
    ),
    ("gpu_model_runner: forward", lambda _: ServingMark(None)),
)
"""Grammars in order; only the first that matches any annotation of a trace is used."""


def serving_marks(labels: Sequence[str]) -> dict[int, ServingMark]:
    """Return the marks by index of their label, in the first grammar that matches any label."""
    for grammar, read in _READERS:
        pattern = re.compile(grammar)
        matched = {
            index: read(match)
            for index, label in enumerate(labels)
            if len(label) <= _LONGEST and (match := pattern.fullmatch(label)) is not None
        }
        if matched:
            return matched
    return {}
