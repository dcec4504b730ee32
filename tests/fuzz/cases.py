"""One input after the other: which seed, what is done to it, how it is packed, which command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from tests.fuzz import damage, values
from tests.fuzz.doors import door
from tests.fuzz.packing import SUFFIXES, drawn_form, packed
from tests.fuzz.seeds import Seed

INPUT, OUTPUT = "INPUT", "OUTPUT"
"""In a command: the path of the input, and of the file or folder to write."""

COMMANDS: tuple[tuple[int, tuple[str, ...]], ...] = (
    (70, ("summary", INPUT, "--json")),
    (8, ("summary", INPUT)),
    (6, ("mfu", INPUT, "--json")),
    (2, ("mfu", INPUT)),
    (4, ("info", INPUT)),
    (4, ("info", INPUT, "--json")),
    (3, ("export", INPUT, "-o", OUTPUT)),
    (2, ("export", INPUT, "-o", OUTPUT, "--format", "csv")),
    (5, ("report", INPUT, "-o", f"{OUTPUT}.html")),
    (2, ("report", INPUT, "-o", f"{OUTPUT}.json")),
    (3, ("repro", INPUT, "-o", f"{OUTPUT}.py")),
    (3, ("query", INPUT, "select * from activities", "--format", "csv")),
    (2, ("summary", "-", "--json")),
)
"""The commands and how often each is drawn."""


@dataclass(frozen=True, slots=True)
class Order:
    """What to make: an input by number, without some of its mutations, or of given bytes.

    A number says everything: the same seeds, seed and number are the same input.
    """

    number: int
    without: frozenset[int] = frozenset()
    data: bytes | None = None
    alone: bool = False
    command: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """An input and the command it is given to.

    `files` are the files of the input; where there are several their folder is given. `steps` says
    what was done, a line each. `text` is what was packed, `mutations` how many were drawn.
    """

    number: int
    files: dict[str, bytes]
    command: tuple[str, ...]
    steps: tuple[str, ...]
    text: bytes
    mutations: int


@dataclass(slots=True)
class Maker:
    """Makes the inputs of one seed number."""

    seed: int
    seeds: Sequence[Seed]
    _of_text: tuple[damage.Mutation, ...] = field(init=False)

    def __post_init__(self) -> None:
        splice = damage.Splice(tuple(seed.text for seed in self.seeds))
        self._of_text = (*damage.PLAIN, splice, splice, *values.VALUES)

    def make(self, order: Order) -> Case:
        """Return the input of an order."""
        draw = Random(f"{self.seed}:{order.number}")
        seed = draw.choice(self.seeds)
        form = drawn_form(draw)
        of_text, of_pack = _amounts(draw, form)
        command = draw.choices([c for _, c in COMMANDS], [w for w, _ in COMMANDS])[0]
        beside = draw.choice(self.seeds) if draw.random() < 0.1 else None
        steps = [f"seed {seed.name}"]
        kinds = self._of_text if not seed.has_door or draw.random() < 0.2 else (door,)
        text = self._mutated(order, range(of_text), kinds, seed.text, steps)
        if order.data is not None:
            form, of_pack, text = "plain", 0, order.data
        data = packed(text, form)
        steps += [f"as {form}"] if form != "plain" else []
        amount = of_text + of_pack
        data = self._mutated(order, range(of_text, amount), damage.PLAIN, data, steps)
        files = {f"trace{SUFFIXES[form]}": data}
        if beside is not None and not order.alone and command[1] == INPUT:
            files["beside.json"] = beside.text
            steps.append(f"in a folder beside {beside.name}")
        return Case(order.number, files, order.command or command, tuple(steps), text, amount)

    def _mutated(
        self,
        order: Order,
        places: range,
        kinds: Sequence[damage.Mutation],
        data: bytes,
        steps: list[str],
    ) -> bytes:
        """Return the data after some mutations; each is drawn apart, so any can be left out."""
        for place in places:
            if place in order.without:
                continue
            draw = Random(f"{self.seed}:{order.number}:{place}")
            data, step = draw.choice(kinds)(draw, data)
            data = data[: damage.MOST_BYTES]
            steps.append(step)
        return data


def _amounts(draw: Random, form: str) -> tuple[int, int]:
    """Return how many mutations to make of the text and of the packed bytes; at least one."""
    of_text = draw.choice((1, 1, 2, 2, 3, 4, 6))
    if form == "plain" or draw.random() < 0.4:
        return of_text, 0
    return draw.choice((0, 0, 1)), draw.choice((1, 1, 2, 3))
