"""What torch can do with an MXTensor besides multiply: move, copy, cut and join its bytes.

Leading axes count matrices, or plain rows: there codes and scales have the same axes, and an
operator acts on both alike. Rows of a padded layout, and K of any, are cut at the layout's units.
That works because every layout keeps a tile of rows together and goes along K within it:

    codes     [..., tiles of rows, rows of a tile * row bytes]
                    cut here       or here, at K's unit times the rows of a tile

The results share memory where that leaves each matrix contiguous; elsewhere they are copies, and
so are views of them: `copy_` into those is refused, and so is reading them once their whole was
written. `HANDLERS` has a line for each operator; what has none is refused.
"""

# ruff: noqa: PLR0917  torch calls handlers with the schema's positional arguments

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mx_kernels._core.arrays import float_code, show
from mx_kernels._core.facts import Format, Layout, ceil_to, facts
from mx_kernels._core.storage import lies_by_columns, split_scales, storage_of
from mx_kernels.integrations import offload
from mx_kernels.tensor import HANDLERS, MXTensor, asker, refusal

_aten = torch.ops.aten
FSDP = "torch.distributed.fsdp."


def handles(*operators: torch._ops.OpOverload) -> Callable:
    """Makes a function what torch calls for these operators."""

    def register(handler):
        HANDLERS.update(dict.fromkeys(operators, handler))
        return handler

    return register


# Copies and moves.


@handles(_aten.detach.default, _aten.alias.default)
def _same(func, q):
    return q._view_of(func(q._codes), func(q._scales))


@handles(_aten.clone.default)
def _clone(func, q, *, memory_format=None):
    _check_memory_format(func, memory_format)
    return q._with(q._codes.clone(), q._scales.clone())


@handles(_aten._to_copy.default)
def _to(func, q, *, dtype=None, device=None, non_blocking=False, memory_format=None, **rest):
    """Copies the bytes, which another logical dtype leaves as they are."""
    _check_memory_format(func, memory_format)
    parts = (func(t, device=device, non_blocking=non_blocking) for t in (q._codes, q._scales))
    return q._with(*parts, dtype=_logical(dtype, q))


@handles(_aten.copy_.default)
def _copy(func, q, source, non_blocking=False):
    """Puts the numbers of `source` into the memory of `q`, in its layout."""
    _check_copy(func, q, source)
    if source._layout != q._layout:
        source = source._relayout(facts().layouts[q._layout])
    func(q._codes, source._codes, non_blocking)
    func(q._scales, source._scales, non_blocking)
    q._writes[0] += 1
    return q


@handles(_aten._foreach_copy_.default)
def _copy_each(func, targets, sources, non_blocking=False):
    """Copies pairs, which may be of floats, once all of them are known to fit."""
    pairs = list(zip(targets, sources, strict=True))
    encoded = [any(isinstance(t, MXTensor) for t in pair) for pair in pairs]
    for pair, is_encoded in zip(pairs, encoded, strict=True):
        if is_encoded:
            _check_copy(_aten.copy_.default, *pair)
    for target, source in pairs:
        target.copy_(source, non_blocking)


def _check_copy(func, q, source) -> None:
    """Raises unless the numbers of `source` can be put into the memory of `q`."""
    _check_fits(func, q, source)
    if q._copied_at is not None:
        raise ValueError(
            "copy_: got a part whose bytes are a copy, because they were not contiguous, expected "
            "a tensor of its own or a part along its first axis; clone() makes one of a part"
        )


@handles(_aten._foreach_lerp_.Scalar, _aten._foreach_lerp_.List, _aten._foreach_lerp_.ScalarList)
def _average_each(func, targets, ends, weights):
    """Averages the floats of models. Frozen weights stay as they are, and others are refused."""
    pairs = list(zip(targets, ends, strict=True))
    floats = [i for i, pair in enumerate(pairs) if not any(isinstance(t, MXTensor) for t in pair)]
    for i in set(range(len(pairs))).difference(floats):
        _check_same(func, *pairs[i])
    lists = [[values[i] for i in floats] for values in (targets, ends)]
    if isinstance(weights, list | tuple):
        weights = [weights[i] for i in floats]
    if floats:
        func(*lists, weights)


@handles(_aten.lerp_.Scalar)
def _average(func, q, end, weight):
    _check_same(func, q, end)
    return q


