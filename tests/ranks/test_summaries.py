"""Summaries of ranks say what their files say, however they were made."""

import gzip
import json
import os
import shutil
import signal
import zipfile
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple
from typer.testing import CliRunner

from sample_traces.config import RunConfig
from sample_traces.emit_pytorch import write_pytorch
from sample_traces.simulate import simulate
from tests.conftest import SAMPLES, by_night, examples, shared_file, some
from tests.reports.bigtraces import big_trace
from traceflops import read
from traceflops.analysis.rank_summary import RankSummary, summary_of
from traceflops.analysis.recipe import analyze
from traceflops.analysis.result import Analysis
from traceflops.analysis.summaries import analysis_of_summaries
from traceflops.analysis.summary_files import decoded, encoded
from traceflops.analysis.summary_sums import HeldSummary, RunningSum, Shared
from traceflops.attribution.launch_lead import Launches, LeadCounts, host_bound
from traceflops.cli import app
from traceflops.cli.reduce import targets_of
from traceflops.errors import UsageError
from traceflops.findings.finding import Gain
from traceflops.front.reduction import Request, analysis_of_many, file_sets, on_dask, reduced
from traceflops.reports.view.chapters import post_mortem

RANKS = SAMPLES / "gpt_ddp_4rank"
MANY: tuple[dict[str, Any], ...] = (
    {},
    {"tensor_ranks": 2},
    {"expert_ranks": 2},
    {"stages": 2, "microbatches": 3},
    {"tensor_ranks": 2, "stages": 2, "microbatches": 2},
)
"""Groups of four ranks, beside those of data."""
EVENTS = ("critical_path", "memory", "memory_operations", "attribution", "modules", "notes")
"""What a summary lacks, and says that it lacks."""
CLI = CliRunner()
REDUCTION = "traceflops.front.reduction"


def sent(file: Path) -> RankSummary:
    """Return the summary of a file as it arrives."""
    content = encoded(summary_of(analyze(read(file))))
    found = decoded(content, file.name)
    assert isinstance(found, RankSummary)
    return found


def added_up(summaries: Iterable[RankSummary], failed: Sequence[str] = ()) -> Analysis:
    """Return the analysis of summaries."""
    shared: Shared = {}
    return analysis_of_summaries([HeldSummary.of(one, shared) for one in summaries], failed)


def of_summaries(files: list[str], folder: Path) -> dict[str, Any]:
    """Return the report of the summaries that `traceflops reduce` makes of files."""
    made = CLI.invoke(app, ["reduce", *files, "-o", str(folder)])
    assert made.exit_code == 0, made.output
    report: dict[str, Any] = json.loads(CLI.invoke(app, ["summary", str(folder), "--json"]).stdout)
    return report


def figures(analysis: Analysis) -> dict[str, Any]:
    """Return the report without what needs single events, and without samples of these."""
    report: dict[str, Any] = json.loads(analysis.to_json())
    for name in EVENTS:
        del report[name]
    report["findings"] = [astuple(one) for one in analysis.losses]  # gains need events
    report["verdict"] = astuple(analysis.verdict)
    del report["headline"]  # a finding is one where its gain is known
    del report["outside"]  # a summary has no events
    for device in report["devices"]:
        del device["gaps"]
    for kernel in report["kernels"]:
        del kernel["charged_ns"], kernel["charged"]
    for culprit in report["idle"]["culprits"]:
        del culprit["evidence"]
    for table in (report["idle"]["culprits"], report["host_operators"], report["synchronisations"]):
        table.sort(key=str)  # equal times are in any order
    return report


def same_as_files(files: list[Path]) -> Analysis:
    found = added_up([sent(file) for file in files])
    assert figures(found) == figures(analyze(read(files)))
    return found


