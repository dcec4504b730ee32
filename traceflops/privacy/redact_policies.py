"""What is done with the texts in each column of a trace that is redacted.

No column is forgotten: without a policy of its own a column keeps the words of libraries, and all
others are replaced. The product of a device may be any text, as it often is in virtual machines: it
keeps the words of the device table, by which peaks are found, and those of makers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Final

from traceflops.attribution.host_events import SYSTEM_CALLS, facts_of_name, standard_prefix
from traceflops.devices import counter_formulas as counters
from traceflops.devices.gpu_samples import Sampled
from traceflops.devices.peaks import load_devices, unclear_names
from traceflops.mfu.checked.run_marks import is_ours
from traceflops.privacy.placeholders import Placeholders
from traceflops.ranks.comm_groups import GROUP_WORDS
from traceflops.table.columns import NAME_TYPE
from traceflops.table.schema import TABLES
from traceflops.windows.engine_passes import serving_marks
from traceflops.windows.steps import step_number

Policy = Callable[[str], str | None]
"""Returns what replaces a text, or None for nothing."""

Policies = Callable[[str | None], Policy]
"""Returns the policy for rows of a kind; the kind is None in a table without kinds."""

_BUILT_IN_MARK: Final = re.compile(
    r"ProfilerStep\s*#\s*\d+|(?:nccl|c10d|gloo|rccl):\w+|record_param_comms|Optimizer\.(?:step|zero_grad)#\w+\.\w+|"
    r"(?:DistributedDataParallel|FullyShardedDataParallel|FSDP)[.:][\w.: ]+|"
    r"enumerate\(DataLoader\)#\w+(?:\.\w+)?|Torch-Compiled Region: ?[\d/]*|PyTorch Profiler \(\d\)|"
    r"(?:Iteration Start|Record Window End)\b[\w: ]*|"
    r"P?MPI_[A-Z]\w*|p?(?:nccl|rccl)[A-Z]\w*|(?:nv|roc_)shmemx?_\w+|"
    r"(?:cu(?:da|blas|dnn|fft|rand|solver|sparse|tensor)?|hip(?:blas|fft|rand|solver|sparse)?)[A-Z]\w*"
)
"""Annotations that PyTorch itself writes, and those of calls of public interfaces."""
_TORCH_FRAME: Final = re.compile(
    r"(?:(?:[^\s:]*[/\\])?(?:site|dist)-packages[/\\])?"
    r"(torch[/\\](?:(?:_awaits|_dispatch|_dynamo|_export|_functorch|_higher_order_ops|_inductor|_library|"
    r"_logging|_numpy|_prims|_refs|_subclasses|amp|ao|autograd|backends|compiler|cuda|distributed|"
    r"distributions|export|fft|func|futures|fx|jit|linalg|masked|mps|multiprocessing|nested|nn|"
    r"onnx|optim|package|profiler|quantization|signal|sparse|special|testing|utils|xpu)[/\\]"
    r"[\w/\\]+|_\w+|functional|hub|library|overrides|random|serialization|storage|types)"
    r"\.py\(\d+\): [\w<>]+)"
)
"""Frames of PyTorch as it is installed: its packages, and the modules right below it."""
_WORDS: Final = re.compile(r"[^\W_]+")
_SUM: Final = re.compile(
    r"(?:(?:s[qk]){0,2}\d{1,19})+|(?:s[qk]){1,2}|"
    r"sumsq|seqlens|bs|toks?|padded|Executor|reqs|model|runner"
)
"""Words, with numbers, in the marks that serving engines and traceflops write."""

_BY_WORDS, _WHOLE, _GONE = "by words", "whole", "gone"
"""In a text, the words that no library uses are replaced; or the whole text; or it is removed."""
_COLLECTIVES: Final = ("activities", "ops")
_COLUMNS: Final[Mapping[tuple[str, str], tuple[str, str]]] = {
    ("processes", "file"): (_WHOLE, "file"),
    ("processes", "host"): (_GONE, "host name"),
    ("devices", "architecture"): (_BY_WORDS, "product of a device"),
    ("activities", "direction"): (_BY_WORDS, "direction of a copy"),
    ("calls", "name"): (_BY_WORDS, "call name"),
    ("calls", "kernel"): (_BY_WORDS, "kernel name"),
    ("kernel_counters", "name"): (_BY_WORDS, "kernel name"),
    ("kernel_rules", "name"): (_BY_WORDS, "kernel name"),
    ("marks", "input_dims"): (_GONE, "shape of an argument"),
    ("marks", "input_types"): (_BY_WORDS, "type of an argument"),
    ("marks", "sync_kind"): (_BY_WORDS, "kind of wait"),
    ("ops", "name"): (_BY_WORDS, "operator name"),
    ("ops", "input_dims"): (_GONE, "shape of an argument"),
    ("ops", "input_strides"): (_GONE, "shape of an argument"),
    ("ops", "input_types"): (_BY_WORDS, "type of an argument"),
    ("ops", "concrete_inputs"): (_BY_WORDS, "argument"),
    ("ops", "generated_kernel"): (_GONE, "fact of a compiled kernel"),
    **{(table, "collective"): (_BY_WORDS, "collective") for table in _COLLECTIVES},
    **{(table, "collective_group"): (_WHOLE, "group") for table in _COLLECTIVES},
    **{(table, "collective_description"): (_WHOLE, "group") for table in _COLLECTIVES},
    **{(table, "collective_group_ranks"): (_GONE, "list of ranks") for table in _COLLECTIVES},
}
"""How columns are redacted, and what a text in them is; in others, unknown words are replaced."""
_GROUP: Final = re.compile(rf"(?:(?i:{'|'.join(GROUP_WORDS)}|\d{{1,8}})(?:[\s_:-]|\Z))*")
_SHAPES: Final = re.compile(r"[\d\s,\[\]()x\"-]*|null")
_HARMLESS: Final[Mapping[str, re.Pattern[str]]] = {
    "architecture": re.compile(r"(?:gfx|sm_?)[0-9a-f]{2,4}a?(?::(?:sramecc|xnack|tgsplit)[+-])*"),
    "direction": re.compile(r"migration|(?:migration )?[HDPA]to[HDPA]"),
    "kind": re.compile(r"INF|OPT|WRN|ERR"),
    "input_dims": _SHAPES,
    "input_strides": _SHAPES,
    "collective_group": _GROUP,
    "collective_description": _GROUP,
    "collective_group_ranks": re.compile(r"(?:\d{1,7}(?!\d)|[\s,\[\]().…-])*"),
}
"""Texts of columns that stay."""

_MODULE: Final = "nn.Module: "
_INSTANCE: Final = re.compile(r"_\d{1,5}$")

LEFT_OUT: Final = "…"
"""Stands for a word that is in no known product."""

_MAKERS: Final = """
ada amd arc blackwell center core cpu data device edition epyc generation geforce gpu graphics grid
gtx gtx hbm hbm2 hbm2e hbm3 hbm3e host instinct intel laptop max mig nvidia nvl oam pcie pro
processor quadro radeon rtx rx server super sxm sxm2 sxm3 sxm4 sxm5 tesla ti titan unknown vgpu
workstation xeon xt xtx
"""
_PART: Final = re.compile(r"[^\s()/,\[\]-]+")
_AMOUNT: Final = re.compile(
    r"\d{1,4}|\d{1,4}(?:GB|GiB|MB|W)|\d{1,3}[gc](?:\.\d{1,3}gb)?|\d{1,3}[ABCQ]"
)
_ALPHANUMERIC: Final = re.compile(r"[A-Za-z0-9]+")
_ESCAPE: Final = re.compile(r"\\[A-Za-z]")


def policies(shown: Placeholders, step_mark: str | None) -> Mapping[tuple[str, str], Policies]:
    """Return the policies of all columns of texts, by table and column."""

    def policy_of(table: str, column: str) -> Policy:
        how, kind = _COLUMNS.get((table, column), (_BY_WORDS, "word"))
        by_how: dict[str, Policy] = {
            _BY_WORDS: partial(shown.partly, kind),
            _WHOLE: partial(shown.whole, kind),
            _GONE: lambda text: shown.count(kind, text),  # returns None, so that nothing is left
        }
        policy, harmless = by_how[how], _HARMLESS.get(column)
        return policy if harmless is None else _unless(harmless, policy)

    texts = [(t, c.name) for t, columns in TABLES.items() for c in columns if c.type == NAME_TYPE]
    op, kernel = partial(shown.partly, "operator name"), partial(shown.partly, "kernel name")
    marks = partial(_mark, shown, step_mark)
    # Rows of totals are of kernels, unless of these kinds.
    in_totals: dict[str, Policy] = {"call": partial(shown.partly, "call name")}
    in_totals |= dict.fromkeys(("mark", "gpu_mark", "system"), marks("annotation"))
    counter = _always(partial(_counter, shown))
    return {
        **{column: _always(policy_of(*column)) for column in (*texts, *_COLUMNS)},
        ("devices", "product"): _always(partial(product, shown)),
        ("activities", "annotation"): _always(marks("annotation")),
        ("activities", "source"): _always(marks("python")),
        ("activities", "name"): lambda kind: op if kind == "op" else kernel,
        ("totals", "name"): lambda kind: in_totals.get(kind or "", kernel),
        ("marks", "name"): marks,
        ("kernel_rules", "text"): _always(partial(_rule, shown)),
        ("counters", "name"): counter,
        ("counters", "stack"): _always(partial(_stack, _unless(_WRAPPER, marks("python")), op)),
        ("kernel_counters", "counter"): counter,
    }


def _always(policy: Policy) -> Policies:
    return lambda _: policy


_GENERATED: Final = re.compile(r"(?:.*/)?(c[a-z2-7]{51}\.py\()")
"""A file of code that Inductor generated: its name is a hash, so the same for everybody."""


_WRAPPER: Final = re.compile(
    r"(?:_contextlib|grad_mode)\.py\(\d{1,5}\): (?:decorate|generator)_context"
    r"|checkpoint\.py\(\d{1,5}\): (?:unpack_hook|backward)"
)
"""PyTorch's wrappers of what runs under no_grad, or is computed again in the backward pass."""


