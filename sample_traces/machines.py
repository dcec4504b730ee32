"""The GPUs that are simulated: what they are and what their runtime calls its functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from sample_traces.config import MachineName


class Machine(Struct, frozen=True):
    """One product. `units` are multiprocessors or compute units, `width` threads of a warp.

    `properties` and `versions` are what a PyTorch trace says of it and of its software; `calls`
    gives the runtime's name of a function that the program calls by its CUDA name, `module_call`
    the one that launches the kernels of the GEMM library.
    """

    units: int
    width: int
    properties: Mapping[str, str | int]
    versions: Mapping[str, int]
    calls: Mapping[str, str]
    module_call: str

    @property
    def product(self) -> str:
        """Name of the product."""
        return str(self.properties["name"])

    @property
    def memory_bytes(self) -> int:
        """Memory of the device."""
        return int(self.properties["totalGlobalMem"])

    def call(self, name: str, sub: str = "") -> str:
        """Return what the runtime calls a function; `sub` is the category of what it launches."""
        if sub == "gemm" and name == "cudaLaunchKernel":
            return self.module_call
        return self.calls.get(name, name)


_HIP: Final = {
    "cudaLaunchKernel": "hipLaunchKernel",
    "cudaLaunchKernelExC": "hipExtLaunchKernel",
    "cudaMemcpyAsync": "hipMemcpyAsync",
    "cudaMemsetAsync": "hipMemsetAsync",
    "cudaGraphLaunch": "hipGraphLaunch",
    "cudaEventRecord": "hipEventRecord",
    "cudaStreamWaitEvent": "hipStreamWaitEvent",
    "cudaStreamSynchronize": "hipStreamSynchronize",
    "cudaDeviceSynchronize": "hipDeviceSynchronize",
    "cudaEventSynchronize": "hipEventSynchronize",
    "cudaMemcpy": "hipMemcpy",
    "cudaMalloc": "hipMalloc",
    "cudaFree": "hipFree",
    "cudaGetDeviceProperties_v2": "hipGetDeviceProperties",
    "cuModuleLoadData": "hipModuleLoadData",
    "cudaStreamBeginCapture": "hipStreamBeginCapture",
    "cudaStreamEndCapture": "hipStreamEndCapture",
    "cudaGraphInstantiate": "hipGraphInstantiate",
}

MACHINES: Final[Mapping[MachineName, Machine]] = {
    "h100": Machine(
        units=132,
        width=32,
        properties={
            "name": "NVIDIA H100 80GB HBM3",
            "totalGlobalMem": 85_017_624_576,
            "computeMajor": 9,
            "computeMinor": 0,
            "maxThreadsPerBlock": 1024,
            "maxThreadsPerMultiprocessor": 2048,
            "regsPerBlock": 65536,
            "warpSize": 32,
            "sharedMemPerBlock": 49152,
            "numSms": 132,
            "regsPerMultiprocessor": 65536,
            "sharedMemPerBlockOptin": 232448,
            "sharedMemPerMultiprocessor": 233472,
        },
        versions={
            "cupti_version": 24,
            "cuda_runtime_version": 12080,
            "cuda_driver_version": 12080,
        },
        calls={},
        module_call="cudaLaunchKernel",
    ),
    "mi300x": Machine(
        units=304,
        width=64,
        properties={
            "name": "AMD Instinct MI300X",
            "totalGlobalMem": 206_141_652_992,
            "computeMajor": 9,
            "computeMinor": 4,
            "maxThreadsPerBlock": 1024,
            "maxThreadsPerMultiprocessor": 2048,
            "regsPerBlock": 65536,
            "warpSize": 64,
            "sharedMemPerBlock": 65536,
            "numSms": 304,
            "maxSharedMemoryPerMultiProcessor": 65536,
        },
        versions={
            "roctracer_version": 4,
            "hip_runtime_version": 70_051_831,
            "hip_driver_version": 70_051_831,
        },
        calls=_HIP,
        module_call="hipExtModuleLaunchKernel",
    ),
}
