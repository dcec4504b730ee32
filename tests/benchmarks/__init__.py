"""Measures speed and memory; nothing here asserts a time.

```sh
python -m tests.benchmarks --mb 500                 # the usual table
python -m tests.benchmarks --mb 200 --peers PYTHON  # and what other analysers take
python -m tests.benchmarks --grow 200,2000          # whether cost grows with size
python -m tests.benchmarks --worst                  # traces that are hard on purpose
```
"""
