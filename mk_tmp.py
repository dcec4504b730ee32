import sys
from pathlib import Path
from sample_traces.config import RunConfig
from sample_traces.simulate import simulate
from sample_traces.emit_pytorch import write_pytorch, KinetoOptions
from sample_traces.gpu_samples import *
run = simulate(RunConfig(ranks=4, steps=6, layers=1, hidden=1024, batch=2, sequence=1024, straggler_rank=2, straggler_percent=140, sync_each_step=True,
  peak_flops_per_s=989_400_000_000, hbm_bytes_per_s=3_350_000_000, link_bytes_per_s=450_000_000))
out=Path("/tmp/sim"); 
list(write_pytorch(run, out, KinetoOptions(), "rank{rank}"))
print([ (r.origin_unix_ns, r.end_ns, r.activities[0].start_ns, max(a.end_ns for a in r.activities)) for r in run.ranks][0])
write_gpu_samples(run, Path("/tmp/smi/q.csv"), SamplingOptions(every_ns=5*10**8, zone_minutes=120, more_gpus=4))
write_gpu_samples(run, Path("/tmp/smi/d.txt"), SamplingOptions(every_ns=5*10**8, zone_minutes=120, layout="dmon"))
write_gpu_samples(run, Path("/tmp/smi/dc.csv"), SamplingOptions(every_ns=5*10**8, zone_minutes=-330, layout="dmon csv"))
write_gpu_samples(run, Path("/tmp/smi/a.csv"), SamplingOptions(every_ns=5*10**8, layout="amd-smi"))