def _check_same(func, q, other) -> None:
    """Raises unless two are the same numbers, which are their own average."""
    _check_fits(func, q, other)
    other = other._relayout(facts().layouts[q._layout])
    if not (torch.equal(q._codes, other._codes) and torch.equal(q._scales, other._scales)):
        raise ValueError(
            f"{_name(func)}: got MXTensors of other numbers, expected frozen ones: codes have no "
            "average; copy_ them, or average what dequantize() gives"
        )


def _check_fits(func, q, source) -> None:
    """Raises unless both are MXTensors of one format and shape."""
    for name, t in (("self", q), ("source", source)):
        if not isinstance(t, MXTensor):
            raise TypeError(
                f"{_name(func)}: {name}: got {type(t).__name__} {show(t.shape)}, expected an "
                "MXTensor as the other one; quantize floats first, or call dequantize() for floats"
            )
    for fact in ("format", "shape"):
        got, expected = getattr(source, fact), getattr(q, fact)
        if got != expected:
            got, expected = (show(v) if fact == "shape" else v for v in (got, expected))
            raise ValueError(f"{_name(func)}: got {fact} {got}, expected {expected}")


@handles(_aten.empty_like.default, _aten.zeros_like.default)
def _like(func, q, *, dtype=None, device=None, memory_format=None, **rest):
    _check_memory_format(func, memory_format)
    parts = (func(t, device=device) for t in (q._codes, q._scales))
    return q._with(*parts, dtype=_logical(dtype, q))


@handles(_aten.new_empty.default, _aten.new_zeros.default)
def _new(func, q, size, *, dtype=None, device=None, **rest):
    fmt, layout = _meaning(q)
    unit = layout.k_multiple(fmt)
    if not size or not size[-1] or size[-1] % unit or len(size) < _whole_axes(q):
        raise ValueError(
            f"{_name(func)}: got shape {show(size)}, expected [..., K] with K a positive multiple "
            f"of {unit}, and matrices in layout {layout.name}"
        )
    shapes = storage_of(size, fmt, layout)
    parts = (func(t, s, device=device) for t, s in zip((q._codes, q._scales), shapes, strict=True))
    return q._with(*parts, size, dtype=_logical(dtype, q))


@handles(_aten._pin_memory.default)
def _pin(func, q, device=None):
    return q._with(q._codes.pin_memory(), q._scales.pin_memory())


@handles(_aten.is_pinned.default)
def _is_pinned(func, q, device=None):
    return q._codes.is_pinned() and q._scales.is_pinned()


@handles(_aten.record_stream.default)
def _record_stream(func, q, stream):
    func(q._codes, stream)
    func(q._scales, stream)


# Parts.


@handles(_aten.slice.Tensor)
def _slice(func, q, dim=0, start=None, end=None, step=1):
    size = q.shape[dim]
    start, end = (
        default if at is None else min(max(at + size if at < 0 else at, 0), size)
        for at, default in ((start, 0), (end, size))
    )
    if step == 1:
        return _part(func, q, dim, start, max(start, end))
    _check_leading(func, q, dim)
    return _rewrapped(q, *(func(t, dim, start, end, step) for t in (q._codes, q._scales)))


@handles(_aten.split.Tensor)
def _split(func, q, split_size, dim=0):
    size = q.shape[dim]
    starts = range(0, size, split_size) if size else [0]
    return tuple(_part(func, q, dim, at, min(at + split_size, size)) for at in starts)


@handles(_aten.split_with_sizes.default)
def _split_with_sizes(func, q, split_sizes, dim=0):
    if sum(split_sizes) != q.shape[dim]:
        raise ValueError(f"split: got sizes {split_sizes}, expected a sum of {q.shape[dim]}")
    ends = [sum(split_sizes[: i + 1]) for i in range(len(split_sizes))]
    bounds = zip(ends, split_sizes, strict=True)
    return tuple(_part(func, q, dim, end - size, end) for end, size in bounds)


@handles(_aten.unbind.int)
def _unbind(func, q, dim=0):
    dim = _check_leading(func, q, dim)
    parts = zip(func(q._codes, dim), func(q._scales, dim), strict=True)
    return tuple(_rewrapped(q, *part) for part in parts)


@handles(_aten.select.int)
def _select(func, q, dim, index):
    dim = _check_leading(func, q, dim)
    return _rewrapped(q, func(q._codes, dim, index), func(q._scales, dim, index))


@handles(_aten.index_select.default)
def _index_select(func, q, dim, index):
    dim = _check_leading(func, q, dim)
    return _chosen(q, func(q._codes, dim, index), func(q._scales, dim, index))


