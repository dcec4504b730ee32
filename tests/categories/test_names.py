import pytest

from traceflops.categories.classify import LONGEST, clean, parse, words


@pytest.mark.parametrize(
    ("name", "namespace", "head"),
    [
        ("void at::native::reduce_kernel<512, 1>(int)", "at::native", "reduce_kernel"),
        (
            "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bLi64EEEvPT0_",
            "aiter",
            "add_rmsnorm_quant_kernel",
        ),
        ("_ZN2ck12_GLOBAL__N_111kernel_gemmILi1EEEvv", "ck", "kernel_gemm"),
        ("_Z9transposePfS_i", "", "transpose"),
        ("_ZL9transposePfS_i", "", "transpose"),
        ("std::enable_if<!(false), void>::type a::b::kernel<int>(int)", "a::b", "kernel"),
        ("std::enable_if<((8)>(0)), void>::type a::kernel<int>()", "a", "kernel"),
        ("std::enable_if_t<true> kernel<int>()", "", "kernel"),
        # as Nsight Systems writes a condition ((8) > (0)) && b::exists
        ("std::enable_if<T2>(int)0&&b::exists, void>::type a::kernel<int>(int)", "a", "kernel"),
        ("std::enable_if<unfinished", "std", "enable_if"),
        ("unsigned int f<int>()", "", "f"),
        ("Memcpy DtoH (Device -> Pageable)", "", "Memcpy DtoH"),
        ("<>", "", ""),
        ("_Z", "", ""),
    ],
)
def test_head_and_namespace(name: str, namespace: str, head: str) -> None:
    parts = parse(name)
    assert (parts.namespace, parts.head) == (namespace, head)


def test_mangled_and_demangled_arguments_are_the_same_words() -> None:
    mangled = parse("_ZN2ck4runsINS_10FmhaKernelELNS_8FuseEnumE1ELi128EEEvv").arguments
    demangled = parse("void ck::runs<FmhaKernel, (FuseEnum)1, 128>()").arguments
    assert mangled == demangled == "fmha_kernel FmhaKernel fuse_enum=1 FuseEnum=1"


@pytest.mark.parametrize(
    ("identifier", "snake"),
    [
        ("cunn_SoftMaxForward", "cunn_soft_max_forward"),
        ("CatArrayBatchedCopy_contig", "cat_array_batched_copy_contig"),
        ("RowwiseMomentsCUDAKernel", "rowwise_moments_cuda_kernel"),
        ("FP8GroupedGemm", "fp8_grouped_gemm"),
        ("Rmsnorm2dFwd", "rmsnorm2d_fwd"),
        ("__amd_rocclr_copyBuffer", "amd_rocclr_copy_buffer"),
    ],
)
def test_words(identifier: str, snake: str) -> None:
    assert words(identifier) == snake


def test_only_the_beginning_is_read() -> None:
    assert len(clean("a" * 1_000_000)) == LONGEST
