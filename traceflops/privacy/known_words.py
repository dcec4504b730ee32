"""Words and codes in the names of libraries: they do not tell who wrote a program.

A kernel or operator whose name consists of such words keeps it when a trace is redacted. The words
of the category rules belong to them; here are those that the rules do not have: of the schemas,
functions and files of PyTorch, of C++ and its templates, of kernels, of the runtimes, and codes in
the names that Tensile and cuBLAS generate.

Codes (data types, tiles, architectures, constants) are recognised by their form. Any other token in
which a letter stands beside a digit may be anything (a model `R1`, a size `70B`, a machine `n17`),
so it does not stay.

There are also the words of our own sentences and of descriptions, which a note keeps when it is
redacted. tests/privacy collects the texts of notes from the source to check that none is missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Final

from traceflops.categories.rules import PLACES, built_in

_WORDS: Final = """
abd abort acceptable access accessor achieved action activities activity adapt address addresses
adjoint afc afem ailk aiter algo algorithm algorithms aligna alignb alignc alik allclose allocated
allocation allocator alltoall alpha ambiguous ampere analysis annotate annotation annotations
anonymous antialias aot api arccos arccosh arch arcsin arcsinh arctan arctanh arithmetic arr arrive
arrow asgd asinh assert asynchronous atanh aten atleast attr attribute attributes auto autocast
autograd automatic autotune avail available awaitable axis backend backends backwardpass bail
bailout bandwidth barriers base based bbs begin bessel bicubic bind binomial bitfield bjlk blackman
blackwell bljk bonus bool broadcasted bsc bss bucket buffers bufs bulk busy byte bytecode bytecodes
bytes cachemask cads calculator callback callbacks capability capture capturing center cga chalf
change char chebyshev checkpoint choice cijk clamped class cleanup client clmp clock clr cluster
clusters cnhw coalesced codegen collapse collect collection collectives collnet columns combination
combinations commit comp compacted compatible compile compiler compiling complete composed compress
compressed compression cond conditional configs configuration configure congruous consecutive const
constrain container contains context contextlib contig convex coop cooperative copies copysign core
corr corrcoef counter counting cov crow cshuffle csv cta ctx cufft cumulative cunn cupti cupy
current cute cutensor cycle cycles dataloader ddp dead debug decltype decoder decomposer decorate
decorators default defaults defined delete deleter dep dequantization dequantize descriptor destroy
details determinism deterministic devices diagflat dict differentiable dilated dilation dims direct
directcopy dirichlet disable dispatcher distance distributed divider divisor divisors divmod dnn
down dram driver dsplit dstack dto dtype dtypes dual dummy dump duration dyn edges ediv eff
efficientzerotensor eigvals eigvalsh elapsed elf eligible else enable enabled encoder end engines
enter entries enum epi equality equally erfcx error errors euclidean eval evaluate event events
exact exchange exec executable execute exists exit exl expect expit export expr ext extension extra
extractor fabs factorial failed fallback false fast fat features fence ffma fftfreq fftn fftshift
filled finish fix fixed fixup flags flashinfer fliplr flipud floating flop flops flow flush fork
forwardpass fragment frame free frexp fsdp fullgraph fun functorch fwdbwd gammainc gammaincc gammaln
gcd gemmex gemmk generation generator genexpr getattr getitem ggml gguf gkgs gmma gradient grads
graph graphics graphs greater green groups grp grvwa gsu gsuamb gtcx guard guards habana hamming
handle handler hann hardshrink headeronly heads heaviside hermite heuristics hfft hfftn hhs hipblas
hipblaslt hipcc histogramdd histograms history hit hits hmma hook hooks hopper hostfunc hpu hsa
hsplit hspmm hss hto hub ifft ifftn ifftshift igamma igammac ihfft ihfftn ihip imma import inactive
indexed indice inequality infer inference initial initialize initialized inlineable insert
instancecheck instant instantiate instr instruction instrumentation integral intel inter interface
interior intra inv invalid ipc irfft irfftn isclose isneginf isposinf isreal issued items iterate
iteration ivalue jit jiterated join json jvp kaiser kepler kernels kgroups kind kineto kla kpack
kvcache kwargs laguerre lambda lambdas laplacian large largek larger largest later launcher launches
lazy lbfgs lbspp lcm ldexp lds ldsb leaf learnable legendre len lengths less level library lifetime
light limit limits link list llm loader loading lock logaddexp logger lpnorm lrvw lut magic mainloop
malloc managed manual mark marker math maxwell medium members mempool mesh meshgrid metrics
misaligned misses miwt mixed modf modifier modules more moveaxis moving mps msort mtia multigammaln
multikernel multilabel multiple multiplicand multiprocessing multiprocessor multistage musa mutation
mvlgamma name named namedtuple names namespace nanquantile nbytes ncdhw ncu ndhwc ndtr ndtri nearest
neighbor nepbs nested nextafter nhwck nhwckrsc ninf nlca nlcb nnn nnpack nnt nnz nocast nodes noise
noncausal nondeterministic nonfused nont nontype nope normalize nosplit notify npu nsc nsight nsp
nsys ntn nts ntt nuclear nullptr number numel numeric nvls nvml nvrtc nvtx occupancy odd oddeven off
offsetcalculator ogs omb onednn onll oom opaque opencl operation operator operators optim optimal
optimized optional order osrt other out output outputs overall overhead overlap overloaded
overrideable overrides pageable pair pairwise parameter parquet part pascal pass pat peak peek pgr
phase physical pingpong pinned pinv pipeline pipelined pipes pitch plr point pointer points policy
polygamma polynomial pools pop portable position precompiled predicate predicated preferred prefetch
pregraph prepack prepacked prim primal primary prims print priority processing profile profiling
proj projection prologue propagate properties property proto prune pto ptr ptx python pytorch pytree
qadd qbatch qconv qgmma qlinear qmul qparam qscheme quantile quantization quantized quantum query
queue qweight raked ranges ranking ranks rate ratio ravel recipe recommended recomputed recorded
records recurrence recursive reduced reducer reentrant ref reference reformat reg region register
registers reinterpret release renormalize rep replace replay reports representation request
requested requests requires reserve reserved resource restrict result retain revert rfft rfftfreq
rfftn ring rocm rocprof rocprofv roctracer roctx rprop rrelu rules runtime safe same saturate saved
sbtopk sched schedule scheduled schema scores scratch scripting sdp sections sectors selecting
selector self semaphore semi seqk seqlen seqs sequence serialized server setattr sgemm sgl shape
shapes shard sharded shardgrad share shared shifted shmem short side signbit signed siminit simt
singleread sink sinks sliced sliding small smaller smallest smem smm snapshot softmin softshrink
space sparsity spdiags special specialization specialized speed spill splitlines spsolve sqlite sqsk
sqsq sqsqsk sspaddmm sss stages stall stalls stance standard stat statistics status stop streamk
streams strict stride stridedb striding string struct structured style subalgo subclass subgraph
summary support supported sustained svdvals svw swapdims swi sycl sym symbol symbolic symbols
synchronize sys system systems tag tagging tail tanhshrink target template templates temporarily ten
tensilelite tensorinv tensorop tensorrt tensors tensorsolve tex texture tfloat then theoretical thr
threadblock threadblocks through throughput tid tiles tilesize time tlds tmem tnc tnn tnt tofloat
tool traceable tracing train traits trans transformer transit transposed trapezoid trapz trilinear
trim trt truncation tst ttn tts tuple turing typename types typing umma unchecked uncompacted units
unity unload unlock unmap unnamed unpacked unregister unroll unrolled unshuffle unsigned unused
unweighted unwrap upsampling use user utc utilisation utilization utils vander variant vectorize
vectorized version virtual vllm void volatile volta vsmem vsplit vulkan vwa warpgroup warpgroupsize
warps warpsize warpspecialized wavefront weighted wgm wgmxcc without worker workers workload world
wrapper wrappers wsgra wsgrb xdl xla xlogy xpu xregs zerograd zerotensor zeta zip affinity aperture
bottleneck chart conflicts counters cpi divergence hierarchical high imbalance instructions issue
limiter numa nvlink pattern pc pipe pm roofline sol solfp topology uncoalesced
advise allgatherv allocate allto alltoallw attach bsend cancel cart close coords deregister elements
errhandler exscan extent fetch file finalized gatherv hindexed iallgather iallgatherv iallreduce
ialltoall ialltoallv ibarrier ibcast ibsend iexscan igather igatherv improbe imrecv incl ineighbor
intercomm iprobe ireduce irsend iscan iscatter iscatterv isend isendrecv issend keyval mprobe mrecv
multicast object parrived pcontrol pmpi pready probe proc processor putmem raccumulate read resized
resources rget rput rsend scatterv seek session spawn ssend startall subarray test testall testany
testsome topo waitall waitany waitsome win wtick wtime
"""
"""Words that the category rules do not have, in lower case.

