"""`--redact` on traces that have random secrets in every text: none is in any output."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import traceflops as tf
from tests.conftest import examples, some
from tests.privacy.secrets_in_traces import document_of_secrets, trace_of_secrets, write
from traceflops.cli import app
from traceflops.privacy.placeholders import Placeholders
from traceflops.privacy.redact import Redaction
from traceflops.privacy.redact_policies import policies, product
from traceflops.table.packed import PAGE_PACK
from traceflops.table.schema import TABLES
from traceflops.table.trace import Trace

PACKED = re.compile(r'<script type="application/octet-stream" id="([^"]*)">([^<]*)</script>')


def texts_of(trace: Trace) -> str:
    """Return all texts of a trace, those of no row included."""
    shown = [repr(trace.source), repr(trace.notes), repr(trace.places)]
    for name, table in trace.tables.items():
        for column in table.column_names:
            chunks = table[column].chunks
            shown += [repr(c.dictionary.to_pylist()) for c in chunks if hasattr(c, "dictionary")]
            shown.append(f"{name}.{column}: {table[column].to_pylist()}")
    return "\n".join(shown)


def assert_silent(where: str, text: str, secrets: list[str]) -> None:
    low = text.lower()
    found = [
        (one, low[max(low.find(one.lower()) - 80, 0) :][:160])
        for one in secrets
        if one.lower() in low
    ]
    assert not found, f"{where}: {found[:3]}"


@settings(max_examples=examples(25))
@given(st.integers(0, 2**32))
@example(0)
def test_no_text_of_a_trace_is_left(seed: int) -> None:
    trace, secrets = trace_of_secrets(seed)
    assert_silent("itself", "", [])
    assert all(one in texts_of(trace) for one in secrets.given), "the trace has them all"
    assert_silent("trace", texts_of(Redaction(Placeholders()).trace(trace)), secrets.given)


def test_every_column_of_texts_has_a_policy() -> None:
    declared = {
        (name, column.name)
        for name, columns in TABLES.items()
        for column in columns
        if pa.types.is_dictionary(column.type) or pa.types.is_string(column.type)
    }
    assert declared <= set(policies(Placeholders(), None))


def unpacked(name: str, content: bytes) -> Iterator[tuple[str, str]]:
    """Give what is in a file as texts: members of archives, packed data and tables, too."""
    if name.endswith(".gz"):
        content = gzip.decompress(content)
    if name.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            yield name, archive.comment.decode()
            for member in archive.infolist():
                yield name, member.filename
                yield from unpacked(f"{name}/{member.filename}", archive.read(member))
        return
    if name.endswith((".tfpack", PAGE_PACK)):
        with NamedTemporaryFile(suffix=".tfpack") as file:
            file.write(content)
            file.flush()
            yield name, texts_of(tf.read(file.name))
        return
    if name.endswith(".parquet"):
        yield name, str(pq.read_table(io.BytesIO(content)).to_pydict())
    text = content.decode("utf-8", errors="replace")
    if name.endswith(".html"):
        for id_, packed in PACKED.findall(text):
            raw = gzip.decompress(base64.b64decode(packed))
            yield from unpacked(f"{name}#{id_}", raw)
        text = PACKED.sub("", text)
    yield name, text
    if name.endswith((".html", ".json")):
        yield name, re.sub(r"\\u([0-9a-f]{4})", lambda one: chr(int(one[1], 16)), text)


@pytest.mark.parametrize("seed", some([1, 2], 2))
def test_no_text_is_in_any_output(tmp_path: Path, seed: int) -> None:
    document, secrets = document_of_secrets(seed)
    folder = tmp_path / "out"
    folder.mkdir()
    path = tmp_path / f"{secrets.word()}.json"
    write(path, document)
    outputs = ["o.html", "o.json", "o.md", "o.zip"]
    commands = [["summary"], ["summary", "--json"], ["info"], ["info", "--json"], ["mfu"]]
    commands += [["report", "-o", str(folder / name)] for name in outputs]
    commands += [
        ["report", "--format", each, "-o", f"{folder}/r{each}/"] for each in ("csv", "parquet")
    ]
    commands += [
        ["export", "--format", each, "-o", f"{folder}/t{each}"] for each in ("csv", "arrow")
    ]
    commands += [["perfetto", "-o", str(folder / name)] for name in ("p.json", "p.json.gz")]
    commands += [["pack", "-o", str(folder / "p.tfpack")]]
    for words in commands:
        result = CliRunner().invoke(app, [words[0], str(path), *words[1:], "--redact"])
        assert result.exit_code == 0 or words == ["mfu"], result.output
        assert_silent(" ".join(words), result.output.replace(str(tmp_path), ""), secrets.given)
    files = [one for one in folder.rglob("*") if one.is_file()]
    assert len(files) > 20
    for file in files:
        for where, text in unpacked(file.name, file.read_bytes()):
            assert_silent(where, text, secrets.given)


def test_the_secrets_are_seen_without_it(tmp_path: Path) -> None:
    document, secrets = document_of_secrets(3)
    path, page = tmp_path / "x.json", tmp_path / "o.html"
    write(path, document)
    assert CliRunner().invoke(app, ["report", str(path), "-o", str(page), "-q"]).exit_code == 0
    shown = "".join(text for _, text in unpacked(page.name, page.read_bytes()))
    assert sum(one in shown for one in secrets.given) > 20, "so the test would find them"


@pytest.mark.parametrize(
    ("name", "redacted"),
    [
        ("o3_kernel", "name1_kernel"),
        ("R1_671B_gemm", "name1_name2_gemm"),
        ("llama70b gemm", "name1 gemm"),
        ("ab_kernel", "name1_kernel"),
        ("10.1.2.3", "name1"),
        ("gemm 10.0.0.7:29500", "gemm name1"),
        ("fe80::1ff:fe23:4567:890a", "name1"),
        ("[::1]:8080 copy", "name1 copy"),
        ("gemm for node@all.com", "gemm for name1"),
        ("gpu-node-17", "name1"),
        ("node.gpu.cuda", "name1"),
        ("s3://data/kernel", "name1"),
        ("kernel_123456789", "kernel_name1"),
        ("gemm<4294967295u, 128>", "gemm<4294967295u, 128>"),
        ("at::native::add<c10::BFloat16, 4>", "at::native::add<c10::BFloat16, 4>"),
        ("sm90_xmma_gemm_e4m3bf16_128x256x64", "sm90_xmma_gemm_e4m3bf16_128x256x64"),
        ("void k<-1>(int)", "void k<-1>(int)"),
        ("ampere_s16816gemm_bf16_64x64_sliced1x2_ldg8_f2f_tn", None),
    ],
)
def test_what_may_be_a_name_is_replaced(name: str, redacted: str | None) -> None:
    made = Placeholders().partly("kernel name", name)
    assert made == redacted if redacted is not None else made.startswith("ampere_s16816gemm_bf16_")


@pytest.mark.parametrize(
    ("frame", "redacted"),
    [
        ("torch/nn/modules/linear.py(125): forward", "torch/nn/modules/linear.py(125): forward"),
        ("torch/_tensor.py(630): backward", "torch/_tensor.py(630): backward"),
        (
            "/srv/venv/lib/python3.11/site-packages/torch/optim/adamw.py(216): step",
            "torch/optim/adamw.py(216): step",
        ),
        ("torch/nn/zebra.py(3): wombat", "torch/nn/name1.py(3): name2"),
        ("torch/secret_project/model.py(3): forward", "Python function 1"),
        ("/srv/torch/nn/linear.py(3): forward", "Python function 1"),
        ("zebra/torch/nn/modules/linear.py(3): forward", "Python function 1"),
        ("torch/secret.py(3): forward", "Python function 1"),
    ],
)
def test_only_frames_of_an_installed_pytorch_stay(frame: str, redacted: str) -> None:
    policy = policies(Placeholders(), None)["marks", "name"]("python")
    assert policy(frame) == redacted


@pytest.mark.parametrize(
    ("name", "redacted"),
    [
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB"),
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", "NVIDIA A100-SXM4-80GB MIG 3g.40gb"),
        ("AMD Instinct MI250X / MI250", "AMD Instinct MI250X / MI250"),
        ("NVIDIA H100 PCIe (zebra box)", "NVIDIA H100 PCIe (… …)"),
        ("zebra", "product 1"),
        ("17 zebra", "product 1"),
    ],
)
def test_a_product_keeps_the_words_of_products(name: str, redacted: str) -> None:
    assert product(Placeholders(), name) == redacted


def test_the_note_says_how_many_of_what_and_no_name() -> None:
    trace, _ = trace_of_secrets(5)
    shown = Placeholders()
    note = Redaction(shown).trace(trace).notes[-1]
    assert note.code == "redacted"
    counted = sum(
        int(n.replace(",", "")) for n in re.findall(r"(\d[\d,]*) (?=[a-zA-Z])", note.text)
    )
    assert counted == note.count == sum(shown.changed.values())
    for kind in ("file", "module", "product", "host name", "shape", "counter", "word"):
        assert kind in note.text, kind


def test_the_words_of_the_author_stay_as_they_are_the_authors(tmp_path: Path) -> None:
    document, _ = document_of_secrets(4)
    path, notes, page = tmp_path / "x.json", tmp_path / "notes.txt", tmp_path / "o.html"
    write(path, document)
    notes.write_text("The wombat did it.")
    given_ = ["--title", "Zebra is slow", "--notes", str(notes), "-o", str(page), "--redact"]
    result = CliRunner().invoke(app, ["report", str(path), *given_])
    assert result.exit_code == 0
    text = page.read_text()
    assert "Zebra is slow" in text
    assert "The wombat did it." in text
    assert "notes.txt" not in text, "where they came from is not shown"
    assert json.loads(json.dumps(document)) == document