def test_summaries_of_a_sample_say_what_its_files_say() -> None:
    found = same_as_files(sorted(RANKS.iterdir()))
    assert "from-summaries" in [note.code for note in found.notes]
    assert found.ranks.slow is not None
    assert found.ranks.slow.rank == 2
    late, *others = found.findings
    lost_ns = found.ranks.slow.lost_ns_per_step
    assert late.rule == "late-rank" and late.gain is not None
    assert late.gain.high_ns + late.gain.further_ns == lost_ns
    assert late.gain.high_ns == pytest.approx(lost_ns, rel=1e-3)
    exact = analyze(read(sorted(RANKS.iterdir()))).findings[0].gain
    assert exact is not None and exact.high_ns <= lost_ns
    hidden, *others = others
    least = min(device.chosen.components.communication_ns for device in found.devices) // 5
    assert (hidden.rule, hidden.gain) == ("exposed-communication", Gain(0, least, None))
    assert "Start communication earlier" in hidden.remedy  # whether it trains is unknown
    assert all(one.gain is None for one in others)
    unknown = next(one for one in post_mortem(found) if "cannot tell" in one.title)
    assert any("made from summaries of 4 files" in sentence for sentence in unknown.sentences)


def test_summaries_of_a_real_job_say_what_its_files_say() -> None:
    """One file of two processes, whose ranks it does not tell."""
    same_as_files([shared_file("traces/nsight/nsys_h100x2_mfu_before.sqlite")])


