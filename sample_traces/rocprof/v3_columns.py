"""The columns of rocprofv3's CSV files in each release, and the words in them."""

from __future__ import annotations

from typing import Final, Literal

Release = Literal["6.2", "6.3", "7.0"]
SIZES: Final = tuple(f"{what}_Size_{axis}" for what in ("Workgroup", "Grid") for axis in "XYZ")
KERNELS: Final[dict[Release, tuple[str, ...]]] = {
    "6.2": (
        *("Kind", "Agent_Id", "Queue_Id", "Kernel_Id", "Kernel_Name", "Correlation_Id"),
        *("Start_Timestamp", "End_Timestamp", "Private_Segment_Size", "Group_Segment_Size"),
        *SIZES,
    ),
    "6.3": (
        *("Kind", "Agent_Id", "Queue_Id", "Thread_Id", "Dispatch_Id", "Kernel_Id"),
        *("Kernel_Name", "Correlation_Id", "Start_Timestamp", "End_Timestamp"),
        *("Private_Segment_Size", "Group_Segment_Size", *SIZES),
    ),
    "7.0": (
        *("Kind", "Agent_Id", "Queue_Id", "Stream_Id", "Thread_Id", "Dispatch_Id", "Kernel_Id"),
        *("Kernel_Name", "Correlation_Id", "Start_Timestamp", "End_Timestamp"),
        *("LDS_Block_Size", "Scratch_Size", "VGPR_Count", "Accum_VGPR_Count", "SGPR_Count"),
        *SIZES,
    ),
}
COUNTERS: Final[dict[Release, tuple[str, ...]]] = {
    "6.2": (
        *("Correlation_Id", "Dispatch_Id", "Agent_Id", "Queue_Id", "Process_Id", "Thread_Id"),
        *("Grid_Size", "Kernel_Name", "Workgroup_Size", "LDS_Block_Size", "Scratch_Size"),
        *("VGPR_Count", "SGPR_Count", "Counter_Name", "Counter_Value"),
    ),
    "6.3": (
        *("Correlation_Id", "Dispatch_Id", "Agent_Id", "Queue_Id", "Process_Id", "Thread_Id"),
        *("Grid_Size", "Kernel_Id", "Kernel_Name", "Workgroup_Size", "LDS_Block_Size"),
        *("Scratch_Size", "VGPR_Count", "SGPR_Count", "Counter_Name", "Counter_Value"),
        *("Start_Timestamp", "End_Timestamp"),
    ),
    "7.0": (
        *("Correlation_Id", "Dispatch_Id", "Agent_Id", "Queue_Id", "Process_Id", "Thread_Id"),
        *("Grid_Size", "Kernel_Id", "Kernel_Name", "Workgroup_Size", "LDS_Block_Size"),
        *("Scratch_Size", "VGPR_Count", "Accum_VGPR_Count", "SGPR_Count", "Counter_Name"),
        *("Counter_Value", "Start_Timestamp", "End_Timestamp"),
    ),
}
_COPY_ENDS: Final = (
    *("Source_Agent_Id", "Destination_Agent_Id", "Correlation_Id", "Start_Timestamp"),
    "End_Timestamp",
)
COPIES: Final[dict[Release, tuple[str, ...]]] = {
    "6.2": ("Kind", "Direction", *_COPY_ENDS),
    "6.3": ("Kind", "Direction", *_COPY_ENDS),
    "7.0": ("Kind", "Direction", "Stream_Id", *_COPY_ENDS),
}
RANGES: Final = (
    *("Domain", "Function", "Process_Id", "Thread_Id", "Correlation_Id"),
    *("Start_Timestamp", "End_Timestamp"),
)
FILES: Final = {"hip": "hip_api_trace", "rccl": "rccl_api_trace", "marker": "marker_api_trace"}
DOMAINS: Final[dict[Release, dict[str, str]]] = {
    "6.2": {"hip": "HIP_RUNTIME_API", "rccl": "RCCL_API", "marker": "MARKER_CORE_API"},
    "6.3": {"hip": "HIP_RUNTIME_API", "rccl": "RCCL_API", "marker": "MARKER_CORE_API"},
    "7.0": {"hip": "HIP_RUNTIME_API_EXT", "rccl": "RCCL_API", "marker": "MARKER_CORE_RANGE_API"},
}
DIRECTIONS: Final = {
    "HtoD": "MEMORY_COPY_HOST_TO_DEVICE",
    "DtoH": "MEMORY_COPY_DEVICE_TO_HOST",
}
NESTED: Final = {
    "sdma_fw_version": "uCodeSDMA",
    "fw_version": "uCode",
    "capability": "DoorbellType",
}
AGENT_WORDS: Final = (
    *("node_id", "logical_node_id", "type", "cpu_cores_count", "simd_count"),
    *("cpu_core_id_base", "simd_id_base", "max_waves_per_simd", "lds_size_in_kb"),
    *("gds_size_in_kb", "num_gws", "wave_front_size", "num_xcc", "cu_count", "array_count"),
    *("num_shader_banks", "simd_arrays_per_engine", "cu_per_simd_array", "simd_per_cu"),
    *("max_slots_scratch_cu", "gfx_target_version", "vendor_id", "device_id", "location_id"),
    *("domain", "drm_render_minor", "num_sdma_engines", "num_sdma_xgmi_engines"),
    *("num_sdma_queues_per_engine", "num_cp_queues", "max_engine_clk_ccompute"),
    *("max_engine_clk_fcompute", "sdma_fw_version", "fw_version", "capability"),
    *("cu_per_engine", "max_waves_per_cu", "family_id", "workgroup_max_size", "grid_max_size"),
    *("local_mem_size", "hive_id", "gpu_id", "workgroup_max_dim_x", "workgroup_max_dim_y"),
    *("workgroup_max_dim_z", "grid_max_dim_x", "grid_max_dim_y", "grid_max_dim_z", "name"),
    *("vendor_name", "product_name", "model_name"),
)
