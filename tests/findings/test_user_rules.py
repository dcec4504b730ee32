"""Rules of users: thresholds, silence, rules of a file and installed ones, and what is refused."""

import re
from collections.abc import Iterator
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import traceflops as tf
from tests.build import launched, step_marks, trace_of
from tests.cli.test_commands import SAMPLE, assert_refused, run
from tests.conftest import ROOT
from traceflops.errors import UsageError
from traceflops.facts import fact
from traceflops.findings import user_rules
from traceflops.findings.case import Case
from traceflops.findings.finding import Candidate
from traceflops.findings.rules import all_rules, thresholds
from traceflops.reports.view.findings import title_sentence
from traceflops.table.trace import Trace

OWN = """
[[rule]]
id = "slow-softmax"
kernels = "SOFT.*max"
least_share = 0.25
title = "Softmax is slow"
sentence = "Softmax takes {share}."
remedy = "Fuse it."
owner = "library"
edits = ["kernel:softmax/2"]
"""


@cache
def recorded(gemms: str = "gemm") -> Trace:
    """Return steps of 1,000 ns, the last of which is not used: 600 gemm, 300 softmax, 100 idle.

    The GEMMs of several names take turns.
    """
    names = gemms.split()
    works, marks = [], []
    for step in range(4):
        at = 1_000 * (step + 1)
        gemm = names[step % len(names)]
        works += [(gemm, at - 500, at, 600), ("softmax", at - 450, at + 600, 300)]
        marks.append((f"ProfilerStep#{step}", at - 510, 100))
    return trace_of(**launched(*works), marks=step_marks(*marks))


def found(tmp_path: Path, text: str) -> tf.Analysis:
    rules = tmp_path / "mine.toml"
    rules.write_text(text)
    return tf.analyze(recorded(), finding_rules=rules)


def rules_of(analysis: tf.Analysis) -> list[str]:
    return [one.rule for one in analysis.findings]


def test_a_rule_of_a_file_has_its_words_its_rows_and_a_gain(tmp_path: Path) -> None:
    """Half of 300 ns of 1,000 is gained where nothing else holds the GPU up."""
    analysis = found(tmp_path, OWN)
    (mine,) = (one for one in analysis.findings if one.rule == "slow-softmax")
    assert (mine.title, mine.sentence, mine.remedy, mine.owner) == (
        "Softmax is slow",
        "Softmax takes 30.0 %.",
        "Fuse it.",
        "library",
    )
    assert [(row.name, row.time_ns, row.count) for row in mine.rows] == [("softmax", 900, 3)]
    assert mine.share == 0.3
    assert mine.gain is not None
    assert 0 <= mine.gain.low_ns <= mine.gain.high_ns <= 150
    assert analysis.notes[-1].text == "Findings by rules of a file: 1 rule added."


@pytest.mark.parametrize(("least", "is_found"), [(0.60, True), (0.61, False)])
def test_thresholds_hold_where_the_time_is_judged(
    least: float, is_found: bool, tmp_path: Path
) -> None:
    """Of 1,000 ns the GEMM takes 600."""
    analysis = found(tmp_path, f"[main-kernel]\nleast_share = {least}")
    assert ("main-kernel" in {one.rule for one in analysis.losses}) == is_found
    assert ("main-kernel" in rules_of(analysis)) == is_found


@pytest.mark.parametrize(("most_ns", "is_little"), [(20_000, True), (9_999, False)])
def test_how_much_work_is_little_is_the_users(
    most_ns: int, is_little: bool, tmp_path: Path
) -> None:
    """The GPU is busy for 10,000 ns behind an allocation of 300 ms."""
    works = launched(("saxpy", 299_990_000, 300_000_000, 10_000))
    works["calls"].append({"name": "cudaMalloc", "start_ns": 0, "dur_ns": 299_000_000})
    rules = tmp_path / "mine.toml"
    rules.write_text(f"[little-work]\nmost_busy_ns = {most_ns}")
    analysis = tf.analyze(trace_of(**works), finding_rules=rules)
    assert ("The recording holds 10.0 µs of GPU work" in analysis.verdict.sentence) == is_little
    assert not (is_little and analysis.losses)


