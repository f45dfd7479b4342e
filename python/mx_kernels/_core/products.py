"""Writes the calls of products, and launches again what is like a call before.

A model calls a layer again and again with activations of the same shape, dtype and device. Most of
such a call was looking up what had been looked up before: so the weights remember, for each shape
of activations, what a call had, and the next one asks only whether it is the same. What is not
takes the long way, where errors get their words.

    remembered            asked again
    x                     type, shape, dtype, device, plain memory, no gradient wanted
    codes and scales      address, number of elements; of weights that do not remember, all
    bias, sizes, ids ..   as of x
    rules                 what was given beside arrays

Tuples are added, not unpacked into each other: that takes half the time.
"""
# ruff: noqa: PLR0917

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor
from torch._C._dynamo.guards import _empty_strided_cpu, _empty_strided_cuda

from mx_kernels._core.arrays import (
    PLAIN_TENSORS,
    Array,
    empty,
    in_memory,
    intercepted,
    memory_of,
    rows_of,
    show,
)
from mx_kernels._core.calls import Operand, addresses_of, by_rows, right_of
from mx_kernels._core.cuda import current_device
from mx_kernels._core.devices import Launcher, launcher_of
from mx_kernels._core.facts import (
    CDNA4,
    DEFAULT_ROUNDING,
    KEPT_FLOATS,
    Format,
    Layout,
    Mode,
    facts,
    of_kind,
)
from mx_kernels._core.hip import Rocm
from mx_kernels._core.protocol import (
    ENCODED,
    KEPT,
    NO_CODE,
    RECORDS,
    Experts,
    Gate,
    Groups,
    Left,
    Result,
    Right,
    Routing,
    Sizes,
    Tokens,
)
from mx_kernels._core.storage import lies_by_columns

_STRIDED = torch.strided
MAX_SHAPES = 64
"""Shapes of activations that a tensor of weights remembers."""


def codes_by_codes(a: Operand, b: Operand, bias: Array | None, dtype: int) -> Tensor:
    """Multiplies codes by codes; returns floats [..., N]."""
    if b._codes.ndim > 2:
        return _many(a, b, bias, dtype)
    by_columns = False
    if not (a._codes.is_contiguous() and b._codes.is_contiguous()):
        by_columns = _has_kernel_for_columns(a, b)
        if not by_columns:
            a, b = by_rows(a), by_rows(b)
    if not by_columns:
        a = _with_scales_a_row(a)
    m, n, k = _rows_of(a), _rows_of(b), b._k
    out, address = empty(a._codes, (*a._codes.shape[:-1], n), dtype)
    if m and n:
        _owner, addend, bias_dtype = _added(bias, n)
        left = Left(ENCODED, *addresses_of(a), 0, 0, a._native[0], 0)
        result = Result(address, dtype, addend, bias_dtype)
        call, launcher = left + right_of(b) + result + Sizes(m, n, k), launcher_of(out)
        if by_columns:
            launcher.multiply_columns(call, out)
        else:
            launcher.multiply(call, out)
    return out


def _many(a: Operand, b: Operand, bias: Tensor | None, dtype: int) -> Tensor:
    """Multiplies matrices of codes by matrices of codes; returns floats [..., M, N].

    One call of the grouped product, whose groups are as large as each other; each matrix of b has
    its own memory, however far apart.
    """
    a = _with_scales_a_row(by_rows(a))
    (*lead, m, _), k = a._codes.shape, b._k
    count = prod(lead)
    n = _rows_of(b) // count if count else b.shape[-2]
    out, address = empty(a._codes, (*lead, m, n), dtype)
    if not (count and m and n):
        return out
    if bias is not None and (bias.ndim == 1 or not bias.is_contiguous()):
        bias = bias.expand(*lead, n).contiguous()
    is_apart = not (b._codes.is_contiguous() and b._scales.is_contiguous())
    if b._codes.ndim > 3 or (is_apart and not _are_matrices_contiguous(b)):
        b = by_rows(b).view(count, n, k)
    if isinstance(launcher_of(out), Rocm):
        # No kernel for groups takes codes.
        rows, biases = a.view(count, m, k), [None] * count if bias is None else bias.view(count, n)
        pairs = zip(rows.unbind(), b.unbind(), biases, strict=True)
        parts = [codes_by_codes(left, right, addend, dtype) for left, right, addend in pairs]
        return torch.stack(parts).view(*lead, m, n)
    sizes = _equal_sizes(count, m) if out.is_cpu else _sizes_on(out.device, count, m)
    (_added_to, right), sizes_at = _experts(b, bias), sizes.data_ptr()
    left = Left(ENCODED, *addresses_of(a), 0, 0, a._native[0], 0)
    call = left + right + Groups(sizes_at, address, dtype, count * m, n, k)
    launcher_of(out).launch("multiply_grouped", call, out)
    return out


