"""Launches on gfx950 devices: torch's memory, torch's current HIP stream, no waits.

The sibling of `cuda` for torch's ROCm builds, which call their devices "cuda" too. Kernels go
to HIP through the runtime that torch has loaded. Their modules carry the code for gfx950 and are
compiled where they run, like the CPU's:

    bindings/hip.mojo            quantize, dequantize, relayout
    bindings/hip_product.mojo    products of one kind: formats, the element types of x, result
                                 and bias, the rounding; compiled when first asked for
    bindings/hip_experts.mojo    experts of one kind, likewise

Results and workspaces come from torch's allocator, which reuses memory in the order of the
stream; so a call can be captured in a graph once its module is loaded. Proven with a stand-in for
the runtime that executes launches on the simulator; never run on such a GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from mx_kernels._core import native as _native
from mx_kernels._core.facts import (
    ENCODED,
    KEPT,
    KEPT_FLOATS,
    NO_CODE,
    Format,
    Layout,
    ceil_to,
    facts,
    unsupported,
)

ARCHITECTURE = "gfx950"
RUNTIME = "libamdhip64.so"
ALIGNMENT = 16
"""Bytes of the widest access of a kernel."""
CLEARED_BYTES = 1 << 21
"""Room for counters in a workspace."""

ROUNDED_ROWS = 64
"""Rows of floats that are kept which kernels round as fast as they read bfloat16; of more, each
wave would round what others round too, and a launch before is faster."""


class Kind(NamedTuple):
    """What a product module is compiled for, by places in the tables; None for none."""

    left: int | None
    """The format of activations, None for floats that are kept."""
    right: int
    """The format of the weights."""
    x: int | None
    """None for activations that are encoded."""
    rounding: int | None
    out: int
    bias: int | None
    columns: int | None = None
    """1 for codes that lie column by column on both sides."""

    def defines(self) -> tuple[str, ...]:
        """Returns the compiler's definitions."""
        codes = self._asdict().items()
        return tuple(f"{name.upper()}={code}" for name, code in codes if code is not None)


class ExpertsKind(NamedTuple):
    """What a module of experts is compiled for: a grouped product, or a layer with its second."""

    first: Kind
    down: int | None = None
    """The format of a layer's second weights."""
    down_bias: int | None = None

    def defines(self) -> tuple[str, ...]:
        """Returns the compiler's definitions."""
        more = {"DOWN": self.down, "DOWN_BIAS": self.down_bias}
        codes = (f"{name}={code}" for name, code in more.items() if code is not None)
        return (*self.first.defines(), *codes)


class Workspace(NamedTuple):
    """Memory in which the workgroups of a launch meet, kept for the launches of one stream.

    0 .. cleared    zero before and after each launch: its counters, at the end
    cleared ..      what workgroups hand over

    So launches with any number of counters share it, and it is cleared once.
    """

    memory: Tensor
    cleared: int

    @classmethod
    def of(cls, like: Tensor, counter_bytes: int, handed_over_bytes: int) -> Workspace:
        """Allocates on `like`'s device and clears."""
        cleared = ceil_to(counter_bytes, CLEARED_BYTES)
        memory = like.new_empty(cleared + handed_over_bytes, dtype=torch.uint8)
        memory[:cleared].zero_()
        return cls(memory, cleared)

    @property
    def address(self) -> int:
        """Where counters end and what is handed over begins."""
        return self.memory.data_ptr() + self.cleared

    def has_room(self, counter_bytes: int, handed_over_bytes: int) -> bool:
        """Says whether a launch can use this memory."""
        room = self.memory.numel() - self.cleared
        return counter_bytes <= self.cleared and handed_over_bytes <= room


