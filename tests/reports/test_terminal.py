"""The terminal report: it fits, it tells the truth, and names in it do nothing."""

import io

import pytest
from rich.console import Console

import traceflops as tf
from tests.conftest import SAMPLES
from tests.reports.factory import hostile, ranks, without_devices, without_steps
from traceflops.reports.palette import LOOKS
from traceflops.reports.terminal.summary import Style, render_terminal
from traceflops.results import COMPONENTS


def printed(analysis: tf.Analysis, style: Style) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=1000, highlight=False, color_system=None)
    for line in render_terminal(analysis, style):
        console.print(line)
    return stream.getvalue()


@pytest.mark.parametrize("width", [64, 80, 100, 200])
def test_every_line_fits(width: int) -> None:
    analysis = tf.analyze(tf.read(SAMPLES / "gpt_ddp_4rank"))
    for unicode in (True, False):
        lines = render_terminal(analysis, Style(width=width, unicode=unicode))
        assert max(line.cell_len for line in lines) <= width
    assert len(render_terminal(analysis)) <= 27


def test_the_bar_has_the_shares_of_the_components() -> None:
    analysis = tf.analyze(tf.read(SAMPLES / "gpt_1rank.json.gz"))
    lines = printed(analysis, Style(colour=False)).splitlines()
    bar = next(line for line in lines if line.startswith(2 * LOOKS["compute"].block))
    assert len(bar) == 100
    for name in COMPONENTS:
        share = analysis.components.share(name)
        assert share is not None
        assert abs(bar.count(LOOKS[name].block) - 100 * share) < 1


def test_ascii_is_ascii_and_keeps_the_textures_apart() -> None:
    text = printed(tf.analyze(tf.read(SAMPLES / "gpt_1rank.json.gz")), Style(unicode=False))
    assert text.isascii()
    assert len({look.ascii for look in LOOKS.values()}) == len(LOOKS)


def test_names_are_inert() -> None:
    text = printed(hostile(), Style())
    assert "\x1b" not in text
    assert all(char.isprintable() or char == "\n" for char in text)
    assert "\u202e" not in text


@pytest.mark.parametrize("analysis", [without_steps(), without_devices(), ranks(512)])
def test_odd_analyses_have_a_summary(analysis: tf.Analysis) -> None:
    lines = render_terminal(analysis)
    assert lines[0].plain.split() == analysis.verdict.sentence.split()
    assert len(lines) <= 40