def _unless(harmless: re.Pattern[str], policy: Policy) -> Policy:
    return lambda text: text if harmless.fullmatch(text) else policy(text)


def _stack(frame: Policy, op: Policy, text: str) -> str:
    """Return a stack, "a < b < c", redacted: names with "(" are frames, others operators."""
    parts = ((frame if "(" in part else op)(part) for part in text.split(" < "))
    return " < ".join(filter(None, parts))


def _rule(shown: Placeholders, text: str) -> str | None:
    """Return the number of waves of the grid if a rule's text states it, else None."""
    shown.count("text of a rule", text)
    waves = counters.FULL_WAVES.search(text)
    return waves[0] if waves else None


def _mark(shown: Placeholders, step_mark: str | None, kind: str | None) -> Policy:
    """Return the policy for marks of a kind."""
    if kind == "module":
        return partial(_module, shown)
    if kind == "python":
        return partial(_frame, shown)
    if kind in ("annotation", "gpu_annotation", "gpu_step"):
        return partial(_annotation, shown, step_mark)
    by_words = partial(shown.partly, "mark")
    # Names of system calls are public.
    return _unless(SYSTEM_CALLS, by_words) if kind == "system" else by_words


def _frame(shown: Placeholders, text: str) -> str:
    """Return what stands for a Python frame.

    At its beginning the name of a file stays that Inductor generated or that is of Python's own
    library. In the rest of such a frame, and in frames of libraries, words of libraries stay.
    """
    if (of_torch := _TORCH_FRAME.fullmatch(text)) is not None:
        return shown.partly("Python function", of_torch[1])
    if text.startswith(_MODULE):
        return _module(shown, text)
    if (generated := _GENERATED.match(text)) is not None:
        begin, text = generated[1], text[generated.start(1) :]
    else:
        begin = standard_prefix(text)
    if begin or facts_of_name(text):
        return begin + shown.partly("Python function", text[len(begin) :])
    return shown.whole("Python function", text)


