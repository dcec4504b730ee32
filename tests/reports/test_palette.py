"""Colours are told apart by everyone, and text on them can be read."""

import itertools

import numpy as np
import numpy.typing as npt
import pytest

from traceflops.reports.view.palette import (
    CAUSE_LABELS,
    LINE_LOOKS,
    LOOKS,
    category_label,
    look,
    loss_label,
)
from traceflops.reports.view.utilisation import LABELS
from traceflops.timeline.records import COMPONENTS, IdleCauses

Array = npt.NDArray[np.float64]

# Machado, Oliveira, Fernandes (2009), severity 1.0, on linear sRGB.
VISION = {
    "normal": np.eye(3),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
TO_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
WHITE = np.array([0.95047, 1.0, 1.08883])


def linear(colour: str) -> Array:
    parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(rgb: Array) -> Array:
    xyz = TO_XYZ @ rgb / WHITE
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz * (29 / 6) ** 2 / 3 + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def least_distance(vision: str) -> float:
    seen = [lab(np.clip(VISION[vision] @ linear(each.colour), 0, 1)) for each in LOOKS.values()]
    return min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(seen, 2))


def contrast(one: str, other: str) -> float:
    bright = sorted(float(TO_XYZ[1] @ linear(colour)) for colour in (one, other))
    return (bright[1] + 0.05) / (bright[0] + 0.05)


@pytest.mark.parametrize(
    ("vision", "stated"),
    [("normal", 35.1), ("deuteranopia", 25.6), ("protanopia", 25.5), ("tritanopia", 29.3)],
)
def test_any_two_colours_are_as_far_apart_as_the_docstring_says(vision: str, stated: float) -> None:
    assert least_distance(vision) == pytest.approx(stated, abs=0.05)
    assert least_distance(vision) >= 25


def test_ink_can_be_read_on_its_colour() -> None:
    least = min(contrast(each.ink, each.colour) for each in LOOKS.values())
    assert least >= 4.5
    assert least == pytest.approx(5.3, abs=0.05)


def test_what_is_pale_on_white_has_an_outline_that_is_not() -> None:
    for each in LOOKS.values():
        if contrast(each.colour, "#ffffff") < 3:
            assert each.outline is not None
            assert contrast(each.outline, "#ffffff") >= 4.5


def test_every_component_and_cause_has_its_own_look() -> None:
    assert tuple(LOOKS) == COMPONENTS
    assert tuple(CAUSE_LABELS) == tuple(IdleCauses().detailed())
    for attribute in ("colour", "ascii", "block", "pattern", "label"):
        assert len({getattr(each, attribute) for each in LOOKS.values()}) == len(COMPONENTS)


@pytest.mark.parametrize("attribute", ["ascii", "block"])
def test_every_part_of_a_bar_has_its_own_texture(attribute: str) -> None:
    assert set(LINE_LOOKS) == set(LABELS) | set(COMPONENTS) | {"culprit"}
    textures = [getattr(LINE_LOOKS[name], attribute) for name in LABELS]
    assert len(set(textures)) == len(LABELS)


def test_every_line_of_a_waterfall_differs_on_the_page() -> None:
    drawn = [(LINE_LOOKS[name].colour, LINE_LOOKS[name].pattern) for name in LABELS]
    assert len(set(drawn)) == len(LABELS)


def test_textures_are_single_characters() -> None:
    for each in LINE_LOOKS.values():
        assert len(each.ascii) == 1
        assert each.ascii.isascii()
        assert len(each.block) == 1


def test_labels() -> None:
    assert category_label("communication") == "communication"
    assert category_label("compute") == "compute"
    assert loss_label("communication") == "exposed communication"
    assert loss_label("host_late") == "idle, GPU waiting for CPU"
    assert loss_label("something new") == "something new"
    assert look("something new") is LOOKS["other"]
