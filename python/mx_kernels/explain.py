"""Which kernel a product gets, and why: what the dispatch decides, asked without a launch.

    >>> print(mx_kernels.explain(mx_kernels.linear, x, w))
    >>> print(mx_kernels.explain(16, 2112, 7168, device="gfx950"))

The answer comes from the tables that the kernels' own dispatch reads. It needs no such device.
One function a device asks them: `DEVICES`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any, Literal, get_args, overload

from mx_kernels._core import levels
from mx_kernels._core.answers import DEVICES, EXPERTS_ON, Question
from mx_kernels._core.checks import K_OF_FLOATS, check_integers, check_mode, format_named
from mx_kernels._core.facts import (
    CDNA4,
    DEFAULT_FORMAT,
    DEFAULT_ROUNDING,
    KEPT_FLOATS,
    Mode,
    activations_for,
    device_name,
    of_kind,
)
from mx_kernels._core.fused_ops import kernel_on_gfx950
from mx_kernels._core.gates import GateOptions, check_gate, chosen_gate
from mx_kernels._core.moved import renamed
from mx_kernels._core.native import gpu_plans
from mx_kernels._core.protocol import ENCODED, INTEGERS, NO_CODE
from mx_kernels.experts import grouped_linear, moe
from mx_kernels.fused import gate_quantize, layer_norm_quantize, mlp, rms_norm_quantize
from mx_kernels.hints import ActivationsName, Array, DeviceName, FormatName, GateName
from mx_kernels.ops import are_floats, linear, matmul
from mx_kernels.tensor import MXTensor

Op = Literal["linear", "matmul"]
ExpertOp = Literal["grouped_linear", "moe"]
EXPERT_OPS: tuple[ExpertOp, ...] = get_args(ExpertOp)
Operation = Callable[..., Any]
"""One of the functions below."""
PRODUCTS: dict[str, Operation] = {
    one.__name__: one for one in (linear, matmul, grouped_linear, moe, mlp)
}
FUSED: dict[str, Operation] = {
    one.__name__: one for one in (rms_norm_quantize, layer_norm_quantize, gate_quantize)
}
OPERATIONS = PRODUCTS | FUSED
DEFAULT_GATES: dict[str, GateName] = {
    name: signature(operation).parameters["hidden_act"].default
    for name, operation in OPERATIONS.items()
    if "hidden_act" in signature(operation).parameters
}
"""Operations that have a gate, and theirs unless another is named."""
Operand = tuple[int, ...] | Array | MXTensor
"""What an operation is called with, or its shape."""
MAX_SIZE = 2**31 - 1


@dataclass(frozen=True)
class Explanation:
    """The kernel of `linear` or `matmul` for one shape."""

    device: str
    op: str
    shape: tuple[int, int, int]
    """M, N, K."""
    activations: str
    """What the left side is multiplied as: a format or "bf16"."""
    format: str
    """The format of the weights."""
    kernel: str
    """The source file, within the Mojo package."""
    reason: str
    tile: tuple[int, int]
    """Rows and columns of C that are computed together: by a workgroup, or by a CPU core."""
    level: str = ""
    """The CPU's instruction level."""
    cut: str = ""
    """On Hopper the plan, see `hopper/plan.mojo`; MX_KERNELS_CUDA_PLAN forces one.

    On gfx950 what the row launches: prefill<rows>, middle<rows>x<columns>, or m<tiles of rows>n<of
    columns>w<waves> and, where there is more than one, s<splits of K>, k<tiles of a chunk>,
    d<chunks in flight>, h<waves that share activations>; `u` if all chunks are in flight."""
    chunk_k: int = 0
    """Elements along K of a step."""
    waves: int = 0
    """Waves of a workgroup. Of a decode kernel they share K, of a prefill kernel the tile."""
    sharers: int = 1
    """Waves of a decode kernel with the same part of K, which share the columns."""
    depth: int = 0
    """Steps along K that a wave of a decode kernel has in flight."""
    splits: int = 1
    """Workgroups that share a tile of C, each with a part of K."""
    k_tail: bool = False
    """Whether the kernel is the one that can end within a step."""
    quantizes_first: bool = False
    """Whether a launch of its own makes codes of floats before."""
    grid: tuple[int, int, int] = (0, 0, 0)
    """Workgroups along N, M and K; where one line counts all tiles, their number comes first."""
    threads: int = 0
    """Threads of a workgroup."""
    chunks_per_wave: int = 0
    """Steps of a wave of a decode kernel."""
    counter_bytes: int = 0
    """Bytes of the workspace that are zero before and after a launch."""
    workspace_bytes: int = 0

    def __str__(self) -> str:
        """Returns the decision in words."""
        size = " x ".join(map(str, self.shape))
        formats = f"{self.activations} x {self.format}"
        before = "floats encoded in a launch before, then " if self.quantizes_first else ""
        text = (
            f"{size} of {formats} on {self.device}: {before}{self.kernel}, {self.reason}; tiles of "
        )
        text += f"{self.tile[0]} x {self.tile[1]}"
        if self.level:
            return f"{text}, instruction level {self.level}"
        if self.chunks_per_wave:
            text += f", {self.waves // self.sharers} x {self.sharers} waves along K and columns"
            text += f", {self.depth} steps of {self.chunk_k} in flight"
            text += f", K split {self.splits} ways"
        elif self.chunk_k:
            text += f", steps of {self.chunk_k}"
        elif self.splits > 1:
            text += f", K split {self.splits} ways"
        grid = " x ".join(map(str, self.grid))
        return f"{text}, {grid} workgroups of {self.threads} threads"


