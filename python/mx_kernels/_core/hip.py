"""Launches on gfx950 devices: torch's memory, torch's current HIP stream, no waits.

The sibling of `cuda` for torch's ROCm builds, which call their devices "cuda" too. Kernels go
to HIP through the runtime that torch has loaded. Their modules carry the code for gfx950 and are
compiled where they run, like the CPU's:

    bindings/hip.mojo            quantize, also behind norms and gates; dequantize, relayout
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
    CDNA4,
    KEPT_FLOATS,
    Format,
    Layout,
    ceil_to,
    facts,
    quantized_by,
    unsupported,
)
from mx_kernels._core.protocol import (
    ENCODED,
    KEPT,
    MULTIPLY,
    MULTIPLY_EXPERTS,
    MULTIPLY_GROUPED,
    NO_CODE,
    Experts,
    Left,
    Quantize,
    Relayout,
    Result,
    Right,
)

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
    right: int | None
    """The format of the weights, None for floats like the activations."""
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

    def codes(self) -> tuple[int, ...]:
        """Returns the same for `plan_gfx950`."""
        return tuple(NO_CODE if code is None else code for code in self)


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


class Module(NamedTuple):
    """What is compiled for a kind."""

    native: ModuleType
    plan_for: Callable[[tuple[int, ...]], tuple] | None
    """Says which plan a call gets, as its last integers, and the bytes that a product is lent:
    of what `plan_gfx950` takes, for layers `plan_experts_gfx950`. Grouped products have none."""


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

    def weights(self, right: Right, shape: tuple[int, int]) -> Right:
        """Returns preshuffled weights: as given, or moved ones."""
        wanted = _preshuffled()
        if right.layout == wanted.code and not (right.codes | right.scales) % ALIGNMENT:
            return right
        storage = _stored_bytes(wanted, shape, right.format)
        moved = Right(*(self.empty(part).data_ptr() for part in storage), right.format, wanted.code)
        self._relayout(right, moved, shape)
        return moved

    def experts(self, experts: Experts, shape: tuple[int, int]) -> Experts:
        """Returns preshuffled weights of all experts: as given, or moved one by one."""
        wanted, steps = _preshuffled(), (experts.codes_step, experts.scales_step)
        addresses = experts.codes | experts.scales | steps[0] | steps[1]
        if experts.layout == wanted.code and not addresses % ALIGNMENT:
            return experts
        storage = _stored_bytes(wanted, shape, experts.format)
        moved = [self.empty((experts.count, *part)) for part in storage]
        for i in range(experts.count):
            codes, scales = experts.codes + i * steps[0], experts.scales + i * steps[1]
            source = Right(codes, scales, experts.format, experts.layout)
            target = Right(*(t[i].data_ptr() for t in moved), experts.format, wanted.code)
            self._relayout(source, target, shape)
        (codes, scales), steps = (t.data_ptr() for t in moved), (t.stride(0) for t in moved)
        places = dict(zip(("codes_step", "scales_step"), steps, strict=True))
        return experts._replace(codes=codes, scales=scales, layout=wanted.code, **places)

    def _relayout(self, source: Right, target: Right, shape: tuple[int, int]) -> None:
        """Moves a matrix of weights."""
        call = Relayout(*_in_a_layout(source), *_in_a_layout(target), source.format, *shape)
        self.launch(self._native, "relayout", call + self._queue)


class Rocm:
    """Launches kernels on any gfx950 device of this process."""

    def __init__(self):
        self._lock = _native.LoadLock()
        self._native: ModuleType | None = None
        self._modules: dict[Kind | ExpertsKind | None, Module] = {}
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
            given = Quantize._make(arguments)
            known = quantized_by(self._native.pairs())
            name = _format(given.format).name
            if name not in known:
                raise ValueError(
                    f"format: got {name!r}, which no {CDNA4} kernel quantizes to, expected "
                    f"{' or '.join(map(repr, sorted(known)))}"
                )
            shape = given.rows, given.k
            x = call.rows(given.values, given.row_stride, shape, given.dtype)
            arguments = given._replace(values=x, row_stride=given.k)
        module = self._native if hasattr(self._native, operation) else self._fused()
        call.launch(module, operation, (*arguments, *queue))

    @staticmethod
    def prepared(_operation: str, _arguments: tuple[int, ...], _index: int) -> None:
        """Says that a call is looked up anew each time."""

    def multiply(self, arguments: tuple[int, ...], out: Tensor) -> None:
        """Launches a product, which writes `out`."""
        queue = self._queue(out)
        call = Call(self._native, queue, out)
        left, right, result, sizes = MULTIPLY.split(arguments)
        m, n, k = sizes
        weights = None if right.format == NO_CODE else right.format
        if weights is not None:
            self._check_formats(left.kind, left.format, weights, self._native.pairs())
        x_dtype, rounding = left.dtype, left.rounding
        if left.kind == ENCODED:
            x_dtype = rounding = None
            storage = _stored_bytes(facts().plain, (m, k), left.format)
            values, scales = (
                call.rows(address, shape[1], shape)
                for address, shape in zip((left.values, left.scales), storage, strict=True)
            )
            left = left._replace(values=values, scales=scales, row_stride=k)
        else:
            left = self._rows(call, left, (m, k))
        encoded_in = None if left.kind == KEPT else left.format
        kind = Kind(encoded_in, weights, x_dtype, rounding, result.dtype, _dtype_of(result))
        product = self._product(kind)

        if weights is None:
            right = right._replace(codes=call.rows(right.codes, k, (n, k), x_dtype))
        else:
            right = call.weights(right, (n, k))
        with _in_words_of_torch("multiply"):
            plan, *wanted = product.plan_for((*sizes, *kind.codes()))
        space = self._workspace(queue, wanted, out) if any(wanted) else None
        room = space.address if space else 0
        call.launch(
            product.native, "multiply", (*left, *right, *result, *sizes, *queue, room, *plan)
        )

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
        left, right, result, sizes = MULTIPLY.split(arguments)
        left = left._replace(values=call.rows(left.values, sizes.m, (sizes.k, sizes.m)))
        right = right._replace(codes=call.rows(right.codes, sizes.n, (sizes.k, sizes.n)))
        formats, types = (left.format, right.format), (result.dtype, _dtype_of(result))
        kind = Kind(*formats, None, None, *types, columns=1)
        product = self._product(kind)
        plan, *_ = product.plan_for((*sizes, *kind.codes()))
        call.launch(product.native, "multiply", (*left, *right, *result, *sizes, *queue, 0, *plan))

    def _multiply_grouped(self, call: Call, queue: tuple[int, int], arguments: tuple) -> None:
        """Launches a grouped product."""
        left, experts, groups = MULTIPLY_GROUPED.split(arguments)
        kind = ExpertsKind(self._first(left, experts, groups.dtype))
        left = self._rows(call, left, (groups.m, groups.k))
        experts = call.experts(experts, (groups.n, groups.k))
        arguments = (*left, *experts, *groups, *queue)
        call.launch(self._experts(kind).native, "multiply_grouped", arguments)

    def _multiply_experts(self, call: Call, queue: tuple[int, int], arguments: tuple) -> None:
        """Launches a layer of experts."""
        left, gate_up, down, routing, gate, tokens = MULTIPLY_EXPERTS.split(arguments)
        self._check_formats(left.kind, left.format, down.format, self._native.expert_pairs())
        first = self._first(left, gate_up, tokens.dtype)
        kind = ExpertsKind(first, down.format, _dtype_of(down))
        left = self._rows(call, left, (routing.tokens, tokens.width))
        rows = [*facts().gates.values()][gate.code].sums(tokens.inner)
        gate_up = call.experts(gate_up, (rows, tokens.width))
        down = call.experts(down, (tokens.width, tokens.inner))
        arguments = (*left, *gate_up, *down, *routing, *gate, *tokens)
        module, plan_for = self._experts(kind)
        sizes = routing.tokens, routing.slots, gate_up.count, tokens.width, tokens.inner
        (plan,) = plan_for((*sizes, gate.code, gate.interleaved, *first.codes()))
        room = call.empty((max(module.experts_workspace_bytes(arguments), 1),)).data_ptr()
        call.launch(module, "multiply_experts", (*arguments, *queue, room, *plan))

    def _first(self, left: Left, experts: Experts, out: int) -> Kind:
        """Returns the kind of a product of experts; raises unless there are kernels for it."""
        self._check_formats(left.kind, left.format, experts.format, self._native.expert_pairs())
        encoded_in = None if left.kind == KEPT else left.format
        types = left.dtype, left.rounding, out, _dtype_of(experts)
        return Kind(encoded_in, experts.format, *types)

    @staticmethod
    def _rows(call: Call, left: Left, shape: tuple[int, int]) -> Left:
        """Returns a left side of floats whose rows kernels can read."""
        values = call.rows(left.values, left.row_stride, shape, left.dtype)
        return left._replace(values=values, row_stride=shape[1])

    @staticmethod
    def _check_formats(kind: int, left: int, right: int, pairs: list) -> None:
        """Raises unless a product of these formats is among the pairs that have kernels."""
        names = KEPT_FLOATS if kind == KEPT else _format(left).name, _format(right).name
        if names not in pairs:
            raise unsupported(*names, CDNA4, pairs)

    def _queue(self, tensor: Tensor) -> tuple[int, int]:
        """Returns the handle of a tensor's device, which is opened once, and its stream."""
        index = tensor.get_device()
        handle = self._devices.get(index) or self._open(index)
        return handle, torch._C._cuda_getCurrentRawStream(index)

    def _open(self, index: int) -> int:
        """Opens a device for the life of the process."""
        name = torch.cuda.get_device_properties(index).gcnArchName
        if name.partition(":")[0] != CDNA4:
            raise RuntimeError(
                f"got device cuda:{index}, a {name}, expected {CDNA4}: there are no "
                'kernels for other AMD GPUs; move tensors with .to("cpu")'
            )
        runtime = loaded_runtime()
        with self._lock:
            if self._native is None:
                self._native = _native.load_extension(_native.hip_extension(CDNA4))
            if index not in self._devices:
                functions = [getattr(runtime, function) for function in self._native.functions()]
                addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in functions]
                self._devices[index] = self._native.open((index, *addresses))
            return self._devices[index]

    def _product(self, kind: Kind) -> Module:
        """Returns the module of a kind of product."""
        return self._module(kind, _native.hip_product_extension, "plan_gfx950")

    def _experts(self, kind: ExpertsKind) -> Module:
        """Returns the module of a kind of experts."""
        return self._module(kind, _native.hip_experts_extension, "plan_experts_gfx950")

    def _fused(self) -> ModuleType:
        """Returns the module of what quantizes behind norms, gates and rotations."""
        return self._module(None, _native.hip_extension, "").native

    def _module(
        self, kind: Kind | ExpertsKind | None, extension_of: Callable, choose: str
    ) -> Module:
        """Returns a module, which is loaded once; without a kind that of `FUSED`."""
        if kind not in self._modules:
            with self._lock:
                if kind not in self._modules:
                    defines = kind.defines() if kind else _native.FUSED
                    native = _native.load_extension(extension_of(CDNA4, defines))
                    plan_for = None
                    if hasattr(native, "plan"):
                        plan_for = _native.planner(native, getattr(_native.gpu_plans(), choose))
                    self._modules[kind] = Module(native, plan_for)
        return self._modules[kind]

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


def _dtype_of(added: Result | Experts) -> int | None:
    """Returns the dtype of a bias, None for none."""
    return None if added.bias_dtype == NO_CODE else added.bias_dtype


def _in_a_layout(right: Right) -> tuple[int, int, int]:
    """Returns what moves from or to a layout."""
    return right.codes, right.scales, right.layout


def _format(code: int) -> Format:
    """Returns the format at a place of the table."""
    return next(fmt for fmt in facts().formats.values() if fmt.code == code)


def _stored_bytes(
    layout: Layout, shape: tuple[int, int], code: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Returns rows and row bytes of codes and scales of an operand of a format.

    Raises:
        ValueError: if its rows do not fill the tiles of the layout.
    """
    fmt = _format(code)
    if shape[1] % (unit := layout.k_multiple(fmt)):
        raise ValueError(
            f"w: got K = {shape[1]}, expected a multiple of {unit} of {fmt.name} on {CDNA4}"
        )
    codes, (rows, columns) = layout.storage(*shape, fmt)
    return codes, (rows, columns * fmt.scale_bytes)


@cache
def _preshuffled() -> Layout:
    """Returns the layout that the products want weights in."""
    return facts().layout_for(CDNA4)


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
