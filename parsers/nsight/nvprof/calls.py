"""The names of CUDA calls by their CUPTI numbers, which is all that a database of nvprof has.

They are from NVIDIA's `cupti_runtime_cbid.h` and `cupti_driver_cbid.h`: the calls that launch work,
wait or allocate memory. Names have no API version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

_RUNTIME: Final = (
    "1 cudaDriverGetVersion cudaRuntimeGetVersion cudaGetDeviceCount cudaGetDeviceProperties 8 "
    "cudaConfigureCall cudaSetupArgument cudaGetLastError cudaPeekAtLastError 13 cudaLaunch 15 "
    "cudaFuncGetAttributes cudaSetDevice cudaGetDevice 20 cudaMalloc cudaMallocPitch cudaFree "
    "cudaMallocArray cudaFreeArray cudaMallocHost cudaFreeHost cudaHostAlloc 29 cudaHostGetFlags "
    "cudaMemGetInfo cudaMemcpy cudaMemcpy2D cudaMemcpyToArray cudaMemcpy2DToArray "
    "cudaMemcpyFromArray cudaMemcpy2DFromArray cudaMemcpyArrayToArray cudaMemcpy2DArrayToArray "
    "cudaMemcpyToSymbol cudaMemcpyFromSymbol cudaMemcpyAsync cudaMemcpyToArrayAsync "
    "cudaMemcpyFromArrayAsync cudaMemcpy2DAsync cudaMemcpy2DToArrayAsync "
    "cudaMemcpy2DFromArrayAsync cudaMemcpyToSymbolAsync cudaMemcpyFromSymbolAsync cudaMemset "
    "cudaMemset2D cudaMemsetAsync cudaMemset2DAsync cudaGetSymbolAddress cudaGetSymbolSize 126 "
    "cudaThreadSynchronize 129 cudaStreamCreate cudaStreamDestroy cudaStreamSynchronize "
    "cudaStreamQuery cudaEventCreate cudaEventCreateWithFlags cudaEventRecord cudaEventDestroy "
    "cudaEventSynchronize cudaEventQuery cudaEventElapsedTime cudaMalloc3D cudaMalloc3DArray "
    "cudaMemset3D cudaMemset3DAsync cudaMemcpy3D cudaMemcpy3DAsync 147 cudaStreamWaitEvent 151 "
    "cudaPointerGetAttributes cudaHostRegister cudaHostUnregister 155 cudaDeviceEnablePeerAccess "
    "160 cudaMemcpyPeer cudaMemcpyPeerAsync cudaMemcpy3DPeer cudaMemcpy3DPeerAsync "
    "cudaDeviceReset cudaDeviceSynchronize cudaDeviceGetLimit 168 cudaDeviceGetCacheConfig 171 "
    "cudaProfilerStart cudaProfilerStop cudaDeviceGetByPCIBusId cudaDeviceGetPCIBusId 183 "
    "cudaDeviceGetSharedMemConfig 197 cudaStreamAddCallback cudaStreamCreateWithFlags 200 "
    "cudaDeviceGetAttribute cudaStreamDestroy cudaStreamCreateWithPriority 205 "
    "cudaDeviceGetStreamPriorityRange cudaMallocManaged "
    "cudaOccupancyMaxActiveBlocksPerMultiprocessor 210 "
    "cudaOccupancyMaxActiveBlocksPerMultiprocessor cudaLaunchKernel 213 cudaLaunch_ptsz "
    "cudaLaunchKernel_ptsz cudaMemcpy_ptds cudaMemcpy2D_ptds cudaMemcpyToArray_ptds "
    "cudaMemcpy2DToArray_ptds cudaMemcpyFromArray_ptds cudaMemcpy2DFromArray_ptds "
    "cudaMemcpyArrayToArray_ptds cudaMemcpy2DArrayToArray_ptds cudaMemcpyToSymbol_ptds "
    "cudaMemcpyFromSymbol_ptds cudaMemcpyAsync_ptsz cudaMemcpyToArrayAsync_ptsz "
    "cudaMemcpyFromArrayAsync_ptsz cudaMemcpy2DAsync_ptsz cudaMemcpy2DToArrayAsync_ptsz "
    "cudaMemcpy2DFromArrayAsync_ptsz cudaMemcpyToSymbolAsync_ptsz cudaMemcpyFromSymbolAsync_ptsz "
    "cudaMemset_ptds cudaMemset2D_ptds cudaMemsetAsync_ptsz cudaMemset2DAsync_ptsz 239 "
    "cudaStreamSynchronize_ptsz cudaStreamQuery_ptsz 242 cudaEventRecord_ptsz cudaMemset3D_ptds "
    "cudaMemset3DAsync_ptsz cudaMemcpy3D_ptds cudaMemcpy3DAsync_ptsz cudaStreamWaitEvent_ptsz "
    "cudaStreamAddCallback_ptsz cudaMemcpy3DPeer_ptds cudaMemcpy3DPeerAsync_ptsz 252 "
    "cudaMemPrefetchAsync cudaMemPrefetchAsync_ptsz 266 cudaMemRangeGetAttribute 269 "
    "cudaLaunchCooperativeKernel cudaLaunchCooperativeKernel_ptsz 272 "
    "cudaLaunchCooperativeKernelMultiDevice 284 cudaLaunchHostFunc cudaLaunchHostFunc_ptsz 310 "
    "cudaGraphInstantiate cudaGraphLaunch cudaGraphLaunch_ptsz 315 cudaStreamBeginCapture "
    "cudaStreamBeginCapture_ptsz 319 cudaStreamEndCapture cudaStreamEndCapture_ptsz 336 "
    "cudaGetFuncBySymbol 348 cudaGraphUpload cudaGraphUpload_ptsz 370 cudaEventRecordWithFlags "
    "cudaEventRecordWithFlags_ptsz 373 cudaMallocAsync cudaMallocAsync_ptsz cudaFreeAsync "
    "cudaFreeAsync_ptsz cudaMemPoolTrimTo 391 cudaMallocFromPoolAsync "
    "cudaMallocFromPoolAsync_ptsz 418 cudaGraphInstantiateWithFlags 430 cudaLaunchKernelExC "
    "cudaLaunchKernelExC_ptsz 436 cudaGraphInstantiateWithParams "
    "cudaGraphInstantiateWithParams_ptsz 440 cudaGetDeviceProperties 443 cudaGraphInstantiate "
    "cudaInitDevice 449 cudaMemPrefetchAsync cudaMemPrefetchAsync_ptsz 452 "
    "cudaStreamBeginCaptureToGraph"
)
_DRIVER: Final = (
    "1 cuInit cuDriverGetVersion cuDeviceGet cuDeviceGetCount cuDeviceGetName 8 "
    "cuDeviceGetProperties cuDeviceGetAttribute cuCtxCreate cuCtxDestroy 17 cuCtxSynchronize "
    "cuModuleLoad cuModuleLoadData cuModuleLoadDataEx cuModuleLoadFatBinary cuModuleUnload "
    "cuModuleGetFunction 27 cuMemGetInfo 29 cuMemAlloc 31 cuMemAllocPitch 33 cuMemFree 37 "
    "cuMemAllocHost cuMemFreeHost cuMemHostAlloc 42 cuMemHostGetFlags cuMemcpyHtoD 45 "
    "cuMemcpyDtoH 47 cuMemcpyDtoD 49 cuMemcpyDtoA 51 cuMemcpyAtoD 53 cuMemcpyHtoA cuMemcpyAtoH "
    "cuMemcpyAtoA cuMemcpy2D cuMemcpy2DUnaligned cuMemcpy3D 60 cuMemcpyHtoDAsync 62 "
    "cuMemcpyDtoHAsync 64 cuMemcpyDtoDAsync 66 cuMemcpyHtoAAsync cuMemcpyAtoHAsync "
    "cuMemcpy2DAsync cuMemcpy3DAsync 71 cuMemsetD8 73 cuMemsetD16 75 cuMemsetD32 77 cuMemsetD2D8 "
    "79 cuMemsetD2D16 81 cuMemsetD2D32 115 cuLaunch cuLaunchGrid cuLaunchGridAsync cuEventCreate "
    "cuEventRecord cuEventQuery cuEventSynchronize cuEventDestroy cuEventElapsedTime "
    "cuStreamCreate cuStreamQuery cuStreamSynchronize cuStreamDestroy 135 cuGetExportTable 216 "
    "cuMemsetD8Async 218 cuMemsetD16Async 220 cuMemsetD32Async 222 cuMemsetD2D8Async 224 "
    "cuMemsetD2D16Async 226 cuMemsetD2D32Async 235 cuCtxCreate_v2 242 cuMemGetInfo_v2 "
    "cuMemAlloc_v2 cuMemAllocPitch_v2 cuMemFree_v2 248 cuMemcpy_v2 cuMemsetD8_v2 cuMemsetD16_v2 "
    "cuMemsetD32_v2 cuMemsetD2D8_v2 cuMemsetD2D16_v2 cuMemsetD2D32_v2 271 cuMemHostAlloc_v2 276 "
    "cuMemcpyHtoD_v2 cuMemcpyHtoDAsync_v2 cuMemcpyDtoH_v2 cuMemcpyDtoHAsync_v2 cuMemcpyDtoD_v2 "
    "cuMemcpyDtoDAsync_v2 cuMemcpyAtoH_v2 cuMemcpyAtoHAsync_v2 cuMemcpyAtoD_v2 cuMemcpyDtoA_v2 "
    "cuMemcpyAtoA_v2 cuMemcpy2D_v2 cuMemcpy2DUnaligned_v2 cuMemcpy2DAsync_v2 cuMemcpy3D_v2 "
    "cuMemcpy3DAsync_v2 cuMemcpyHtoA_v2 cuMemcpyHtoAAsync_v2 cuMemAllocHost_v2 cuStreamWaitEvent "
    "301 cuMemHostRegister cuMemHostUnregister cuCtxSetCurrent cuCtxGetCurrent cuMemcpy "
    "cuMemcpyAsync cuLaunchKernel cuProfilerStart cuProfilerStop 313 cuCtxEnablePeerAccess 318 "
    "cuMemcpyPeer cuMemcpyPeerAsync cuMemcpy3DPeer cuMemcpy3DPeerAsync cuCtxDestroy_v2 325 "
    "cuEventDestroy_v2 cuStreamDestroy_v2 331 cuDeviceGetByPCIBusId cuDeviceGetPCIBusId 346 "
    "cuStreamAddCallback 365 cuLinkComplete 367 cuStreamCreateWithPriority 371 cuMemAllocManaged "
    "374 cuOccupancyMaxActiveBlocksPerMultiprocessor 376 cuBinaryFree 379 cuMemHostRegister_v2 "
    "386 cuDevicePrimaryCtxRetain cuDevicePrimaryCtxRelease 389 cuDevicePrimaryCtxReset 397 "
    "cuMemcpyHtoD_v2_ptds cuMemcpyDtoH_v2_ptds cuMemcpyDtoD_v2_ptds cuMemcpyDtoA_v2_ptds "
    "cuMemcpyAtoD_v2_ptds cuMemcpyHtoA_v2_ptds cuMemcpyAtoH_v2_ptds cuMemcpyAtoA_v2_ptds "
    "cuMemcpy2D_v2_ptds cuMemcpy2DUnaligned_v2_ptds cuMemcpy3D_v2_ptds cuMemcpy_ptds "
    "cuMemcpyPeer_ptds cuMemcpy3DPeer_ptds cuMemsetD8_v2_ptds cuMemsetD16_v2_ptds "
    "cuMemsetD32_v2_ptds cuMemsetD2D8_v2_ptds cuMemsetD2D16_v2_ptds cuMemsetD2D32_v2_ptds 418 "
    "cuMemcpyAsync_ptsz cuMemcpyHtoAAsync_v2_ptsz cuMemcpyAtoHAsync_v2_ptsz "
    "cuMemcpyHtoDAsync_v2_ptsz cuMemcpyDtoHAsync_v2_ptsz cuMemcpyDtoDAsync_v2_ptsz "
    "cuMemcpy2DAsync_v2_ptsz cuMemcpy3DAsync_v2_ptsz cuMemcpyPeerAsync_ptsz "
    "cuMemcpy3DPeerAsync_ptsz cuMemsetD8Async_ptsz cuMemsetD16Async_ptsz cuMemsetD32Async_ptsz "
    "cuMemsetD2D8Async_ptsz cuMemsetD2D16Async_ptsz cuMemsetD2D32Async_ptsz 436 "
    "cuStreamWaitEvent_ptsz cuStreamAddCallback_ptsz 439 cuStreamQuery_ptsz "
    "cuStreamSynchronize_ptsz cuEventRecord_ptsz cuLaunchKernel_ptsz 450 cuPointerGetAttributes "
    "467 cuMemPrefetchAsync cuMemPrefetchAsync_ptsz 471 cuMemRangeGetAttribute 477 "
    "cuLaunchCooperativeKernel cuLaunchCooperativeKernel_ptsz 480 "
    "cuLaunchCooperativeKernelMultiDevice 482 cuDeviceGetUuid 495 cuStreamBeginCapture "
    "cuStreamBeginCapture_ptsz cuStreamEndCapture cuStreamEndCapture_ptsz 513 cuGraphInstantiate "
    "cuGraphLaunch cuGraphLaunch_ptsz 527 cuLaunchHostFunc cuLaunchHostFunc_ptsz 539 "
    "cuStreamBeginCapture_v2 cuStreamBeginCapture_v2_ptsz 544 cuDevicePrimaryCtxRelease_v2 "
    "cuDevicePrimaryCtxReset_v2 548 cuMemAddressFree cuMemCreate cuMemRelease cuMemMap cuMemUnmap "
    "578 cuGraphInstantiate_v2 580 cuGraphUpload cuGraphUpload_ptsz 587 cuEventRecordWithFlags "
    "cuEventRecordWithFlags_ptsz 598 cuMemAllocAsync cuMemAllocAsync_ptsz cuMemFreeAsync "
    "cuMemFreeAsync_ptsz cuMemPoolTrimTo 611 cuMemAllocFromPoolAsync cuMemAllocFromPoolAsync_ptsz "
    "626 cuGetProcAddress 643 cuGraphInstantiateWithFlags cuDeviceGetExecAffinitySupport "
    "cuCtxCreate_v3 647 cuDeviceGetUuid_v2 652 cuLaunchKernelEx cuLaunchKernelEx_ptsz 656 "
    "cuGraphInstantiateWithParams cuGraphInstantiateWithParams_ptsz 677 cuGetProcAddress_v2 "
    "cuLibraryLoadData cuLibraryLoadFromFile cuLibraryUnload 686 cuKernelGetAttribute 701 "
    "cuCoredumpGetAttribute 716 cuMemPrefetchAsync_v2 cuMemPrefetchAsync_v2_ptsz 720 "
    "cuStreamBeginCaptureToGraph"
)
"""A number belongs to the name after it; the names that follow have the next numbers."""


def _numbered(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number and name of each call."""
    number = 0
    for word in text.split():
        if word.isdecimal():
            number = int(word)
        else:
            yield number, word
            number += 1


RUNTIME_CALLS: Final[Mapping[int, str]] = dict(_numbered(_RUNTIME))
DRIVER_CALLS: Final[Mapping[int, str]] = dict(_numbered(_DRIVER))