@dataclass(frozen=True)
class Launch:
    """One launch of a product of experts."""

    name: str
    """What it is for: route, encode, gate_up, gate, down, add; product for `grouped_linear`."""
    kernel: str
    """The source file, within the Mojo package."""
    reason: str
    cut: str
    """Of a product: as in `Explanation`."""
    tile: tuple[int, int]
    """Rows and columns of a workgroup; zeros where it has no tile."""
    grid: tuple[int, int, int]
    """Workgroups: of products, as many as sizes that only the device knows can make."""
    threads: int
    """Of a workgroup; 0 on a CPU."""

    def __str__(self) -> str:
        """Returns the launch in words."""
        parts = [self.cut] if self.cut else []
        parts += [f"tiles of {self.tile[0]} x {self.tile[1]}"] if self.tile[0] else []
        grid = " x ".join(map(str, self.grid))
        parts += [f"{grid} workgroups of {self.threads} threads"] if self.threads else []
        return f"{self.name}: {self.kernel}, {self.reason}; {', '.join(parts)}"


@dataclass(frozen=True)
class ExpertsExplanation:
    """The launches of `grouped_linear` or `moe`, in their order."""

    device: str
    op: str
    shape: tuple[int, int, int]
    """M, N, K; of a layer tokens, hidden numbers of a slot, numbers of a token."""
    experts: int
    slots: int
    """Of a token; 0 for `grouped_linear`."""
    activations: str
    format: str
    launches: tuple[Launch, ...]
    workspace_bytes: int

    def __str__(self) -> str:
        """Returns a line for each launch, behind one that says what they compute."""
        size = " x ".join(map(str, self.shape))
        slots = f", {self.slots} slots a token" if self.slots else ""
        first = f"{self.op}, {size} of {self.activations} x {self.format} on {self.device}"
        first += f", {self.experts} experts{slots}: {len(self.launches)} launches"
        first += f", {self.workspace_bytes} bytes of workspace"
        return "\n".join([first, *(f"  {launch}" for launch in self.launches)])


