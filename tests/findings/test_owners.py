"""Whose code a name is."""

import pytest

from traceflops.findings.owners import owner_of


@pytest.mark.parametrize(
    ("label", "owner"),
    [
        ("", None),
        ("train.py(7): step", "yours"),
        ("aten::add", "library"),
        ("/opt/lib/site-packages/kornia/filters.py(7): blur", "library"),
        ("/home/me/flashinfer/flashinfer/jit/core.py(80): load_cuda_ops", "framework"),
        ("vllm/v1/worker/gpu_model_runner.py(488): _prepare_inputs", "framework"),
        ("Torch-Compiled Region: 0/0", "framework"),
        ("execute_context_1(888)_generation_0(0)", "framework"),
        ("vllm::moe_forward", "framework"),
        ("CompiledFunctionBackward", "framework"),
    ],
)
def test_the_folder_of_a_function_tells_whose_it_is(label: str, owner: str | None) -> None:
    assert owner_of(label) == owner