def _are_matrices_contiguous(b: Operand) -> bool:
    return b._codes[0].is_contiguous() and b._scales[0].is_contiguous()


def _sizes_on(device: torch.device | str, count: int, rows: int) -> Tensor:
    return torch.full((count,), rows, dtype=torch.int32, device=device)


_equal_sizes = lru_cache(partial(_sizes_on, "cpu"))
"""The same in the CPU's memory, which nobody writes."""


def floats_by_codes(
    x: Array,
    w: Operand,
    bias: Array | None,
    mode: Mode,
    dtype: int | None,
    rules: tuple | None = None,
) -> Array:
    """Multiplies floats, kept or quantized by `mode`, by codes; returns floats [..., N].

    The result's dtype is x's for None. Kept floats become bfloat16, here or in the kernel. With
    `rules`, as they were given, the weights remember the call.
    """
    owner, left = _floats(x, w._k, mode)
    if dtype is None:
        dtype = left.dtype
    rows, n = x.shape[:-1], _rows_of(w)
    out, address = empty(x, (*rows, n), dtype)
    launcher, m = launcher_of(out), prod(rows)
    if m and n:
        is_other = mode.kind == KEPT and left.dtype != facts().dtypes["bfloat16"]
        if is_other and launcher.wants_bfloat16(m):
            owner, left = _floats(owner.to(torch.bfloat16), w._k, mode)
        _added_to, addend, bias_dtype = _added(bias, n)
        result, right = Result(address, dtype, addend, bias_dtype), by_rows(w)
        call = left + right_of(right) + result + Sizes(m, n, w._k)
        launcher.multiply(call, out)
        if rules is not None:
            _remember("multiply", rules, (w,), (x, bias), out, call, launcher)
    return out


def floats_by_floats(a: Tensor, b: Tensor, bias: Tensor | None, dtype: int) -> Tensor:
    """Multiplies floats by floats of their dtype; returns floats [..., N].

    Raises:
        ValueError: if the device is not gfx950; nothing is written then.
    """
    launcher, (n, k) = launcher_of(a), b.shape
    if not isinstance(launcher, Rocm):
        raise ValueError(
            f"a and b: got floats on {a.device}, expected them on {CDNA4}, which alone has kernels "
            "for them: quantize(a) and quantize(b) are codes, and "
            "torch.nn.functional.linear(a, b, bias) multiplies floats elsewhere"
        )
    _owner, left = _floats(a, k, facts().modes[KEPT_FLOATS, DEFAULT_ROUNDING])
    b = in_memory(b).contiguous()
    out, address = empty(a, (*a.shape[:-1], n), dtype)
    if (m := prod(a.shape[:-1])) and n:
        _added_to, addend, bias_dtype = _added(bias, n)
        right = Right(b.data_ptr(), 0, NO_CODE, facts().plain.code)
        result = Result(address, dtype, addend, bias_dtype)
        launcher.multiply(left + right + result + Sizes(m, n, k), out)
    return out