def _module(shown: Placeholders, text: str) -> str:
    """Return the placeholder of a module's class with the number of the instance, which stays."""
    name = _INSTANCE.sub("", text)
    return shown.whole("module", name) + text[len(name) :]


def _counter(shown: Placeholders, text: str) -> str:
    """Return a counter's name, as it is if its meaning is known, since figures rest on it."""
    plain = counters.plain_counter(text)
    is_used = plain in counters.counters_used() or counters.is_quantity(plain)
    return text if is_used or text in set(Sampled) else shown.partly("counter", text)


def _annotation(shown: Placeholders, step_mark: str | None, text: str) -> str:
    """Return the placeholder of an annotation; that of a step keeps the step's number."""
    if serving_marks([text]) or is_ours(text):
        # Only known words with numbers stay; these are counts, e.g. of tokens, however large.
        return _WORDS.sub(
            lambda word: (
                word[0] if _SUM.fullmatch(word[0]) else shown.partly("annotation", word[0])
            ),
            text,
        )
    if _BUILT_IN_MARK.fullmatch(text):  # it may contain a class of the author
        return shown.partly("annotation", text)
    number = step_number(text, step_mark)
    if number is None:  # of no step
        return shown.whole("annotation", text)
    made = f"step {number}" if number >= 0 else "step"  # -1: a step without a number
    if made != text:
        shown.count("step mark", text)
    return made


def product(shown: Placeholders, text: str) -> str:
    """Return a product's parts that are in known ones; a placeholder if no word is left."""
    parts = _PART.findall(text)
    public_parts = [part for part in parts if is_of_products(part)]
    if len(public_parts) == len(parts):
        return text
    has_word = any(part.isalpha() or part.lower() in _words() for part in public_parts)
    if not has_word:
        return shown.whole("product", text)
    shown.count("product", text)
    return _PART.sub(lambda part: part[0] if is_of_products(part[0]) else LEFT_OUT, text)


def is_of_products(word: str) -> bool:
    """Return whether a word occurs in product names, or is an amount of memory or a MIG slice."""
    return word.lower() in _words() or _AMOUNT.fullmatch(word) is not None


@cache
def _words() -> frozenset[str]:
    """Return the words of all known products, in lower case."""
    texts = [f"{spec.id} {spec.product} {spec.pattern}" for spec in load_devices()]
    unclear = unclear_names()
    texts += [f"{variant.pattern} {variant.what}" for variant in unclear.variant]
    texts += [*unclear.generic_names, *unclear.shared_names, _MAKERS]
    plain = (_ESCAPE.sub(" ", text) for text in texts)
    return frozenset(word.lower() for text in plain for word in _ALPHANUMERIC.findall(text))