class Call:
    """One call: where its launches go, and the memory that they need until they are launched.

    Torch may reuse that memory afterwards, in the order of the stream.
    """

    def __init__(self, native: ModuleType, queue: tuple[int, int], like: Tensor):
        self._native, self._queue, self._like = native, queue, like
        self._temporaries: list[Tensor] = []

    def launch(self, module: ModuleType, function: str, arguments: tuple[int, ...]) -> None:
        """Launches; what HIP refuses is the kind of error that torch raises."""
        with _in_words_of_torch(function):
            getattr(module, function)(arguments)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype = torch.uint8) -> Tensor:
        """Allocates for the time of the call."""
        memory = self._like.new_empty(shape, dtype=dtype)
        self._temporaries.append(memory)
        return memory

    def rows(
        self, address: int, row_stride: int, shape: tuple[int, int], dtype: int | None = None
    ) -> int:
        """Returns the address of contiguous rows that kernels can read: as given, or of a copy.

        The type goes by its native code, None for bytes.
        """
        if row_stride == shape[1] and address % ALIGNMENT == 0:
            return address
        copy = self.empty(shape, torch.uint8 if dtype is None else facts().torch_dtypes[dtype])
        arguments = (address, row_stride, *shape, copy.data_ptr(), copy.element_size())
        self.launch(self._native, "copy_rows", (*arguments, *self._queue))
        return copy.data_ptr()

    def weights(self, right: tuple[int, int, int, int], shape: tuple[int, int]) -> tuple:
        """Returns preshuffled weights: as given, or moved ones."""
        codes, scales, fmt, layout = right
        wanted = _preshuffled()
        if layout == wanted.code and not (codes | scales) % ALIGNMENT:
            return right
        storage = _stored_bytes(wanted, shape, fmt)
        moved = tuple(self.empty(part).data_ptr() for part in storage)
        arguments = (codes, scales, layout, *moved, wanted.code, fmt, *shape)
        self.launch(self._native, "relayout", (*arguments, *self._queue))
        return (*moved, fmt, wanted.code)

    def experts(self, experts: tuple[int, ...], shape: tuple[int, int]) -> tuple[int, ...]:
        """Returns preshuffled weights of all experts: as given, or moved one by one."""
        codes, scales, fmt, layout, count, *steps, bias, bias_dtype = experts
        wanted = _preshuffled()
        if layout == wanted.code and not (codes | scales | steps[0] | steps[1]) % ALIGNMENT:
            return experts
        moved = [self.empty((count, *part)) for part in _stored_bytes(wanted, shape, fmt)]
        for i in range(count):
            source = (codes + i * steps[0], scales + i * steps[1], layout)
            target = (*(part[i].data_ptr() for part in moved), wanted.code)
            self.launch(self._native, "relayout", (*source, *target, fmt, *shape, *self._queue))
        codes, scales = (part.data_ptr() for part in moved)
        steps = (part.stride(0) for part in moved)
        return (codes, scales, fmt, wanted.code, count, *steps, bias, bias_dtype)