At last those of NVIDIA's rules, and in the names of calls of MPI, NCCL, NVSHMEM, CUDA and HIP.
"""

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
    r"(?<![A-Za-z0-9])(?:7z|bzip2|OTF2|HDF5)(?![A-Za-z0-9])",  # kinds of files
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
TENSILE_NAME: Final = re.compile(r"(?:.*_)?Cijk_[A-Z]")
"""How names begin that Tensile generates; below: the codes that it puts into them."""


@cache  # compiling takes a twentieth of a small summary, which needs it only for a redacted trace
def tensile_token() -> re.Pattern[str]:
    """Return the expression that a token of such a name matches as a whole."""
    codes = "|".join(sorted(_TENSILE.split(), key=len, reverse=True))
    return re.compile(rf"(?:{codes}|)(?:\d+(?:x\d+)*[a-c]?)?(?:EM\d|SL\d)?")


_SHORT: Final = """
al an as at bb be bf bh bn bt bw bx by bz cb cd ce ck cp cu db dd df dk do dp dq dt dv dw dx dy dz
eq et ex fc fd fn fp fw fx ge gt ha hh hi hw id if in io ip is it kd kv ld le ll ln lo lr lt ma me
mh mm mn mq mx nc nd ne nn no ns nt nv of on op or pg pi py qk qo sb sf sm sn sq ss st ta tb tf tn
to tr tt ul up us vf vs wg wo wr ws wt xf xy
"""
SHORT_WORDS: Final = frozenset(_SHORT.split())
"""Words of two letters that libraries use; any others may be initials."""

_LARGE: Final = frozenset({2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**64 - 1})
_DIGITS: Final = 8  # numbers of more digits may be those of an account, a job or a telephone

_PIECE: Final = (
    rf"(?P<code>{'|'.join(_CODES)})|(?P<number>\d+)|"
    r"(?P<word>[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+)"
)
"""A piece of a token of ASCII letters and digits; the name of its group is its kind."""


def words_of(letters: str) -> list[str]:
    """Return the words of a run of ASCII letters: `FlashFwd` is `Flash` and `Fwd`."""
    return _CAMEL.findall(letters)


def is_library_word(word: str) -> bool:
    """Return whether libraries use a word; a single letter tells nothing, so it counts."""
    if len(word) <= 2:
        return len(word) == 1 or word.lower() in SHORT_WORDS
    return word.lower() in library_words()


@cache
def library_words() -> frozenset[str]:
    """Return all words, in lower case."""
    texts = [text for rule in built_in() for place in PLACES for text in rule.patterns(place)]
    of_rules = {word.lower() for text in texts for word in words_of(_CLASS.sub(" ", text))}
    return frozenset(of_rules.union(_WORDS.split()) - _ARCHITECTURES)


def is_plain_number(digits: str) -> bool:
    """Return whether a number may stay: it is short, or a limit of integers, so it is no ID."""
    return len(digits) <= _DIGITS or (len(digits) <= 20 and int(digits) in _LARGE)


@cache  # compiled when first used, as above
def _pieces() -> re.Pattern[str]:
    return re.compile(_PIECE)


def pieces(token: str) -> Iterator[tuple[str, str]]:
    """Yield the pieces of a token of ASCII letters and digits: "code", "number" or "word", text."""
    for piece in _pieces().finditer(token):
        yield piece.lastgroup or "", piece.group()


_SENTENCES: Final = """
about above absent according account accum across added affected after again against agents agree
agrees ahead alike allowed allows alone also although among amount amounts annotated another apart
apple appear application approximate architecture archive are argument arguments argv around ascend
aside asked assumed author averages back backslashes became because been before began beginning
begins behind belong belongs below beside better between beyond body both bounded bracket brackets
break broke broken bug bus but caches calendar called calling calls came can cannot captured carry
case categories categorise category cause causes certain chakra changed character characters checked
checksum chip chooses chosen chrome claim clearly clocks closed closing code collected come comma
command commas communicator communicators compared components computed computes concrete console
content contradict contradicts control copied correctly correlation cost could counted counterpart
cover covers created creation cut damage damaged database date day days decimal decimals declared
deduced depend depends derivative describe describes description destination diagnostics did dies
differ different differently differs digits direction directories directory disagree disk dispatches
distinct docs document does domain download drop dropped dur durations during earlier early either
elements emit emptied empties ends enough environment environments escape escaped est estimate
estimated every everything exactly example exceed exception exclude executed execution explains
exported exporter exports expression extended external fabric fact facts far fault faults fetch few
fewer ff fields figure figures file files filters finding findings finished fit fits five flushed
flushes folder folders follow follows form found four frames framework freeze further gap gaps gave
gb gets ghz git give given gives grbm guid gz gzip had hand happens hardware has have hdf header
held here hfu hide higher highest hold holds home how however html iconv identical identified idle
ignored implausibly impossible inaccurate include included incomplete inconsistent individual
inferred infinity information initialise initialization injection inside install installed instances
instead instruments integer interrupts involved its itself job jobs journal judge jumped keeps kept
kinds know known knows labelled lacks lasted lasts latency latest launched launchers lay least leave
leaves ledger let lfs libraries lie lies likely line lines linked links listed listing lists little
lived locked lone longer longest look looked looks losses lost machine machines made many marked
markers marks masks match matches may mbyte means meant meanwhile measured measurements merged
message metric mfu microseconds middle might migration million minor minute missing model modulo
mops most mostly moved ms much multiprocessors must mutually nanoseconds near nearby need needs
neither nest never newer nic nine nor note notes nothing nowhere numbered nvidia nvprof obj object
objects occur often old older once opened opengl openmp operating option original os others
otherwise outside over overlapping overlaps own package packet packets pages paired parent parented
parquetdir parsers parts passed passes passive paths pause paused pauses pci percent percentage perf
perfetto permission pftrace pickle pid pieces pipelines place placeholders places plugin pmc
possible possibly pragma prediction prefixed preset presets previous printed prints processes
products prof profiled profiles program programs projected protobuf pushpop puts queued queueing
quote quotes raise ran rar rates raw re read readable reading reads reason recomputation recording
redact releases remain remains removed renumbered repaired repeated repeatedly repeats repetition
replaced replayed replays report reported representative rerun resolution rest reuse reuses rights
rocpd rolled room rootpage rounded rounds rpd running runs said samples saves saving say says
scheduling scr second section see seems seen sees selected selection selects sent separate separated
separately serializes served serving settings seven several shares shm shortened shorter show shown
shows sig signs similar since six skipped smi so some somebody sound spaces span spans spreadsheet
spreadsheets stacks stand stands started stay stays stdin steady steps still stopped stored
streaming stretch successor such summaries summed sums supports surrogates switch syscall taken
takes tar tell tells terminated text texts tflop th than that the their theirs them themselves there
these they this those though thousand thousands threads throttling ties timed timeline times
timestamp tmpdir together told too took total totals traced traceflops traces traffic trailing
transaction transactions treated truncate truncated trusted try ts twice typeof typically ucx
unaffected uncategorized uncertain unchanged under understood unescaped unfinished unit unless
unpacks unreadable unset unsupported until used useful users uses using utf valid verified versions
very via waited waits wal warm warmup warned warning warnings was waterfall wave ways web were what
when whether which while who whole whose why wide will windows word worked workgroup workitem works
would writable writer writes written wrong wrote wsl xcc xz year years yet you zone zst zstd
"""

_DESCRIPTIONS: Final = """
adapter adapters attention cached capacity checkpointing documents embedding embeddings encoder
expert experts ffn forward frozen glu gpus head heads hidden intermediate key kv layer layers lora
moe mtp num padded params parameters rank real routed seq sequences shared sliding square sum
targets tie tied tok tokens top type vocab window words
"""
"""Words of the keys in which a trace describes its run (docs/selfdescribing.md)."""

_TERMS: Final = """
3.42E+14 U+FFFD wal_checkpoint(TRUNCATE) REPORT.nsys-rep nsys-rep qdrep HOST.xplane.pb xplane.pb
XPlane REPORT.ncu-rep ncu-rep SQ_INSTS_VALU_MFMA_MOPS_XF32 nvtx_pushpop_trace pmc_perf.csv
sysinfo.csv traceflops.seqlens docs/selfdescribing.md docs/parsers/gpu_samples.md
jax.profiler.trace(FOLDER) torch.autograd.profiler.emit_nvtx(record_shapes=True)
torch/utils/checkpoint.py NaN prof.export_chrome_trace SQ_INSTS_VALU_MFMA_MOPS_BF16 etc FETCH_SIZE
docs/counters.md prof.step() rec.step() jax.profiler.StepTraceAnnotation("train"
tf.profiler.experimental.Profile(FOLDER) tf.profiler.experimental.Trace()
tf.profiler.experimental.Trace("train" tf.profiler.experimental.ProfilerOptions
python_tracer_level=1 jax.profiler.ProfileOptions jax.profiler.TraceAnnotation() warmup=1
roctxProfilerResume() --selected-regions CUDA_VISIBLE_DEVICES torch.mps.profiler.profile() MPS
"""
"""Names in our own sentences that are no words."""


def is_term_of_notes(text: str) -> bool:
    """Return whether a text is a name in our own sentences, apart from punctuation at its ends."""
    names = _split(_TERMS) | {"PRAGMA wal_checkpoint(TRUNCATE)"}
    return not names.isdisjoint((text.strip(".,;:'"), text.strip("().,;:'")))


def is_word_of_notes(text: str) -> bool:
    """Return whether a run of letters is a word of our own sentences, or of libraries."""
    return text.lower() in _split(_SENTENCES) or is_describing(text)


def is_describing(text: str) -> bool:
    """Return whether a run of letters is a word of the keys of descriptions, or of libraries."""
    of_libraries = is_library_word(text) or all(map(is_library_word, words_of(text)))
    return of_libraries or text.lower() in _split(_DESCRIPTIONS)


@cache
def _split(words: str) -> frozenset[str]:
    return frozenset(words.split())