@dataclass(frozen=True)
class FusedExplanation:
    """The kernel of a norm or of a gate to codes."""

    device: str
    op: str
    shape: tuple[int, int, int]
    """M, N, K: rows of K bfloat16 numbers, and of N codes."""
    format: str
    """Of the codes."""
    kernel: str
    """The source file, within the Mojo package."""
    level: str
    """The CPU's instruction level."""
    bytes_read: int
    """Of the rows, and of a norm's weight."""
    bytes_written: int
    """Of codes and scales."""

    def __str__(self) -> str:
        """Returns the decision in words."""
        m, n, k = self.shape
        level = f", instruction level {self.level}" if self.level else ""
        return (
            f"{self.op}, {m} x {k} to {m} x {n} of {self.format} on {self.device}: {self.kernel}; "
            f"{self.bytes_read} bytes read, {self.bytes_written} written{level}"
        )


@overload
def explain(
    m: int,
    n: int,
    k: int,
    *,
    device: DeviceName | None = None,
    op: Op | Operation | None = None,
    activations: ActivationsName | None = None,
    format: FormatName | ActivationsName | None = None,
    by_columns: bool = False,
) -> Explanation: ...


@overload
def explain(
    m: int,
    n: int,
    k: int,
    *,
    device: DeviceName,
    op: ExpertOp | Operation,
    activations: ActivationsName | None = None,
    format: FormatName | None = None,
    experts: int,
    slots: int = 0,
    hidden_act: GateName | None = None,
    interleaved: bool | None = None,
) -> ExpertsExplanation: ...


@overload
def explain(
    m: int,
    n: int,
    k: int,
    *,
    device: DeviceName | None = None,
    op: Operation,
    activations: ActivationsName | None = None,
    format: FormatName | None = None,
    hidden_act: GateName | None = None,
    interleaved: bool | None = None,
) -> ExpertsExplanation | FusedExplanation: ...


@overload
def explain(
    m: Operation,
    n: Operand,
    k: Operand,
    *,
    device: DeviceName | None = None,
    activations: ActivationsName | None = None,
    format: FormatName | None = None,
    slots: int = 0,
    hidden_act: GateName | None = None,
    interleaved: bool | None = None,
    by_columns: bool = False,
) -> Explanation | ExpertsExplanation: ...