def test_redaction_leaves_out_the_words_of_a_file(tmp_path: Path) -> None:
    rules = tmp_path / "mine.toml"
    rules.write_text(OWN.replace("SOFT.*max", "."))
    analysis = tf.analyze(recorded(), finding_rules=rules, redact=True)
    (mine,) = (one for one in analysis.findings if one.rule == "own-1")
    assert (mine.title, mine.remedy) == ("Rule 1 of a file of rules", "See the file of rules.")
    assert "slow-softmax" not in analysis.to_json()
    assert "Softmax" not in analysis.to_json()
    printed = run("summary", SAMPLE, "--redact", "--json", "--finding-rules", rules).stdout
    assert "own-1" in printed
    assert "slow-softmax" not in printed


def test_a_rule_of_a_file_is_silent_below_its_share(tmp_path: Path) -> None:
    assert "slow-softmax" not in rules_of(found(tmp_path, OWN.replace("0.25", "0.31")))


def test_thresholds_are_those_of_the_user(tmp_path: Path) -> None:
    """10 % are idle: healthy by the house, not if 5 % were the most."""
    trace, rules = recorded("a_gemm b_gemm c_gemm"), tmp_path / "mine.toml"
    rules.write_text("[nothing-stands-out]\nmost_share = 0.05\n")
    usual, analysis = rules_of(tf.analyze(trace)), tf.analyze(trace, finding_rules=rules)
    assert "kernels-unjudged" in usual
    assert rules_of(analysis) == [one for one in usual if one != "kernels-unjudged"]
    assert analysis.notes[-1].text == "Findings by rules of a file: 1 threshold changed."


@pytest.mark.parametrize(
    "trace",
    [
        recorded(),
        trace_of(devices=[], ops=[{"name": "aten::relu", "dur_ns": 10}]),
        trace_of(devices=[], totals=[{"name": "k", "count": 9, "total_ns": 9 * 40_000}]),
        tf.read(SAMPLE),
    ],
)
def test_without_thresholds_nothing_is_found_where_nothing_is(trace: Trace, tmp_path: Path) -> None:
    rules = tmp_path / "none.toml"
    zeros = (
        [f"[{rule}]", *(f"{name} = 0" for name in some)] for rule, some in thresholds().items()
    )
    rules.write_text("\n".join(line for lines in zeros for line in lines))
    found = tf.analyze(trace, finding_rules=rules).findings
    assert all(one.share > 0 or one.rule == "trace-health" for one in found)
    assert not {"loss-softmax", "training-mode"} & {one.rule for one in found}


def test_thresholds_of_totals_are_those_of_the_user(tmp_path: Path) -> None:
    rules = tmp_path / "tiny.toml"
    rules.write_text("[tiny-kernels]\nleast_count = 10\n")
    totals = [{"name": "k", "count": 900, "total_ns": 900 * 4_000}]
    trace = trace_of(devices=[], totals=totals)
    assert "tiny-kernels" not in rules_of(tf.analyze(trace))
    assert "tiny-kernels" in rules_of(tf.analyze(trace, finding_rules=rules))


def test_how_sure_the_first_sentence_is_can_be_changed(tmp_path: Path) -> None:
    rules = tmp_path / "sure.toml"
    rules.write_text("[priority]\nleast_sure = 0.9\n")
    trace = tf.read(SAMPLE)
    usual, doubtful = (
        title_sentence(tf.analyze(trace, finding_rules=each)) for each in (None, rules)
    )
    first = (
        "The input pipeline is too slow: 702 µs of each 4.71 ms step can be saved in step "
        "(train.py:71)."
    )
    assert usual == f"{first} {doubtful}"


