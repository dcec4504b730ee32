"""`--redact`: no word of the author is left, equal names stay equal, figures stay the same."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import traceflops as tf
from tests.build import launched, step_marks, trace_of
from tests.conftest import SAMPLES, shared_file, some
from traceflops.analysis.preparation import prepare
from traceflops.cli import app
from traceflops.errors import UsageError
from traceflops.privacy.placeholders import Placeholders
from traceflops.privacy.redact import Redaction
from traceflops.table.columns import names
from traceflops.table.trace import Note, Trace

CANARIES = ("zebrafish", "Quokka", "wombat", "Axolotl", "narwhal", "pangolin", "okapi", "Tapir")
"""Words of an author, none of which may be in what is shown."""


def event(category: str, name: str, ts: int, dur: int, **args: Any) -> dict[str, Any]:
    is_device = category in ("kernel", "gpu_memcpy", "gpu_user_annotation")
    place = {"pid": 0, "tid": 7} if is_device else {"pid": 9, "tid": 9}
    return {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur, "args": args, **place}


def document() -> dict[str, Any]:
    """Return a trace that has a canary wherever an author's word can be."""
    events = []
    for step in range(4):
        at = 1_000 * step
        events += [
            event("user_annotation", f"zebrafish_step {step}", at, 900),
            event("user_annotation", "load the wombat", at + 1, 20),
            event("gpu_user_annotation", "load the wombat", at + 1, 20, device=0, stream=7),
            event("python_function", "/srv/okapi/train_tapir.py(12): Quokka", at + 2, 30),
            event("python_function", "nn.Module: AxolotlDecoderLayer_3", at + 3, 25),
            event("cpu_op", "pangolin::fused_narwhal", at + 4, 90, **{"External id": step}),
            event("cpu_op", "aten::mm", at + 200, 90, **{"External id": 10 + step}),
        ]
        for place, name in enumerate(
            (
                "void pangolin::narwhal_gemm<okapi::Tile<128>, float>(float*)",
                "_ZN8pangolin6kernelI4okapiLi4EEEvPT_",
                "ampere_sgemm_128x64_nt",
                "wombat",
            )
        ):
            number = 10 * step + place + 1
            args = {"correlation": number, "External id": step}
            events += [
                event("cuda_runtime", "cudaLaunchKernel", at + 210 + place, 1, **args),
                event("kernel", name, at + 300 + 100 * place, 90, device=0, stream=7, **args),
            ]
    events.append(event("Tapir", "x", 5, 5))
    return {
        "schemaVersion": 1,
        "host_name": "zebrafishbox",
        "traceName": "/srv/okapi/Quokka.json",
        "deviceProperties": [
            {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 85 * 10**9}
        ],
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1, "pg_config": "Tapir"},
        "traceEvents": events,
    }


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("private") / "Quokka_rank0.json"
    target.write_text(json.dumps(document()))
    return target


