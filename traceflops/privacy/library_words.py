"""Words and codes in the names of libraries: they tell nothing of who wrote a program.

A name of a kernel or an operator that is made of such words alone stays when a trace is redacted.
The words of the category rules belong to them; here are those that the rules do not have: of the
schemas, functions and files of PyTorch, of C++ and its templates, of kernels, of the runtimes, and
codes in the names that Tensile and cuBLAS generate.

Codes (data types, tiles, architectures, constants) are told by their shape. A token in which a
letter stands beside a digit and that is none of these may be anything (a model `R1`, a size `70B`,
a machine `n17`), so it does not stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Final

from traceflops.categories import PLACES, built_in

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
numel numeric nvls nvml nvrtc nvtx occupancy odd oddeven off offsetcalculator ogs omb onednn onll
opaque opencl operation operator operators optim optimal optimized optional order other out output
outputs overall overhead overlap overloaded overrideable overrides pageable pair pairwise parameter
parquet part pascal pass pat peak peek pgr phase physical pingpong pinned pinv pipeline pipelined
pipes pitch plr point pointer points policy polygamma polynomial pools pop portable position
precompiled predicate predicated preferred prefetch pregraph prepack prepacked prim primal primary
prims print priority processing profile profiling proj projection prologue propagate properties
property proto prune pto ptr ptx python pytorch pytree qadd qbatch qconv qgmma qlinear qmul qparam
qscheme quantile quantization quantized quantum query queue qweight raked ranges ranking ranks rate
ratio ravel recipe recommended recomputed recorded records recurrence recursive reduced reducer
reentrant ref reference reformat reg region register registers reinterpret release renormalize rep
replace replay reports representation request requested requests requires reserve reserved resource
restrict result retain revert rfft rfftfreq rfftn ring rocm rocprof rocprofv roctracer roctx root
rprop rrelu rules runtime safe same saturate saved sbtopk sched schedule scheduled schema scores
scratch scripting sdp sections sectors selecting selector self semaphore semi seqk seqlen seqs
sequence serialized server setattr setup sgemm sgl shape shapes shard sharded shardgrad share shared
shifted shmem short side signbit signed siminit simt singleread sink sinks sliced sliding small
smaller smallest smem smm softmin softshrink space sparsity spdiags spec special specialization
specialized speed spill splitlines spsolve sqlite sqsk sqsq sqsqsk sspaddmm sss stages stall stalls
stance standard stat statistics status stop streamk streams strict stride stridedb striding string
struct structured style subalgo subclass subgraph summary support supported sustained svdvals svw
swapdims swi sycl sym symbol symbolic symbols synchronize sys system systems tag tagging tail
tanhshrink target template templates temporarily ten tensilelite tensorinv tensorop tensorrt tensors
tensorsolve tex texture tfloat then theoretical thr threadblock threadblocks through throughput tid
tiles tilesize time tlds tmem tnc tnn tnt tofloat tool traceable tracing train traits trans
transformer transit transposed trapezoid trapz trilinear trim trt truncation tst ttn tts tuple
turing typename types typing umma unchecked uncompacted units unity unload unlock unmap unnamed
unpacked unregister unroll unrolled unshuffle unsigned unused unweighted unwrap upsampling usage use
user utc utilisation utilization utils vander variant vectorize vectorized version virtual vllm void
volatile volta vsmem vsplit vulkan vwa warpgroup warpgroupsize warps warpsize warpspecialized
wavefront weighted wgm wgmxcc without worker workers workload world wrapper wrappers wsgra wsgrb xdl
xla xlogy xpu xregs zerograd zerotensor zeta zip
"""
"""Words that the category rules do not have, in lower case."""

_ARCHITECTURES: Final = frozenset({"mamba", "rwkv", "hyena", "retention", "conformer"})
"""Words of the rules that name a kind of model."""

