"""Words of which the names of libraries are made: they tell nothing of who wrote a program.

A name of a kernel or an operator that is made of such words alone stays when a trace is redacted.
The words of the category rules belong to them; here are those that the rules do not have: of the
schemas of PyTorch, of C++ and its templates, of the runtimes, and codes in generated names.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from traceflops.categories import PLACES, built_in
from traceflops.privacy.library_codes import SHORT_WORDS

_PYTORCH: Final = """
absolute acceptable access adjoint allclose alltoall alpha ambiguous annotate aot arccos arccosh
arcsin arcsinh arctan arctanh arithmetic asgd asinh assert asynchronous atanh aten atleast auto
autocast autograd available awaitable axis backwardpass bag bail bailout base batchnorm bessel
bicubic binomial blackman bool bsc bucket byte bytecode bytecodes bytes cachemask callbacks
capability center chalf char chebyshev checkpoint choice coalesced codegen collapse combination
combinations compatible compile complete complex compress compressed cond consecutive constrain
contains copysign corrcoef cov crow cufft cumulative data dataloader ddp debug decoder default
defaults delete dep dequantize diagflat dict differentiable dilated dilation dims dirichlet
dispatcher distance distributed divmod dnn draw dsplit dstack dtype dtypes dual dummy dyn dynamo
edges eff efficientzerotensor eigvals eigvalsh else enabled encoder end enter enumerate equally
erfcx euclidean evaluate exact exit expit export expr fabs factorial fallback fftfreq fftn fftshift
filled fix fliplr flipud floating forwardpass frexp fsdp fullgraph functorch gammainc gammaincc
gammaln gcd generator gradient graph greater groups guard hamming hann hardshrink heaviside hermite
hfft hfftn histogramdd hsplit hspmm ifft ifftn ifftshift igamma igammac ihfft ihfftn infer inference
initial initialize insert interface inv irfft irfftn isclose isneginf isposinf isreal item items
iter iteration ivalue jit join jvp kaiser laguerre lazy lbfgs lcm ldexp leaf learnable legendre less
list loader logaddexp lookup main math mesh meshgrid mixed modf moveaxis moving mps msort
multigammaln multilabel multiple multiprocessing mvlgamma nanquantile nbytes ndtr ndtri nearest
negative nested next nextafter nnpack nnz node noise nuclear numel onednn optimized optional output
outputs overlap overrideable pairwise parallel parameter pinned pinv point points polygamma
polynomial pregraph prepack prepacked prim primal prims processing profile projection prologue
propagate prune ptr python qadd qbatch qconv qlinear qmul qscheme quantile quantization quantized
qweight ranking ravel reduced reducer ref region reinterpret replace representation requires result
retain rfft rfftfreq rfftn root rprop rrelu runtime safe same saturate scripting sdp selecting semi
seqlen sequence serialized shape shapes shard sharded shardgrad shifted short side signbit signed
sink smm softmin softshrink spdiags special splitlines spsolve sspaddmm standard stat string
structured subgraph svdvals swapdims sym tanhshrink tensorinv tensors tensorsolve then time
transformer trapezoid trapz trilinear unchecked unpacked unshuffle unwrap upsampling use vander
version vsplit vulkan worker workers xla xlogy xpu zerograd zerotensor zeta zip
"""

_CPLUSPLUS: Final = """
accessor algorithm anonymous arr auto bitfield bits bool cached calculator char clamped class
codegen combined const container context decltype decomposer deleter descriptor division divisor
double enable enum equality false fast fixed float functor identity int integral invoke iterator
jiterated lambda lambdas limits loader long magic modifier namespace nocast nontype nullptr numeric
offset offsetcalculator opaque operation operator operators optional other pair pass policy
precompiled predicate ptr pytorch ref reference restrict result self short signed size
specialization state static std struct target template templated traits true tuple type typename
unnamed unroll unrolled unsigned unused value variant vectorized version void volatile without
wrapper
"""

_KERNELS: Final = """
access act add ailk aiter algo align aligna alignb alignc alik allgather allreduce alpha ampere arch
arrive async aten automatic beta bias bjlk blackwell bljk bonus broadcast broadcasted bulk cads
causal cga chunked clmp cluster cnhw col collect collectives collnet combine commit compacted
composite conditional congruous contig contiguous coop cooperative copies corr cp cshuffle cta
cumulative cunn cupy cute decode dequantization determinism deterministic dim dims directcopy dyn
ediv eff elementwise epi even exists exl expect extra fence ffma fixed fixup flashinfer float
fragment frame gemmex gemmk ggml gguf gmma grp gtcx head heads hi hmma hopper imma indexed instr
instruction inter interior intra kepler kgroups kpack kv kvcache large largek larger ld lds llm lo
lut mainloop manual marlin maxwell medium merge miopen mma multikernel multiplicand multiplies
multistage naive nc ncdhw ndhwc nhwck nhwckrsc ninf nnn nnt noncausal nondeterministic nonfused nont
nope nosplit nsc ntn nts ntt nvls occupancy odd order pageable paged pascal pat persistent pingpong
pinned pipeline pipelined position predicated prefill proto ptx pv qgmma qk qkv quantized quantum
raked recurrence reduced register registers relu renormalize ring rocm rope row rs sched scheduled
scores segmented selector sgemm sgl shmem simple simt singleread sink sinks sliced sliding sm small
smaller smallest sparsity specialized spill splitk splits st stages states static streamk stridedb
striding swi sym sys tail tensilelite tensorop tensorrt thr threadblock threadblocks tid tiles
tilesize tma tmem tnc tnn tnt tofloat transposed tree ttn tts turing umma uncompacted unity
unweighted utc varlen vectorize vllm volta wait warpgroup warpgroupsize warps warpsize
warpspecialized weighted wgm xregs
allocator average comp cutensor divisors down headeronly histograms hub laplacian
multiplication neighbor permutation reformat reg rep sections share smem space spatial tag
templates ten trt vector view wavefront wg
"""

_RUNTIMES: Final = """
abd abort access achieved active activities activity adapt address addresses allocated allocation
amd analysis annotation annotations antialias api array arrow async attribute attributes available
backend bandwidth barrier barriers batch batched begin binary bs buffer busy bytes callback capture
capturing cat change cleanup client clock clr clusters collection columns compile compiler composed
compression compute conditional configuration configure context convex copies core count counter
counting cpu create csv ctx cublas cuda cudnn cufft cupti curand current cusolver cusparse cycle
cycles decode destroy details device direct disable dispatch divider divides dram driver dto
duration elapsed elf eligible enable end engines enumerate error errors event events exchange exec
executable execute exit export ext extend extension failed false fat features finalize flags flop
flops flow flush free function fwdbwd generation get gkgs global gloo gpu graph graphics graphs
green group habana handle hip hipblas hipblaslt hipcc hit hits host hostfunc hpu hsa hto ihip import
inactive indice indices inequality info init instance instant instantiate instrumentation intel
invalid ipc issued iterate iteration json kernel kernels kind kineto last later launch launches
layout lazy lengths level library lifetime light limit link load loading loc lock lpnorm malloc
managed map mark marker memcpy memory mempool memset method metrics misses mode module modules more
mpi mtia multiprocessor musa name nccl ncu node nodes npu nsight nsp nsys number nvrtc nvtx
occupancy oddeven off op open opencl optimal out overall overhead page pageable parquet part peak
peek peer phase physical pipes pitch pointer pool pools pop portable preferred prefetch primary
print priority process profiler profiling proj properties property pto push pytorch qparam query
queue range ranges rate ratio rccl recipe recommended record recorded records register release
reports request requested requests reserve reserved reset resource retain rocblas rocm rocprof
rocprofv roctracer roctx rules runtime sbtopk schema scratch sectors semaphore seqk seqs server set
shared signal size soft spec speed sqlite sqsk sqsq sqsqsk stall stalls start statistics stats
status step stop stream streams stride strides string style subalgo summary support supported
sustained sycl symbol symbols sync synchronize system systems tex texture tfloat theoretical thread
through throughput tokens tool trace train trans trim true truncation ucc units unknown unload
unlock unmap unregister update usage user utilisation utilization value version virtual vsmem wait
window workload write xdl zero
"""

_FRAMES: Final = """
action algorithms args attr autotune avail backends based bind buffers bufs compiling configs
contextlib dead decorate decorators defined devices eval extractor finish fork fun fx genexpr
getattr getitem grads guards heuristics hook hooks increment initialized inlineable instancecheck
kwargs launcher len logger members misaligned mutation named namedtuple names normalize notify nvml
optim overloaded overrides pg py pytree ranks recomputed recursive reentrant replay revert saved
schedule setattr setup stance strict subclass symbolic tagging temporarily traceable tracing transit
types typing utils world wrappers
"""
"""Words in the names of PyTorch's own Python functions and files."""

