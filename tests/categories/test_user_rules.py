import os
import re
from pathlib import Path

import pytest

from traceflops.categories.classify import load
from traceflops.categories.rules import LARGEST_FILE, Category, Search
from traceflops.errors import UsageError

RULE = """
[[rule]]
id = "mine"
head = "ampere_sgemm"
top = "memory"
sub = "copy"
because = "I know better"
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def rule_with(**changes: str) -> str:
    """One good rule, with values given as TOML; an empty value leaves the key out."""
    values = {"id": '"x"', "head": '"x"', "top": '"memory"', "sub": '"copy"', "because": '"b"'}
    lines = [f"{key} = {value}" for key, value in {**values, **changes}.items() if value]
    return "[[rule]]\n" + "\n".join(lines)


def test_own_rules_come_first(tmp_path: Path) -> None:
    classifier = load(write(tmp_path, RULE))
    decision = classifier.kernel("ampere_sgemm_128x64_nt")
    assert decision.category == Category("memory", "copy")
    assert (decision.rule, decision.because) == ("mine", "I know better")
    assert (decision.looked_at, decision.source) == ("ampere_sgemm_128x64_nt", "mine.toml")
    assert classifier.kernel("volta_sgemm_128x64_nt").source == "built-in"


def test_a_kernel_whose_rule_is_known_goes_by_it_unless_own_rules_say_more(tmp_path: Path) -> None:
    rules = {"name1": "attention", "name1_gemm": "none", "name2": "no such rule"}
    known = load().knowing(rules)
    assert known.kernel("name1").category == Category("compute", "attention")
    assert load().kernel("name1_gemm").category == Category("compute", "gemm")
    assert known.kernel("name1_gemm").category == Category("other", "other")
    assert known.kernel("name2") == load().kernel("name2")
    own = load(write(tmp_path, rule_with(head='"name1"'))).knowing(rules)
    assert own.kernel("name1").category == Category("memory", "copy")


def test_all_conditions_must_hold(tmp_path: Path) -> None:
    text = rule_with(namespace='"mylib"', arguments='"Special"')
    classifier = load(write(tmp_path, text))
    decision = classifier.kernel("void mylib::x<Special, int>(int)")
    assert (decision.rule, decision.looked_at) == ("x", "special")
    assert classifier.kernel("void other::x<Special>()").rule == "none"
    assert classifier.kernel("void mylib::x<Other>()").rule == "none"


@pytest.mark.parametrize("pattern", ["MyKernel", "mykernel", "my_kernel", "MYKERNEL"])
def test_case_is_ignored_and_both_spellings_are_found(tmp_path: Path, pattern: str) -> None:
    classifier = load(write(tmp_path, rule_with(head=f'"{pattern}"')))
    assert classifier.kernel("void a::MyKernel<int>()").rule == "x"
    assert classifier.kernel("void a::MyKernels<int>()").rule == "none"


def test_case_can_be_respected(tmp_path: Path) -> None:
    classifier = load(write(tmp_path, rule_with(head='"MyKernel"', case="true")))
    assert classifier.kernel("MyKernel").rule == "x"
    assert classifier.kernel("mykernel").rule == "none"


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("head", "void a::xyz<b>(c)"),
        ("namespace", "void xyz::a<b>(c)"),
        ("arguments", "void a::b<xyz>(c)"),
        ("name", "void a::b<(xyz)1>(c)"),
    ],
)
def test_places(tmp_path: Path, place: str, name: str) -> None:
    classifier = load(write(tmp_path, rule_with(**{"head": "", place: '"xyz"'})))
    assert classifier.kernel(name).rule == "x"
    assert classifier.kernel("void a::b<d>(c)").rule == "none"
    assert classifier.op("xyz").rule == "none"


def test_operator_rule(tmp_path: Path) -> None:
    classifier = load(write(tmp_path, rule_with(head="", op="'^mylib::fft_conv'")))
    assert classifier.op("mylib::fft_conv").rule == "x"
    assert classifier.kernel("mylib::fft_conv").rule != "x"


def test_a_long_list_of_alternatives(tmp_path: Path) -> None:
    patterns = ", ".join(f"'fam{number}'" for number in range(500))
    classifier = load(write(tmp_path, rule_with(head=f"[{patterns}]")))
    assert classifier.kernel("fam499_kernel").rule == "x"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[rule]", "bad TOML"),
        ("a = " + "9" * 5000, "bad TOML"),
        ("a = " + "[" * 100_000, "bad TOML: nested too deeply"),
        ("", "it has no [[rule]] table"),
        ("rule = 1", "it has no [[rule]] table"),
        ("rule = [1]", "rule 1: a rule must be a table"),
        (RULE + "[more]\n", "unknown key 'more'"),
        (RULE + RULE, "two rules have the id 'mine'"),
        (rule_with(heads='"x"'), "rule 1: unknown key 'heads'"),
        (rule_with(id=""), "'id' is missing or not text"),
        (rule_with(top="1"), "'top' is missing or not text"),
        (rule_with(because=""), "'because' is missing or not text"),
        (rule_with(id='"Not An Id"'), "id 'Not An Id' must be a short word"),
        (rule_with(id='"none"'), "id 'none' is reserved"),
        (rule_with(because='"two\\nlines"'), "'because' must be one line"),
        (rule_with(top='"speed"'), "unknown top 'speed'; known: compute, memory"),
        (rule_with(sub='"gemm"'), "unknown sub 'gemm' under memory; known: copy"),
        (rule_with(case='"yes"'), "'case' must be true or false"),
        (rule_with(head=""), "it has no pattern"),
        (rule_with(op='"x"'), "'op' matches CPU operators and cannot be combined"),
        (rule_with(head="1"), "head must be a regular expression or a list of them"),
        (rule_with(head="[]"), "'head' is an empty list"),
        (rule_with(head="['x', 1]"), "head must be a regular expression or a list of them"),
        (rule_with(head="''"), "a pattern must have 1 to 1000 characters"),
        (rule_with(head="'(x'"), "bad regular expression"),
        (rule_with(head="'x)(y'"), "bad regular expression"),
        (rule_with(head="'[[x]'"), "bad regular expression"),
        (rule_with(head="'" + "(" * 900 + "'"), "bad regular expression"),
        (rule_with(head="'(a+)+'"), "a repeat (*, + or {}) may not follow a group"),
        (rule_with(head="'(a|a){2,}'"), "a repeat (*, + or {}) may not follow a group"),
        (rule_with(head="'x*y*z*'"), "more than 2 repeats"),
        (rule_with(head="'" + "a?" * 30 + "'"), "more than 8 optional parts"),
        (rule_with(head=r"'(a)\1'"), "back-references and named groups are not supported"),
        (rule_with(head="'(?P<x>a)'"), "back-references and named groups are not supported"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        load(path)
    assert "'mine.toml'" in caught.value.message
    assert caught.value.message.isprintable()
    assert "docs/categories.md" in caught.value.hint


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it does not exist"):
        load(tmp_path / "absent.toml")


def test_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it is not a file"):
        load(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_named_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="it is not a file"):
        load(tmp_path / "pipe")


def test_huge_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it is larger than 256 KiB"):
        load(write(tmp_path, "#" * (LARGEST_FILE + 1)))


def test_not_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b"id = \xff")
    with pytest.raises(UsageError, match="not UTF-8"):
        load(path)


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(UsageError, match="it cannot be read: Permission denied"):
        load(write(tmp_path, RULE))


def test_impossible_file_name() -> None:
    with pytest.raises(UsageError, match="'a\\\\x00b'"):
        load(Path("a\0b"))


def test_hostile_names_meet_the_worst_allowed_pattern(tmp_path: Path) -> None:
    text = rule_with(head="", arguments=r"'\w*a\w*z'", id='"worst"')
    classifier = load(write(tmp_path, text))
    assert classifier.kernel("k<" + "a" * 1_000_000 + ">").rule == "none"


@pytest.mark.parametrize(
    ("patterns", "text", "found"),
    [
        (("_?add_(a|b)x*", "bx+"), "my_add_b bxx", "_add_b"),
        (("[a-z0-9]*gemm[a-z0-9]*", "xgemm"), "xgemm", "\nxgemm"),  # first what begins at a word
        (("b{0,3}c|d", "e?f"), "a d f", " d"),
        (("(?:Add|Mul)", "a\\.b"), "x a.b", " a.b"),
        (("(?i:SUM)", "mean"), "a sum", " sum"),
        (("[a-z0-9]*gemm", "add"), "gem ad", None),
        ((r"a\x5fbcd", "[0-9]{2}k"), "x_a_bcd 16k", "_a_bcd"),
        ((r"a\x5fbcd", "[0-9]{2}k"), "x_16k", "_16k"),
    ],
)
def test_what_is_found_does_not_depend_on_whether_all_patterns_are_compiled(
    patterns: tuple[str, ...], text: str, found: str | None
) -> None:
    search = Search(patterns)
    matches = [search(text) for _ in range(200)]  # from some search on with one expression
    assert [match and match.group() for match in matches] == [found] * 200
