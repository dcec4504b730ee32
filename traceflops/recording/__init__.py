"""Recording a loop of PyTorch; what a recording holds and lacks, how to record the rest, its cost.

with record("trace.json.gz", model=model) as rec:     recorder.py
    for batch in loader:
        train_step(batch)
        rec.step()
  -> wait, warmup, active steps -> one file per rank that describes itself, and Overhead

Trace -> inventory_of -> Inventory      tables, devices, ranks, steps, notes
Trace -> missing_from -> Missing        what is not there, what that costs, the remedy
Trace -> profiler_time -> ProfilerTime  how long the profiler itself held up the program
"pytorch" -> known_recipes -> Recipe     commands to paste (recipes.toml)
"""
