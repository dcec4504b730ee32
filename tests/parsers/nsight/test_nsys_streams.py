"""What a program wrote before it ended: of it only the class of an error is read."""

from pathlib import Path

import pytest

from sample_traces.nsight.report import file_of
from tests.parsers.nsight.nsysfile import NsysFile, process
from traceflops import analyze, read
from traceflops.parsers.nsight.nsys.streams import error_of, memory_held

_RAISED = 'Traceback (most recent call last):\n  File "/home/ada/run.py", line 3, in <module>\n'
_NAMES = ("/tmp/nsys/pid_7_stderr.log", "/tmp/nsys/pid_7_stdout.log")


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("", None),
        ("Max error: 1\n", None),
        ("Error: 4.2e-11\nCUDA error: no error\n", None),
        ("GPU error: < 1e-6\nError: ~0.3\n", None),
        ("Warning: error: deprecated\n", None),
        ("ERROR: cannot open file\n" + "step\n" * 6, None),  # it went on
        (f"Exception ignored in: <function f>\n{_RAISED}TypeError: 'NoneType'\n", None),
        ("ERROR: input file not found!\n  Missing: secret.bin\n", "file"),
        ("python: can't open file 'x.py': [Errno 2] No such file or directory\n", "file"),
        (f"{_RAISED}ImportError: no init\n", "ImportError"),
        (f"{_RAISED}acme.SecretError: no\n", "python"),
        (f"{_RAISED}acme.E2Error: no:\nlibx.so: cannot open shared object file\n", "library"),
        (f"{_RAISED}RuntimeError: CUDA error: out of memory\nsee here\n", "memory"),
        (f"{_RAISED}KeyboardInterrupt\n", "interrupted"),
        ("Accelerator Fatal Error: Failed to find device function 'k'!\n Line: 1", "other-gpu"),
        ("bash: nvcc: command not found\n", "not-found"),
        ("./run.sh: line 2: ./a.out: No such file or directory\n", "not-found"),
        ("cat: x: No such file or directory\nstep 1\n", None),  # it went on
        ("./a: error while loading shared libraries: libx.so: cannot open\n", "library"),
        ("./a: symbol lookup error: ./a: undefined symbol: f\n", "symbol"),
        ("python: symbol lookup error: /n/libToolsInjection64.so: undefined symbol: f", "profiler"),
        (f"{_RAISED}ValueError: no\nDone, results saved.\n", None),  # it was caught
        ("ERROR: no cache\nstep 1\nAll tests passed\n", None),
        (f"{_RAISED}KeyError: 1\n" + "step\n" * 6 + "ValueError: was seen\n", None),
        (f"{_RAISED}RuntimeError: no\nfinished with an error\n", "RuntimeError"),
        (f"{_RAISED}RuntimeError: reduction was not completed\n", "RuntimeError"),
        (
            '  File "/home/ada/run.py", line 3\n    x = = 1\nSyntaxError: invalid syntax\n',
            "SyntaxError",
        ),
        ("mpirun noticed that rank 1 exited on signal 6 (Aborted).\n---\n", "signal"),
        ("Libomptarget fatal error 1: failure of target construct\n", "unknown"),
        ("usage: a.py [-h]\na.py: error: unrecognized arguments: --ada TRUE\n", "arguments"),
        ("usage: a.py [-h]\na.py: error: argument --m: invalid choice: 'x'\n", "arguments"),
        ("./a: invalid option -- 'q'\n", "arguments"),
        ("usage: a.py [-h] [--ada ADA]\n", None),
        ("Processor 7 caught exception with message: ada\n", "exception"),
        ("exceptions caught: 0\n", None),
        ("terminate called after throwing an instance of 'Ada'\n  what():  no\n", "exception"),
        ("terminate called after throwing an instance of 'std::bad_alloc'\n", "memory"),
    ],
)
def test_the_last_lines_tell_of_an_error(written: str, found: str | None) -> None:
    assert error_of(written) == found


@pytest.mark.parametrize(
    ("written", "held"),
    [
        ("CUDA out of memory. Tried to allocate 2.00 GiB.", None),
        (
            "Tried to allocate 1.00 MiB. GPU 0 has a total capacity of 8.00 GiB of which 0 bytes "
            "is free. Of the allocated memory 12.50 GiB is allocated by PyTorch, and 1.0 MiB is",
            "13421772800 8589934592",
        ),
        (
            "Tried to allocate 2.00 GiB (GPU 0; 1.50 GiB total capacity; 512.00 MiB already alloc"
            "ated; 3.00 MiB free;",
            "536870912 1610612736",
        ),
    ],
)
def test_an_error_of_memory_has_figures(written: str, held: str | None) -> None:
    assert memory_held(written) == held


def test_an_export_tells_how_the_program_ended(tmp_path: Path) -> None:
    export = NsysFile()
    export.range(1, 2, "a")
    for name, written in zip(
        _NAMES, ("Error: /home/ada/in.bin: file not found\n", ""), strict=True
    ):
        ids = {"filenameId": export.string(name), "contentId": export.string(written)}
        export.row("ProcessStreams", globalPid=process(), **ids)
    for made in (export.save(tmp_path / "r.sqlite"), export.save_parquet(tmp_path / "parquet")):
        trace = read(made)
        assert trace.source.facts["program_error"] == "file"
        assert "in.bin" not in repr((trace.source, trace.notes, trace.to_arrow()))


@pytest.mark.parametrize(
    ("written", "is_said"),
    [
        ("PyTorch 2.9\nUsing device: cpu\nstep 1\n", True),
        ("Using cpu device\n", True),
        ("device = 'cpu'\n", True),
        ("Using device: cuda\nmodel on cpu\n", False),
        ("CPU device time 3 ms\n", False),
        ("Using device: cpu\nERROR: no CUDA-capable device is detected\n", False),
    ],
)
def test_a_program_that_says_that_it_uses_the_cpu_is_believed(
    written: str, is_said: bool, tmp_path: Path
) -> None:
    path = tmp_path / "r.nsys-rep"
    path.write_bytes(file_of([], [_NAMES[1], written, "k"], b"", b""))
    trace = read(path)
    assert trace.source.facts.get("said_device") == ("cpu" if is_said else None)
    assert ("wrote that it runs on the CPU" in analyze(trace).verdict.sentence) == is_said


@pytest.mark.parametrize("order", [(7, 8), (8, 7)])
def test_one_process_of_several_that_ends_with_an_error_is_enough(
    order: tuple[int, int], tmp_path: Path
) -> None:
    export = NsysFile()
    export.range(1, 2, "a")
    written = {7: "ERROR: input file not found!\n", 8: "done\n"}
    for pid in order:
        name = export.string(f"/tmp/nsys/pid_{pid}_stderr.log")
        ids = {"filenameId": name, "contentId": export.string(written[pid])}
        export.row("ProcessStreams", globalPid=process(pid), **ids)
    assert read(export.save(tmp_path / "r.sqlite")).source.facts["program_error"] == "file"


def test_a_report_of_the_profiler_has_what_was_written_behind_its_name(tmp_path: Path) -> None:
    texts = [_NAMES[1], "", _NAMES[0], "ERROR: no CUDA-capable device is detected\n", "k"]
    path = tmp_path / "r.nsys-rep"
    path.write_bytes(file_of([], texts, b"", b""))
    assert read(path).source.facts["program_error"] == "no-gpu"
