"""Words of our own sentences and of descriptions: those that a note may keep when it is redacted.

The words of librarywords are not here again. A word that is missing costs a note a word, no more.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from traceflops.sharing.librarywords import is_library_word, words_of

_SENTENCES: Final = """
above absent account accum added affected after again agents agree ahead allowed alone also among
another apart application archive are argument arguments argv around aside asked author back
backslashes became because been before began beginning begins behind belong belongs below beside
better between beyond body both bracket broke broken bug but caches calendar called calling calls
came can cannot carry case categories categorise category cause causes certain changed characters
checked checksum chip chosen chrome clocks closed closing code collected comma command commas
communicator communicators compared components computed concrete control copied correctly
correlation cost could counted counters created cublas cusolver cut damage damaged database day days
decimal decimals declared deduced depends describe description destination did dies differ different
differently differs digits direction directories directory disagree disk distinct do docs document
documents does domain download dropped dur durations earlier early elements emit emptied ends enough
environment environments escape escaped est estimated every everything exactly exception exclude
executed execution exporter exports expression external fact facts faults fetch few ff fields figure
figures file files finished five flops folder follow found four frames framework further gave gb
gets git give given gpus guid gzip had hand happens hardware has have header here hidden highest
hold holds home how however html idle impossible inaccurate include included incomplete inferred
information initialise install installed instances instead integer interrupts its itself job jobs
journal jumped keeps kept kinds known knows lacks largest lasted lasts launched lay least leave
leaves libraries lie lies likely line lines linked links list listed listing lists little lived
locked longer longest look looked looks losses lost machine machines made many marked markers marks
match matches may means meant meanwhile measured merged message metric mfu microseconds middle might
migration million minor minute missing model modulo mops most mostly moved ms much multiprocessors
must named names nan nanoseconds near needs neither never newer nic nine none note notes nothing
numbered numbers nvidia obj object objects old once opened opengl openmp operating option other
others outside over overlapping overlaps own package packet pages parent parented parsers parts
passed passes passive paths pause paused percent percentage perf perfetto pickle pid place
placeholders places plugin pmc possible possibly pragma preset presets printed prints processes
products prof profiled profiles program projected pushpop puts pytorch queued quote quotes ran rates
raw re read reading recording redact releases repaired repeated repeatedly repeats repetition
replaced report rest rocm rocpd room rootpage rounded rounds rpd running runs samples saves say says
scheduling scr second section see seems seen sees settings seven several share shares shm shortened
shorter show shown shows sig six so some sound spaces span spans spreadsheet sqlite stacks stand
stands started stdin steady steps still stopped stored streaming stretch successor such sums
surrogates switch taken tells ten tensorrt terminated text texts than that the their theirs them
there these they this those thousand thousands threads tie tied ties timed timeline times timestamp
together told too total totals traced traceflops traces trailing transaction transactions truncate
trusted try twice typeof ucx under understood unfinished unit unless unpacks until used users uses
using utf very via waited warm warned warning warnings was wave wavefront ways web were what when
whether which while whole whose why wide will windows word words worked workgroup workitem works
would writable writer writes written wrong wrote xcc year years yet you zst zstd
"""

_DESCRIPTIONS: Final = """
adapter adapters attention cached capacity checkpointing documents embedding embeddings encoder
expert experts ffn forward frozen glu gpus head heads hidden intermediate key kv layer layers lora
moe mtp num padded params parameters rank real routed seq sequences shared sliding square sum
targets tie tied tok tokens top type vocab window words
"""
"""Words of the keys in which a trace describes its run (docs/selfdescribing.md)."""


def is_word_of_notes(text: str) -> bool:
    """Return whether a run of letters is a word of our own sentences, or of libraries."""
    return text.lower() in _note_words() or all(map(is_library_word, words_of(text)))


def is_describing(text: str) -> bool:
    """Return whether a run of letters is a word of the keys of descriptions."""
    return text.lower() in _describing_words() or all(map(is_library_word, words_of(text)))


@cache
def _note_words() -> frozenset[str]:
    return frozenset(_SENTENCES.split())


@cache
def _describing_words() -> frozenset[str]:
    return frozenset(_DESCRIPTIONS.split())
