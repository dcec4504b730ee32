r"""Memory over time: what was allocated and reserved, when most, and who held it.

counters of a trace:  time, device, change, allocated, reserved, address, stack
    |  by process and device, or host (AllocationRows)
    v
Series             allocated   ____/~~~~\__/~~\___   peak, curve, most and last of each step
                   reserved    __/~~~~~~~~~~~~~~~~
    |
    v
MemoryUse          one per device and host of a process, bytes
    |  holders(): blocks that are held at the peak
    v
Holder             operator and modules that allocated them, or the frames of a snapshot
"""