@renamed(activation="hidden_act")
def explain(
    m: int | Operation,
    n: int | Operand,
    k: int | Operand,
    *,
    device: DeviceName | None = None,
    op: Op | ExpertOp | Operation | None = None,
    activations: ActivationsName | None = None,
    format: FormatName | ActivationsName | None = None,
    experts: int = 0,
    slots: int = 0,
    hidden_act: GateName | None = None,
    interleaved: bool | None = None,
    by_columns: bool = False,
) -> Explanation | ExpertsExplanation | FusedExplanation:
    """Returns which kernel computes a product, how it cuts the work, and why.

    Asked as the operation would be called, with its operands or their shapes:

    >>> w = quantize(torch.randn(64, 96))
    >>> explain(linear, torch.randn(4, 96), w).shape
    (4, 64, 96)
    >>> len(explain(moe, (4, 96), (8, 128, 96), slots=2, device="gfx950").launches)
    4

    Or with the sizes of [m, k] @ [n, k].T: of "grouped_linear" m counts the rows of all groups; of
    "moe" and "mlp" m counts tokens of k numbers, and n the hidden numbers of a slot. Experts are
    explained for GPUs. Norms and gates to codes have m rows of k floats and n codes, and are asked
    by sizes alone. Floats are bfloat16.

    Args:
        m: `linear`, `matmul`, `grouped_linear`, `moe` or `mlp`; or rows of the activations.
        n: the operation's left side [..., K] or its shape; or rows of the weights.
        k: weights [N, K] or their shape, of experts [E, N, K], of layers those of gates and ups; or
            elements of a row.
        device: "cpu", "gfx950", or "cuda" for a Hopper GPU; it need not be here. None is that of
            the weights, or "cpu".
        op: of sizes the operation, `linear` unless given: one of those, `rms_norm_quantize`,
            `layer_norm_quantize` or `gate_quantize`. A name as a string is deprecated.
        activations: what activations are multiplied as, of `matmul` their format. None is as in
            `linear` on that device; of `matmul` the weights' format.
        format: the weights' format, where they are no MXTensor; of norms and gates the codes'. Of
            `matmul` on gfx950 "bf16" too: floats by floats, of either type.
        experts: how many there are, of sizes of experts alone.
        slots: experts of a token, of `moe` alone.
        hidden_act: of `moe`, where None is "swiglu_oai", `mlp` and `gate_quantize`, "silu".
        interleaved: of these: whether gates and ups take turns.
        by_columns: whether codes of both sides lie column by column, of `matmul` on gfx950.

    Raises:
        TypeError: if a size is no integer, or an operand is of another type.
        ValueError: if a size is not possible, the device has no kernels to choose from or none
            for the formats, or a name is unknown.
    """
    if callable(m):
        for name, value in (("op", op), ("experts", experts)):
            if value:
                raise ValueError(f"{name}: got {value!r} beside operands, expected none: they tell")
        op, stated = m, {"device": device, "activations": activations, "format": format}
        (m, n, k), experts, stated = _read(_name_of(op), n, k, hidden_act, stated)
        device, activations, format = stated.values()
    op = _name_of(op)
    device = "cpu" if device is None else device
    format = DEFAULT_FORMAT if format is None else format
    if not isinstance(device, str) or device not in DEVICES:
        raise ValueError(f"device: got {device!r}, expected {' or '.join(map(repr, DEVICES))}")
    sizes = {"m": m, "n": n, "k": k}
    sizes |= {"experts": experts} if op in EXPERT_OPS else {}
    sizes |= {"slots": slots} if op == "moe" else {}
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"{name}: got {type(size).__name__}, expected int")
        if not 1 <= size <= MAX_SIZE:
            raise ValueError(f"{name}: got {size}, expected a number from 1 to {MAX_SIZE}")
    _check_unused(op, experts=experts, slots=slots, hidden_act=hidden_act, interleaved=interleaved)
    if by_columns and (op, device) != ("matmul", "gfx950"):
        raise ValueError(
            f"by_columns: got True with op={op!r}, device={device!r}, expected 'matmul' on 'gfx950'"
            "; elsewhere codes are copied first"
        )
    if format == KEPT_FLOATS:
        return _explain_floats((m, n, k), by_columns, device, op, activations)
    right = format_named(format)
    gate = GateOptions(hidden_act or DEFAULT_GATES.get(op, DEFAULT_GATES["moe"]), interleaved)
    if op in FUSED:
        if activations is not None:
            raise ValueError(f"activations: got {activations!r} with op={op!r}, expected None")
        question = {"device": device, "op": op, "format": format}
        return _explain_fused((m, n, k), gate if op in DEFAULT_GATES else None, question)
    if activations is None:
        activations = of_kind(right, 1) if op == "matmul" else activations_for(device, format)
    left = check_mode(activations, DEFAULT_ROUNDING)
    if left.kind == INTEGERS:
        check_integers(device, format)
    if op == "matmul":
        left = Mode(ENCODED, format_named(activations).code, left.scale_rule)
    block = right.k_multiple
    if k % block:
        raise ValueError(f"k: got {k}, expected a multiple of {block}")
    asked = Question(m, n, k, left, right, by_columns)
    question = {"device": device, "op": op, "activations": activations, "format": format}
    if op in EXPERT_OPS:
        return _explain_experts(asked, experts, slots, gate, question)
    if op == "mlp":
        if device in EXPERTS_ON:
            return _explain_experts(asked, 1, 1, gate, question)
        return _explain_mlp(asked, gate, question)
    row = DEVICES[device](asked)
    tile = row.pop("tile_m"), row.pop("tile_n")
    return Explanation(**question, shape=(m, n, k), tile=tile, **row)