@settings(max_examples=examples(10), deadline=None)
@given(st.data())
def test_summaries_of_any_job_say_what_its_files_say(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    groups = data.draw(st.sampled_from(MANY))
    ranks = 4 if groups else data.draw(st.integers(1, 4))
    config = RunConfig(
        seed=data.draw(st.integers(0, 1000)),
        ranks=ranks,
        steps=data.draw(st.integers(1, 4)),
        layers=2,
        vocab=1024,
        **groups,
        overlap=data.draw(st.booleans()),
        sync_each_step=data.draw(st.booleans()),
        copy_stream=data.draw(st.booleans()),
        straggler_rank=data.draw(st.sampled_from([None, *range(ranks)])),
        straggler_percent=130,
        clock_skew_ns=data.draw(st.sampled_from((0, 1_750, 50_000_000))),
    )
    files = write_pytorch(simulate(config), tmp_path_factory.mktemp("job"))
    same_as_files(files)


def test_why_a_rank_is_late_in_few_steps_is_told(tmp_path: Path) -> None:
    """Over all steps rank 2 allocates for longer than it waits for data, as the others do."""
    stalls = {"data_stall_steps": (0, 1, 2, 3), "data_stall_ns": 2_000_000}
    late = {"data_stall_steps": (5,), "data_stall_ns": 4_000_000}
    planted = {"plants": ("allocate",) * 4, "plant_ns": 2_000_000}
    own = {0: stalls, 1: stalls, 2: late | planted, 3: stalls}
    small: dict[str, Any] = {"layers": 1, "hidden": 256, "gradient_buckets": 2}
    write_pytorch(simulate(RunConfig(ranks=4, steps=7, on_rank=own, **small)), tmp_path / "job")
    made = CLI.invoke(app, ["reduce", str(tmp_path / "job"), "-o", str(tmp_path / "few")])
    assert made.exit_code == 0, made.output
    report = json.loads(CLI.invoke(app, ["summary", str(tmp_path / "few"), "--json"]).stdout)
    assert (report["ranks"]["culprit"]["rank"], report["ranks"]["culprit"]["cause"]) == (
        2,
        "data_input",
    )


def test_the_summary_of_a_rank_is_as_small_in_a_large_group(tmp_path: Path) -> None:
    text = gzip.decompress((RANKS / "rank0.json.gz").read_bytes()).decode()
    found = []
    for ranks in (4, 4_000):
        file = tmp_path / "rank0.json"
        file.write_text(text.replace("[0, 1, 2, 3]", str([*range(ranks)])), encoding="utf-8")
        found.append(summary_of(analyze(read(file))))
    listed = [{words[1] for words in one.records.told.known} - {None} for one in found]
    assert listed == [{((0, 4, 1),)}, {((0, 4_000, 1),)}]
    few, many = (len(encoded(one)) for one in found)
    assert abs(many - few) < 100


def test_of_very_many_values_few_are_held() -> None:
    held = []

    def in_order(values: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        held.append(len(values))
        return tuple(chain.from_iterable(values))

    numbers: RunningSum[tuple[int, ...]] = RunningSum(in_order)
    for number in range(10_000):
        numbers.add((number,))
    assert numbers.total() == tuple(range(10_000))
    assert max(held) < 200


def test_summaries_are_added_up_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    summaries = [sent(file) for file in sorted(RANKS.iterdir())]
    at_once = figures(added_up(summaries))
    monkeypatch.setattr("traceflops.analysis.summary_sums._AT_ONCE", 2)
    assert figures(added_up(summaries)) == at_once


def test_very_many_launches_take_little_room() -> None:
    """The leads of the first 70,001 even numbers: half of them are below 70,000 ns."""
    lead_ns = np.arange(0, 140_002, 2)
    one, none = np.ones_like(lead_ns), np.zeros_like(lead_ns)
    counts = LeadCounts(lead_ns, none > 0, none, one, 4_000).compact
    assert len(counts.count) < 10_000 and counts.count.sum() == 70_001
    pace = host_bound(Launches(10_000, counts), 0.0)
    assert pace is not None and pace.launches == 70_001
    assert 0.999 * 70_000 <= pace.lead_median_ns <= 70_000
    assert 0.999 * 14_000 <= pace.lead_p10_ns <= 14_000


def test_a_rank_of_100_steps_is_small() -> None:
    whole = summary_of(analyze(big_trace(1, 100, 200, every=10)))
    content = encoded(whole)
    assert len(content) < 2_000_000
    found = decoded(content, "")
    assert isinstance(found, RankSummary) and len(found.records) == len(whole.records) == 2_000


def test_a_summary_of_very_many_collectives_has_the_first_ones() -> None:
    whole = summary_of(analyze(big_trace(1, 1_500, 100, depth=0, every=1)))
    content = encoded(whole)
    assert len(content) < 2_000_000
    found = decoded(content, "")
    assert isinstance(found, RankSummary)
    kept = len(found.records)
    assert len(whole.records) == 150_000 and 50_000 < kept < 150_000
    assert found.records.start_ns.tolist() == whole.records.start_ns[:kept].tolist()
    assert [note.count for note in found.notes if note.code == "collectives-cut"] == [
        150_000 - kept
    ]


def test_where_all_work_of_stages_has_no_room_pipelines_are_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RunConfig(ranks=2, stages=2, microbatches=2, layers=1, vocab=1024)
    files = write_pytorch(simulate(config), tmp_path)
    wholes = [summary_of(analyze(read(file))) for file in files]
    least = min(len(encoded(whole)) for whole in wholes)

    def found() -> tuple[bool, bool]:
        parts = [decoded(encoded(whole), "") for whole in wholes]
        made = added_up([one for one in parts if isinstance(one, RankSummary)])
        (said,) = (note.text for note in made.notes if note.code == "from-summaries")
        return made.ranks.pipeline is not None, "modules, pipelines, serving" in said

    assert found() == (True, False)
    monkeypatch.setattr("traceflops.analysis.summary_files._MOST_BYTES", least - 1)
    assert found() == (False, True)


def test_a_summary_of_very_many_steps_has_the_first_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = analyze(read(RANKS / "rank0.json.gz"))
    monkeypatch.setattr("traceflops.analysis.rank_summary._MOST_WINDOWS", 3)
    report = of_summaries([str(RANKS / "rank0.json.gz")], tmp_path)
    assert report["steps"]["used"] == list(whole.steps.used[:3])
    (device,) = report["devices"]
    assert len(device["windows"]) == 3 < len(whole.devices[0].windows)
    notes = {note["code"]: note["count"] for note in report["notes"]}
    assert notes["steps-cut"] == len(whole.steps.used) - 3


def test_a_copy_of_a_rank_counts_once(tmp_path: Path) -> None:
    """As it does where the files are read."""
    job = tmp_path / "job"
    shutil.copytree(RANKS, job)
    copy = gzip.compress(gzip.decompress((RANKS / "rank1.json.gz").read_bytes()), 1)
    (job / "copy_of_rank1.json.gz").write_bytes(copy)
    report = of_summaries([str(job)], tmp_path / "summaries")
    assert [device["rank"] for device in report["devices"]] == [0, 1, 2, 3]
    for notes in (report["notes"], json.loads(analyze(read(job)).to_json())["notes"]):
        (text,) = (note["text"] for note in notes if note["code"] == "same-run")
        assert "from rank1.json.gz; ignored: copy_of_rank1.json.gz" in text


def test_operators_of_a_rank_without_gpu_records_are_no_gpu_work(tmp_path: Path) -> None:
    """It was cut off before these; nor are they where the files are read."""
    job = tmp_path / "job"
    shutil.copytree(RANKS, job)
    cut = job / "rank1.json.gz"
    trace = json.loads(gzip.decompress(cut.read_bytes()))
    of_host = {"cpu_op", "cuda_runtime", "user_annotation", None}
    trace["traceEvents"] = [one for one in trace["traceEvents"] if one.get("cat") in of_host]
    cut.write_bytes(gzip.compress(json.dumps(trace).encode()[:-2_000]))
    alone = json.loads(analyze(read(cut)).to_json())
    assert [device["type"] for device in alone["devices"]] == ["cpu"]
    found = added_up([sent(file) for file in sorted(job.iterdir())])
    whole = analyze(read(job))
    assert [device.rank for device in found.devices] == [0, 2, 3]
    assert found.total.components == whole.total.components
    assert found.kernels.equals(whole.kernels)
    assert "no-device-work" in {note.code for note in found.notes}


def test_reduced_files_are_reported_whatever_happened_to_some(tmp_path: Path) -> None:
    """A rank that is cut off, one that is unreadable, and a summary that is damaged."""
    job, folder = tmp_path / "job", tmp_path / "summaries"
    shutil.copytree(RANKS, job)
    cut = job / "rank1.json.gz"
    cut.write_bytes(cut.read_bytes()[:60_000])
    (job / "rank3.json.gz").write_bytes(b"no trace")
    made = CLI.invoke(app, ["reduce", str(job), "-o", str(folder)])
    assert (made.exit_code, made.stdout) == (0, f"Wrote 4 summaries to {folder}\n")
    assert made.stderr == "note: 1 file could not be reduced\n"
    none = CLI.invoke(app, ["reduce", str(job / "rank3.json.gz"), "-o", str(tmp_path / "none")])
    assert none.exit_code == 3 and "no file could be reduced" in none.stderr
    assert not list((tmp_path / "none").iterdir())
    damaged = folder / "rank0.summary"
    damaged.write_bytes(damaged.read_bytes()[:-3000])
    report = json.loads(CLI.invoke(app, ["summary", str(folder), "--json"]).stdout)
    assert [device["rank"] for device in report["devices"]] == [2]  # 1 has no GPU records left
    notes = {note["code"]: note["text"] for note in report["notes"]}
    assert "2 files could not be read" in notes["file-not-read"]
    assert "rank0.summary, rank3.json.gz" in notes["file-not-read"]
    assert "2 of the job's 4 ranks are here" in notes["ranks-missing"]
    assert "input-cut" in notes


def test_traces_beside_summaries_are_reduced(tmp_path: Path) -> None:
    names = ("rank0.json.gz", "rank1.json.gz")
    whole = of_summaries([str(RANKS)], tmp_path / "all")
    folder = tmp_path / "some"
    of_summaries([str(RANKS / name) for name in names], folder)
    for file in set(RANKS.iterdir()) - {RANKS / name for name in names}:
        shutil.copy(file, folder)
    mixed = json.loads(CLI.invoke(app, ["summary", str(folder), "--json"]).stdout)
    assert len(whole["ranks"]["waits"]) == 4
    assert mixed == whole


def test_files_of_one_run_are_one_summary(tmp_path: Path) -> None:
    """A table of agents, of kernels, of copies … of one process, as rocprofv3 writes them."""
    run, folder = SAMPLES / "rocprofv3_csv", tmp_path / "summaries"
    made = CLI.invoke(app, ["reduce", str(run), "-o", str(folder)])
    assert (made.exit_code, made.stdout) == (0, f"Wrote 1 summary to {folder}\n")
    (file,) = folder.iterdir()
    found = decoded(file.read_bytes(), file.name)
    assert isinstance(found, RankSummary)
    assert figures(added_up([found])) == figures(analyze(read(run)))


def test_sets_of_files_are_reduced_rank_by_rank(tmp_path: Path) -> None:
    """A folder each, with passes in folders of their own, or names that give the rank."""
    job, (table, *_) = tmp_path / "job", (SAMPLES / "rocprofv3_csv").rglob("*kernel_trace.csv")
    places = [f"rank{rank}/pmc_{at}/7" for rank in (0, 1) for at in (1, 2)]
    names = [*places, "rank2/8", "all/rank3", "all/rank4"]
    files = [job / f"{name}_kernel_trace.csv" for name in names]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(table, file)
    first, second = map(str, files[:2]), map(str, files[2:4])
    assert file_sets([str(file) for file in files]) == [
        tuple(first),
        tuple(second),
        *((str(file),) for file in files[4:]),
    ]


def test_of_several_jobs_in_one_input_one_is_chosen(tmp_path: Path) -> None:
    packed, folder = tmp_path / "packed.zip", tmp_path / "summaries"
    with zipfile.ZipFile(packed, "w") as archive:
        for at, file in enumerate((RANKS / "rank0.json.gz", SAMPLES / "gpt_1rank.json.gz")):
            archive.write(file, f"run{at}.json.gz")
    refused = CLI.invoke(app, ["reduce", str(packed), "-o", str(folder)])
    assert refused.exit_code == 2 and "--job N" in refused.stderr
    made = CLI.invoke(app, ["reduce", str(packed), "--job", "2", "-o", str(folder)])
    assert made.exit_code == 0, made.output
    (file,) = folder.iterdir()
    found = decoded(file.read_bytes(), file.name)
    assert isinstance(found, RankSummary)
    assert len(found.trace.source.files) == 1


def test_summaries_of_several_jobs_are_refused(tmp_path: Path) -> None:
    files = (RANKS / "rank0.json.gz", SAMPLES / "gpt_1rank.json.gz")
    made = CLI.invoke(app, ["reduce", *map(str, files), "-o", str(tmp_path)])
    assert made.exit_code == 0, made.output
    refused = CLI.invoke(app, ["summary", str(tmp_path)])
    assert refused.exit_code == 2 and "of 2 jobs" in refused.stderr


@by_night()
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_reports_all_but_what_cannot_be_read(tmp_path: Path) -> None:
    """A worker that is killed once, a file that always kills, one cut off, one unreadable."""
    simulated = write_pytorch(simulate(RunConfig(ranks=5, steps=2, layers=1, vocab=1024)), tmp_path)
    simulated[2].write_bytes(b"no trace")
    simulated[3].write_bytes(simulated[3].read_bytes()[:-2_000])
    seen, request = tmp_path / "seen", Request()

    def mortal(files: tuple[str, ...]) -> bytes:  # sent as it is: workers do not load this file
        if "rank1" in files[0] or ("rank0" in files[0] and not seen.exists()):
            seen.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return reduced(request, files)

    parts = on_dask(mortal, [(str(file),) for file in simulated], "local", 2)
    found = [decoded(part, "") for part in parts]
    failed = [one for one in found if isinstance(one, str)]
    assert failed == [simulated[1].name, simulated[2].name]
    analysis = added_up([one for one in found if not isinstance(one, str)], failed)
    notes = {note.code: note.text for note in analysis.notes}
    assert [device.rank for device in analysis.devices] == [0, 3, 4]
    assert f"{failed[0]}, {failed[1]}" in notes["file-not-read"]
    assert "input-cut" in notes


@pytest.mark.parametrize("address", ["nonsense://x", "tls://127.0.0.1:1"])
def test_a_cluster_that_is_not_there_is_one_error(address: str) -> None:
    refused = CLI.invoke(app, ["summary", str(RANKS), "--dask", address])
    assert refused.exit_code == 2 and f"no cluster at {address}" in refused.stderr


OVER = Event()


def first_of(files: tuple[str, ...]) -> bytes:
    """Return the name of the first file; others take until it is over."""
    return files[0].encode() if files[0] == "first" else bytes(OVER.wait(60))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_that_is_lost_is_one_error(capfd: pytest.CaptureFixture[str]) -> None:
    dask, distributed = map(pytest.importorskip, ("dask", "distributed"))
    options = {"processes": False, "protocol": "tcp", "dashboard_address": None}
    with (  # without its scheduler a cluster is closed only when it has tried to connect to it
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, **options) as cluster,
    ):
        parts = on_dask(first_of, [("first",), ("second",)], cluster.scheduler_address, None)
        assert next(parts) == b"first"
        cluster.sync(cluster.scheduler.close)
        with pytest.raises(UsageError, match=r"the cluster at tcp://.* was lost"):
            next(parts)
        OVER.set()
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (("a/r.json", "b/x.json"), ["r", "x"]),
        (("/t/a/r.json", "/t/b/r.json.gz"), ["a-r", "b-r"]),
        (("a/r.json", "/t/b/r.json"), ["a-r", "t-b-r"]),
    ],
)
def test_summaries_lie_in_the_folder_whatever_the_paths(
    files: tuple[str, ...], names: list[str], tmp_path: Path
) -> None:
    targets = targets_of([(file,) for file in files], tmp_path, force=False)
    assert [target.relative_to(tmp_path).stem for target in targets] == names


