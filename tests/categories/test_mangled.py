"""Mangled names as they are read: of Linux and of Windows, with and without templates."""

import pytest

from traceflops.categories.kernel_names import without_return_type
from traceflops.categories.mangled import readable


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("_Z5saxpyifPfS_", "saxpy"),
        ("_ZN2ns4gemmILi4ENS_4ReluEEEvPf", "ns::gemm<4, Relu>"),
        ("_ZN3ops5scaleIfLin1EEEvPT_", "ops::scale<-1>"),
        ("_ZN12_GLOBAL__N_16kernelEPf", "kernel"),
        (
            "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEE"
            "St5arrayIPcLy3EEEEviT0_T1_",
            "at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add, array, 3>",
        ),
        ("nvkernel__ZN16_INTERNAL_2_cg_c5solveEPiS0__F1L357_22", "solve_L357"),
        ("_ZN4grid5solveEPd_42_gpu", "grid::solve_42_gpu"),
        ("_Z5solvePd_42_gpu__red", "solve_42_gpu__red"),
        ("_Z", "_Z"),
        ("_ZTV3abc", "_ZTV3abc"),
        ("volta_sgemm_128x64_nn", "volta_sgemm_128x64_nn"),
    ],
)
def test_a_mangled_name_is_made_readable(name: str, said: str) -> None:
    assert readable(name) == said
    assert without_return_type(name) == said
