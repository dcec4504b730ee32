"""Packages that add to traceflops: those of the document, installed, and those that fail."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import ROOT, analysis_of_sample, some

SAMPLE = ROOT / "sample_traces" / "gpt_1rank.json.gz"
TINY = ROOT / "tests" / "fixtures" / "pytorch" / "q24_waits_are_not_work.json"
LOG = "ACME 1\n0 25000 gemm_kernel\n30000 10000 halo_exchange\n50000 9000 foo_softmax\n"
_MODULE = re.compile(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```$", re.M | re.S)


def modules() -> dict[str, str]:
    """Return the files of the example package, as the document has them."""
    return dict(_MODULE.findall((ROOT / "docs" / "extend.md").read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which pip installed the package of the document."""
    source, target = (tmp_path_factory.mktemp(name) for name in ("source", "target"))
    for name, text in modules().items():
        (source / name).write_text(text, encoding="utf-8")
    options = ("--no-index", "--no-deps", "--no-build-isolation", "--target", str(target))
    command = [sys.executable, "-m", "pip", "install", "-q", *options, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


def traceflops(site: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command with what is installed in a folder, too."""
    path = os.pathsep.join(map(str, (site, ROOT)))
    return subprocess.run(
        [sys.executable, "-m", "traceflops", *map(str, words)],
        env=os.environ | {"PYTHONPATH": path, "PYTHONIOENCODING": "utf-8", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


def printed(site: Path, *words: str | Path) -> str:
    done = traceflops(site, *words)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_examples_have_at_most_twenty_lines_besides_blank_ones() -> None:
    lengths = {name: sum(map(bool, text.splitlines())) for name, text in modules().items()}
    assert len(lengths) == 5
    assert max(lengths.values()) <= 20


def test_an_installed_format_is_read_and_its_records_are_judged(
    example: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.log").write_text(LOG)
    report = json.loads(printed(example, "summary", tmp_path / "a.log", "--json"))
    assert report["source"]["format"] == "acme-log"
    totals = {row["name"]: (row["sum_ns"], row["sub"]) for row in report["kernels"]}
    assert totals == {
        "gemm_kernel": (25_000, "gemm"),
        "halo_exchange": (10_000, "point_to_point"),
        "foo_softmax": (9_000, "softmax"),
    }
    (said,) = (note["text"] for note in report["notes"] if note["code"] == "package")
    assert said == (
        "From the package acme-traces: formats, category rules, devices, finding rules. "
        "Without it, the report may differ."
    )
    (found,) = (one for one in report["findings"] if one["rule"] == "small-kernels")
    assert found["title"] == "Many small kernels"
    assert [row["name"] for row in found["rows"]] == ["halo_exchange", "foo_softmax"]


def test_installed_rules_and_devices_are_in_the_tables(example: Path) -> None:
    decided = printed(example, "why", "halo_exchange")
    assert re.search(r"^rule +acme-halo$", decided, re.M)
    assert re.search(r"^source +package acme-traces$", decided, re.M)
    device = printed(example, "devices", "acme-x1")
    assert "bf16 1025.5, fp8 2051 TFLOP/s" in device
    assert "(package acme-traces)" in device
    assert "acme-traces adds formats, category rules" in printed(example, "--version")


def test_an_installed_device_gives_a_peak(example: Path) -> None:
    words = ("summary", SAMPLE, "--json", "--device", "Acme X1")
    mfu = json.loads(printed(example, *words))["utilisation"]["mfu"]
    known = analysis_of_sample(SAMPLE.name).measured.mfu  # of an H100
    assert mfu / known == pytest.approx(989.4 / 1025.5)


def test_with_redact_nothing_is_left_of_what_a_plug_in_says_but_its_package(
    example: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.log").write_text(LOG)
    text = printed(example, "summary", tmp_path / "a.log", "--json", "--redact")
    assert "acme-traces" in text
    for word in ("small-kernels", "small kernels", "acme.fuse", "acme-halo", "acme-x1"):
        assert word not in text
    assert "point_to_point" in text
    assert [one["rule"] for one in json.loads(text)["findings"]].count("installed-1") == 1


FORMAT = "from traceflops.parsers.shared.formats import Format\nthing = Format('x', {}, {})\n"
MODULES = modules()
ROW = MODULES["acme_devices.py"]
FAILING = {
    "format that is none": ("parsers", "thing = 3\n", "it gives int, not Format", 2),
    "module that is not there": ("parsers", "", "AttributeError: ", 2),
    "module that ends the program": ("devices", "raise SystemExit(0)\n", "SystemExit: 0", 2),
    "format that recognises nothing": (
        *("parsers", FORMAT.format("lambda head: 1 / 0", "None"), "ZeroDivisionError", 2),
    ),
    "format that cannot read": (
        *("parsers", FORMAT.format("lambda head: True", "lambda s, r: {}['x']"), "KeyError: 'x'"),
        3,
    ),
    "format that gives rubbish": (
        *("parsers", FORMAT.format("lambda head: True", "lambda s, r: ['x']"), "str, not Trace"),
        3,
    ),
    "format whose rows are of no process": (
        "parsers",
        MODULES["acme_log.py"]
        .replace('{"process": process,', '{"process": 7,')
        .replace('b"ACME 1\\n"', "b''")
        .replace("lines = ", "lines = ['1 2 kernel'] or ")
        .replace("ACME_LOG", "thing"),
        "ValueError: a number that cannot be",
        3,
    ),
    "rule that raises": ("findings", "def thing(case): raise OSError('no\\nfile')", "OSError", 2),
    "rule that gives nothing": ("findings", "def thing(case): pass", "not iterable", 2),
    "rule that gives rubbish": ("findings", "def thing(case): yield 3", "dataclass", 2),
    "candidate of rubbish": (
        "findings",
        "from traceflops.findings.finding import Candidate\n"
        "def thing(case): yield Candidate('a', 'b', 'c', 'much', 'yours', 'd', ())",
        "Expected `float`, got `str` - at `$.share`",
        2,
    ),
    "rules that are none": ("categories", "thing = 3\n", "neither TOML nor a Path, but int", 2),
    "rules of rubbish": ("categories", "thing = 'rule = 3'", "it has no [[rule]] table", 2),
    "rules that hang": (
        *("categories", 'thing = \'[[rule]]\\nid="a"\\nhead="(a+)+"\\n\'', "rule 1: ", 2),
    ),
    "file that is not there": (
        *("categories", "from pathlib import Path\nthing = Path('/no/file')", "not exist", 2),
    ),
    "devices of rubbish": ("devices", "thing = 'device = [3]'", "Expected `object`, got `int`", 2),
    "device without an id": (
        *("devices", ROW.replace('id = "acme-x1"', "").replace("DEVICES", "thing"), "`id`", 2),
    ),
    "device with a known id": (
        *("devices", ROW.replace("acme-x1", "h100-sxm").replace("DEVICES", "thing"), "taken", 2),
    ),
    "device of a sparse figure in another unit": (
        *(
            "devices",
            ROW.replace("1025.5", "1025.5e12").replace("DEVICES", "thing"),
            "too large",
            2,
        ),
    ),
    "device for every name": (
        *("devices", ROW.replace("'Acme X1'", "''").replace("DEVICES", "thing"), "every name", 2),
    ),
}


def failing(site: Path, group: str, code: str) -> Path:
    """Install a package with one plug-in as pip leaves it."""
    (site / "acme_bad.py").write_text(code)
    about = site / "acme_bad-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-bad\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[traceflops.{group}]\nmine = acme_bad:thing\n")
    return site


@pytest.mark.parametrize(
    ("group", "code", "said", "exit_code"), some(FAILING.values(), 8), ids=some(FAILING, 8)
)
def test_a_plug_in_that_fails_is_one_error_with_its_name(
    tmp_path: Path, group: str, code: str, said: str, exit_code: int
) -> None:
    code = code.replace("{}, {}", "None, None")
    asked = {"categories": ("why", "a"), "devices": ("devices",)}
    done = traceflops(failing(tmp_path, group, code), *asked.get(group, ("summary", TINY)))
    error, hint = done.stderr.splitlines()
    assert done.returncode == exit_code
    assert "'mine' of the package acme-bad" in error
    assert said in error
    assert hint == "hint: correct the package, or remove it: pip uninstall acme-bad"


def test_in_a_folder_a_format_that_fails_is_a_note(tmp_path: Path) -> None:
    folder, site = tmp_path / "run", tmp_path / "site"
    for made in (folder, site):
        made.mkdir()
    (folder / "a.log").write_text(LOG)
    (folder / "b.json").write_bytes(TINY.read_bytes())
    code = FORMAT.format("lambda head: head.startswith(b'ACME')", "lambda s, r: {}['x']")
    report = json.loads(printed(failing(site, "parsers", code), "summary", folder, "--json"))
    texts = [note["text"] for note in report["notes"]]
    assert any("1 file in the folder skipped" in text and "a.log" in text for text in texts)


def test_nothing_is_looked_up_for_help(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['traceflops', '--help']\n"
        "from traceflops.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert 'importlib.metadata' not in sys.modules"
    )
    words: Sequence[str] = [sys.executable, "-c", code]
    subprocess.run(words, check=True, capture_output=True, cwd=ROOT)
