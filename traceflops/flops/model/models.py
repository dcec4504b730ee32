"""Finding a model by name or file, and adjusting its card to what was run."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from traceflops.errors import InputError, UsageError
from traceflops.flops.model.blocks import Block, Experts
from traceflops.flops.model.card import ModelCard
from traceflops.flops.model.card_file import read_card
from traceflops.flops.model.presets import preset, preset_names

CARD_SUFFIXES = (".json", ".toml")
FOLDERS_CONFIG = "config.json"


def find_model(text: str) -> ModelCard:
    """Return the card of a preset, of a file, or of a folder with a config.json.

    What looks like a path is one; any other name is a preset's before it is a file's. Raises
    InputError for what cannot be read, is not known or is wrong.
    """
    try:
        return read_card(_config_in(Path(text))) if _is_path(text) else preset(text)
    except UsageError as error:
        raise InputError(error.message, error.hint) from None


def bare_model(params: int) -> ModelCard:
    """Return the card of a model of which only the number of parameters is known."""
    return ModelCard(name=f"model of {params:,} parameters", params=params)


def is_public(card: ModelCard) -> bool:
    """Return whether everybody may know a model's name: it is a preset's, or only a size."""
    sized = card.params is not None and card.name == bare_model(card.params).name
    return sized or any(card.name == other.name for _, other in listed_models())


def with_mtp(card: ModelCard, modules: int) -> ModelCard:
    """Return the card with so many multi-token-prediction modules. Raises UsageError."""
    notes = tuple(note for note in card.notes if "multi-token-prediction" not in note)
    return replace(card, mtp=modules, notes=notes)


def with_padded_vocab(card: ModelCard, rows: int) -> ModelCard:
    """Return the card with so many rows in its output head. Raises UsageError."""
    if not card.vocab or not card.head:
        raise UsageError(f"the vocabulary of {card.name} is unknown", "describe it with --model")
    if rows < card.vocab:
        raise UsageError(
            f"padded vocabulary {rows} is less than the {card.vocab} of {card.name}",
            "padding adds rows: give the total",
        )
    return replace(card, padded_vocab=rows)


def with_capacity(card: ModelCard, capacity: Fraction) -> ModelCard:
    """Return the card with so many expert rows computed per row needed. Raises UsageError."""
    if not any(isinstance(block.feed_forward, Experts) for _, block in card.blocks):
        raise UsageError(f"{card.name} has no experts", "remove --expert-capacity")
    blocks = tuple((count, _roomier(block, capacity)) for count, block in card.blocks)
    return replace(card, blocks=blocks)


def _roomier(block: Block, capacity: Fraction) -> Block:
    if not isinstance(block.feed_forward, Experts):
        return block
    return replace(block, feed_forward=replace(block.feed_forward, capacity=capacity))


def _is_path(text: str) -> bool:
    path = Path(text)
    if not text:
        return False
    if path.suffix.lower() in CARD_SUFFIXES or path.is_absolute() or text.startswith((".", "~")):
        return True
    return _exists(path) and (len(path.parts) > 1 or not _is_preset(text))


def _is_preset(text: str) -> bool:
    try:
        preset(text)
    except UsageError:
        return False
    return True


def _config_in(path: Path) -> Path:
    """Return the config.json of a folder that has one, else the path itself."""
    inside = path / FOLDERS_CONFIG
    return inside if _exists(inside) else path


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that no file can have
        return False


def listed_models() -> tuple[tuple[str, ModelCard], ...]:
    """Return all presets as (id, card), in the order of the table."""
    return tuple((name, preset(name)) for name in preset_names())