_CAMEL: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
_CLASS: Final = re.compile(r"\[[^\]]*\]|\\[A-Za-z]")
_SIZES: Final = r"(?:4|8|16|32|64|128)"
_CODES: Final = (
    r"[Ss][Mm]\d{2,3}[afd]?(?![a-z])",
    r"gfx\d{1,4}[a-f]?(?![a-z])",
    r"(?:(?:bf|fp|mxfp|nvfp|f|s|u)(?:4|8|16|32|64)x)+(?:bf|fp|mxfp|nvfp|f|s|u)(?:4|8|16|32|64)(?![0-9])",
    r"(?:bf|hf|tf|fp|BF|TF|FP|Bf|Tf|Fp|BFloat|Bfloat|[fsuiFSUI])" + _SIZES + r"(?![0-9])",
    r"[eE]\d[mM]\d(?:fnuz|fnu|fn|b11fnuz)?",
    r"(?:mx|nv)fp\d",
    r"(?:bt|wt|ws|wr|ta|tb|et|m|t|P|x)?\d+(?:x\d+)+x?(?:u\d)?(?![A-Za-z])",
    r"\d{1,5}x(?![A-Za-z])|x\d{1,4}(?![A-Za-z0-9])",
    r"\d+(?:u|l|ul|ull|U|L|UL|ULL|LL)(?![A-Za-z])",
    r"[hsdczi]\d{3,5}(?=gemm|fprop|dgrad|wgrad|conv|cudnn)",
    r"(?<=gemv)\d[NT](?![A-Za-z])",
    r"(?<![A-Za-z0-9])c10(?:d(?![A-Za-z]))?(?![0-9])",
    r"(?<![A-Za-z0-9])[vV][1-9](?![A-Za-z0-9])",
    r"(?<![A-Za-z0-9])(?:\d{1,2}(?:de|d|c)){2,}(?![A-Za-z0-9])",
    r"(?<![A-Za-z0-9])T\d{1,2}(?![A-Za-z0-9])",  # template parameters, as demanglers number them
    r"(?<![A-Za-z0-9])t\d(?:[rs]\d)+(?![A-Za-z0-9])",
    r"(?<=Align)\d{1,2}(?![A-Za-z0-9])|C(?=Align\d)",
    r"[a-z]?1616(?:8|16|32|64)(?=gemm)",
    r"(?<!\d)[1-5][dD](?![a-z])|3d(?=conv)",
    r"[lq](?=[1-8]_)|(?<![A-Za-z0-9])[lq][1248](?![A-Za-z0-9])",
    r"(?<=[a-z])2(?=[a-z])",
    r"(?<![A-Za-z0-9])(?:g1|ldg\d|ll4mi|tile\d{2,3}t|s[2-6]|1C11|16dp256b|c2r|r2c)(?![A-Za-z0-9])",
    r"MI(?=Open)|(?<=Properties)R0\d00|T(?=Backward\d)|O(?=Bfloat)|[HPQ]\d{2,3}(?=[A-Z][a-z])",
)
_TENSILE: Final = """
AF AFC AFEM AG AMAS APM CMS HAS SAV ASLT ETSP GSUAMBSK ABV ACED AAC MMFSC MXLIBL MXSFNS ASAE ASCE
ASE ASEM ASGT BL BS CADS CLR CB CD DPLB DTLA DTLB DTLM DTVA DTVB DTVSM DTVMXSA DTVMXSB DVO ELFLR EM
EMLL EMLLn EPS FDSI FL FSSC GLS GLVWA GLVWB GR GRCGA GRCGB GRPM GRVW GRVWA GRVWB GRVWn GSU GSUASB
GSUAMB HPLR ICIW ISA IU K KLA LBSPP LBSPPA LBSPPB LBSPPM LBSPPMXSA LBSPPMXSB LDL LDSB LDSTI LDW LPA
LPB LPM LPMXSA LPMXSB LRVW LWPM LWPMn MAC MDA MGRIPM MI MIAV MIWT MKFGSU MMFGLC MO MT NEPBS NLCA
NLCB NTA NTB NTC NTD NTE NTM NTMXSA NTMXSB NTWS NTn NVA NVB NVC NVD NVE NVM NVMXSA NVMXSB NVWS NVn
ONLL OPLV PAP PBD PGR PK PKA PLR RK SCIUI SGRO SGROB SIA SIP SK SKFTR SKXCCM SLW SNLL SPO SRVW SS
SSO SU SUM SUS SVW TDMI TDMS THA THB THC THD THE THM THMXSA THMXSB THWS THn TIN TLDS TLDSM TLDSn
TSGRA TSGRB TT UIOFGRO ULSGRO UMLDSA UMLDSB UPLRP USFGRO USFGROn USI USL USLMX VAW VFLRP VSn VW VWA
VWB WG WGM WGMXCC WGMn WS WSGRA WSGRB U
"""
_TENSILE_NAME: Final = re.compile(r"(?:.*_)?Cijk_[A-Z]")
_TENSILE_TOKEN: Final = re.compile(
    rf"(?:{'|'.join(sorted(_TENSILE.split(), key=len, reverse=True))}|)(?:\d+(?:x\d+)*[a-c]?)?"
    r"(?:EM\d|SL\d)?"
)

