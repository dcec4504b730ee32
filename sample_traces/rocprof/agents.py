"""The agents of a simulated node as rocprofiler-sdk describes them: two CPUs, then the GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sample_traces.machines import Machine

Agent = dict[str, Any]

CPUS: Final = 2
GPUS: Final = 8
DIES: Final = 8
FIRST_HANDLE: Final = 37_944
_CPU_CORES: Final = 96
_CPU_NAME: Final = "AMD EPYC 9654 96-Core Processor"

_NUMBERS: Final = {
    "cpu_cores_count": 0,
    "simd_count": 1216,
    "mem_banks_count": 1,
    "caches_count": 0,
    "io_links_count": 0,
    "cpu_core_id_base": 0,
    "simd_id_base": 2_147_487_744,
    "max_waves_per_simd": 8,
    "lds_size_in_kb": 64,
    "gds_size_in_kb": 0,
    "num_gws": 64,
    "wave_front_size": 64,
    "num_xcc": DIES,
    "cu_count": 304,
    "array_count": 32,
    "num_shader_banks": 32,
    "simd_arrays_per_engine": 1,
    "cu_per_simd_array": 10,
    "simd_per_cu": 4,
    "max_slots_scratch_cu": 32,
    "gfx_target_version": 90_402,
    "vendor_id": 4098,
    "device_id": 29_857,
    "location_id": 1280,
    "domain": 0,
    "drm_render_minor": 128,
    "num_sdma_engines": 2,
    "num_sdma_xgmi_engines": 14,
    "num_sdma_queues_per_engine": 8,
    "num_cp_queues": 24,
    "max_engine_clk_ccompute": 3700,
    "max_engine_clk_fcompute": 2100,
}
"""What is a number in every agent, as it is of a GPU."""

_OF_CPUS: Final = {
    "cpu_cores_count": _CPU_CORES,
    "mem_banks_count": 1,
    "cu_count": _CPU_CORES,
    "num_xcc": 1,
    "max_engine_clk_ccompute": 3700,
}
"""The same of a CPU; what is missing is 0."""


def agents(machine: Machine, ranks: int) -> list[Agent]:
    """Return all agents of the node in the order of their numbers."""
    gpus = [_gpu(machine, CPUS + place, place) for place in range(max(GPUS, ranks))]
    return [_cpu(place) for place in range(CPUS)] + gpus


def node_of_rank(rank: int) -> int:
    """Return the node number of the GPU that a rank uses."""
    return CPUS + rank


def handle(node: int) -> int:
    """Return the handle by which records name an agent."""
    return FIRST_HANDLE + node


def _cpu(node: int) -> Agent:
    numbers = dict.fromkeys(_NUMBERS, 0) | _OF_CPUS | {"cpu_core_id_base": node * _CPU_CORES}
    bank = {"heap_type": 0, "width": 72, "mem_clk_max": 4800, "size_in_bytes": 810_255_499_264}
    names = {"name": _CPU_NAME, "vendor_name": "CPU", "product_name": _CPU_NAME, "model_name": ""}
    return _agent(1, node, node, numbers, names, bank)


def _gpu(machine: Machine, node: int, place: int) -> Agent:
    own = {
        "simd_id_base": _NUMBERS["simd_id_base"] + 1216 * place,
        "location_id": 1280 + 4096 * place,
        "drm_render_minor": 128 + place,
    }
    names = {
        "name": "gfx942",
        "vendor_name": "AMD",
        "product_name": machine.product,
        "model_name": "ip discovery",
    }
    bank = {
        "heap_type": 1,
        "width": 8192,
        "mem_clk_max": 1300,
        "size_in_bytes": machine.memory_bytes,
    }
    return _agent(2, node, place, _NUMBERS | own, names, bank)


def _agent(
    type_: int,
    node: int,
    place: int,
    numbers: Mapping[str, int],
    names: Mapping[str, str],
    bank: Mapping[str, int],
) -> Agent:
    is_gpu = type_ == 2
    dimensions = {"x": 1024, "y": 1024, "z": 1024} if is_gpu else {"x": 0, "y": 0, "z": 0}
    grid = {"x": 2_147_483_647, "y": 65_535, "z": 65_535} if is_gpu else {"x": 0, "y": 0, "z": 0}
    flags = {"HotPluggable": 0, "NonVolatile": 0}
    return {
        "size": 312,
        "id": {"handle": handle(node)},
        "type": type_,
        **numbers,
        "sdma_fw_version": {"uCodeSDMA": 22 if is_gpu else 0, "uCodeRes": 0},
        "fw_version": {"uCode": 166 if is_gpu else 0, "Major": 0, "Minor": 0, "Stepping": 0},
        "capability": {"DoorbellType": 2 if is_gpu else 0},
        "cu_per_engine": 10 if is_gpu else 0,
        "max_waves_per_cu": 32 if is_gpu else 0,
        "family_id": 141 if is_gpu else 25,
        "workgroup_max_size": 1024 if is_gpu else 0,
        "grid_max_size": 4_294_967_295 if is_gpu else 0,
        # As on the real part: the size stands with the memory's banks.
        "local_mem_size": 0,
        "hive_id": 8_262_345_103_228_641_007 if is_gpu else 0,
        "gpu_id": 5_000 + 11 * node if is_gpu else 0,
        "workgroup_max_dim": dimensions,
        "grid_max_dim": grid,
        **names,
        "node_id": node,
        "logical_node_id": node,
        "logical_node_type_id": place,
        "mem_banks": [{**bank, "flags": flags}],
        "caches": [],
        "io_links": [],
    }
