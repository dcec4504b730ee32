"""FLOPs of one report agree, by operators, by lines and as a whole (also: tests/schemas.py)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import traceflops as tf
from tests.conftest import SAMPLES, shared_file, some
from tests.schemas import disagreement

_PLACES = (SAMPLES, Path(os.environ.get("TRACEFLOPS_SHARED", SAMPLES), "traces", "pytorch"))
_RECORDINGS = [path for place in _PLACES for path in sorted(place.rglob("*.json.gz"))]


@pytest.mark.parametrize("path", some(_RECORDINGS, 32), ids=lambda path: path.name)
def test_flops_of_recordings_agree(path: Path) -> None:
    assert disagreement(json.loads(tf.analyze(path).to_json())) is None


@pytest.mark.parametrize(
    ("file", "flops"),
    [
        ("cases/pytorch_amd_jax/external-id-fallback-flops/trace.json", 171_798_691_840),
        ("verdicts/files/hpct-replay.json", 9_663_676_416),
    ],
)
def test_kernels_without_launch_take_no_flops_of_operators(file: str, flops: int) -> None:
    """Kineto writes their correlation as external id, which happens to be that of an operator."""
    report = json.loads(tf.analyze(shared_file(file)).to_json())
    assert report["utilisation"]["model_flops"] == flops
    assert sum(row["flops"] for row in report["utilisation"]["ops"]) == flops