def _name_of(op: str | Operation | None) -> str:
    """Returns the name of an operation, which once was all that told it."""
    if op is None:
        return "linear"
    names = {function: name for name, function in OPERATIONS.items()}
    if callable(op):
        if op not in names:
            raise ValueError(f"op: got {op!r}, expected mx_kernels.{', '.join(OPERATIONS)}")
        return names[op]
    if not isinstance(op, str) or op not in OPERATIONS:
        raise ValueError(f"op: got {op!r}, expected {' or '.join(map(repr, OPERATIONS))}")
    message = f'explain(..., op="{op}") is deprecated: op=mx_kernels.{op}, or the call itself'
    warnings.warn(message, DeprecationWarning, stacklevel=4)
    return op


def _read(
    op: str, x: Operand, w: Operand, hidden_act: GateName | None, stated: dict[str, str | None]
) -> tuple[tuple[int, int, int], int, dict[str, str | None]]:
    """Returns m, n and k of an operation's operands, the number of experts, and what they tell.

    Args:
        op: its name.
        x: its left side, or a shape.
        w: its weights, or a shape.
        hidden_act: of "moe".
        stated: device, activations and format as they were given; None for what was not.
    """
    told: dict[str, str] = {}
    if op in FUSED:
        expected = ", ".join(PRODUCTS)
        raise ValueError(f"m: got {op}, which is asked by sizes, expected mx_kernels.{expected}")
    if isinstance(w, MXTensor):
        told["format"] = w.format
        stated["device"] = stated["device"] or device_name(w.device)
    is_encoded = isinstance(x, MXTensor)
    if op == "matmul" and are_floats(x, w):
        told = {"activations": KEPT_FLOATS, "format": KEPT_FLOATS}
        stated["device"] = stated["device"] or device_name(w.device)
    elif not isinstance(x, tuple) and is_encoded != (op == "matmul"):
        expected = "an MXTensor" if op == "matmul" else "floats"
        raise TypeError(f"x: got {type(x).__name__} for {op}, expected {expected} or a shape")
    if is_encoded:
        told["activations"] = x.format
    for name, value in told.items():
        if stated[name] is not None:
            raise ValueError(f"{name}: got {stated[name]!r} beside {value!r}, expected none")
    rows, weights = (tuple(one if isinstance(one, tuple) else one.shape) for one in (x, w))
    is_of_experts = op in EXPERT_OPS
    if len(rows) < 2 or len(weights) != 2 + is_of_experts or rows[-1] != weights[-1]:
        shape = "[E, N, K]" if is_of_experts else "[N, K]"
        raise ValueError(
            f"x and w: got {list(rows)} and {list(weights)}, expected [..., K] and {shape}"
        )
    n = weights[-2]
    if op in DEFAULT_GATES:
        n //= chosen_gate(GateOptions(hidden_act or DEFAULT_GATES[op])).row.sums(1)
    experts = weights[0] if is_of_experts else 0
    return (math.prod(rows[:-1]), n, rows[-1]), experts, stated | told


def _check_unused(op: str, **given) -> None:
    """Raises if an argument was given that the product does not have."""
    for name, value in given.items():
        known: tuple[str, ...] = EXPERT_OPS if name == "experts" else ("moe",)
        known = tuple(DEFAULT_GATES) if name in ("hidden_act", "interleaved") else known
        if (value or value is False) and op not in known:
            raise ValueError(
                f"{name}: got {value!r} with op={op!r}, expected none; it is of "
                f"{' or '.join(map(repr, known))}"
            )


