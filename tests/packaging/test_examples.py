"""Every example of the help, the README and the documents works as it stands."""

from __future__ import annotations

import gzip
import shlex
import shutil
import webbrowser
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from sample_traces.config import RunConfig, on_mi300x
from sample_traces.emit_pytorch import write_pytorch
from sample_traces.gpu_samples import SamplingOptions, write_gpu_samples
from sample_traces.memory_snapshot import write_snapshot
from sample_traces.nsight import ncu_report
from sample_traces.nsight.ncu import launches
from sample_traces.nsight.report import write_reports
from sample_traces.nsight.session import NsightOptions
from sample_traces.rocprof.options import RocprofOptions
from sample_traces.rocprof.rocpd import write_rocpd
from sample_traces.rocprof.v3_csv import write_v3_csv
from sample_traces.simulate import simulate
from tests.cli.test_commands import run
from tests.conftest import SAMPLES, every, some
from tests.packaging.test_documents import COMMANDS, NAMES, blocks, commands_in, text_of

# Steps long and large enough for every range of time and every model of the examples.
RUN = on_mi300x(
    steps=21, layers=1, hidden=16_384, heads=128, sequence=8_192, batch=128, vocab=128_256
)
CONFIG = '{"model_type": "gpt2", "n_embd": 256, "n_layer": 2, "n_head": 4, "vocab_size": 8192}'


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all the inputs that the examples name."""
    folder = tmp_path_factory.mktemp("stage")
    one = simulate(RUN)
    (trace,) = write_pytorch(one, folder, stem="trace")
    write_snapshot(one, 0, folder / "snapshot.pickle")
    (folder / "trace.json").write_bytes(gzip.decompress(trace.read_bytes()))
    for name in ("before", "after", "traces"):
        (folder / name).mkdir()
    alone = ("capture", "rank17", "before", "after")
    for name in (*alone, "before/rank0", "after/rank0", "traces/rank0"):
        shutil.copy(trace, folder / f"{name}.json.gz")
    assert run("report", trace, "-o", folder / "base.report.json").exit_code == 0
    assert run("pack", trace, "-o", folder / "job.tfpack").exit_code == 0
    write_pytorch(simulate(replace(RUN, cuda_graph=True)), folder, stem="decode")
    write_pytorch(simulate(replace(RUN, ranks=4)), folder / "ranks")
    counted = RocprofOptions(counters=True, times=False)
    assert run("reduce", folder / "ranks", "-o", folder / "summaries").exit_code == 0
    write_v3_csv(one, folder / "counters", counted)
    write_v3_csv(one, folder / "run", RocprofOptions(counters=True))
    (kernels,) = folder.glob("run/*/*_kernel_trace.csv")
    shutil.copy(kernels, folder / "kernel_trace.csv")
    (results,) = write_rocpd(one, folder, RocprofOptions())
    for name in ("run1", "run2", "run3", "results"):
        shutil.copy(results, folder / f"{name}.db")
    small = simulate(RunConfig(layers=1, steps=4))
    write_reports(small, folder, NsightOptions(), together=True)
    (folder / "kernels.ncu-rep").write_bytes(ncu_report.report(small, launches(small)))
    write_gpu_samples(one, folder / "smi.csv", SamplingOptions(zone_minutes=120))
    (folder / "notes.txt").write_text("Since the update.")
    (folder / "config.json").write_text(CONFIG)
    for name, document in (("my_model.toml", "mfu"), ("mine.toml", "categories")):
        (folder / name).write_text(blocks(text_of(f"docs/{document}.md"), "toml")[0])
    (folder / "sample_traces").symlink_to(SAMPLES)
    return folder


def shown() -> Iterator[tuple[str, str]]:
    """Yield the lines of shell of all documents and help pages, each with its place."""
    for name in NAMES:
        for body in blocks(text_of(name), "sh"):
            yield from ((name, line) for line in body.splitlines())
    for name in COMMANDS:
        _, _, printed = run(name, "--help").stdout.partition("\nExamples:\n")
        yield from ((f"{name} --help", line) for line in printed.replace("\\\n", "").splitlines())


EXAMPLES = {
    tuple(words): place
    for place, line in shown()
    for words in commands_in(line)
    if words[0] != "mcp"  # serves until its client leaves, see tests/agents
}
BY_DAY = {
    (words[0], *sorted({one.partition("=")[0] for one in words if one.startswith("-")})): words
    for words in EXAMPLES
}
"""An example of each command with each set of options."""


@pytest.mark.parametrize(
    "words",
    EXAMPLES if every(2) == 1 else some(BY_DAY.values(), 3),
    ids=lambda words: f"{EXAMPLES[words]}: {shlex.join(words)}",
)
def test_an_example_works_as_it_stands(
    words: tuple[str, ...], stage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = words[words.index("-o") + 1] if "-o" in words else None
    for path in stage.iterdir():
        if path.name != Path(written or "").name and any(
            Path(word).parts[:1] == (path.name,) for word in words
        ):
            (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(webbrowser, "open", lambda *_: True)
    done = run(*words, stdin=(stage / "trace.json").read_bytes() if "-" in words else None)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout != ""
    assert written is None or Path(written).exists()
