"""What a launch takes at least on a machine: its bytes and its operations, each at their peak."""

from gfx950.timing.parameters import Machine


def floors_us(
    machine: Machine, num_bytes: float, flops: float, flops_per_cycle: int
) -> tuple[float, float]:
    """Returns the microseconds of the bytes, and those of the operations.

    `flops_per_cycle` are those of a SIMD.
    """
    simds = machine.num_cus * machine.simds_per_cu
    peak = simds * flops_per_cycle * machine.peak_ghz * 1e3
    return num_bytes / (machine.hbm_gbps * 1e3), flops / peak
