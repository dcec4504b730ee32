"""Model cards as tables: checks one table and builds the `ModelCard` that it describes.

TOML cards, presets and Hugging Face configs share these keys; docs/mfu.md lists them. A table with
`params` may leave out other keys: they are then in `ModelCard.missing`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from decimal import Decimal
from itertools import cycle, groupby, islice
from typing import cast, get_args

from msgspec.structs import replace

from traceflops.errors import InputError, UsageError
from traceflops.flops.model import blocks
from traceflops.flops.model.blocks import Attention, Block, Conv, Experts, FeedForward, Linear, Mask
from traceflops.flops.model.card import NORM_VECTORS, TOO_FAR_APART, ModelCard
from traceflops.flops.model.table import HINT, TomlTable

MOST_LAYERS = 10_000
MASKS = get_args(blocks.MaskKind)
BIASES = ("qkv", "out", "ffn", "router", "head")
EVERY_BIAS = ("qkv", "out", "ffn", "router")  # what `bias = true` means: all matrices but the head
SIZES = ("hidden", "layers", "heads", "kv_heads", "head_dim", "mla", "ffn", "glu", "experts")
VOCABULARY = ("vocab", "padded_vocab", "tied", "head")
ATTENTION = ("mask", "window", "window_layers", "chunk", "pattern", "qk_norm", "sinks")
VECTORS = ("bias", "norm", "norms", "norms_per_block", "positions", "loose")
EXTRAS = ("image", "classes", "pooler", "transform")
STACK = (*SIZES, *VOCABULARY, *ATTENTION, *VECTORS, *EXTRAS)
KEYS = ("name", "source", "aliases", "params", *STACK, "mtp", "encoder", "cross", "conv", "linear")
MLA = ("q_rank", "kv_rank", "nope_dim", "rope_dim", "value_dim")
IMAGE = ("size", "patch", "channels", "class_token")
EXPERTS = (
    *("count", "topk", "width", "shared", "shared_gate", "latent", "capacity"),
    *("dense_layers", "layers"),
)
CONV = (
    *("name", "channels", "input", "kernel", "stride", "padding", "dilation", "output_padding"),
    *("groups", "transposed", "count", "bias", "norm", "stem"),
)
PER_DIMENSION = {"kernel": 1, "stride": 1, "padding": 0, "dilation": 1, "output_padding": 0}
"""Sizes of a convolution with one number per dimension, and their defaults."""
LINEAR = ("name", "inputs", "outputs", "bias")


def build(
    values: Mapping[str, object], where: str, names: Mapping[str, str] | None = None
) -> ModelCard:
    """Return the card of a table. Raises UsageError, which calls keys by `names` if given."""
    try:
        card = _card(TomlTable(values, where, KEYS, names))
        if card.params is not None and card.complete:
            counted, far = card.counted, TOO_FAR_APART
            # Neither count may be `far` times the other: counted / far < params < counted * far.
            blocks.require(
                counted < card.params * far < counted * far**2,
                f"params {card.params:,} contradicts the sizes, which give {counted:,} parameters",
                "remove params, or correct the sizes (params includes unused experts)",
            )
        return card
    except UsageError as error:
        if error.message.startswith(where):  # the message names the table already
            raise
        raise UsageError(f"{where}: {error.message}", error.hint) from None


def layers_of(table: TomlTable, key: str, default: int | None = None) -> int:
    """Return a number of layers from a table; too many are refused before anything is built."""
    layers = table.count(key, default)
    if layers > MOST_LAYERS:
        table.refuse(f"{layers} layers exceed the limit of {MOST_LAYERS}", HINT)
    return layers


def parse_toml(text: str, where: str) -> dict[str, object]:
    """Return the table of a TOML text; numbers such as 405e9 stay exact. Raises InputError."""
    try:
        return tomllib.loads(text, parse_float=Decimal)
    except (ValueError, ArithmeticError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200] or "an invalid number"
        raise InputError(f"{where}: invalid TOML: {reason}", "correct the file") from None


def _card(table: TomlTable) -> ModelCard:
    """Return the card; with `params`, the rest may be missing."""
    missing = _missing(table)
    if missing and "params" not in table:
        hint = f"add {', '.join(missing)}{'' if table.foreign else '; or give params alone'}"
        table.refuse(f"{table.called(missing[0])!r} is missing", hint)
    # Without head_dim, the heads must divide the hidden width.
    is_derived = not ("head_dim" in table or "mla" in table)
    if "heads" in table and "hidden" in table and is_derived:
        hidden, heads = table.count("hidden"), table.count("heads")
        if hidden % heads:
            problem = f"{heads} heads do not divide the hidden width {hidden}"
            table.refuse(problem, "set head_dim, or correct heads or hidden")
    padded, vocab = table.maybe("padded_vocab"), table.count("vocab", 0, least=0)
    if padded is not None and padded < vocab:
        table.refuse(f"padded_vocab {padded} is less than vocab {vocab}", "padding adds rows")
    encoder = table.table("encoder", ("name", *STACK))
    if encoder is not None:  # by default without a head, its attention full
        usual = {"mask": "full", "head": False, "name": "encoder"}
        encoder = TomlTable({**usual, **encoder.values}, encoder.where, KEYS)
    image = table.table("image", IMAGE)
    # A convolutional net has no tokens: each image counts as a sequence of one.
    seq = 1 if "conv" in table and "layers" not in table else None
    if image is not None:  # one token per patch, and the class token
        side, rest = divmod(image.count("size"), image.count("patch"))
        if rest:
            image.refuse("patches do not divide the image", "correct size or patch")
        seq = side**2 + image.flag("class_token", True)
    return table.part(
        ModelCard,
        name=table.text("name", "model"),
        hidden=table.maybe("hidden") or 0,
        padded_vocab=padded,
        blocks=_blocks(table),
        norm=table.choice("norm", NORM_VECTORS, "rms"),
        norms=table.count("norms", 1, least=0),
        head_bias="head" in _biases(table),
        extras=tuple(_extras(table)),
        encoder=_card(encoder) if encoder is not None else None,
        convs=_convs(table),
        missing=missing,
        seq=seq,
        notes=(),
    )


def _missing(table: TomlTable) -> tuple[str, ...]:
    """Return the keys that the table lacks for a full description of layers."""
    if "conv" in table and "layers" not in table:
        return ()
    needed = ["hidden", "layers", "heads", "glu"]
    if "experts" not in table or not all(_mixed(table)):
        needed.insert(needed.index("glu"), "ffn")
    if "image" not in table and table.flag("head", True):
        needed.append("vocab")
    return tuple(key for key in needed if key not in table)


def _biases(table: TomlTable) -> tuple[str, ...]:
    """Return what has biases: a list of words, or all or nothing for true and false."""
    if isinstance(table.values.get("bias"), list):
        return table.words("bias", BIASES)
    return EVERY_BIAS if table.flag("bias", False) else ()


# Layers


def _blocks(table: TomlTable) -> tuple[tuple[int, Block], ...]:
    """Return (how many, block) in order, equal neighbours together; empty if not described."""
    if not ("layers" in table and "heads" in table):
        return ()
    stack = []
    for (mask, has_experts), run in groupby(zip(_masks(table), _mixed(table), strict=True)):
        # If keys are missing (see `_missing`), the block has no network.
        network: FeedForward | Experts | None = None
        if not has_experts and "ffn" in table and "glu" in table:
            bias = "ffn" in _biases(table)
            network = FeedForward(width=table.count("ffn"), glu=table.flag("glu"), bias=bias)
        cross, attention = _cross(table), _attention(table, mask)
        experts = table.table("experts", EXPERTS) if has_experts else None
        if experts is not None and "glu" in table:
            glu, bias = table.flag("glu"), "ffn" in _biases(table)
            router_bias = "router" in _biases(table)
            network = experts.part(Experts, glu=glu, bias=bias, router_bias=router_bias)
        norms = table.count("norms_per_block", 3 if cross else 2, least=0)
        block = Block(attention=attention, cross=cross, feed_forward=network, norms=norms)
        stack.append((len(list(run)), block))
    return tuple(stack)


def _masks(table: TomlTable) -> tuple[Mask, ...]:
    """Return the mask of every layer: by a pattern, else narrow ones (window, chunk) first.

    `window_layers` is the number of layers with a window, by default all. A chunk is in all.
    """
    layers = layers_of(table, "layers", 0)
    default = Mask(cast("blocks.MaskKind", table.choice("mask", ("causal", "full"), "causal")))
    kinds: tuple[blocks.MaskKind, ...] = ("window", "chunk")
    sizes = ((kind, table.maybe(kind)) for kind in kinds)
    by_kind: dict[str, Mask] = {kind: Mask(kind, size) for kind, size in sizes if size}
    if "pattern" in table:
        words = table.words("pattern", MASKS) or ("causal",)
        if len(words) > layers:
            problem = f"'pattern' has masks for {len(words)} layers, but there are {layers}"
            table.refuse(problem, "give one mask per layer, or fewer to repeat")
        for key in ("mask", "window_layers"):  # a pattern replaces both
            if key in table:
                table.refuse(f"'pattern' and {key!r} exclude each other", "remove one of them")
        for key in kinds:
            if key in table and key not in words:
                table.refuse(f"{key!r} is set, but no layer of the pattern uses it", HINT)
        masks = {"causal": Mask(), "full": Mask("full"), **by_kind}
        named = islice(cycle(words), layers)
        return tuple(masks[word] if word in masks else table.lacks(word) for word in named)
    if len(by_kind) > 1:
        hint = "set the mask of each layer in pattern"
        table.refuse("'window' and 'chunk' exclude each other", hint)
    if "window" not in table and "window_layers" in table:
        table.refuse("'window_layers' needs window", "add window, or remove window_layers")
    narrow = next(iter(by_kind.values()), None)
    count = table.count("window_layers", layers, least=0) if narrow else 0
    if count > layers:
        table.refuse(f"window_layers {count} exceeds layers {layers}", HINT)
    return (narrow or default,) * count + (default,) * (layers - count)


def _mixed(table: TomlTable) -> tuple[bool, ...]:
    """Return, per layer, whether it has experts: if listed, else if after the dense ones."""
    experts, layers = table.table("experts", EXPERTS), layers_of(table, "layers", 0)
    if experts is None:
        return (False,) * layers
    if "layers" in experts and "dense_layers" in experts:
        experts.refuse("'layers' and 'dense_layers' exclude each other", "remove one of them")
    dense, listed = experts.count("dense_layers", 0, least=0), experts.numbers("layers")
    # If the number of layers is missing (0), another check refuses that.
    if max(max(listed or (0,)) + 1, dense) > layers > 0:
        experts.refuse(f"it names layers beyond the {layers} that exist", HINT)
    with_experts = frozenset(range(dense, layers) if listed is None else listed)
    return tuple(layer in with_experts for layer in range(layers))


# The parts of a block


def _attention(table: TomlTable, mask: Mask) -> Attention | blocks.LatentAttention:
    """Return the attention of a block; by default, the heads divide the hidden width."""
    heads, biases = table.count("heads"), _biases(table)
    if (mla := table.table("mla", MLA)) is not None:
        return mla.part(blocks.LatentAttention, heads=heads, mask=mask, bias="qkv" in biases)
    usual = table.count("hidden") // heads if "hidden" in table else None
    head_dim = table.count("head_dim", usual)
    return Attention(
        heads=heads,
        kv_heads=table.count("kv_heads", heads),
        head_dim=head_dim,
        mask=mask,
        qkv_bias="qkv" in biases,
        out_bias="out" in biases,
        vectors=2 * head_dim * table.flag("qk_norm", False) + heads * table.flag("sinks", False),
    )


# Around the blocks


def _cross(table: TomlTable) -> Attention | None:
    """Return the attention to the encoder, equal in all blocks; None without one."""
    if not table.flag("cross", "encoder" in table):
        return None
    if "encoder" not in table:
        table.refuse("'cross' needs an encoder", "add a table [encoder], or remove cross")
    own = _attention(table, Mask("full"))
    if isinstance(own, blocks.LatentAttention):
        table.refuse("cross-attention with mla is not supported", HINT)
    return replace(own, vectors=0, cross=True)  # without norms of heads and sinks


def _extras(table: TomlTable) -> Iterator[Linear]:
    """Yield the matrices outside the blocks: patches, transform, pooler, classifier."""
    hidden = table.maybe("hidden") or 0
    if (image := table.table("image", IMAGE)) is not None:
        inputs = image.count("channels", 3) * image.count("patch") ** 2
        # With a class token, there is one token more than patches.
        reads: blocks.Reads = "patch" if image.flag("class_token", True) else "token"
        yield Linear("patch", inputs, hidden, "patch", bias=True, reads=reads)
    if table.flag("transform", False):
        yield Linear("transform", hidden, hidden, "head", bias=True)
    if table.flag("pooler", False):
        yield Linear("pooler", hidden, hidden, "head", bias=True, reads="sequence")
    if (classes := table.maybe("classes")) is not None:
        yield Linear("classifier", hidden, classes, "head", bias=True, reads="sequence")
    for a_table in table.tables("linear", LINEAR):
        name, bias = a_table.text("name", "linear"), a_table.flag("bias", True)
        inputs, outputs = a_table.count("inputs"), a_table.count("outputs")
        yield Linear(name, inputs, outputs, "head", bias=bias, reads="sequence")


def _convs(table: TomlTable) -> tuple[Conv, ...]:
    """Return the convolutions; one without `input` reads the output of the one before it."""
    convs: list[Conv] = []
    for number, conv in enumerate(table.tables("conv", CONV), 1):
        size = conv.numbers("input") or (convs[-1].output if convs else None)
        if size is None:
            conv.lacks("input")
        channels, steps = conv.numbers("channels"), {}
        if channels is None or len(channels) != 2 or not all(channels):
            conv.refuse("'channels' must be a list of two: in and out", "example: [64, 128]")
        name, stem = conv.text("name", f"conv {number}"), conv.flag("stem", not convs)
        for key, default in PER_DIMENSION.items():
            numbers = conv.numbers(key) or (default,)
            if len(numbers) not in (1, len(size)):
                conv.refuse(f"{key!r} needs one number per dimension ({len(size)})", HINT)
            steps[key] = numbers * (len(size) // len(numbers))
        convs.append(conv.part(Conv, name=name, channels=channels, input=size, stem=stem, **steps))
    return tuple(convs)