def test_a_range_of_time_is_summarised_beside_a_rank_without_records(tmp_path: Path) -> None:
    """The range lies across the steps; the other rank has nothing from which it could count."""
    (tmp_path / "ranks").mkdir()
    shutil.copy(SAMPLES / "gpt_1rank.json.gz", tmp_path / "ranks/rank0.json.gz")
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaFree", "pid": 1, "tid": 1}
    call |= {"ts": 0, "dur": 1, "args": {}}
    (tmp_path / "ranks/rank1.json").write_text(json.dumps({"traceEvents": [call]}))
    folder = str(tmp_path / "sums")
    asked = ["reduce", str(tmp_path / "ranks"), "-o", folder, "--from", "1ms"]
    made = CLI.invoke(app, asked)
    assert made.exit_code == 0, made.output
    found = json.loads(CLI.invoke(app, ["summary", folder, "--json"]).stdout)
    whole = json.loads(
        CLI.invoke(app, ["summary", str(tmp_path / "ranks"), "--from", "1ms", "--json"]).stdout
    )
    assert found["total"] == whole["total"]


def test_what_cannot_be_asked_of_summaries_is_refused(tmp_path: Path) -> None:
    made = CLI.invoke(app, ["reduce", str(RANKS), "-o", str(tmp_path / "a")])
    assert made.exit_code == 0
    again = CLI.invoke(app, ["reduce", str(RANKS), "-o", str(tmp_path / "a")])
    assert again.exit_code == 2 and "already there" in again.stderr
    for asked in (["--redact"], ["--steps", "3:5"]):
        refused = CLI.invoke(app, ["summary", str(tmp_path / "a"), *asked])
        assert refused.exit_code == 2, refused.output


