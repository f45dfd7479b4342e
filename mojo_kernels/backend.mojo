"""What each device is compiled for: the only table of targets.

    name      device                          compile options
    cpu       any CPU                         none: one library for each instruction set
    gfx950    AMD MI350X, MI355X (CDNA4)      the first 14 dwords of arguments in registers
    sm_90a    NVIDIA H100, H200 (Hopper)      none
    sm_*      other NVIDIA GPUs               none: portable kernels alone; from sm_80 on with tensor cores
"""

from max.gpu.host import DeviceContext

comptime CDNA4 = "gfx950"
"""The architecture of MI350X and MI355X."""
comptime _PRELOADED = "amdgpu-kernarg-preload-count=16"
"""Saves a kernel the wait for its arguments; the hardware stops at 14 dwords."""
comptime CDNA4_OPTIONS[sums_apart: Bool]: StaticString = (
    _PRELOADED + ",amdgpu-mfma-vgpr-form=false" if sums_apart else _PRELOADED
)
"""Options of a kernel; `sums_apart`: matrix instructions sum in accumulation registers alone."""


def has_hopper() -> Bool:
    """Says whether this compilation is for a Hopper GPU, whose instructions no other has."""
    comptime architecture = DeviceContext.default_device_info.arch_name
    return architecture == "hopper"


def has_warp_products() -> Bool:
    """Says whether this compilation is for tensor cores that a warp uses with bfloat16: Ampere's, and
    those of NVIDIA GPUs behind it.
    """
    comptime AMPERE = 8.0
    comptime info = DeviceContext.default_device_info
    return info.api == "cuda" and Float64(info.compute) >= AMPERE


def has_cdna4() -> Bool:
    """Says whether this compilation is for a CDNA4 GPU."""
    comptime architecture = DeviceContext.default_device_info.arch_name
    return architecture == CDNA4


def is_nvidia() -> Bool:
    """Says whether this compilation is for an NVIDIA GPU."""
    comptime api = DeviceContext.default_device_info.api
    return api == "cuda"
