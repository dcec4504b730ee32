"""How many blocks a multiprocessor has room for, as Nsight Compute and PyTorch recorded it."""

import pytest

from traceflops.devices.occupancy import Room, room


@pytest.mark.parametrize(
    ("compute", "launch", "blocks", "limiters"),
    [
        ((8, 6), (512, 26, 0), 3, ("warps",)),
        ((7, 5), (32, 64, 0), 16, ("blocks",)),
        ((7, 5), (128, 16, 0), 8, ("warps",)),
        ((8, 0), (64, 56, 2_656), 18, ("registers",)),  # 56 %, says PyTorch
        ((8, 0), (256, 48, 33_120), 4, ("shared memory",)),  # each takes 1 KiB besides
        ((7, 5), (32, 110, 0), 16, ("blocks", "registers")),
        ((8, 6), (256, 192, 0), 1, ("registers",)),  # two warps in each of four parts
        ((6, 0), (256, 192, 0), 1, ("registers",)),  # five in each of two
        ((9, 0), (1_000, None, None), 2, ("warps",)),  # 32 warps of 64, twice
    ],
)
def test_the_resource_of_which_a_block_needs_most_decides(
    compute: tuple[int, int], launch: tuple[int, int, int], blocks: int, limiters: tuple[str, ...]
) -> None:
    found = room(compute, *launch)
    assert found is not None
    assert (found.blocks, found.limiters) == (blocks, limiters)
    assert found.warps == blocks * -(-launch[0] // 32)


def test_room_is_unknown_of_other_gpus_and_of_what_cannot_run() -> None:
    assert room((8, 6), 256, 192, 0) == Room(1, 8, 48, ("registers",))
    assert room((9, 4), 256, 64, 0) is None  # gfx94x
    assert room((8, 6), 0, 64, 0) is None
    assert room((8, 6), 64, 64, 200_000) is None
