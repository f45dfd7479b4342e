"""What the hardware and the runtime set up before the first instruction.

    SGPRs   user values in the descriptor's order (dispatch pointer, kernarg pointer, ...), then
            preloaded kernel arguments, then workgroup ids
    v0      work-item ids, 10 bits each for x, y, z

Kernel arguments are packed as the metadata says; arrays become islands of global memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gfx950.isa.asm import EXEC, M0, Kernel
from gfx950.isa.state import LANES, Waves, lanes_to_mask
from gfx950.memory.islands import Allocation, GlobalMemory

_USER_SGPRS = (
    ("user_sgpr_private_segment_buffer", 4, None),
    ("user_sgpr_dispatch_ptr", 2, "dispatch"),
    ("user_sgpr_queue_ptr", 2, None),
    ("user_sgpr_kernarg_segment_ptr", 2, "kernarg"),
    ("user_sgpr_dispatch_id", 2, None),
    ("user_sgpr_flat_scratch_init", 2, None),
    ("user_sgpr_private_segment_size", 1, None),
)


class ArgumentError(ValueError):
    """Arguments or launch sizes that do not fit the kernel."""


def arrays(args):
    """Yields the arrays among kernel arguments in order, those inside structs too."""
    for value in args.values() if isinstance(args, Mapping) else args:
        if isinstance(value, np.ndarray):
            yield value
        elif isinstance(value, tuple):
            yield from arrays(value)


def not_given(kernel: Kernel, args: Sequence | Mapping) -> str:
    """Says which arguments are missing and read as zero; nothing if all are there."""
    if isinstance(args, Mapping):
        names = [a.name for a in _explicit(kernel) if a.name not in args]
        return f"arguments that are not given ({', '.join(names)})" if names else ""
    given = KernelArguments(kernel, args, GlobalMemory(), (1, 1, 1), (1, 1, 1)).given_bytes
    if kernel.args or given >= kernel.kernarg_bytes:
        return ""
    return (
        f"{kernel.kernarg_bytes - given} of {kernel.kernarg_bytes} bytes of arguments, which the "
        "kernel does not list,"
    )


def _explicit(kernel: Kernel) -> list:
    """Returns the arguments that a caller passes; a runtime fills the others."""
    return [a for a in kernel.args if not a.kind.startswith("hidden_")]


class KernelArguments:
    """Packs arguments into a segment and copies array results back."""

    def __init__(self, kernel: Kernel, args: Sequence | Mapping, memory: GlobalMemory, grid, block):
        self.memory = memory
        self.arrays: list[tuple[np.ndarray, Allocation]] = []
        explicit = _explicit(kernel)
        if explicit and not isinstance(args, Mapping) and len(args) != len(explicit):
            raise ArgumentError(
                f"kernel {kernel.name} takes {len(explicit)} arguments, got {len(args)}; expected "
                + ", ".join(_described(a) for a in explicit)
            )
        args = _by_name(kernel, args) if isinstance(args, Mapping) else args
        segment = bytearray(max(kernel.kernarg_bytes, 4))
        offset = 0
        for position, value in enumerate(args):
            known = explicit[position] if explicit else None
            raw = self._pack(value, known.size if known else None, position)
            if known and len(raw) > known.size:
                raise ArgumentError(
                    f"argument {position} takes {known.size} bytes, got {len(raw)}: {value!r}"
                )
            if not raw:
                raise ArgumentError(f"argument {position}: got {value!r}, which has no bytes")
            offset = known.offset if known else -(-offset // len(raw)) * len(raw)
            if offset + len(raw) > len(segment):
                raise ArgumentError(f"argument {position} does not fit the segment")
            segment[offset : offset + len(raw)] = raw
            offset += len(raw)
        self.given_bytes = offset
        for hidden in kernel.args:
            raw = _hidden_argument(hidden.kind, hidden.size, grid, block)
            if hidden.offset + len(raw) > len(segment):
                raise ArgumentError(f"{hidden} does not fit the {len(segment)} bytes of arguments")
            segment[hidden.offset : hidden.offset + len(raw)] = raw
        self.segment = bytes(segment)
        self.kernarg = memory.allocate(self.segment, "kernel arguments", writable=False)
        self.dispatch: Allocation | None = None

    def _pack(self, value, size: int | None, position: int) -> bytes:
        """Returns the bytes of one argument."""
        if isinstance(value, np.ndarray):
            return np.uint64(self._island(value, position).base).tobytes()
        if isinstance(value, tuple):
            packed = bytearray()
            for item in value:
                raw = self._pack(item, None, position)
                packed += bytes(-len(packed) % len(raw)) + raw
            return bytes(packed)
        if isinstance(value, bytes):
            return value
        if isinstance(value, np.generic):
            return value.tobytes()
        if isinstance(value, bool | int):
            width = size if size in (1, 2, 4, 8) else 8
            if not -(1 << 8 * width - 1) <= value < 1 << 8 * width:
                raise ArgumentError(f"argument {position}: got {value}, expected {width} bytes")
            return int(value).to_bytes(width, "little", signed=value < 0)
        if isinstance(value, float):
            return (np.float64 if size == 8 else np.float32)(value).tobytes()
        raise ArgumentError(f"argument {position}: cannot pass a {type(value).__name__}")

    def _island(self, array: np.ndarray, position: int) -> Allocation:
        for known, island in self.arrays:
            if known is array:
                return island
        if not array.flags.c_contiguous:
            raise ArgumentError(f"argument {position}: array must be C-contiguous")
        island = self.memory.allocate(array, f"argument {position}", array.flags.writeable)
        self.arrays.append((array, island))
        return island

    def copy_back(self) -> None:
        """Copies the islands to the arrays they came from."""
        for array, island in self.arrays:
            if array.flags.writeable:
                raw = island.data[: island.size]
                array.reshape(-1).view(np.uint8)[...] = raw


def _described(arg) -> str:
    kind = "pointer" if arg.kind == "global_buffer" else f"{arg.size} bytes"
    return f"{arg.name}: {kind}" if arg.name else kind


def _by_name(kernel: Kernel, args: Mapping) -> list:
    """Returns arguments in the kernel's order; those not named are zero."""
    explicit = _explicit(kernel)
    names = [a.name for a in explicit]
    for name in args:
        if names.count(name) != 1:
            raise ArgumentError(f"kernel has no argument {name!r}, expected {sorted(set(names))}")
    return [args.get(a.name, bytes(a.size)) for a in explicit]


