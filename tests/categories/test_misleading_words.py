"""Words that mislead: each line holds a word of another category than the kernel's own."""

import pytest

from traceflops.categories.classify import load
from traceflops.categories.rules import Category

ATEN = "void at::native::vectorized_elementwise_kernel<4, at::native::{}, int>(int)"

CASES = [
    # gemm
    ("sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_tn_n_cudnn", "compute", "convolution"),
    ("void fbgemm_gpu::permute_2D_data_kernel<true, int>(int)", "memory", "embedding_index"),
    ("void fbgemm_gpu::_compute_FP8_quantize_cuda_kernel<float>(int)", "memory", "quantize"),
    # elementwise
    (ATEN.format("direct_copy_kernel_cuda(at::TensorIteratorBase&)"), "memory", "copy"),
    (ATEN.format("FillFunctor<float>"), "memory", "memset"),
    (ATEN.format("(anonymous namespace)::masked_scale_kernel<bool>"), "memory", "rng_dropout"),
    (ATEN.format("batch_norm_calc_invstd(at::Tensor const&)"), "memory", "norm"),
    (ATEN.format("fbgemm_gpu::_float_to_hfp8_gpu(at::Tensor const&)"), "memory", "quantize"),
    ("index_elementwise_kernel<128, 4, index_copy_kernel_impl<int> >", "memory", "embedding_index"),
    ("residual_forward_kernel2(float*, float*, float*, int)", "memory", "elementwise"),
    ("bias_residual_kernel(float*, int)", "memory", "elementwise"),
    ("logical_not_kernel(bool*, int)", "memory", "elementwise"),
    ("merge_with_logical_blocks(int*, int)", "other", "other"),
    ("computeResidual(double*, double*, int)", "other", "other"),
    ("calcAllLowestResidualsGPU", "other", "other"),
    ("residual_kernel(double const*, double*)", "other", "other"),
    # addmm, mm and other work that was only adjacent
    ("triton_poi_fused_addmm_gelu_view_15", "memory", "elementwise"),
    ("triton_red_fused_add_addmm_native_layer_norm_view_6", "memory", "fused_norm"),
    ("triton_poi_fused__scaled_dot_product_flash_attention_cat_10", "memory", "elementwise"),
    ("triton_red_fused_convolution_native_layer_norm_view_2", "memory", "fused_norm"),
    ("triton_poi_fused_all_reduce_add_3", "memory", "elementwise"),
    # copy
    ("void at::native::CatArrayBatchedCopy<float, unsigned int, 2>(int)", "memory", "layout"),
    ("triton_poi_fused__to_copy_mul_3", "memory", "elementwise"),
    (
        ATEN.format("CUDAFunctor_add<float>, at::native::memory::LoadWithCast<1>"),
        "memory",
        "elementwise",
    ),
    # sum
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(int)", "communication", "collective"),
    ("void cub::DeviceScanKernel<int, cub::Sum, cub::NullType>(int)", "memory", "sort_scan"),
    # norm
    ("lpnorm_cleanup", "memory", "reduction"),
    ("reduce_kernel<512, 1, ReduceOp<float, NormTwoOps<float> > >", "memory", "reduction"),
    ("void rope_norm<true, false, float>(float const*)", "memory", "elementwise"),
    ("elementwise_kernel<normal_kernel<float> >", "memory", "rng_dropout"),
    ("normal_kernel(float*, int)", "memory", "rng_dropout"),
    ("generate_seed_kernel(unsigned long*)", "memory", "rng_dropout"),
    ("void init_uniform<float>(float*, int)", "memory", "rng_dropout"),
    ("julia_calculate_normal_velocity_tendency_cuda_kernel__6948(Int64)", "other", "other"),
    ("compute_surface_normal(float3*, int)", "other", "other"),
    ("gaussian_blur(uchar4*, int)", "other", "other"),
    ("seed_extend(char*, int)", "other", "other"),
    (
        "void moe::dev::routing::routingRenormalize::indicesKernel<int>(int)",
        "memory",
        "moe_routing",
    ),
    # reduce
    ("void cross_device_reduce_1stage<float, 8>(int)", "communication", "collective"),
    ("void splitKreduce_kernel<32, 16, int, float>(int)", "compute", "gemm"),
    ("void cub::DeviceReduceByKeyKernel<int>(int)", "memory", "sort_scan"),
    ("reduce_segments", "compute", "attention"),
    ("void flash_attn_combine_results<128>(float const*)", "compute", "attention"),
    ("void vllm::paged_attention_v2_reduce_kernel<float>(int)", "compute", "attention"),
    # cutlass
    (
        "void cutlass::Kernel2<cutlass_80_tensorop_s16816fprop_align8>(int)",
        "compute",
        "convolution",
    ),
    ("void cutlass_cudnn_infer::Kernel<cutlass_tensorop_s1688>(int)", "compute", "convolution"),
    ("void pytorch_flash::flash_fwd_kernel<cutlass::bfloat16_t>(int)", "compute", "attention"),
    ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(int)", "compute", "attention"),
    # index
    ("sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_cudnn", "compute", "convolution"),
    ("elementwise_kernel_with_index<int, arange_cuda_out>", "memory", "elementwise"),
    # conv
    ("void convert_unary<float, __half>(void const*)", "memory", "copy"),
    (
        "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<int>::exists, void>::type "
        "vllm::fused_add_rms_norm_kernel<int, 8>(int)",
        "memory",
        "fused_norm",
    ),
    (
        "void cutlass::Kernel<cutlass::gemm::Gemm<cutlass::NumericArrayConverter<int> > >()",
        "compute",
        "gemm",
    ),
    # thrust, rocprim, cub
    (
        "void thrust::__parallel_for::kernel<1, thrust::__fill::functor<int> >(int)",
        "memory",
        "memset",
    ),
    ("void thrust::__parallel_for::kernel<1, __uninitialized_copy::functor>()", "memory", "copy"),
    (
        "void rocprim::detail::trampoline_kernel<rocprim::reduce_config_selector<bool> >(int)",
        "memory",
        "reduction",
    ),
    # async, sync, dma
    ("void recat_copy_async_kernel<float>(int)", "memory", "layout"),
    ("ampere_sgemm_async_128x64_nn", "compute", "gemm"),
    ("my_sync_dma_async_kernel", "other", "other"),
    # embedding, attention, position
    ("void vllm::rotary_embedding_kernel<float, true>(int)", "memory", "elementwise"),
    ("create_flashinfer_kv_indices_triton", "memory", "embedding_index"),
    ("compute_position_kernel", "memory", "embedding_index"),
    # linear algebra
    ("void trsm_left_kernel<float, 256>(int)", "compute", "linalg"),
    ("void getrf_pivot<float>(int)", "compute", "linalg"),
    ("cusolver::ipiv_lower_cta<int>", "compute", "linalg"),
    ("laswp_gemm_kernel", "compute", "linalg"),
]


