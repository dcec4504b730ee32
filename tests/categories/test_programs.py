"""Which recordings are of machine learning: only these hear of MFU, steps and batches."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.build import trace_of
from traceflops import Trace, analyze
from traceflops.categories.programs import of_ml
from traceflops.recording.inventory import take_inventory
from traceflops.reports.view.utilisation import why_not

ML = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >(int)",
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true>(float)",
    "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x32",
    "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x3_tn",
    "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT",
    "Cijk_Ailk_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT128x128x32",
    "MIOpenBatchNormFwdTrainSpatial",
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 32, 4> >(int)",
    "triton_poi_fused_add_mul_0",
    "void tensorflow::BiasNHWCKernel<float>(int, float const*)",
    "input_reduce_fusion_2",
    "loop_add_fusion",
    "vllm::rms_norm_kernel<c10::Half>(int)",
)
NOT_ML = (
    "matrixMulCUDA(float*, float*, float*, int, int)",
    "void gemm_kernel<double>(double const*, int)",
    "ampere_dgemm_128x64_nn",
    "volta_sgemm_128x64_nn",
    "Cijk_Ailk_Bljk_DB_MT128x128x8",
    "convolutionRowsKernel(float*, float*, int, int, int)",
    "nbnxn_kernel_ElecEw_VdwLJ_F_cuda",
    "Kokkos::Impl::cuda_parallel_launch_local_memory<Foo>(Foo)",
    "JacobiIterationKernel(int, float*)",
    "addition_kernel",
    "fused_update_fusion_of_cells",
)
GGML = (
    "void mul_mat_q<(ggml_type)12, 128, false>(char const*, int const*)",
    "void mul_mat_vec_q<(ggml_type)8, 1>(void const*)",
    "quantize_q8_1(float const*, void*, int)",
)


def nsys(*kernels: str, mark: str = "") -> Trace:
    rows = [{"name": name, "start_ns": 100 * at, "dur_ns": 90} for at, name in enumerate(kernels)]
    marks = [{"name": mark, "start_ns": 0, "dur_ns": 9}] if mark else []
    trace = trace_of(activities=rows, marks=marks)
    return replace(trace, source=replace(trace.source, format="nsys-sqlite"))


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [*((name, True) for name in ML), *((name, False) for name in (*NOT_ML, *GGML))],
)
def test_frameworks_and_their_libraries_are_known_by_their_kernels(
    kernel: str, *, expected: bool
) -> None:
    assert of_ml(nsys("copy_rows(float*)", kernel)) == expected


def test_of_llama_cpp_no_batch_is_known_even_where_blas_computes_for_it() -> None:
    assert not of_ml(nsys(ML[3], GGML[0]))
    assert of_ml(nsys(ML[0], GGML[0]))  # its kernels inside PyTorch


@pytest.mark.parametrize(
    ("mark", "expected"),
    [
        ("aten::mm, op_id = 42", True),
        ("Epoch 3", True),
        ("Optimizer.step#AdamW.step", True),
        ("time step 7", False),
        ("halo exchange", False),
    ],
)
def test_ranges_tell_a_framework_too(mark: str, *, expected: bool) -> None:
    assert of_ml(nsys("k(int)", mark=mark)) == expected


@pytest.mark.parametrize("is_ml", [True, False])
def test_only_machine_learning_is_told_how_to_get_an_mfu_and_steps(*, is_ml: bool) -> None:
    trace = nsys(*((ML[0], ML[3]) if is_ml else NOT_ML[:1]), "copy_rows(float*)")
    analysis = analyze(trace)
    assert ["--model NAME" in one for one in why_not(analysis.measured)] == [True] * is_ml
    assert "No MFU: " in why_not(analysis.measured, is_asked=True)[0]
    (steps,) = [note.text for note in analysis.notes if note.code == "no-steps"]
    assert ("torch.cuda.nvtx.range" in steps) == is_ml
    assert steps.startswith("No steps found: the whole trace is one window.")
    assert ("steps" in {one.code for one in take_inventory(trace).missing}) == is_ml


def test_without_any_kernel_of_a_model_only_who_asks_hears_of_mfu() -> None:
    measured = analyze(nsys(ML[0])).measured  # PyTorch beside a simulation
    assert why_not(measured) == []
    told = "No MFU: no GEMM, convolution or attention ran on the GPU."
    assert why_not(measured, is_asked=True) == [told]


def test_where_kernels_are_uncategorized_none_is_known_to_be_of_a_model() -> None:
    measured = analyze(nsys(ML[0], "settle(float*)")).measured
    assert why_not(measured) == []
    (told,) = why_not(measured, is_asked=True)
    assert told == (
        "No MFU: no kernel is known as a GEMM, convolution or attention, and what uncategorized "
        "kernels compute is unknown."
    )


@pytest.mark.parametrize(
    ("beside", "top"),
    [
        ("settle(float*)", "other"),
        ("void cub::DeviceScanKernel<int>(int)", "other"),  # a library, but not the kernel's
        (ML[0], "memory"),
        (GGML[0], "memory"),
    ],
)
def test_words_tell_the_work_of_a_librarys_kernels_only(beside: str, top: str) -> None:
    """A scan whose blocks wait for each other is no work of memory."""
    own = ("kernel_bucket_reduce_g1<64>(int)", "compact_scan(int*)", "create_histogram(int*)")
    table = analyze(nsys(*own, beside)).kernels.to_pylist()
    tops = {row["name"]: row["top"] for row in table}
    assert [tops[name] for name in own] == [top] * 3
    assert tops.get("void cub::DeviceScanKernel<int>(int)", "memory") == "memory"


def test_a_users_rule_holds_of_own_kernels(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(
        '[[rule]]\nid = "reduction"\nhead = "bucket_reduce"\ntop = "compute"\nsub = "linalg"\n'
        'because = "points of an elliptic curve"\n'
    )
    analysis = analyze(nsys("kernel_bucket_reduce_g1(int)"), rules=path)
    assert analysis.kernels["top"].to_pylist() == ["compute"]
