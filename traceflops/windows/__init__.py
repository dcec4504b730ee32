"""Steps, passes and other windows of time, which of them are chosen, and a trace prepared for them.

marks of the host             |-- step 0 --|-- step 1 --|-- step 2 --|       steps.py
    |  work belongs to the step that launched it (step_of_activity)
    v
device, its span      | before |--- step 0 ---|--- step 1 ---|- 2 -| after |
    |                 without marks: what repeats on the device (periodicity, repetition),
    |                 else one window over the whole span
    v
StepPlan (choice.py)          used: step 1; left out, and why: warm-up, last step, not selected
    |  Selection: --steps, --from/--to, --ranks, --gpu, --run, --job
    v
Window                        role, [start_ns, end_ns), used, Account of its time
    |
    v
Prepared                      trace, accounts and windows by device: what every later room takes
                              LaunchRecords: is enough recorded to judge idle time?
"""