def _hidden_argument(kind: str, size: int, grid, block) -> bytes:
    """Returns the bytes of a hidden argument; those not listed here stay zero."""
    values = {"hidden_grid_dims": 3}
    for axis, name in enumerate("xyz"):
        values[f"hidden_block_count_{name}"] = grid[axis]
        values[f"hidden_group_size_{name}"] = block[axis]
    return (values[kind] % (1 << 8 * size)).to_bytes(size, "little") if kind in values else b""


def _dispatch_packet(grid, block, kernarg: int) -> bytes:
    """The HSA kernel dispatch packet, as far as kernels read it."""
    packet = bytearray(64)
    sizes = np.array([*block, 0], np.uint16)
    packet[4:12] = sizes.tobytes()
    packet[12:24] = np.array([g * b for g, b in zip(grid, block, strict=True)], np.uint32).tobytes()
    packet[40:48] = np.uint64(kernarg).tobytes()
    return bytes(packet)


def start_waves(machine, groups: list[int], arguments: KernelArguments) -> Waves:
    """Creates the waves of some workgroups at the kernel's entry."""
    kernel, grid, block = machine.kernel, machine.grid, machine.block
    per_group = machine.waves_per_group
    ids = np.arange(len(groups) * per_group)
    w = Waves(ids, kernel.accum_offset + max(0, kernel.unified_registers - kernel.accum_offset))
    group = np.array(groups)[ids // per_group]
    w.pc = kernel.preload_entry
    next_sgpr = _user_sgprs(w, machine, arguments)

    def put(value: np.ndarray) -> None:
        nonlocal next_sgpr
        w.s[next_sgpr] = value
        w.s_undef[next_sgpr] = False
        next_sgpr += 1

    position = (group % grid[0], group // grid[0] % grid[1], group // (grid[0] * grid[1]))
    for axis, name in enumerate("xyz"):
        if kernel.descriptor.get(f"system_sgpr_workgroup_id_{name}"):
            put(position[axis])
    _work_items(w, kernel, block, ids % per_group)
    w.refresh_clean()
    return w


def _user_sgprs(w: Waves, machine, arguments: KernelArguments) -> int:
    """Fills the user SGPRs and returns the number of the next one."""
    kernel, index = machine.kernel, 0
    for name, count, content in _USER_SGPRS:
        if not kernel.descriptor.get(name):
            continue
        if content == "kernarg":
            _put64(w, index, arguments.kernarg.base)
        elif content == "dispatch":
            if arguments.dispatch is None:
                packet = _dispatch_packet(machine.grid, machine.block, arguments.kernarg.base)
                arguments.dispatch = machine.memory.allocate(packet, "dispatch packet", False)
            _put64(w, index, arguments.dispatch.base)
        index += count
    words = np.frombuffer(arguments.segment + bytes(-len(arguments.segment) % 4), np.uint32)
    first = kernel.preload_offset_dwords
    for i in range(kernel.preload_dwords):
        w.s[index + i] = words[first + i] if first + i < len(words) else 0
        w.s_undef[index + i] = False
    return max(index + kernel.preload_dwords, kernel.user_sgprs)


def _put64(w: Waves, index: int, value: int) -> None:
    w.s[index], w.s[index + 1] = value & 0xFFFFFFFF, value >> 32
    w.s_undef[index : index + 2] = False


def _work_items(w: Waves, kernel: Kernel, block, wave: np.ndarray) -> None:
    """Fills v0 and EXEC."""
    thread = wave[:, None] * LANES + np.arange(LANES)
    x, y, z = thread % block[0], thread // block[0] % block[1], thread // (block[0] * block[1])
    dimensions = kernel.descriptor.get("system_vgpr_workitem_id", 0)
    packed = x
    if dimensions >= 1:
        packed = packed | y << 10
    if dimensions >= 2:
        packed = packed | z << 20
    w.v[0], w.v_undef[0] = packed, False
    inside = thread < block[0] * block[1] * block[2]
    w.set_s64(EXEC, lanes_to_mask(inside))
    w.s_undef[EXEC : EXEC + 2] = False
    w.s[M0], w.s_undef[M0] = 0, True
    w.refresh_exec()
