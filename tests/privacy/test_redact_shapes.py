"""`--redact`: what is an address or a machine by its shape goes, names of libraries stay."""

from __future__ import annotations

import pytest

from traceflops.privacy.placeholders import Placeholders


@pytest.mark.parametrize(
    "text",
    [
        "10.77.3.9:29500:",
        "sent to 10.77.3.9.",
        "op::10.77.3.9",
        "send_worker_10_77_3_9",
        "192_168_077_003_recv",
        "v10.77.3.9",
        "10.77.3.9_send",
        "x10.77.3.9y",
        "010.077.003.009",
        "10.77.3.9/24",
        "(10.77.3.9)",
        "3c:77:ef:12:34:56",
        "mac_3c-77-ef-12-34-56",
        "3c77.ef12.3456",
        "fe80::77%eth0",
        "[fe80::77]:29500",
        "op::fe80::77",
        "fe80::77::send",
        "::ffff:10.77.3.9",
        "x_fe80::77:beef.",
        "fe80:0:0:0:0:0:0:77:",
        "gid fe80:0000:0000:0000:3c77:efff:fe12:3456_1",
    ],
)
def test_no_number_of_an_address_is_left(text: str) -> None:
    made = Placeholders().partly("kernel name", text)
    assert "77" not in made
    assert "name" in made
    assert not {"fe80", "ef12", "192", "29500"} & set(made.replace("_", ":").split(":"))


def test_an_address_has_one_placeholder_wherever_it_stands() -> None:
    shown = Placeholders()
    made = [
        shown.partly("kernel name", text)
        for text in ("10.77.3.9", "op::10.77.3.9", "to 10.77.3.9.", "10.77.3.9_send")
    ]
    assert made == ["name1", "op::name1", "to name1.", "name1_send"]


@pytest.mark.parametrize(
    "text",
    [
        *("gpu17", "node0012", "host42", "server3", "worker12", "node_4", "Node-4", "login1"),
        *("compute.internal", "cluster.local", "gpu.lan", "data.corp", "prod-gpu-node"),
    ],
)
def test_machines_of_library_words_are_replaced(text: str) -> None:
    assert Placeholders().partly("word", text) == "name1"
    assert Placeholders().partly("word", f"copy {text} end") == "copy name1 end"


def test_a_rank_keeps_its_number_beside_a_machine() -> None:
    assert Placeholders().partly("word", "rank17_node4") == "rank17_name1"


@pytest.mark.parametrize(
    "name",
    [
        "c10::detail::add",
        "c10d::allreduce_",
        "at::native::c10::add",
        "torch.distributed.internal",
        "host-to-device copy",
        "cutlass_80_tensorop_128_64_32_4",
        "gemm_10_5_128_64_2",
        "12:30:45",
        "void cub::plus<T1, T13>(T1, T99)",
        "sm80_xmma_fprop_implicit_gemm_indexed_wo_smem_f16_t1r3s3_aACCESS_execute_kernel_trt",
        "Cijk_Ailk_Bljk_HHS_BH_UMLDSA0_UMLDSB0_U64SL1_USFGROn1_VAW1",
        "ck::kernel_gemm",
        "cub::GridEvenShare<T3>",
        "poolingForward_NHWC_Average_FastDiv_CAlign8_execute_kernel_trt",
        "at::native::templates::cuda::normal",
    ],
)
def test_names_of_libraries_stay(name: str) -> None:
    assert Placeholders().partly("kernel name", name) == name


@pytest.mark.parametrize("name", ["x95332", "x95332D", "zorkT1", "T123"])
def test_what_only_looks_like_a_code_goes(name: str) -> None:
    assert Placeholders().partly("kernel name", name) == "name1"