@pytest.fixture(scope="module")
def shown(path: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what every command shows of the trace, redacted, by command or file."""
    folder = tmp_path_factory.mktemp("out")
    rules = folder / "wombat.toml"
    rules.write_text(
        '[[rule]]\nid = "tapir-rule"\nhead = "wombat"\ntop = "compute"\nsub = "gemm"\n'
        'because = "ours"\n'
    )
    own = ["--redact", "--step-mark", r"zebrafish_step \d+"]
    commands = [
        ["summary", *own],
        ["summary", *own, "--json"],
        ["info", *own],
        ["info", *own, "--json"],
        ["report", *own, "--rules", str(rules), "-o", str(folder / "o.html"), "-q"],
        ["report", *own, "-o", str(folder / "o.json"), "-q"],
        ["report", *own, "-o", str(folder / "o.md"), "-q", "--post-mortem", f"{folder}/case.md"],
        ["report", *own, "-o", str(folder / "report") + "/", "-q"],
        ["export", *own, "--rules", str(rules), "-o", str(folder / "csv"), "--format", "csv"],
        ["export", *own, "-o", str(folder / "arrow"), "--format", "arrow"],
        ["perfetto", *own, "-o", str(folder / "o.perfetto.json.gz")],
    ]
    found = {}
    for words in commands:
        result = CliRunner().invoke(app, [words[0], str(path), *words[1:]])
        assert result.exit_code == 0, result.output
        found[" ".join(words[:2])] = result.output
    for file in (one for one in folder.rglob("*") if one.is_file() and one != rules):
        content = file.read_bytes()
        content = gzip.decompress(content) if file.suffix == ".gz" else content
        found[str(file.relative_to(folder))] = content.decode(errors="replace")
    return found


def test_no_word_of_the_author_is_shown(shown: dict[str, str]) -> None:
    assert len(shown) > 20
    for name, text in shown.items():
        for canary in CANARIES:
            assert canary.lower() not in text.lower(), f"{canary} in {name}"


def test_what_was_removed_is_counted_in_every_form(shown: dict[str, str]) -> None:
    for name in ("summary --redact", "o.html", "o.json", "o.md", "report/notes.csv"):
        text = " ".join(shown[name].split())
        assert "are replaced by placeholders" in text, name
        for kind in ("1 annotation", "1 module", "1 Python function", "1 operator name"):
            assert kind in text, f"{kind} in {name}"


def test_names_of_libraries_and_numbers_of_steps_stay(shown: dict[str, str]) -> None:
    assert "ampere_sgemm_128x64_nt" in shown["o.html"]
    assert "# Post-mortem" in shown["case.md"]
    assert '"aten::mm"' in shown["csv/ops.csv"]
    assert '"step 3"' in shown["csv/marks.csv"]
    assert '"rule 1"' in shown["csv/activities.csv"], "a rule of the author's has a name, too"
    assert json.loads(shown["o.json"])["steps"]["seen"] == [0, 1, 2, 3]


def test_the_command_names_nothing(shown: dict[str, str]) -> None:
    assert "traceflops report &#39;file 1&#39; --step-mark &#39;…&#39;" in shown["o.html"]


def by_class(culprits: list[dict[str, Any]]) -> dict[str, int]:
    """Return the idle time of each class of culprits."""
    sums: Counter[str] = Counter()
    for culprit in culprits:
        sums[culprit["class"]] += culprit["idle_ns"]
    return sums


def figures(value: Any) -> Any:
    """Return an object without its texts, the lines of files and its notes."""
    if isinstance(value, dict) and value.get("culprits"):  # placeholders are numbered, not named
        return {**figures({**value, "culprits": None}), **by_class(value["culprits"])}
    if isinstance(value, dict) and value.get("charged"):  # so are annotations: these may be one
        sums = [sum(one["charged_ns"] for one in value["charged"])]
        return {**figures({**value, "charged": None}), "charged": sums}
    if isinstance(value, dict) and "rule" in value:  # its rows are by name
        value = {**value, "rows": None}
    if isinstance(value, dict) and "findings" in value:  # whose a function is, its name tells
        told = [one for one in value["findings"] if one["rule"] != "host-code"]
        value = {**value, "findings": told}
    if isinstance(value, dict):
        return {k: figures(v) for k, v in value.items() if k not in ("notes", "source", "line")}
    if isinstance(value, list):
        return [figures(one) for one in value]
    return None if isinstance(value, str) else value


@pytest.mark.parametrize(
    "name", some(["gpt_1rank.json.gz", "gpt_ddp_4rank", "rocpd", "torch_cpu_train.json.gz"], 2)
)
def test_no_figure_changes(name: str) -> None:
    trace = tf.read(SAMPLES / name)
    plain, hidden = (json.loads(tf.analyze(trace, redact=r).to_json()) for r in (False, True))
    assert figures(hidden) == figures(plain)
    assert {note["code"] for note in hidden["notes"]} - {
        note["code"] for note in plain["notes"]
    } == {"redacted"}


@pytest.mark.parametrize(
    "name",
    ["hta_sampled_rank0", "mi300x_sglang_qwen3_decode_graph", "b200_vllm_gptoss_prefill"],
)
def test_no_figure_of_a_public_trace_changes(name: str) -> None:
    trace = tf.read(shared_file(f"traces/pytorch/{name}.json.gz"))
    plain, hidden = (json.loads(tf.analyze(trace, redact=r).to_json()) for r in (False, True))
    assert figures(hidden) == figures(plain)


def test_the_category_of_a_kernel_stays_though_its_name_goes() -> None:
    trace = trace_of(**launched(("zebrafishgemmx", 1, 10, 20)))
    redacted = prepare(trace, placeholders=Placeholders())
    assert redacted.trace.activities["name"].to_pylist() == ["name1"]
    plain = prepare(trace).linked.categorised
    assert redacted.linked.categorised.categories == plain.categories
    assert prepare(redacted.trace).linked.categorised.categories == plain.categories
    twice = prepare(redacted.trace, placeholders=Placeholders())
    assert prepare(twice.trace).linked.categorised.categories == plain.categories


def test_names_stay_in_their_order() -> None:
    """By it steps are found where none is marked, in a recording that was redacted, too."""
    trace = trace_of(**launched(("zebrafish", 1, 10, 20), ("wombat", 2, 40, 20)))
    turned = trace.activities.take(pa.array([1, 0]))
    redacted = Redaction(Placeholders()).trace(
        Trace(trace.source, {**trace.tables, "activities": turned})
    )
    column = redacted.activities["name"]
    assert column.to_pylist() == ["name1", "name2"]
    assert names(column) == ["name2", "name1"]


def test_equal_names_are_equal_over_ranks_and_runs() -> None:
    trace = tf.read(SAMPLES / "gpt_ddp_4rank")
    first, again = (tf.analyze(trace, redact=True) for _ in range(2))
    assert first.to_json() == again.to_json()
    assert first.kernels["name"].to_pylist() == tf.analyze(trace).kernels["name"].to_pylist()
    assert [file.name for file in first.source.files] == [f"file {n}" for n in (1, 2, 3, 4)]


def test_a_paired_recording_shares_the_placeholders() -> None:
    placeholders = Placeholders()
    one = prepare(trace_of(**launched(("okapi_kernel", 1, 10, 20))), placeholders=placeholders)
    kernels = (("narwhal", 1, 10, 20), ("okapi_kernel", 2, 30, 40))
    two = prepare(trace_of(**launched(*kernels)), placeholders=placeholders)
    assert one.trace.activities["name"].to_pylist() == ["name1_kernel"]
    assert two.trace.activities["name"].to_pylist() == ["name2", "name1_kernel"]


@pytest.mark.parametrize(
    ("name", "redacted"),
    [
        (
            "void acme::secret_gemm<acme::Tile<128>>(float*)",
            "void name1::name2_gemm<name1::Tile<128>>(float*)",
        ),
        ("_ZN4acme13secret_kernelIfLi4EEEvPT_", "name1"),
        ("_ZN4acme1GIiLNS_4ModeE5ENS_10TitanShapeEEEvv", "name1"),
        ("_Zebra_titan_secret", "name1"),
        ("nvjet_project_titan", "nvjet_name1_name2"),
        (
            "triton_poi_fused_add_mul_native_layer_norm_3",
            "triton_poi_fused_add_mul_native_layer_norm_3",
        ),
        ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT", "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT"),
        ("Cijk_Ailk_Bljk_HHS_BH_MT128x64_SK3", "Cijk_Ailk_Bljk_HHS_BH_MT128x64_SK3"),
        (
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)",
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)",
        ),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
        ("\u05d0\u05d1\u05d22_kernel", "name1_kernel"),
        ("SecretAdam\N{PANDA FACE}Kernel", "name1"),
    ],
)
def test_words_that_no_library_uses_are_replaced(name: str, redacted: str) -> None:
    assert Placeholders().partly("kernel name", name) == redacted


@given(st.lists(st.text(max_size=30), unique=True, max_size=20))
def test_different_names_stay_different(names: list[str]) -> None:
    placeholders = Placeholders()
    found = [placeholders.partly("kernel name", name) for name in names]
    assert len(set(found)) == len(names)
    assert found == [placeholders.partly("kernel name", name) for name in names]


def notes_of(trace: Trace) -> list[str]:
    return [note.text for note in Redaction(Placeholders()).trace(trace).notes]


def test_notes_of_the_parser_lose_their_names() -> None:
    made = trace_of(marks=step_marks(("x", 1, 1)))
    texts = (
        ("one", "3 values are n/a: not counted."),
        ("two", "Left out were 'zebrafish' and /srv/okapi/x of made.json (12 bytes)."),
        ("unknown-category", "Not known: zebrafish (3)."),
        ("three", "Ignored in the trace's description: no preset is called 'wombat'."),
    )
    notes = tuple(Note("dropped", code, text, 1, "okapi.json") for code, text in texts)
    found = notes_of(Trace(made.source, made.tables, notes))
    assert found[0] == texts[0][1]
    assert found[1] == "Left out were 'name1' and path 1 of file 1 (12 bytes)."
    assert (
        found[2]
        == "A note is hidden because it quotes names from the recording (unknown-category)."
    )
    assert found[3] == "Ignored in the trace's description: no preset is called 'name2'."


def test_it_excludes_what_keeps_names(path: Path) -> None:
    for command in ("summary", "info", "report", "perfetto"):
        given = [command, str(path), "--redact", "--include-environment"]
        result = CliRunner().invoke(app, given)
        assert result.exit_code == 2
        assert "error: --redact and --include-environment are mutually exclusive" in result.output
    with pytest.raises(UsageError, match="mutually exclusive"):
        tf.analyze(tf.read(path), include_environment=True, redact=True)


def test_directions_of_copies_stay_and_words_of_the_author_in_them_do_not() -> None:
    ways = ("HtoD", "migration DtoH", "HtoA", "zebrafish")
    rows = [{"kind": "memcpy", "name": "copy", "direction": way} for way in ways]
    found = Redaction(Placeholders()).trace(trace_of(activities=rows)).activities
    assert found["direction"].to_pylist() == [*ways[:3], "name1"]


def test_of_a_rule_all_stays_but_what_it_says_of_the_kernel() -> None:
    row = {"name": "gemm", "section": "SpeedOfLight", "rule": "SOLBottleneck", "kind": "INF"}
    row |= {"text": "the kernel of acme", "speedup_kind": "global"}
    own = {"name": "gemm", "section": "AcmeSection", "rule": "AcmeRule", "kind": "INF"}
    trace = trace_of(kernel_rules=[row, own])
    first, second = Redaction(Placeholders()).trace(trace).kernel_rules.to_pylist()
    assert {name: first[name] for name in row} == row | {"text": None}
    assert "Acme" not in repr(second)


def test_of_a_rule_of_a_small_grid_its_waves_stay() -> None:
    text = "The grid of acme is too small, resulting in only 0.7 full waves across all SMs. Acme."
    trace = trace_of(kernel_rules=[{"name": "gemm", "text": text}])
    (row,) = Redaction(Placeholders()).trace(trace).kernel_rules.to_pylist()
    assert row["text"] == "0.7 full waves across all SMs"


def test_system_calls_whose_meaning_is_known_stay() -> None:
    calls = ("close", "pwrite64", "pthread_cond_timedwait", "zebrafish", "close_zebrafish")
    rows = [{"kind": "system", "name": name, "start_ns": 0, "dur_ns": 1} for name in calls]
    found = Redaction(Placeholders()).trace(trace_of(marks=rows)).marks
    assert found["name"].to_pylist() == [*calls[:3], "name1", "close_name1"]


def test_ranges_of_public_interfaces_keep_their_names() -> None:
    calls = (
        *("MPI_Ineighbor_alltoallw", "PMPI_Waitall", "ncclCommInitRankConfig", "cudaMemAdvise"),
        *("nvshmem_barrier_all", "hipMemcpyAsync"),
    )
    own = ("customAttention", "current_session", "custom_sparse_attention", "cuda_test_expert")
    rows = [
        {"kind": "annotation", "name": name, "start_ns": 0, "dur_ns": 1}
        for name in (*calls, *own, "MPI_Zebrafish", "ncclZebrafish", "MPI step of zebrafish")
    ]
    found = Redaction(Placeholders()).trace(trace_of(marks=rows)).marks
    shown = found["name"].to_pylist()
    assert shown[:6] == [*calls]
    assert shown[6:10] == [f"annotation {number}" for number in range(1, 5)]
    assert "ebrafish" not in repr(shown)


@pytest.mark.parametrize(
    ("inner", "outer"),
    [
        ("<frozen os>(8): getenv", "secret/a.py(1): f"),
        ("<string>(2): __init__", "secret/a.py(1): f"),
        ("secret/a.py(9): __torch_function__", "secret/a.py(1): f"),
        ("queue.py(154): get", "secret/a.py(1): f"),
    ],
)
def test_idle_time_is_due_to_the_same_function_without_its_name(inner: str, outer: str) -> None:
    """The inner function is a library's, and with its name replaced, too."""
    run = launched(("first", 0, 10_000, 10_000), ("second", 10**6, 1_010_000, 10_000))
    marks = [
        {"name": name, "start_ns": at, "dur_ns": 999_000, "kind": "python"}
        for at, name in enumerate((outer, inner))
    ]
    trace = trace_of(**run, marks=marks)
    open_, closed = (tf.analyze(trace, redact=hides).idle.culprits[0] for hides in (False, True))
    assert open_.label == outer
    assert (closed.kind, closed.idle_ns) == (open_.kind, open_.idle_ns)
    assert (len(open_.evidence), open_.evidence[1]) == (2, outer)
    assert (len(closed.evidence), closed.evidence[1]) == (2, closed.label)
    assert "secret" not in " ".join((closed.label, *closed.evidence))