def test_word_does_not_mislead() -> None:
    for name, top, sub in CASES:
        assert load().kernel(name).category == Category(top, sub), name


@pytest.mark.parametrize(
    "name",
    ["", " ", "kernel", "my_kernel", "fusion_12", "zzz<gemm>(attention)", "laplacian_kernel"],
)
def test_unknown_is_other(name: str) -> None:
    decision = load().kernel(name)
    assert decision.category == Category("other", "other")
    assert decision.rule == "none"


@pytest.mark.parametrize("name", ["germmany", "addendum", "summary", "conversion_rate"])
def test_words_are_not_substrings(name: str) -> None:
    assert load().kernel(name).rule == "none"


@pytest.mark.parametrize(
    "written",
    [
        "{}",
        "void {}<float>(int)",
        "static {}(int)",
        '"{}"',
        "{}.kd",
        "{} [clone .kd]",
        "{} (.kd)",
        "void (anonymous namespace)::{}(int)",
        "void <unnamed>::{}(int)",
        "void _GLOBAL__N__0123_4_x_cu::{}(int)",
        "  {}  ",
    ],
)
def test_what_surrounds_the_head_is_taken_off(written: str) -> None:
    decision = load().kernel(written.format("gemv2T_kernel_val"))
    assert (decision.category.sub, decision.looked_at) == ("gemm", "gemv2T_kernel_val")