class Rocm:
    """Launches kernels on any gfx950 device of this process."""

    def __init__(self):
        self._lock = _native.LoadLock()
        self._native: ModuleType | None = None
        self._products: dict[Kind | ExpertsKind, ModuleType] = {}
        self._devices: dict[int, int] = {}
        self._workspaces: dict[tuple[int, int], Workspace] = {}

    def launch(self, operation: str, arguments: tuple[int, ...], out: Tensor) -> None:
        """Launches an operation but a product, which writes `out`."""
        queue = self._queue(out)
        call = Call(self._native, queue, out)
        if operation == "multiply_grouped":
            self._multiply_grouped(call, queue, arguments)
            return
        if operation == "multiply_experts":
            self._multiply_experts(call, queue, arguments)
            return
        if operation == "quantize":
            x, dtype, row_stride, rows, k, fmt, *rest = arguments
            known = {name for pair in self._native.pairs() for name in pair} - {KEPT_FLOATS}
            if _format(fmt).name not in known:
                raise ValueError(
                    f"format: got {_format(fmt).name!r}, which no {ARCHITECTURE} kernel "
                    f"quantizes to, expected {' or '.join(map(repr, sorted(known)))}"
                )
            x = call.rows(x, row_stride, (rows, k), dtype)
            arguments = (x, dtype, k, rows, k, fmt, *rest)
        call.launch(self._native, operation, (*arguments, *queue))

    @staticmethod
    def prepared(_arguments: tuple[int, ...], _index: int, _m: int, _k: int) -> None:
        """Says that a product is looked up anew each time."""

    def multiply(self, arguments: tuple[int, ...], out: Tensor, m: int, k: int) -> None:
        """Launches a product of `m` rows of activations of length `k`."""
        queue = self._queue(out)
        call = Call(self._native, queue, out)
        left, right, result, n = arguments[:7], arguments[7:11], arguments[11:15], arguments[16]
        kind, values, scales, x_dtype, row_stride, left_format, rounding = left
        _, out_dtype, _, bias_dtype = result
        self._check_formats(kind, left_format, right[2], self._native.pairs())
        if kind == ENCODED:
            x_dtype = rounding = None
            storage = _stored_bytes(facts().plain, (m, k), left_format)
            values, scales = (
                call.rows(address, shape[1], shape)
                for address, shape in zip((values, scales), storage, strict=True)
            )
        else:
            values = call.rows(values, row_stride, (m, k), x_dtype)
        bias = None if bias_dtype == NO_CODE else bias_dtype
        encoded_in = None if kind == KEPT else left_format
        product = self._product(Kind(encoded_in, right[2], x_dtype, rounding, out_dtype, bias))

        right = call.weights(right, (n, k))
        with _in_words_of_torch("multiply"):
            sizes = product.workspace((m, n, k))
        space = self._workspace(queue, sizes, out) if any(sizes) else None
        room = space.address if space else 0
        left = (kind, values, scales, left[3], k, left_format, left[6])
        call.launch(product, "multiply", (*left, *right, *result, m, n, k, *queue, room))

    @staticmethod
    def wants_bfloat16(rows: int) -> bool:
        """Says whether kernels do not round floats that are kept, or others are faster then."""
        return rows > ROUNDED_ROWS

    def takes_columns(self, like: Tensor, formats: tuple[int, int], rows: tuple[int, int]) -> bool:
        """Says whether `multiply_columns` multiplies codes of two formats and numbers of rows."""
        self._queue(like)
        names = tuple(_format(code).name for code in formats)
        return names in self._native.column_pairs() and not any(n % ALIGNMENT for n in rows)

    def multiply_columns(self, arguments: tuple[int, ...], out: Tensor) -> None:
        """Launches a product of codes that lie column by column on both sides."""
        queue = self._queue(out)
        call = Call(self._native, queue, out)
        left, right, result, sizes = (
            arguments[i:j] for i, j in ((0, 7), (7, 11), (11, 15), (15, None))
        )
        (_, codes, scales, *rest), (w_codes, w_scales, fmt, layout), (m, n, k) = left, right, sizes
        codes, w_codes = (
            call.rows(address, rows, (k, rows)) for address, rows in ((codes, m), (w_codes, n))
        )
        bias = None if result[3] == NO_CODE else result[3]
        product = self._product(Kind(left[5], fmt, None, None, result[1], bias, columns=1))
        arguments = (ENCODED, codes, scales, *rest, w_codes, w_scales, fmt, layout)
        call.launch(product, "multiply", (*arguments, *result, *sizes, *queue, 0))

    def _multiply_grouped(self, call: Call, queue: tuple[int, int], arguments: tuple) -> None:
        """Launches a grouped product."""
        left, experts, (*ends, m, n, k) = arguments[:7], arguments[7:16], arguments[16:]
        kind = ExpertsKind(self._first(left, experts, ends[2]))
        left, experts = self._rows(call, left, (m, k)), call.experts(experts, (n, k))
        arguments = (*left, *experts, *ends, m, n, k, *queue)
        call.launch(self._experts(kind), "multiply_grouped", arguments)

    def _multiply_experts(self, call: Call, queue: tuple[int, int], arguments: tuple) -> None:
        """Launches a layer of experts."""
        left, gate_up, down, rest = (
            arguments[i:j] for i, j in ((0, 7), (7, 16), (16, 25), (25, None))
        )
        tokens, dtype, width, inner = rest[4], *rest[-3:]
        self._check_formats(left[0], left[5], down[2], self._native.expert_pairs())
        down_bias = None if down[8] == NO_CODE else down[8]
        kind = ExpertsKind(self._first(left, gate_up, dtype), down[2], down_bias)
        left = self._rows(call, left, (tokens, width))
        gate_up = call.experts(gate_up, (2 * inner, width))
        down = call.experts(down, (width, inner))
        arguments = (*left, *gate_up, *down, *rest)
        module = self._experts(kind)
        room = call.empty((max(module.experts_workspace_bytes(arguments), 1),)).data_ptr()
        call.launch(module, "multiply_experts", (*arguments, *queue, room))

    def _first(self, left: tuple, experts: tuple, out: int) -> Kind:
        """Returns the kind of a product of experts; raises unless there are kernels for it."""
        kind, _, _, x_dtype, _, left_format, rounding = left
        self._check_formats(kind, left_format, experts[2], self._native.expert_pairs())
        encoded_in = None if kind == KEPT else left_format
        bias = None if experts[8] == NO_CODE else experts[8]
        return Kind(encoded_in, experts[2], x_dtype, rounding, out, bias)

    @staticmethod
    def _rows(call: Call, left: tuple, shape: tuple[int, int]) -> tuple:
        """Returns a left side whose rows kernels can read."""
        kind, values, scales, dtype, row_stride, *rest = left
        return (kind, call.rows(values, row_stride, shape, dtype), scales, dtype, shape[1], *rest)

    @staticmethod
    def _check_formats(kind: int, left: int, right: int, pairs: list) -> None:
        """Raises unless a product of these formats is among the pairs that have kernels."""
        names = KEPT_FLOATS if kind == KEPT else _format(left).name, _format(right).name
        if names not in pairs:
            raise unsupported(*names, ARCHITECTURE, pairs)

    def _queue(self, tensor: Tensor) -> tuple[int, int]:
        """Returns the handle of a tensor's device, which is opened once, and its stream."""
        index = tensor.get_device()
        handle = self._devices.get(index) or self._open(index)
        return handle, torch._C._cuda_getCurrentRawStream(index)

    def _open(self, index: int) -> int:
        """Opens a device for the life of the process."""
        name = torch.cuda.get_device_properties(index).gcnArchName
        if name.partition(":")[0] != ARCHITECTURE:
            raise RuntimeError(
                f"got device cuda:{index}, a {name}, expected {ARCHITECTURE}: there are no "
                'kernels for other AMD GPUs; move tensors with .to("cpu")'
            )
        runtime = loaded_runtime()
        with self._lock:
            if self._native is None:
                self._native = _native.load_extension(_native.hip_extension(ARCHITECTURE))
            if index not in self._devices:
                functions = [getattr(runtime, function) for function in self._native.functions()]
                addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in functions]
                self._devices[index] = self._native.open((index, *addresses))
            return self._devices[index]

    def _product(self, kind: Kind) -> ModuleType:
        """Returns the module of a kind of product."""
        return self._module(kind, _native.hip_product_extension)

    def _experts(self, kind: ExpertsKind) -> ModuleType:
        """Returns the module of a kind of experts."""
        return self._module(kind, _native.hip_experts_extension)

    def _module(self, kind: Kind | ExpertsKind, extension_of: Callable) -> ModuleType:
        """Returns a module, which is loaded once."""
        if kind not in self._products:
            with self._lock:
                if kind not in self._products:
                    extension = extension_of(ARCHITECTURE, kind.defines())
                    self._products[kind] = _native.load_extension(extension)
        return self._products[kind]

    def _workspace(self, queue: tuple[int, int], sizes: tuple[int, int], like: Tensor) -> Workspace:
        """Returns memory for one launch, its counters zero."""
        if torch.cuda.is_current_stream_capturing():
            # A graph has its own and clears it: it may be replayed beside anything else.
            return Workspace.of(like, *sizes)
        kept = self._workspaces.get(queue)
        if kept is None or not kept.has_room(*sizes):
            kept = self._workspaces[queue] = Workspace.of(like, *sizes)
        return kept


