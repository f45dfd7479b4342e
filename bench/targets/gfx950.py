"""AMD CDNA4 (gfx950), on the simulator's timing model: no such GPU is needed.

For each shape, every way of every system to compute `linear`, `matmul` and `quantize` goes
through the same model; of a system that can choose, the fastest way counts. Where torch sees a
gfx950 GPU, `bench.targets.gfx950_hardware` times that instead. Every row says what it is of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from bench.rows import OURS, Origin
from bench.shapes import NAMED_SHAPES, QUICK_SHAPES, Shape
from bench.simulated.kept import recorded
from bench.simulated.kernels import WIDE
from bench.simulated.launches import BLOCK, Operands
from bench.simulated.peaks import floors_us
from bench.simulated.report import PRACTICAL_FLOOR_US, SimulatedRow, tables
from bench.simulated.systems import Offer, Stopwatch, offers
from bench.targets import gfx950_hardware as hardware
from gfx950.timing import Profile
from gfx950.timing.parameters import Machine

__all__ = ["measure_rows", "tables"]

SHAPES = (*NAMED_SHAPES, Shape(4096, 4096, 4096), Shape(8192, 8192, 8192))
FOUR_BIT_OPS = ("linear", "matmul", "quantize")
OPS = (*FOUR_BIT_OPS, *WIDE)
"""The others are timed on the named shapes alone."""
FLOPS_PER_CYCLE = dict(
    linear=4096, matmul=4096, linear_mxfp8=2048, linear_bf16=1024, linear_nvfp4=1024
)
"""Of a SIMD, by what is multiplied."""


def measure_rows(
    origin: Origin, progress: Callable[[str], None], *, quick: bool = False
) -> Iterator[SimulatedRow]:
    """Yields a row for each operation, shape and system."""
    shapes = QUICK_SHAPES if quick else SHAPES
    if name := hardware.device_name():
        here = replace(origin, device=name)
        yield from hardware.measure(here, shapes, progress, least_us=least_us)
        return
    for shape in shapes:
        operands, stopwatch = Operands(shape), Stopwatch(shape)
        for op in OPS if shape in NAMED_SHAPES else FOUR_BIT_OPS:
            progress(f"{op} {shape}: compiling, executing and timing on the model")
            timed = [(offer, stopwatch.time(offer)) for offer in offers(operands, op)]
            found = list(rows(op, shape, fastest(timed), origin))
            yield from found
            yield from recorded(found)


Timed = tuple[Offer, list[Profile]]


def fastest(timed: Sequence[Timed]) -> list[Timed]:
    """Returns the fastest offer of each system, systems in their order."""
    best: dict[str, Timed] = {}
    for offer, profiles in timed:
        if offer.system not in best or total_us(profiles) < total_us(best[offer.system][1]):
            best[offer.system] = offer, profiles
    return list(best.values())


def total_us(profiles: Sequence[Profile]) -> float:
    """Returns the time of launches one after another."""
    return sum(profile.time_us for profile in profiles)


def least_us(op: str, shape: Shape, machine: Machine) -> float:
    """Returns the larger of bytes over bandwidth and operations over the peak of their kind."""
    m, n, k = shape
    packed, floats = k // 2 + (k // 16 if op == "linear_nvfp4" else k // BLOCK), 2 * k
    num_bytes = {
        "quantize": m * (floats + packed),
        "matmul": (m + n) * packed + 2 * m * n,
        "linear": m * floats + n * packed + 2 * m * n,
    }["linear" if op in WIDE else op]
    if op == "quantize":
        return floors_us(machine, num_bytes, 0, 1)[0]
    return max(floors_us(machine, num_bytes, shape.flops, FLOPS_PER_CYCLE[op]))


def rows(op: str, shape: Shape, timed: Sequence[Timed], origin: Origin) -> Iterator[SimulatedRow]:
    """Yields a row for each system; the first is ours."""
    assert timed[0][0].system == OURS
    ours_us = total_us(timed[0][1])
    for offer, profiles in timed:
        busiest = max(profiles, key=lambda profile: profile.flops)
        least = least_us(op, shape, busiest.machine)
        time_us = total_us(profiles)
        yield SimulatedRow(
            op=op, m=shape.m, n=0 if op == "quantize" else shape.n, k=shape.k,
            system=offer.system, computes=offer.computes,
            kernels=" + ".join(launch.name for launch in offer.launches),
            launches=len(offer.launches),
            time_us=time_us,
            kernel_us=sum(profile.kernel_us for profile in profiles),
            times_ours=time_us / ours_us,
            least_us=least,
            times_floor=time_us / max(least, PRACTICAL_FLOOR_US),
            mfma_utilisation=busiest.mfma_utilisation,
            loop_utilisation=busiest.loop.mfma_utilisation if busiest.loop else None,
            hbm_bytes=sum(profile.grid_bytes["hbm"] for profile in profiles),
            waves_per_simd=busiest.occupancy.waves_per_simd,
            lds_conflict_share=busiest.lds_conflict_share,
            source="model", commit=origin.commit, date=origin.date,
            clock_us=sum(profile.variants["clock"] for profile in profiles),
            latency_us=sum(profile.variants["latency"] for profile in profiles),
        )  # fmt: skip