_CODES: Final = """
cijk ailk alik bljk bjlk nvjet tst xmma coop hhs bbs hss bss sss ldsb afc afem cads grvwa gsuamb gsu
lbspp miwt pgr plr prefetch scheduled siminit svw tlds vwa wgm wgmxcc wsgra wsgrb kla lrvw nepbs
nlca nlcb onll omb
"""
"""Codes in the names that Tensile and cuBLAS generate."""

_ARCHITECTURES: Final = frozenset({"mamba", "rwkv", "hyena", "retention", "conformer"})
"""Words of the rules that name a kind of model."""

_CAMEL: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
_CLASS: Final = re.compile(r"\[[^\]]*\]|\\[A-Za-z]")
_LETTER, _SHORT = 1, 2


def words_of(letters: str) -> list[str]:
    """Return the words of a run of ASCII letters: `FlashFwd` is `Flash` and `Fwd`."""
    return _CAMEL.findall(letters)


def is_library_word(word: str) -> bool:
    """Return whether libraries use a word; a single letter says nothing."""
    if len(word) <= _SHORT:
        return len(word) == _LETTER or word.lower() in SHORT_WORDS
    return word.lower() in library_words()


@cache
def library_words() -> frozenset[str]:
    """Return all words, in lower case."""
    texts = [text for rule in built_in() for place in PLACES for text in rule.patterns(place)]
    of_rules = {word.lower() for text in texts for word in words_of(_CLASS.sub(" ", text))}
    listed = " ".join((_PYTORCH, _CPLUSPLUS, _KERNELS, _RUNTIMES, _FRAMES, _CODES)).split()
    return frozenset(of_rules.union(listed) - _ARCHITECTURES)