@contextlib.contextmanager
def _in_words_of_torch(operation: str) -> Iterator[None]:
    """Turns what a module raises into the kind of error that torch raises."""
    try:
        yield
    except Exception as error:
        raise RuntimeError(f"{operation}: {error}") from None


def _format(code: int) -> Format:
    """Returns the format at a place of the table."""
    return next(fmt for fmt in facts().formats.values() if fmt.code == code)


def _stored_bytes(
    layout: Layout, shape: tuple[int, int], code: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Returns rows and row bytes of codes and scales of an operand of a format."""
    fmt = _format(code)
    codes, (rows, columns) = layout.storage(*shape, fmt)
    return codes, (rows, columns * fmt.scale_bytes)


@cache
def _preshuffled() -> Layout:
    """Returns the layout that the products want weights in."""
    return facts().layout_for(ARCHITECTURE)


def loaded_runtime() -> ctypes.CDLL:
    """Returns the HIP runtime that is already in this process: torch's streams are its own.

    Raises:
        RuntimeError: if there is none.
    """
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        path = Path(f"/{line.partition('/')[2]}")
        if path.name.startswith(RUNTIME):
            return ctypes.CDLL(str(path))
    raise RuntimeError(f"{RUNTIME} is not loaded in this process, expected torch's ROCm build")


ROCM = Rocm()