def test_silent_rules_say_nothing(tmp_path: Path) -> None:
    usual = rules_of(tf.analyze(recorded()))
    analysis = found(tmp_path, 'silent = ["loss-idle"]\n')
    assert "loss-idle" in usual
    assert rules_of(analysis) == [one for one in usual if one != "loss-idle"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('silent = ["launch-latncy"]', "no rule 'launch-latncy'; there is 'launch-latency'"),
        ('silent = ["nope"]', "no rule 'nope'; there is '"),
        ("silent = 3", "'silent' must be a list of texts"),
        ("[exposed]\nleast_share = 1", "unknown rule 'exposed'"),
        ("[exposed-communication]\nshare = 1", "[exposed-communication] has no 'share'"),
        ("[exposed-communication]\nleast_share = true", "must be a number"),
        ("x", "bad TOML"),
        ("rule = 1", "'rule' must be [[rule]] tables"),
        ("[[rule]]\nid = 'a'", "rule 1: 'kernels' must be one line"),
        (OWN + "colour = 1", "rule 1: unknown key 'colour'"),
        (OWN.replace("SOFT.*max", "(?=a)"), "bad regular expression"),
        (OWN.replace('"slow-softmax"', '"data-input"'), "and its own"),
        (OWN.replace("library", "mine"), "owner must be one of"),
        (OWN.replace("softmax/2", "softmax"), "rule 1: "),
        (OWN.replace("0.25", "'x'"), "least_share must be from 0 to 1"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_before_the_trace_is_read(
    text: str, says: str, tmp_path: Path
) -> None:
    rules = tmp_path / "mine.toml"
    rules.write_text(text)
    result = run("summary", tmp_path / "absent.json", "--finding-rules", rules)
    assert_refused(result, 2, "finding rules 'mine.toml': ", says, "docs/findings.md")


def test_the_command_line_takes_a_file(tmp_path: Path) -> None:
    rules = tmp_path / "mine.toml"
    rules.write_text('silent = ["data-input"]\n')
    result = run("summary", SAMPLE, "--json", "--only", "findings", "--finding-rules", rules)
    assert result.exit_code == 0
    assert '"data-input"' not in result.stdout
    assert '"eager-overhead"' in result.stdout or '"loss-idle"' in result.stdout


def installed(case: Case) -> Iterator[Candidate]:
    """Give a candidate for every recording."""
    title = f"{case.windows_used} windows"
    yield Candidate("mine", title, "Said.", 1.0, "yours", "Do it.", ("idle",))


def broken(case: Case) -> Iterator[Candidate]:
    """Fail."""
    raise KeyError("no key")


def install(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    point = EntryPoint("mine", f"{__name__}:{name}", "traceflops.findings")
    monkeypatch.setattr(user_rules, "plugins", lambda group: (point,))


def test_the_page_has_every_rule_with_its_limits_and_no_other() -> None:
    page = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    table = page.partition("<!-- table: rules -->")[2].partition("<!-- end -->")[0]
    rows = [row.split("|") for row in table.splitlines()[3:]]
    told = {found[1]: row for row in rows if (found := re.match(r" \[?`([a-z0-9-]+)`", row[1]))}
    assert told.keys() == all_rules().rules.keys()
    assert "most_mib=1" in told["small-collectives"][4]
    assert told["late-rank"][1:3] == [" [`late-rank`](#rule-late-rank) ", " Rank N is late "]


def test_installed_rules_are_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, "installed")
    assert "mine" not in rules_of(found(tmp_path, 'silent = ["mine"]'))
    (mine,) = (one for one in tf.analyze(recorded()).findings if one.rule == "mine")
    assert (mine.title, mine.gain) == ("3 windows", None)
    assert mine.confidence is not None
    assert fact("doubt.no-edit") in mine.confidence.reasons


def test_an_installed_rule_that_fails_is_an_error_with_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, "broken")
    with pytest.raises(UsageError, match=r"finding rule 'mine' of .* failed: KeyError") as caught:
        _ = tf.analyze(recorded()).findings
    assert "uninstall" in caught.value.hint
