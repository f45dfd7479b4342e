"""What the timing model assumes about the chip: one table, each number with range and source.

`Machine` is that table. Every field names its unit, the range in which the truth is expected
and where the number comes from; `Machine.table()` lists them, `dataclasses.replace` changes
one. A source that reads "guess" was measured by nobody we can cite: vary it within its range
before trusting a conclusion that hangs on it (`python -m gfx950 profile --set name=value`).

    CU      4 SIMDs, LDS, L1                   cycles of the CU clock
    XCD     32 CUs share one L2                8 XCDs, workgroups dealt round-robin
    chip    Infinity Cache, HBM                GB/s, converted with `clock_ghz`

Everything here is a model. Nothing was measured on a gfx950 by this project.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

AMD = "AMD MI355X data sheet"
ISA = "AMD CDNA4 ISA and white paper"
LLVM = "LLVM AMDGPU wait states and scheduling model"
GLUON = "ROCm/gfx950-gluon-tutorials"
PRACTICE = "GCN and CDNA practice, not looked up for gfx950"
AITER = "fit to AITER's tuned table (MODEL.md)"
LADDER = "fit to AMD's published FP8 ladder (MODEL.md)"
POWER = "fit to AMD's published rates (MODEL.md)"
CDNA3 = "AMD CDNA3 white paper, assumed unchanged"


FP16_FLOPS_PER_CYCLE = 1024
"""Of a matrix pipe; 8-bit operands twice as many, four-bit ones four times."""
MAX_VALUE = 1 << 40
"""Of a parameter."""


class Fact(NamedTuple):
    """One row of the table."""

    name: str
    value: float
    unit: str
    low: float
    high: float
    source: str


def fact(value, unit, low, high, source):
    """Returns a dataclass field with its unit, range and source."""
    return field(default=value, metadata={"unit": unit, "range": (low, high), "source": source})


@dataclass(frozen=True)
class Machine:
    """An MI355X as the timing model sees it."""

    clock_ghz: float = fact(1.8, "GHz", 1.3, 2.4, f"under load: {AITER}")
    peak_ghz: float = fact(2.4, "GHz", 2.4, 2.4, AMD)
    busy_fp4_ghz: float = fact(1.28, "GHz", 1.1, 2.4, f"matrix pipes never idle: {POWER}")
    busy_fp8_ghz: float = fact(1.66, "GHz", 1.5, 2.4, f"the same, 8-bit operands: {POWER}")
    busy_fp16_ghz: float = fact(1.40, "GHz", 1.3, 2.4, f"the same, wider operands: {POWER}")
    num_xcds: int = fact(8, "", 8, 8, AMD)
    cus_per_xcd: int = fact(32, "", 32, 32, AMD)
    simds_per_cu: int = fact(4, "", 4, 4, ISA)
    waves_per_simd: int = fact(8, "", 8, 8, ISA)
    registers_per_lane: int = fact(512, "VGPR", 512, 512, ISA)
    register_granule: int = fact(8, "VGPR", 8, 8, LLVM)
    lds_bytes_per_cu: int = fact(163840, "B", 163840, 163840, ISA)
    lds_granule: int = fact(1280, "B", 512, 1280, LLVM)

    issue_cycles: int = fact(4, "cycles", 4, 4, f"{GLUON}: 64 lanes on 16-wide SIMDs")
    trans_cycles: int = fact(16, "cycles", 8, 16, f"quarter rate: {PRACTICE}")
    multiply_cycles: int = fact(16, "cycles", 8, 16, f"32-bit integer: {PRACTICE}")
    f64_cycles: int = fact(8, "cycles", 4, 8, "guess: half rate")
    pass_cycles: int = fact(4, "cycles", 4, 4, f"{ISA}: one MFMA pass")
    branch_cycles: int = fact(16, "cycles", 8, 32, "guess: taken branch refills the wave's buffer")
    barrier_cycles: int = fact(8, "cycles", 4, 32, "guess: last arrival to release")

    lds_banks: int = fact(64, "4 B banks", 64, 64, f"{ISA}: 256 B/cycle to readers")
    lds_write_banks: int = fact(32, "4 B banks", 32, 64, "write side as in CDNA3: guess")
    lds_load_bytes: int = fact(256, "B/cycle", 128, 256, f"loads straight to LDS: {LADDER}")
    lds_pair_bytes: int = fact(128, "B/cycle", 128, 128, f"{GLUON}: return bus of two SIMDs")
    lds_queue: int = fact(8, "accesses", 8, 8, f"{GLUON}: FIFO of two SIMDs")
    lds_latency: int = fact(54, "cycles", 42, 64, f"{GLUON}: b128 data 50 to 70 after issue")

    l1_bytes: int = fact(32768, "B", 32768, 32768, CDNA3)
    line_bytes: int = fact(128, "B", 128, 128, CDNA3)
    l1_bytes_per_cycle: int = fact(64, "B/cycle", 64, 128, CDNA3)
    l1_latency: int = fact(120, "cycles", 100, 150, f"guess: {PRACTICE}")
    in_flight_bytes: int = fact(32768, "B/CU", 32768, 45056, f"{GLUON}: L1 size; others say 44 KiB")
    vmem_queue_cycles: int = fact(256, "cycles", 64, 512, "guess: work queued before issue stalls")

    l2_latency: int = fact(300, "cycles", 200, 500, f"guess: {PRACTICE}")
    l2_bytes_per_cycle: int = fact(2048, "B/cycle/XCD", 1024, 2048, f"{CDNA3}: 16 x 128 B")
    l2_bytes: int = fact(4194304, "B/XCD", 4194304, 4194304, AMD)
    infinity_latency: int = fact(650, "cycles", 500, 900, f"guess: {PRACTICE}")
    infinity_gbps: float = fact(14000.0, "GB/s", 10000, 17200, f"{CDNA3}: 17.2 TB/s peak")
    infinity_bytes: int = fact(268435456, "B", 268435456, 268435456, AMD)
    hbm_latency: int = fact(1000, "cycles", 800, 2000, "project notes, unverified")
    hbm_gbps: float = fact(8000.0, "GB/s", 5600, 8000, f"{AMD}: peak")

    write_back_gbps: float = fact(6800.0, "GB/s", 4000, 8000, f"dirty L2 at kernel end: {AITER}")

    scalar_latency: int = fact(100, "cycles", 50, 200, "guess: scalar cache hit")
    scalar_cold_latency: int = fact(960, "cycles", 500, 1500, "project notes: 0.4 us, uncached")
    launch_us: float = fact(2.2, "us", 1.2, 3.2, "project notes: 2 to 4 us less two trips")

    def __post_init__(self):
        for item in fields(self):
            value = getattr(self, item.name)
            if not 0 < value <= MAX_VALUE:
                raise ValueError(
                    f"{item.name} must be positive, got {value}; expected at most {MAX_VALUE}"
                )

    @property
    def num_cus(self) -> int:
        """Compute units of the chip."""
        return self.num_xcds * self.cus_per_xcd

    def ghz_of(self, mfma_share: float, flops_per_cycle: float) -> float:
        """Returns the clock of a launch, which power holds down where matrix pipes are busy.

        It falls with the busy share of the pipes from the peak to what is left to pipes that are
        never idle, and is at most `clock_ghz`.

        Args:
            mfma_share: of the time of the launch.
            flops_per_cycle: of a busy pipe, which tells four-bit operands from wider ones.
        """
        busy = self.busy_fp16_ghz
        if flops_per_cycle > FP16_FLOPS_PER_CYCLE * 1.5:
            is_fp4 = flops_per_cycle > FP16_FLOPS_PER_CYCLE * 3
            busy = self.busy_fp4_ghz if is_fp4 else self.busy_fp8_ghz
        return min(self.clock_ghz, self.peak_ghz - (self.peak_ghz - busy) * mfma_share)

    def per_cycle(self, gbps: float) -> float:
        """Converts GB/s to bytes per cycle of the CU clock."""
        return gbps / self.clock_ghz

    def table(self) -> list[Fact]:
        """Lists every parameter with its unit, range and source."""
        return [
            Fact(f.name, getattr(self, f.name), f.metadata["unit"], *f.metadata["range"],
                 f.metadata["source"])
            for f in fields(self)
        ]  # fmt: skip


VARIANTS = {
    "clock": {},
    "latency": {
        "clock_ghz": 2.4, "busy_fp4_ghz": 2.4, "busy_fp8_ghz": 2.4, "busy_fp16_ghz": 2.4,
        "l2_latency": 460, "infinity_latency": 850, "hbm_latency": 1400,
    },
}  # fmt: skip
"""Two readings of the same measurements, which nobody can tell apart: the clock falls under load,
or memory answers later. Times between the two are as good as the model gets. No price of an
instruction depends on what they change."""


def variants(machine: Machine) -> dict[str, Machine]:
    """Returns the readings of a machine; what its owner has set stays."""
    kept = {f.name for f in fields(Machine) if getattr(machine, f.name) != f.default}
    return {
        name: replace(machine, **{k: v for k, v in changes.items() if k not in kept})
        for name, changes in VARIANTS.items()
    }


# Passes of the MFMA shapes, by (rows, columns, K) and kind of operand. The narrow legacy shapes
# take as many passes as their doubled-K successors, at half the work. Source: LLVM's scheduling
# model and AMD's matrix instruction tables; AMD's published peaks follow from them.
MFMA_PASSES = {
    "f32": {(32, 32, 1): 16, (32, 32, 2): 16, (16, 16, 1): 8, (16, 16, 4): 8, (4, 4, 1): 2},
    "f64": {(16, 16, 4): 16, (4, 4, 4): 4},
    "f16": {(32, 32, 4): 16, (32, 32, 8): 8, (32, 32, 16): 8, (16, 16, 4): 8,
            (16, 16, 16): 4, (16, 16, 32): 4, (4, 4, 4): 2},
    "i8": {(32, 32, 4): 16, (32, 32, 16): 8, (32, 32, 32): 8, (16, 16, 4): 8,
           (16, 16, 32): 4, (16, 16, 64): 4, (4, 4, 4): 2},
    "f8": {(32, 32, 16): 8, (16, 16, 32): 4},
    "xf32": {(32, 32, 4): 8, (16, 16, 8): 4},
}  # fmt: skip
F8F6F4_PASSES = {(16, 16, 128): (4, 8), (32, 32, 64): (8, 16)}
"""Passes of the f8f6f4 shapes: both operands FP4 or FP6, at least one operand 8-bit."""

# Wait states between an MFMA of that many passes and a reader of its result. Source: LLVM.
MFMA_RESULT_WAIT = {2: 5, 4: 8, 8: 12, 16: 20}
