"""Words of which the names of libraries are made: they tell nothing of who wrote a program.

A name of a kernel or an operator that is made of such words alone stays when a trace is redacted.
The words of the category rules belong to them; here are those that the rules do not have: of the
schemas, functions and files of PyTorch, of C++ and its templates, of kernels, of the runtimes, and
codes in the names that Tensile and cuBLAS generate.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from traceflops.categories import PLACES, built_in
from traceflops.privacy.library_codes import SHORT_WORDS

_WORDS: Final = """
abd abort absolute acceptable access accessor achieved action activities activity adapt address
addresses adjoint afc afem ailk aiter algo algorithm algorithms aligna alignb alignc alik allclose
allocated allocation allocator alltoall alpha ambiguous ampere analysis annotate annotation
annotations anonymous antialias aot api arccos arccosh arch arcsin arcsinh arctan arctanh arithmetic
arr arrive arrow asgd asinh assert asynchronous atanh aten atleast attr attribute attributes auto
autocast autograd automatic autotune avail available awaitable axis backend backends backwardpass
bail bailout bandwidth barriers base based bbs begin bessel bicubic bind binomial bitfield bits bjlk
blackman blackwell bljk bonus bool broadcasted bsc bss bucket buffers bufs bulk busy byte bytecode
bytecodes bytes cachemask cads calculator callback callbacks capability capture capturing center cga
chalf change char chebyshev checkpoint choice cijk clamped class cleanup client clmp clock clr
cluster clusters cnhw coalesced codegen collapse collect collection collectives collnet columns
combination combinations commit comp compacted compatible compile compiler compiling complete
composed compress compressed compression cond conditional configs configuration configure congruous
consecutive const constrain container contains context contextlib contig convex coop cooperative
copies copysign core corr corrcoef counter counting cov crow cshuffle csv cta ctx cufft cumulative
cunn cupti cupy current cute cutensor cycle cycles dataloader ddp dead debug decltype decoder
decomposer decorate decorators default defaults defined delete deleter dep dequantization dequantize
descriptor destroy details determinism deterministic devices diagflat dict differentiable dilated
dilation dims direct directcopy dirichlet disable dispatcher distance distributed divider divides
division divisor divisors divmod dnn down dram draw driver dsplit dstack dto dtype dtypes dual dummy
duration dyn edges ediv eff efficientzerotensor eigvals eigvalsh elapsed elf eligible else enable
enabled encoder end engines enter enum epi equality equally erfcx error errors euclidean eval
evaluate event events exact exchange exec executable execute exists exit exl expect expit export
expr ext extension extra extractor fabs factorial failed fallback false fast fat features fence ffma
fftfreq fftn fftshift filled finish fix fixed fixup flags flashinfer fliplr flipud floating flop
flops flow flush fork forwardpass fragment frame free frexp fsdp fullgraph fun functorch fwdbwd
gammainc gammaincc gammaln gcd gemmex gemmk generation generator genexpr getattr getitem ggml gguf
gkgs gmma gradient grads graph graphics graphs greater green groups grp grvwa gsu gsuamb gtcx guard
guards habana hamming handle hann hardshrink headeronly heads heaviside hermite heuristics hfft
hfftn hhs hipblas hipblaslt hipcc histogramdd histograms hit hits hmma hook hooks hopper hostfunc
hpu hsa hsplit hspmm hss hto hub ifft ifftn ifftshift igamma igammac ihfft ihfftn ihip imma import
inactive increment indexed indice inequality infer inference initial initialize initialized
inlineable insert instancecheck instant instantiate instr instruction instrumentation integral intel
inter interface interior intra inv invalid ipc irfft irfftn isclose isneginf isposinf isreal issued
items iter iterate iteration ivalue jit jiterated join json jvp kaiser kepler kernels kgroups kind
kineto kla kpack kvcache kwargs laguerre lambda lambdas laplacian large largek larger later launcher
launches lazy lbfgs lbspp lcm ldexp lds ldsb leaf learnable legendre len lengths less level library
lifetime light limit limits link list llm loader loading lock logaddexp logger lpnorm lrvw lut magic
mainloop malloc managed manual mark marker math maxwell medium members mempool mesh meshgrid method
metrics misaligned misses miwt mixed modf modifier modules more moveaxis moving mps msort mtia
multigammaln multikernel multilabel multiple multiplicand multiplication multiplies multiprocessing
multiprocessor multistage musa mutation mvlgamma name named namedtuple names namespace nanquantile
nbytes ncdhw ncu ndhwc ndtr ndtri nearest negative neighbor nepbs nested nextafter nhwck nhwckrsc
ninf nlca nlcb nnn nnpack nnt nnz nocast node nodes noise noncausal nondeterministic nonfused nont
nontype nope normalize nosplit notify npu nsc nsight nsp nsys ntn nts ntt nuclear nullptr number
numel numeric nvls nvml nvrtc nvtx occupancy odd oddeven off offsetcalculator omb onednn onll opaque
opencl operation operator operators optim optimal optimized optional order other out output outputs
overall overhead overlap overloaded overrideable overrides pageable pair pairwise parameter parquet
part pascal pass pat peak peek pgr phase physical pingpong pinned pinv pipeline pipelined pipes
pitch plr point pointer points policy polygamma polynomial pools pop portable position precompiled
predicate predicated preferred prefetch pregraph prepack prepacked prim primal primary prims print
priority processing profile profiling proj projection prologue propagate properties property proto
prune pto ptr ptx python pytorch pytree qadd qbatch qconv qgmma qlinear qmul qparam qscheme quantile
quantization quantized quantum query queue qweight raked ranges ranking ranks rate ratio ravel
recipe recommended recomputed recorded records recurrence recursive reduced reducer reentrant ref
reference reformat reg region register registers reinterpret release renormalize rep replace replay
reports representation request requested requests requires reserve reserved resource restrict result
retain revert rfft rfftfreq rfftn ring rocm rocprof rocprofv roctracer roctx root rprop rrelu rules
runtime safe same saturate saved sbtopk sched schedule scheduled schema scores scratch scripting sdp
sections sectors selecting selector self semaphore semi seqk seqlen seqs sequence serialized server
setattr setup sgemm sgl shape shapes shard sharded shardgrad share shared shifted shmem short side
signbit signed siminit simt singleread sink sinks sliced sliding small smaller smallest smem smm
softmin softshrink space sparsity spdiags spec special specialization specialized speed spill
splitlines spsolve sqlite sqsk sqsq sqsqsk sspaddmm sss stages stall stalls stance standard stat
statistics status stop streamk streams strict stride stridedb striding string struct structured
style subalgo subclass subgraph summary support supported sustained svdvals svw swapdims swi sycl
sym symbol symbolic symbols synchronize sys system systems tag tagging tail tanhshrink target
template templates temporarily ten tensilelite tensorinv tensorop tensorrt tensors tensorsolve tex
texture tfloat then theoretical thr threadblock threadblocks through throughput tid tiles tilesize
time tlds tmem tnc tnn tnt tofloat tool traceable tracing train traits trans transformer transit
transposed trapezoid trapz trilinear trim trt truncation tst ttn tts tuple turing typename types
typing umma unchecked uncompacted units unity unload unlock unmap unnamed unpacked unregister unroll
unrolled unshuffle unsigned unused unweighted unwrap upsampling usage use user utc utilisation
utilization utils vander variant vectorize vectorized version virtual vllm void volatile volta vsmem
vsplit vulkan vwa warpgroup warpgroupsize warps warpsize warpspecialized wavefront weighted wgm
wgmxcc without worker workers workload world wrapper wrappers wsgra wsgrb xdl xla xlogy xpu xregs
zerograd zerotensor zeta zip
"""
"""Words that the category rules do not have, in lower case."""

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
    return frozenset(of_rules.union(_WORDS.split()) - _ARCHITECTURES)
