import pytest

from traceflops.categories.classify import load
from traceflops.categories.rules import Category

CASES = [
    ("aten::mm", "compute", "gemm"),
    ("aten::addmm", "compute", "gemm"),
    ("AddmmBackward0", "compute", "gemm"),
    ("autograd::engine::evaluate_function: MmBackward0", "compute", "gemm"),
    ("mkldnn::_linear_pointwise", "compute", "gemm"),
    ("quantized::linear", "compute", "gemm"),
    ("dot.3", "compute", "gemm"),  # of XLA
    ("aten::dot", "memory", "reduction"),
    ("aten::upsample_linear1d", "memory", "layout"),
    ("aten::mkldnn_convolution", "compute", "convolution"),
    ("ConvolutionBackward0", "compute", "convolution"),
    ("aten::_scaled_dot_product_flash_attention_for_cpu", "compute", "attention"),
    ("aten::native_layer_norm_backward", "memory", "norm"),
    ("aten::linalg_vector_norm", "memory", "reduction"),
    ("aten::_softmax", "memory", "softmax"),
    ("aten::add_.Tensor", "memory", "elementwise"),
    ("AddBackward0", "memory", "elementwise"),
    ("aten::index_add_", "memory", "embedding_index"),
    ("aten::_to_copy", "memory", "copy"),
    ("aten::view", "memory", "layout"),
    ("torch::autograd::AccumulateGrad", "memory", "optimizer"),
    ("c10d::allreduce_", "communication", "collective"),
    ("c10d::send", "communication", "point_to_point"),
    ("nccl:all_reduce", "communication", "collective"),
    ("_c10d_functional::all_gather_into_tensor", "communication", "collective"),
    ("vllm::rotary_embedding", "memory", "elementwise"),
]


@pytest.mark.parametrize(("name", "top", "sub"), CASES)
def test_operator(name: str, top: str, sub: str) -> None:
    assert load().op(name).category == Category(top, sub)


@pytest.mark.parametrize(
    "name", ["", "mylib::add_user", "mylib::select", "ProfilerStep#3", "aten::empty", "forward"]
)
def test_unknown_operators_are_other(name: str) -> None:
    assert load().op(name).category == Category("other", "other")


def test_operators_and_kernels_have_their_own_rules() -> None:
    assert load().kernel("aten::view").category == Category("other", "other")
    assert load().op("ampere_fp16_s16816_tn").category == Category("other", "other")