def grouped_linear(
    x: Tensor,
    w: Operand,
    sizes: Tensor,
    bias: Tensor | None,
    mode: Mode,
    dtype: int | None,
    rules: tuple | None = None,
) -> Tensor:
    """Multiplies rows that are sorted by expert; returns floats [T, N].

    Raises:
        ValueError: if the sizes do not fit, on the CPU; nothing is written then.
    """
    (_, n, k), rows = w.shape, x.shape[0]
    _owner, left = _floats(x, k, mode)
    if dtype is None:
        dtype = left.dtype
    out, address = empty(x, (rows, n), dtype)
    (kept, sizes_at), (_added, right) = memory_of(sizes), _experts(w, bias)
    call = left + right + Groups(sizes_at, address, dtype, rows, n, k)
    launcher = launcher_of(out)
    if launcher.launch("multiply_grouped", call, out) is False:
        raise ValueError(
            f"group_sizes: got {show(kept.tolist())} for {rows} rows of x, expected numbers of "
            f"rows, none negative, {rows} or fewer together"
        )
    if rules is not None:
        arrays = x, sizes, bias
        _remember("multiply_grouped", rules, (w,), arrays, out, call, launcher)
    return out


def moe(
    x: Tensor,
    weights: tuple[Operand, Operand],
    ids: Tensor,
    counts: Tensor,
    biases: Sequence[Tensor | None],
    gate: Gate,
    mode: Mode,
    dtype: int | None,
    rules: tuple | None = None,
) -> Tensor:
    """Computes a layer of experts; returns floats [T, H].

    Args:
        x: tokens [T, H].
        weights: of gates and ups, and down.
        ids: the experts of each token [T, k].
        counts: what each of their results counts [T, k].
        biases: of both products.
        gate: the activation, as a call has it.
        mode: what x and the hidden numbers become.
        dtype: the result's; None for x's.
        rules: what was given beside arrays; with it, the weights remember the call.

    Raises:
        ValueError: if an id names no expert, on the CPU; nothing is written then.
    """
    (tokens, slots), (num_experts, width, inner) = ids.shape, weights[1].shape
    _owner, left = _floats(x, width, mode)
    if dtype is None:
        dtype = left.dtype
    out, address = empty(x, (tokens, width), dtype)
    (kept_ids, ids_at), (_kept, counts_at) = memory_of(ids), memory_of(counts)
    (_kept_up, gate_up), (_kept_down, down) = map(_experts, weights, biases)
    counts_dtype = facts().dtype_codes[counts.dtype]
    routing = Routing(ids_at, ids.element_size(), counts_at, counts_dtype, tokens, slots)
    call = left + gate_up + down + routing + gate + Tokens(address, dtype, width, inner)
    launcher = launcher_of(out)
    if launcher.launch("multiply_experts", call, out) is False:
        raise ValueError(
            f"expert_ids: got {int(kept_ids.max())}, expected at most {num_experts - 1}, the last "
            f"of {num_experts} experts; a negative id stands for none"
        )
    if rules is not None:
        arrays = x, ids, counts, *biases
        _remember("multiply_experts", rules, weights, arrays, out, call, launcher)
    return out


def question(
    sizes: tuple[int, int, int], left: Mode, right: Format, layout: Layout
) -> tuple[int, ...]:
    """Writes a product that nobody computes: without memory, bfloat16 throughout, no bias."""
    bfloat16, k = facts().dtypes["bfloat16"], sizes[-1]
    floats = Left(left.kind, 0, 0, bfloat16, k, left.format, left.scale_rule)
    weights, result = Right(0, 0, right.code, layout.code), Result(0, bfloat16, 0, NO_CODE)
    return floats + weights + result + sizes


def _rows_of(q: Operand) -> int:
    """Returns the rows of an operand; a property takes longer."""
    return q._checked[-1] if q._checked else q.rows


def _floats(x: Array, k: int, mode: Mode) -> tuple[Array, Left]:
    """Writes a left side of floats; returns who owns its memory, too."""
    kind, fmt, scale_rule = mode
    x, values, dtype, row_stride = rows_of(x, k)
    return x, Left(kind, values, 0, dtype, row_stride, fmt, scale_rule)