_SHORT: Final = """
al an as at bb be bf bh bn bt bw bx by bz cb cd ce ck cp cu db dd df dk do dp dq dt dv dw dx dy dz
eq et ex fc fd fn fp fw fx ge gt ha hh hi hw id if in io ip is it kd kv ld le ll ln lo lr lt ma me
mh mm mn mq mx nc nd ne nn no ns nt nv of on op or pg pi py qk qo sb sf sm sn sq ss st ta tb tf tn
to tr tt ul up us vf vs wg wo wr ws wt xf xy
"""
SHORT_WORDS: Final = frozenset(_SHORT.split())
"""Words of two letters that libraries use; any others may be initials."""

_LARGE: Final = frozenset({2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**64 - 1})
_DIGITS: Final = 8
"""Numbers of more digits may be those of an account, a job or a telephone."""

_PIECE: Final = re.compile(
    rf"(?P<code>{'|'.join(_CODES)})|(?P<number>\d+)|"
    r"(?P<word>[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+)"
)


def words_of(letters: str) -> list[str]:
    """Return the words of a run of ASCII letters: `FlashFwd` is `Flash` and `Fwd`."""
    return _CAMEL.findall(letters)


def is_library_word(word: str) -> bool:
    """Return whether libraries use a word; a single letter says nothing."""
    if len(word) <= 2:
        return len(word) == 1 or word.lower() in SHORT_WORDS
    return word.lower() in library_words()


@cache
def library_words() -> frozenset[str]:
    """Return all words, in lower case."""
    texts = [text for rule in built_in() for place in PLACES for text in rule.patterns(place)]
    of_rules = {word.lower() for text in texts for word in words_of(_CLASS.sub(" ", text))}
    return frozenset(of_rules.union(_WORDS.split()) - _ARCHITECTURES)


def is_tensile(name: str) -> bool:
    """Return whether a name is one that Tensile generates."""
    return _TENSILE_NAME.match(name) is not None


def is_tensile_code(token: str) -> bool:
    """Return whether a token is a code that Tensile puts into names."""
    return _TENSILE_TOKEN.fullmatch(token) is not None


def is_plain_number(digits: str) -> bool:
    """Return whether a number may stay: a size or a count, not the number of somebody."""
    return len(digits) <= _DIGITS or (len(digits) <= 20 and int(digits) in _LARGE)


def pieces(token: str) -> Iterator[tuple[str, str]]:
    """Give the pieces of a token of ASCII letters and digits, each as code, number or word."""
    for piece in _PIECE.finditer(token):
        yield piece.lastgroup or "", piece.group()
