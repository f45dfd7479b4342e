"""What each device is compiled for: the only table of targets.

    name      device                          compile options
    cpu       any CPU                         none: one library for each instruction set
    gfx950    AMD MI350X, MI355X (CDNA4)      the first 14 dwords of arguments in registers
"""

comptime CDNA4_COMPILE_OPTIONS = "amdgpu-kernarg-preload-count=16"
"""Saves a kernel the wait for its arguments; the hardware stops at 14 dwords."""