@handles(_aten.index.Tensor)
def _index(func, q, indices):
    axes = sum(i.ndim if i is not None and i.dtype == torch.bool else 1 for i in indices)
    _check_leading(func, q, axes - 1)
    return _chosen(q, func(q._codes, indices), func(q._scales, indices))


def _part(func, q: MXTensor, dim: int, start: int, end: int) -> MXTensor:
    """Returns `q` from `start` to `end` along an axis, which may be any."""
    fmt, layout = _meaning(q)
    dim = _axis(func, dim, q.ndim)
    shape, is_copied = [*q.shape[:dim], end - start, *q.shape[dim + 1 :]], False
    if end - start == q.shape[dim]:
        codes, scales = _aten.alias(q._codes), _aten.alias(q._scales)
    elif dim < q.ndim - _whole_axes(q):
        codes, scales = (t.narrow(dim, start, end - start) for t in (q._codes, q._scales))
    elif dim == q.ndim - 1:
        unit = layout.k_unit(fmt)
        _check_cut(func, q, "K", start, end, unit)
        if start == end:
            raise ValueError(f"{_name(func)}: got K {start}:{end}, expected at least {unit}")
        bounds = fmt.packed_bytes(start), fmt.packed_bytes(end)
        codes = _cut_k(q._codes, layout.row_multiple, *bounds)
        # The one scale of a row would be written with each of its parts.
        scales, is_copied = q._scales, fmt.has_whole_rows
        if not fmt.has_whole_rows:
            rows = layout.scale_tile_rows(fmt)
            bounds = start // fmt.block_k, fmt.k_blocks(ceil_to(end, unit))
            bounds = bounds[0], min(bounds[1], scales.shape[-1])
            scales = _cut_k(scales, rows, *bounds)
            if fmt.has_tensor_scales:
                behind = split_scales(_tiles(q._scales, rows), fmt, rows)[1]
                scales, is_copied = torch.cat([scales, behind], -1), True
    else:
        _check_cut(func, q, "rows", start, end, layout.row_unit(fmt))
        stored = storage_of(shape, fmt, layout)
        codes = q._codes.narrow(-2, start, stored[0][-2])
        scales = q._scales.narrow(-2, start // fmt.block_rows, stored[1][-2])
    return _wrapped(q, codes, scales, shape, storage_of(shape, fmt, layout), is_copied=is_copied)


def _cut_k(t: Tensor, rows: int, start: int, end: int) -> Tensor:
    """Views bytes `start` to `end` of every row, [..., tiles, bytes], in tiles of `rows`."""
    return _tiles(t, rows).narrow(-1, rows * start, rows * (end - start))


def _tiles(t: Tensor, rows: int) -> Tensor:
    """Views bytes [..., rows, K] as [..., tiles, bytes of a tile]."""
    if rows == 1:
        return t
    *lead, count, width = t.shape
    return t.view(*lead, count // rows, rows * width)


# Wholes.


@handles(_aten.cat.default)
def _cat(func, tensors, dim=0):
    q = _check_alike(func, tensors)
    fmt, layout = _meaning(q)
    dim = _axis(func, dim, q.ndim)
    shape = [*q.shape[:dim], sum(t.shape[dim] for t in tensors), *q.shape[dim + 1 :]]
    for t in tensors:
        if [*t.shape[:dim], *t.shape[dim + 1 :]] != [*shape[:dim], *shape[dim + 1 :]]:
            raise ValueError(
                f"cat: got {show(t.shape)} beside {show(q.shape)}, expected the same but for "
                f"axis {dim}"
            )
    codes, scales = ([getattr(t, part) for t in tensors] for part in ("_codes", "_scales"))
    if dim == q.ndim - 1:
        if fmt.has_whole_rows and len(tensors) > 1:
            raise ValueError(
                f"cat: got {fmt.name} along K, whose rows have one scale each, expected another "
                "axis; dequantize() first"
            )
        for t in tensors[:-1]:
            _check_cut(func, t, "K", 0, t._k, layout.k_unit(fmt), inner=True)
        codes_shape, scales_shape = storage_of(shape, fmt, layout)
        rows = layout.scale_tile_rows(fmt)
        scales = [_tiles(t, rows) for t in scales]
        if fmt.has_tensor_scales:
            of_blocks, of_rows = zip(*(split_scales(t, fmt, rows) for t in scales), strict=True)
            if not all(torch.equal(t, of_rows[-1]) for t in of_rows):
                raise ValueError(
                    f"cat: got {fmt.name} along K, whose rows have other tensor scales, expected "
                    "the same ones or another axis; dequantize() first"
                )
            scales = [*of_blocks, of_rows[-1]]
        codes = torch.cat([_tiles(t, layout.row_multiple) for t in codes], -1)
        scales = torch.cat(scales, -1)
        return q._with(codes.view(codes_shape), scales.view(scales_shape), shape)
    if dim == q.ndim - 2 and _whole_axes(q) == 2:
        for t in tensors[:-1]:
            _check_cut(func, t, "rows", 0, t.shape[dim], layout.row_unit(fmt), inner=True)
    return q._with(func(codes, dim), func(scales, dim), shape)


@handles(_aten.stack.default)
def _stack(func, tensors, dim=0):
    q = _check_alike(func, tensors)
    dim = _axis(func, dim, q.ndim + 1)
    if dim > q.ndim - _whole_axes(q) or any(t.shape != q.shape for t in tensors):
        raise ValueError(
            f"stack: got {', '.join(show(t.shape) for t in tensors)} along axis {dim}, expected "
            "one shape and a leading axis"
        )
    parts = (func([getattr(t, part) for t in tensors], dim) for part in ("_codes", "_scales"))
    return q._with(*parts, [*q.shape[:dim], len(tensors), *q.shape[dim:]])


# Leading axes in another arrangement.


@handles(_aten.view.default, _aten._unsafe_view.default)
def view(func, q, size):
    size = list(size)
    if size.count(-1) == 1:
        known = -_product(size)
        if not known:
            raise ValueError(f"{_name(func)}: got {show(size)}, expected -1 beside no 0")
        size[size.index(-1)] = q.numel() // known
    whole = _whole_axes(q)
    if lies_by_columns(q._codes):
        q = q._view_of(q._codes.contiguous(), q._scales.clone(), is_copied=True)
    is_one_row = size == [q.numel()] and whole == 1 and size[0]
    fmt = facts().formats[q._format]
    has_whole_blocks = q._k % fmt.block_k == 0 and not fmt.has_tensor_scales
    if is_one_row and (has_whole_blocks or asker().startswith(FSDP)):
        # Rows of whole blocks, one behind the other, are one long row. FSDP keeps such rows of any
        # blocks, and counts with none.
        return q._view_of(q._codes.view(-1), q._scales.view(-1), size)
    if size[-whole:] != list(q.shape[-whole:]) or _product(size) != q.numel():
        kept = "rows and K stay" if whole == 2 else "K stays"
        raise ValueError(
            f"{_name(func)}: got {show(size)} from {show(q.shape)} in layout {q._layout}, expected "
            f"other leading axes: {kept}"
        )
    lead = size[: len(size) - whole]
    parts = (t.view(*lead, *t.shape[t.ndim - whole :]) for t in (q._codes, q._scales))
    return q._view_of(*parts, size)


@handles(_aten.view.dtype)
def _view_as(func, q, dtype):
    """Gives accelerate the integers that it writes to disk for bfloat16."""
    if asker() != offload.WRITER:
        raise refusal(func)
    return func(offload.in_floats(q), dtype)


@handles(_aten.as_strided.default)
def _as_strided(func, q, size, stride, storage_offset=None):
    """Takes what the tensor is already."""
    if (list(size), list(stride), storage_offset or 0) != (list(q.shape), list(q.stride()), 0):
        raise refusal(func)
    return q._view_of(q._codes, q._scales)


@handles(_aten.unsqueeze.default)
def _unsqueeze(func, q, dim):
    dim = _axis(func, dim, q.ndim + 1)
    return view(_aten.view.default, q, [*q.shape[:dim], 1, *q.shape[dim:]])


@handles(_aten.squeeze.default, _aten.squeeze.dim, _aten.squeeze.dims)
def _squeeze(func, q, dims=None):
    dims = range(q.ndim) if dims is None else [dims] if isinstance(dims, int) else dims
    gone = {_axis(func, d, q.ndim) for d in dims}
    kept = [size for d, size in enumerate(q.shape) if d not in gone or size != 1]
    return view(_aten.view.default, q, kept)


# Rules and words that several share.


def _meaning(q: MXTensor) -> tuple[Format, Layout]:
    """Returns the rows of the tables that say what the bytes of `q` are."""
    return facts().formats[q._format], facts().layouts[q._layout]


def _whole_axes(q: MXTensor) -> int:
    """Returns how many of the last axes have codes and scales of sizes of their own."""
    is_by_rows = facts().formats[q._format].block_rows == 1
    return 1 if q._layout == facts().plain.name and is_by_rows else 2


def _logical(dtype: torch.dtype | None, q: MXTensor) -> torch.dtype:
    """Returns the dtype that an MXTensor is asked to count as."""
    return q.dtype if dtype is None else facts().torch_dtypes[float_code(dtype, "dtype")]


def _wrapped(
    q: MXTensor, codes: Tensor, scales: Tensor, shape, stored=None, is_copied=False
) -> MXTensor:
    """Returns a part of `q`; copied, and marked, where its bytes are not contiguous.

    `stored` is what codes and scales are to be viewed as, if they are not yet.
    """
    is_whole = scales.is_contiguous() and (codes.is_contiguous() or lies_by_columns(codes))
    if is_copied := is_copied or not is_whole:
        codes, scales = (t.clone(memory_format=torch.contiguous_format) for t in (codes, scales))
    if stored is not None and codes.is_contiguous():
        codes, scales = codes.view(stored[0]), scales.view(stored[1])
    return q._view_of(codes, scales, shape, is_copied=is_copied)


def _rewrapped(q: MXTensor, codes: Tensor, scales: Tensor) -> MXTensor:
    """The same for parts along leading axes, whose shape codes tell."""
    return _wrapped(q, codes, scales, _shape_around(q, codes))


def _chosen(q: MXTensor, codes: Tensor, scales: Tensor) -> MXTensor:
    """Returns matrices or rows that were chosen by index, which torch copies."""
    shape = _shape_around(q, codes)
    return q._with(codes.contiguous(), scales.contiguous(), shape)


def _shape_around(q: MXTensor, codes: Tensor) -> tuple[int, ...]:
    """Returns the shape of a tensor whose leading axes are those of `codes`."""
    whole = _whole_axes(q)
    return (*codes.shape[: codes.ndim - whole], *q.shape[-whole:])


def _axis(func, dim: int, ndim: int) -> int:
    """Returns the number of an axis that may be counted from the end."""
    if not -ndim <= dim < ndim:
        raise IndexError(f"{_name(func)}: got axis {dim}, expected one of {-ndim} to {ndim - 1}")
    return dim % ndim


def _check_leading(func, q: MXTensor, dim: int) -> int:
    """Raises unless an axis counts whole matrices, or whole rows of a plain tensor."""
    dim, free = _axis(func, dim, q.ndim), q.ndim - _whole_axes(q)
    if dim >= free:
        raise ValueError(
            f"{_name(func)}: got axis {dim} of {show(q.shape)} in layout {q._layout}, expected one "
            f"of the first {free}" + _unshuffle_first(q)
        )
    return dim


def _check_cut(func, q, what: str, start: int, end: int, unit: int, inner: bool = False) -> None:
    """Raises unless both ends are multiples of the unit, or the tensor's own end."""
    size = q._k if what == "K" else q.shape[-2]
    if start % unit or (end % unit and (inner or end != size)):
        raise ValueError(
            f"{_name(func)}: got {what} {start}:{end} of {size} in layout {q._layout}, expected "
            f"multiples of {unit}" + (_unshuffle_first(q) if what == "rows" or unit > 32 else "")
        )


def _unshuffle_first(q: MXTensor) -> str:
    return "" if q._layout == facts().plain.name else "; unshuffle() first"


def _check_alike(func, tensors) -> MXTensor:
    """Raises unless all are MXTensors of one format and layout; returns the first."""
    q = next(t for t in tensors if isinstance(t, MXTensor))
    for t in tensors:
        if not isinstance(t, MXTensor):
            raise refusal(func)
        for fact in ("format", "layout"):
            if getattr(t, fact) != getattr(q, fact):
                raise ValueError(
                    f"{_name(func)}: got {fact} {getattr(t, fact)} beside {getattr(q, fact)}, "
                    f"expected one {fact}"
                )
    return q


def _check_memory_format(func, memory_format) -> None:
    """Raises for orders of axes that codes do not have."""
    if memory_format not in (None, torch.preserve_format, torch.contiguous_format):
        raise ValueError(
            f"{_name(func)}: got memory format {memory_format}, expected torch.contiguous_format"
        )


def _name(func) -> str:
    return func._opname


def _product(sizes) -> int:
    """Returns the product of sizes, -1 among them as it is."""
    product = 1
    for size in sizes:
        product *= size
    return product
