"""Random small runs for property tests of everything that reads or analyses traces."""

from typing import Any

from hypothesis import strategies as st

from sample_traces.config import RunConfig

_TOGGLES = (
    "overlap",
    "copy_stream",
    "sync_each_step",
    "lead_in",
    "trailing_copy",
    "cuda_graph",
    "programmatic_launch",
    "zero_length_kernels",
    "twin_kernels",
)


@st.composite
def run_configs(draw: st.DrawFn, /, opaque_graphs: bool = False, **fixed: Any) -> RunConfig:
    """Draw a config of 1-3 ranks, 1-6 steps and 1-3 layers; `fixed` sets fields.

    Opaque graphs only on demand: not every format can express them.
    """
    first = draw(st.sampled_from([0, 1, 7]))
    settings: dict[str, Any] = {
        "seed": draw(st.integers(0, 10**6)),
        "ranks": draw(st.integers(1, 3)),
        "steps": draw(st.integers(1, 6)),
        "first_step": first,
        "layers": draw(st.integers(1, 3)),
        "hidden": draw(st.sampled_from([64, 256, 1024])),
        "heads": draw(st.sampled_from([1, 4])),
        "sequence": draw(st.sampled_from([16, 128, 1024])),
        "batch": draw(st.integers(1, 4)),
        "vocab": draw(st.sampled_from([100, 4096])),
        "dtype": draw(st.sampled_from(["bf16", "fp16", "fp32"])),
        "gradient_buckets": draw(st.integers(1, 4)),
        "host_op_ns": draw(st.sampled_from([1, 1_000, 6_001])),
        "launch_call_ns": draw(st.sampled_from([1, 2_999])),
        "launch_latency_ns": draw(st.sampled_from([0, 1, 4_000])),
        "dispatch_gap_ns": draw(st.sampled_from([0, 1, 800])),
        "event_wait_ns": draw(st.sampled_from([0, 1_500])),
        "python_overhead_ns": draw(st.sampled_from([0, 9_000])),
        "data_stall_ns": draw(st.sampled_from([0, 700_000])),
        "straggler_percent": draw(st.sampled_from([100, 130])),
        "noise_permille": draw(st.sampled_from([0, 20, 300])),
        "clock_skew_ns": draw(st.sampled_from([0, 1, 12_345])),
    }
    settings |= {name: draw(st.booleans()) for name in _TOGGLES}
    settings |= fixed
    if opaque_graphs and settings["cuda_graph"]:
        settings.setdefault("opaque_graph", draw(st.booleans()))
    _draw_places(draw, settings)
    return RunConfig(**settings)


def _draw_places(draw: st.DrawFn, settings: dict[str, Any]) -> None:
    """Draw which steps stall and which rank is slow, among those that exist."""
    first, steps = settings["first_step"], settings["steps"]
    numbers = st.integers(first, first + steps - 1)
    stalls = draw(st.lists(numbers, max_size=2, unique=True).map(sorted))
    settings.setdefault("data_stall_steps", tuple(stalls))
    ranks = st.none() | st.integers(0, settings["ranks"] - 1)
    settings.setdefault("straggler_rank", draw(ranks))