def _explain_experts(
    asked: Question, experts: int, slots: int, gate: GateOptions, question: dict[str, str]
) -> ExpertsExplanation:
    """Answers for `grouped_linear` and `moe`; `question` has the names that were asked for."""
    op, device, block = question["op"], question["device"], asked.right.k_multiple
    if device not in EXPERTS_ON:
        known = " or ".join(map(repr, EXPERTS_ON))
        raise ValueError(f"device: got {device!r}, expected {known}, for which {op} is explained")
    code, are_neighbours, *_ = check_gate(gate)
    if slots and asked.n % block:
        raise ValueError(f"n: got {asked.n}, expected a multiple of {block}")
    sizes = *asked[:3], experts, slots, code, are_neighbours
    found, num_bytes = EXPERTS_ON[device](asked, (*sizes, *asked.codes()))
    launches = tuple(Launch(**row) for row in found)
    return ExpertsExplanation(
        **question, shape=asked[:3], experts=experts, slots=slots, launches=launches,
        workspace_bytes=num_bytes,
    )  # fmt: skip


def _explain_mlp(
    asked: Question, gate: GateOptions, question: dict[str, str]
) -> ExpertsExplanation:
    """Answers for a dense MLP on a CPU: two products, the gate at the end of the first."""
    m, n, k = asked[:3]
    if n % asked.right.k_multiple:
        raise ValueError(f"n: got {n}, expected a multiple of {asked.right.k_multiple}")
    launches = []
    for name, sizes in (("gate_up", (m, chosen_gate(gate).row.sums(n), k)), ("down", (m, k, n))):
        row = DEVICES[question["device"]](Question(*sizes, *asked[3:]))
        tile, level = (row["tile_m"], row["tile_n"]), f"instruction level {row['level']}"
        launches.append(Launch(name, row["kernel"], row["reason"], level, tile, (0, 0, 0), 0))
    return ExpertsExplanation(
        **question, shape=(m, n, k), experts=1, slots=1, launches=tuple(launches),
        workspace_bytes=0,
    )  # fmt: skip


def _explain_floats(
    sizes: tuple[int, int, int], by_columns: bool, device: str, op: str, activations: str | None
) -> Explanation:
    """Answers for `matmul` of floats by floats."""
    if (op, device) != ("matmul", CDNA4) or activations not in (None, KEPT_FLOATS) or by_columns:
        raise ValueError(
            f"format: got {KEPT_FLOATS!r} with op={op!r}, device={device!r}, activations="
            f"{activations!r}, by_columns={by_columns}, expected it for matmul of floats on {CDNA4}"
        )
    if sizes[-1] % K_OF_FLOATS:
        raise ValueError(f"k: got {sizes[-1]}, expected a multiple of {K_OF_FLOATS}")
    row = dict(gpu_plans().explain_gfx950((*sizes, NO_CODE, NO_CODE, 0, 0)))
    tile = row.pop("tile_m"), row.pop("tile_n")
    return Explanation(device, op, sizes, KEPT_FLOATS, KEPT_FLOATS, tile=tile, **row)


def _explain_fused(
    sizes: tuple[int, int, int], gate: GateOptions | None, question: dict[str, str]
) -> FusedExplanation:
    """Answers for norms and gates to codes."""
    (m, n, k), fmt, is_cpu = sizes, format_named(question["format"]), question["device"] == "cpu"
    expected = n if gate is None else chosen_gate(gate).row.sums(n)
    if k != expected or n % fmt.k_multiple:
        what = "n" if gate is None else f"the floats of n hidden numbers, {expected}"
        raise ValueError(
            f"n and k: got {n} and {k}, expected k to be {what}, and n a multiple of "
            f"{fmt.k_multiple}"
        )
    kernel = f"{'cpu' if is_cpu else 'simt'}/prologue.mojo"
    if question["device"] == CDNA4:
        kernel = kernel_on_gfx950(sizes, gate, fmt)
    scale_bytes = math.prod(fmt.scales_of((m, n))) * fmt.scale_dtype.itemsize
    floats = m * k + (k if gate is None else 0)
    return FusedExplanation(
        **question, shape=sizes, kernel=kernel, level=levels.pick().name if is_cpu else "",
        bytes_read=2 * floats, bytes_written=m * fmt.packed_bytes(n) + scale_bytes,
    )  # fmt: skip
