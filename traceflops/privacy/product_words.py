"""Names of products of devices with nothing in them that no product has.

What a recording gives as the product of a device may be any text: of virtual machines it often is.
The words of the device table stay, since rates are found by them, and those of makers.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from traceflops.devices.peaks import generic_names, load_devices, load_variants, shared_names
from traceflops.privacy.placeholders import Placeholders

LEFT_OUT: Final = "…"
"""Stands for a word that is no product's."""

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
_WORD: Final = re.compile(r"[A-Za-z0-9]+")
_ESCAPE: Final = re.compile(r"\\[A-Za-z]")


def product(shown: Placeholders, text: str) -> str:
    """Return the name of a product without what is in no product's name."""
    parts = _PART.findall(text)
    known = [part for part in parts if is_of_products(part)]
    if len(known) == len(parts):
        return text
    if not any(part.isalpha() or part.lower() in _words() for part in known):
        return shown.whole("product", text)
    shown.count("product", text)
    return _PART.sub(lambda one: one[0] if is_of_products(one[0]) else LEFT_OUT, text)


def is_of_products(word: str) -> bool:
    """Return whether a word is one of products: a name, an amount of memory, a slice."""
    return word.lower() in _words() or _AMOUNT.fullmatch(word) is not None


@cache
def _words() -> frozenset[str]:
    """Return the words of which names of products are made, in lower case."""
    texts = [f"{one.id} {one.product} {one.pattern}" for one in load_devices()]
    texts += [f"{one.pattern} {one.what}" for one in load_variants()]
    texts += [*generic_names(), *shared_names(), _MAKERS]
    plain = (_ESCAPE.sub(" ", text) for text in texts)
    return frozenset(word.lower() for text in plain for word in _WORD.findall(text))