@pytest.mark.parametrize("groups", [None, pytest.param(MANY[3], marks=by_night())])
def test_a_terminal_shows_the_same_however_many_processes_reduce(
    groups: dict[str, Any] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if groups is not None:
        write_pytorch(simulate(RunConfig(ranks=4, steps=3, layers=1, **groups)), tmp_path)
    job = str(RANKS if groups is None else tmp_path)
    for name, value in {"_MANY": 4, "_GROUPS": 2, "_WORTH_BYTES": 1}.items():
        monkeypatch.setattr(f"{REDUCTION}.{name}", value)
    one, two = (
        analysis_of_many([job], Request(reading={"jobs": jobs}), brief=True) for jobs in (1, 2)
    )
    assert one is not None and two is not None
    assert figures(one) == figures(two) == figures(analyze(read(job)))
    assert "from-summaries" in [note.code for note in one.notes]


def test_files_that_are_many_and_large_are_reduced_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def codes(*options: str) -> set[str]:
        found = CLI.invoke(app, ["summary", str(RANKS), "--json", *options])
        return {note["code"] for note in json.loads(found.stdout)["notes"]}

    assert not codes() & {"files-reduced", "from-summaries"}
    monkeypatch.setattr(f"{REDUCTION}._MANY", 4)
    assert "files-reduced" not in codes()
    monkeypatch.setattr(f"{REDUCTION}._LARGE_BYTES", 1_000_000)
    assert codes() >= {"files-reduced", "from-summaries"}
    for asked in some(("--ranks=0-3", "--redact", "--strict"), 2):
        assert "files-reduced" not in codes(asked)
    other = simulate(RunConfig(ranks=4, layers=1, vocab=1024, first_step=20))
    files = [*RANKS.glob("*.gz"), *write_pytorch(other, tmp_path)]  # of two jobs
    shown = CLI.invoke(app, ["summary", *map(str, files), "--json"])
    assert len(json.loads(shown.stdout)["jobs"]) == 2