def _added(bias: Array | None, n: int) -> tuple[Array | None, int, int]:
    """Returns who owns the memory of a bias, its address and its dtype."""
    # Of one row, which keeps it contiguous.
    return (None, 0, NO_CODE) if bias is None else rows_of(bias, n)[:3]


def _experts(w: Operand, bias: Tensor | None) -> tuple[Tensor | None, Experts]:
    """Writes the right sides of all experts; returns who owns the memory of the bias, too."""
    addend, bias_dtype = 0, NO_CODE
    if bias is not None:
        bias, addend = memory_of(bias)
        bias_dtype = facts().dtype_codes[bias.dtype]
    steps = (w._codes.stride(0), w._scales.stride(0) * w._scales.element_size())
    return bias, Experts(*right_of(w), w._codes.shape[0], *steps, addend, bias_dtype)


def _with_scales_a_row(a: Operand) -> Operand:
    """Returns activations whose rows have scales of their own: the same numbers, in rows' blocks.

    So leading axes fold, whatever number of rows a matrix has: a block of several rows ends with
    its matrix.
    """
    fmt = facts().formats[a.format]
    if fmt.block_rows == 1:
        return a
    scales = a._scales.repeat_interleave(fmt.block_rows, -2).narrow(-2, 0, a.shape[-2])
    return a._with(a._codes, scales.contiguous(), format=of_kind(fmt, 1))


def _has_kernel_for_columns(a: Operand, b: Operand) -> bool:
    """Says whether the device multiplies codes that lie column by column on both sides."""
    if not (lies_by_columns(a._codes) and lies_by_columns(b._codes)):
        return False
    launcher, formats = launcher_of(b._codes), (a._native[0], b._native[0])
    return launcher.takes_columns(b._codes, formats, (a.shape[0], b.shape[0]))


# Calls that are like one before.


class Plain(NamedTuple):
    """What is known of a plain, contiguous tensor whose shape is compared elsewhere."""

    dtype: torch.dtype
    device: int
    """The number of a CUDA device, -1 for the CPU."""

    @classmethod
    def of(cls, tensor: Tensor) -> Plain | None:
        """Returns that of a tensor, None if it is none that is asked about again."""
        plain = cls(tensor.dtype, tensor.get_device())
        return plain if type(tensor) in PLAIN_TENSORS and plain.fits(tensor) else None

    def fits(self, tensor: Tensor) -> bool:
        """Says whether another one is like that."""
        dtype, device = self
        return (
            tensor.dtype is dtype
            and tensor.layout is _STRIDED
            and (tensor.is_cpu if device < 0 else tensor.is_cuda and tensor.get_device() == device)
            and not tensor.is_nested
            and tensor.is_contiguous()
            and not tensor.requires_grad
            and not tensor.is_neg()
        )


class _Places(NamedTuple):
    """Where a record has addresses: of the result, of what is beside x, of codes and scales."""

    out: int
    others: list[int]
    weights: list[int]

    @classmethod
    def of(cls, operation: str, out: str, others: str, weights: str) -> _Places:
        """Returns those of an operation, named by the parts of its record."""
        at = RECORDS[operation].at
        parts = [f"{part}.{name}" for part in weights.split() for name in ("codes", "scales")]
        return cls(at(f"{out}.values"), [at(name) for name in others.split()], [*map(at, parts)])


_X = RECORDS["multiply"].at("left.values")
_PLACES = {
    "multiply": _Places.of("multiply", "result", "result.bias", "right"),
    "multiply_grouped": _Places.of(
        "multiply_grouped", "groups", "groups.sizes experts.bias", "experts"
    ),
    "multiply_experts": _Places.of(
        "multiply_experts",
        "tokens",
        "routing.ids routing.weights gate_up.bias down.bias",
        "gate_up down",
    ),
}


