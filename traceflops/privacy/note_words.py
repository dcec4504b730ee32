"""Words of our own sentences and of descriptions: those that a note may keep when it is redacted.

The words of libraries are not here again. That none is missing is tested: tests/privacy collects
the texts of notes from the source.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from traceflops.privacy.library_words import is_library_word, words_of

_SENTENCES: Final = """
above absent according account accum across added affected after again against agents agree ahead
alike allowed allows alone also although among amount amounts annotated another apart appear
application approximate architecture archive are argument arguments argv around aside asked assumed
author averages back backslashes became because been before began beginning begins behind belong
belongs below beside better between beyond body both bounded bracket break broke broken bug but
caches calendar called calling calls came can cannot captured carry case categories categorise
category cause causes certain changed character characters checked checksum chip chooses chosen
chrome claim clearly clocks closed closing code collected come comma command commas communicator
communicators compared components computed computes concrete content contradict control copied
correctly correlation cost could counted counterpart counters cover covers created creation cut
damage damaged database day days decimal decimals declared deduced depend depends derivative
describe describes description destination did dies differ different differently differs digits
direction directories directory disagree disk distinct docs document documents does domain download
dropped dur durations during earlier early either elements emit emptied empties ends enough entries
environment environments escape escaped est estimate estimated every everything exactly example
exceed exception exclude executed execution explains exported exporter exports expression extended
external fabric fact facts far fault faults fetch few fewer ff fields figure figures file files
finding findings
finished fit five flushed flushes folder folders follow form found four frames framework freeze
further gap gave gb gets ghz git give given gives gpus grbm guid gzip had hand happens hardware has
have header held here hfu hidden hide higher highest hold holds home how however html identical
identified idle ignored implausibly impossible inaccurate include included incomplete inconsistent
individual inferred infinity information initialise inside install installed instances instead
integer interrupts involved its itself job jobs journal jumped keeps kept kinds known knows labelled
lacks largest lasted lasts latest launched launchers lay least leave leaves ledger libraries lie
lies likely line lines linked links listed listing lists little lived locked lone longer longest
look looked looks losses lost machine machines made many marked markers marks masks match matches
may mbyte means meant meanwhile measured measurements merged message metric mfu microseconds middle
might migration million minor minute missing model modulo mops most mostly moved ms much
multiprocessors must mutually nanoseconds near nearby need needs neither nest never newer nic nine
nor note notes nothing nowhere numbered numbers nvidia obj object objects occur often old older once
opened opengl openmp operating option original os others otherwise outside over overlapping overlaps
own package packet pages paired parent parented parsers parts passed passes passive paths pause
paused percent percentage perf perfetto pickle pid pieces pipelines place placeholders places plugin
pmc possible possibly pragma prediction prefixed preset presets previous printed prints processes
products prof profiled profiles program projected pushpop puts queued queueing quote quotes ran
rates raw re read readable reading reads recomputation recording redact releases remain remains
removed renumbered repaired repeated repeatedly repeats repetition replaced replayed replays report
reported representative rerun resolution rest reuse reuses rocpd rolled room rootpage rounded rounds
rpd running runs said samples saves saving say says scheduling scr second section see seems seen
sees selected selects separate separated separately serializes served serving settings seven several
shares shm shortened shorter show shown shows sig signs similar six skipped so some somebody sound
spaces span spans spreadsheet spreadsheets stacks stand stands started stay stays stdin steady steps
still stopped stored streaming stretch successor such summaries summed sums supports surrogates
switch syscall taken takes tell tells terminated text texts tflop th than that the their theirs them
there these they this those though thousand thousands threads
threshold tie tied ties timed timeline times
timestamp tmpdir together told too took total totals traced traceflops traces traffic trailing
transaction transactions treated truncate trusted try ts twice typeof ucx unaffected uncategorized
uncertain unchanged under understood unescaped unfinished unit unless unpacks unreadable unset
unsupported until used useful users uses using utf valid verified very via waited waits wal warm
warned warning warnings was waterfall wave ways web were what when whether which while whole whose
why wide will windows word words worked workgroup workitem works would writable writer writes
written wrong wrote xcc year years yet you zst zstd
"""

_DESCRIPTIONS: Final = """
adapter adapters attention cached capacity checkpointing documents embedding embeddings encoder
expert experts ffn forward frozen glu gpus head heads hidden intermediate key kv layer layers lora
moe mtp num padded params parameters rank real routed seq sequences shared sliding square sum
targets tie tied tok tokens top type vocab window words
"""
"""Words of the keys in which a trace describes its run (docs/selfdescribing.md)."""

_TERMS: Final = """
3.42E+14 U+FFFD wal_checkpoint(TRUNCATE) REPORT.nsys-rep SQ_INSTS_VALU_MFMA_MOPS_XF32
nvtx_pushpop_trace pmc_perf.csv sysinfo.csv traceflops.seqlens docs/selfdescribing.md
torch.autograd.profiler.emit_nvtx(record_shapes=True) torch/utils/checkpoint.py NaN
"""
"""Names in our own sentences that are no words."""


def is_term_of_notes(text: str) -> bool:
    """Return whether a text, signs at its ends apart, is a name that our own sentences have."""
    names = _split(_TERMS) | {"PRAGMA wal_checkpoint(TRUNCATE)"}
    return not names.isdisjoint((text.strip(".,;:'"), text.strip("().,;:'")))


def is_word_of_notes(text: str) -> bool:
    """Return whether a run of letters is a word of our own sentences, or of libraries."""
    return text.lower() in _split(_SENTENCES) or is_describing(text)


def is_describing(text: str) -> bool:
    """Return whether a run of letters is a word of the keys of descriptions, or of libraries."""
    of_libraries = is_library_word(text) or all(map(is_library_word, words_of(text)))
    return of_libraries or text.lower() in _split(_DESCRIPTIONS)


@cache
def _split(words: str) -> frozenset[str]:
    return frozenset(words.split())