class Repeat(NamedTuple):
    """What a call of a product found out."""

    rules: tuple
    x: Plain
    weights: tuple
    """Addresses and numbers of elements of codes and scales; what the second ones are."""
    others: tuple[tuple[Plain, torch.Size, int] | None, ...]
    """What else there was, with its shape and where its address stands; None for nothing."""
    result: tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
    """Shape, strides and dtype."""
    out: int
    """Where the address of the result stands."""
    call: list[int]
    launch: Callable[[tuple[int, ...], Tensor], bool | None]


def repeat(
    rules: tuple,
    x: Tensor,
    w: Operand,
    second: Operand | None = None,
    others: tuple[Tensor | None, ...] = (),
) -> Tensor | None:
    """Computes a product if the weights remember such a call, else returns None.

    Args:
        rules: what is given beside arrays.
        x: activations.
        w: weights, which remember.
        second: those of a layer's second product.
        others: what else there is, in the order of the record; nothing where all of it is None.
    """
    # A nested tensor has no shape to ask for.
    known = None if x.is_nested else w._repeats.get(x.shape)
    if known is None:
        return None
    given, plain, weights, likes, result, out_at, call, launch = known
    if rules != given or not plain.fits(x) or intercepted():
        return None
    found = _memory_of(w)
    if second is not None:
        found += _memory_of(second) + _meaning_of(second)
    call = call.copy()
    call[_X] = values = x.data_ptr()
    if found != weights or not values or len(others) != len(likes):
        return None
    if others:
        for other, like in zip(others, likes, strict=True):
            if like is None or other is None:
                if like is not other:
                    return None
                continue
            is_like, shape, place = like
            if type(other) not in PLAIN_TENSORS or other.is_nested or other.shape != shape:
                return None
            if not is_like.fits(other) or not (address := other.data_ptr()):
                return None
            call[place] = address
    if plain.device < 0:
        out = _empty_strided_cpu(*result)
    elif plain.device == current_device():
        out = _empty_strided_cuda(*result)
    else:
        return None
    call[out_at] = out.data_ptr()
    # What the numbers in memory do not fit is put into words elsewhere.
    return None if launch(tuple(call), out) is False else out


def _memory_of(w: Operand) -> tuple[int, int, int, int]:
    """Returns addresses and numbers of elements of codes and scales."""
    codes, scales = w._codes, w._scales
    return codes.data_ptr(), scales.data_ptr(), codes.numel(), scales.numel()


def _meaning_of(w: Operand) -> tuple:
    """Returns format, layout and sizes; the shape of an MXTensor would take longer."""
    return (*w._native, w._k, w._checked)


def _remember(
    operation: str,
    rules: tuple,
    weights: tuple[Operand, ...],
    arrays: Sequence[Tensor | None],
    out: Tensor,
    call: tuple[int, ...],
    launcher: Launcher,
) -> None:
    """Remembers a call that gave `out`, if it can be repeated.

    Only addresses will differ in it: those of the arrays themselves, not of copies.
    """
    if any(w._copied_at is not None for w in weights):
        return
    x, *others = arrays
    places, plain = _PLACES[operation], Plain.of(x)
    if plain is None or not call[_X] == x.data_ptr() != 0:
        return
    likes = []
    for other, place in zip(others, places.others, strict=True):
        like = None if other is None else Plain.of(other)
        if other is not None and (like is None or call[place] != other.data_ptr()):
            return
        likes.append(like and (like, other.shape, place))
    found = [_memory_of(w) for w in weights]
    there = [call[at] for at in places.weights]
    if there != [address for memory in found for address in memory[:2]]:
        return
    launch = launcher.prepared(operation, call, plain.device)
    if launch is None:
        return
    known = weights[0]._repeats
    if len(known) >= MAX_SHAPES:
        known.clear()
    known[x.shape] = Repeat(
        rules=rules,
        x=plain,
        weights=sum((*found, *map(_meaning_of, weights[1:])), ()),
        others=tuple(likes) if any(likes) else (),
        result=(tuple(out.shape), out.stride(), out.dtype),
        out=places.out,
        call=list(call),
        launch=launch,
    )
