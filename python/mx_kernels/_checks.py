"""What an operation asks of its arguments: each check raises unless the call can be made.

The one place of these rules and their messages, for every way to an operation: eager calls on
tensors and arrays, torch's operators, fake tensors that have shapes alone, modules and graphs.
What is common answers a few questions and is done; only the rest is checked rule by rule, and what
is wrong is put into words where it is found.
"""

from __future__ import annotations

import numpy as np
import torch
from torch._C._functorch import is_batchedtensor

from mx_kernels import _facts
from mx_kernels._arrays import (
    Array,
    check_floats,
    check_same_kind,
    check_together,
    is_common,
    show,
)
from mx_kernels._facts import (
    DEFAULT_ROUNDING,
    KEPT_FLOATS,
    Format,
    Layout,
    Mode,
    activations_for,
    facts,
)
from mx_kernels.tensor import MXTensor


def check_quantize(x: Array, format: str, rounding: str) -> tuple[Format, int, bool]:
    """Checks the arguments of `quantize`.

    Returns:
        The format, the code of the rounding, and whether x `is_common`.
    """
    table = _facts._facts or facts()
    if is_common(x, table.dtype_codes) and (shape := x.shape):
        try:
            fmt, code, k = table.formats[format], table.roundings[rounding], shape[-1]
            if k and not k % fmt.block_k:
                return fmt, code, True
        except (KeyError, TypeError):
            pass
    check_floats(x, "x")
    shape = x.shape
    if not shape:
        raise _no_axis()
    code = check_rounding(rounding)
    fmt = format_named(format)
    k, block = shape[-1], fmt.block_k
    if k == 0 or k % block:
        if k == 0:
            raise ValueError(f"x: got K = 0 (shape {show(x.shape)}), expected at least {block}")
        missing = block - k % block
        pad = f"torch.nn.functional.pad(x, (0, {missing}))"
        if isinstance(x, np.ndarray):
            pad = f"np.pad(x, [(0, 0)] * {len(x.shape) - 1} + [(0, {missing})])"
        raise ValueError(
            f"x: got K = {k} (shape {show(x.shape)}), expected a positive multiple of {block}; "
            f"pad with zeros, which add nothing to a product: {pad}"
        )
    return fmt, code, False


def check_linear(
    x: Array, w: MXTensor, bias: Array | None, rounding: str, activations: str | None
) -> tuple[Mode, bool]:
    """Checks the arguments of `linear` but for the result's dtype.

    Returns:
        What x becomes, and whether all `is_common`.
    """
    table = _facts._facts or facts()
    if (
        type(w) is MXTensor
        and is_common(x, table.dtype_codes)
        and w._is_common_on(device := x.get_device())
        and len(w._checked[0]) == 2
        and (shape := x.shape)
        and shape[-1] == w._k
        and (bias is None or _is_common_bias(bias, w, device))
    ):
        try:
            chosen = activations_for(w.device) if activations is None else activations
            return table.modes[chosen, rounding], True
        except (KeyError, TypeError):
            pass
    if isinstance(x, MXTensor):
        raise TypeError("x: got an MXTensor, expected floats; for two MXTensors use matmul(x, w)")
    check_floats(x, "x")
    if not x.shape:
        raise _no_axis()
    check_weights(w, "w")
    mode = check_mode(activations_for(w.device) if activations is None else activations, rounding)
    check_together("x", x, "w", w.codes)
    if x.shape[-1] != w._k:
        raise _disagreement("x", x.shape, "w", w)
    if bias is not None:
        check_bias(bias, w)
        check_same_kind("bias", bias, "x", x)
    return mode, False


def check_matmul(a: MXTensor, b: MXTensor, bias: Array | None) -> bool:
    """Checks the arguments of `matmul` but for the result's dtype.

    Returns:
        Whether all `is_common`.
    """
    if (
        type(a) is MXTensor
        and type(b) is MXTensor
        and b._is_common_on(device := b._codes.get_device() if b._checked else None)
        and a._is_common_on(device)
        and len(b._checked[0]) == 2
        and a._layout == _facts._facts.plain.name
        and a._k == b._k
        and (bias is None or _is_common_bias(bias, b, device))
    ):
        return True
    check_operand(a, "a")
    check_weights(b, "b")
    check_together("a", a.codes, "b", b.codes)
    if a.layout != facts().plain.name:
        raise ValueError(
            f"a: got layout {a.layout!r}, expected {facts().plain.name!r}: only the weights are "
            "preshuffled; call a.unshuffle()"
        )
    if a.k != b.k:
        raise _disagreement("a", a.shape, "b", b)
    if bias is not None:
        check_bias(bias, b)
        check_same_kind("bias", bias, "b", b.codes)
    return False


def _is_common_bias(bias: Array, w: MXTensor, device: int) -> bool:
    """Says whether a bias `is_common` and fits weights that are, on a device."""
    return (
        is_common(bias, _facts._facts.dtype_codes)
        and bias.get_device() == device
        and bias.shape == (w._checked[-1],)
    )


def check_operand(q: MXTensor, name: str) -> MXTensor:
    """Checks that `q` is an MXTensor whose arrays are still what they were; returns it."""
    if not isinstance(q, MXTensor):
        if isinstance(q, torch.Tensor) and is_batchedtensor(q):
            raise NotImplementedError(
                f"{name}: got a tensor mapped by vmap, expected an MXTensor; only activations can "
                "be mapped, loop over the weights instead"
            )
        raise TypeError(
            f"{name}: got {type(q).__name__}, expected an MXTensor; make one with "
            f"quantize({name}), or MXTensor(codes, scales) from bytes"
        )
    q._check(name)
    return q


def check_weights(w: MXTensor, name: str) -> None:
    """Checks that `w` is an MXTensor of two dimensions."""
    check_operand(w, name)
    if w.ndim != 2:
        raise ValueError(f"{name}: got shape {show(w.shape)}, expected weights [N, K]")


def check_bias(bias: Array, w: MXTensor) -> None:
    """Checks that `bias` fits the weights."""
    check_floats(bias, "bias")
    check_together("bias", bias, "the weights", w.codes)
    if bias.shape != (w.rows,):
        raise ValueError(
            f"bias: got shape {show(bias.shape)}, expected [{w.rows}], one number for each row "
            "of the weights"
        )


def check_rounding(rounding: str) -> int:
    """Checks the name of a rounding rule; returns its code."""
    known = facts().roundings
    if not isinstance(rounding, str) or rounding not in known:
        raise ValueError(f"rounding: got {rounding!r}, expected {' or '.join(map(repr, known))}")
    return known[rounding]


def check_mode(activations: str, rounding: str) -> Mode:
    """Checks the name of what activations become, and that the rounding goes with it."""
    try:
        return facts().modes[activations, rounding]
    except (KeyError, TypeError):
        pass
    check_rounding(rounding)
    known = facts().activations
    if not isinstance(activations, str) or activations not in known:
        raise ValueError(
            f"activations: got {activations!r}, expected {' or '.join(map(repr, known))}"
        )
    raise ValueError(
        f"rounding: got {rounding!r} with activations={activations!r}, which leaves the scale "
        "rule nothing to do; leave the rounding out"
    )


def mode_rounding(activations: str, rounding: str) -> str:
    """Returns the rounding that activations take beside weights rounded by `rounding`."""
    return DEFAULT_ROUNDING if activations == KEPT_FLOATS else rounding


def format_named(name: str) -> Format:
    """Returns a row of the format table."""
    return _row_named("format", name, facts().formats)


def layout_named(name: str) -> Layout:
    """Returns a row of the layout table."""
    return _row_named("layout", name, facts().layouts)


def _row_named(table: str, name: str, rows: dict):
    """Returns the row called `name` of a table."""
    if not isinstance(name, str) or name not in rows:
        raise ValueError(f"{table}: got {name!r}, expected {' or '.join(rows)}")
    return rows[name]


def _no_axis() -> ValueError:
    """Returns the error for activations without an axis."""
    return ValueError("x: got a single number, expected shape [..., K]")


def _disagreement(left: str, left_shape, right: str, w: MXTensor) -> ValueError:
    """Returns the error for operands of different K."""
    k = left_shape[-1]
    hint = f"{right} is [N, K], not [K, N]"
    if 0 < w.k - k < facts().formats[w.format].block_k:
        hint = f"if {right} was padded, pad {left} too: torch.nn.functional.pad(x, (0, {w.k - k}))"
    return ValueError(
        f"{left} and {right}: got K = {k} and K = {w.k} ({left}: {show(left_shape)}, {right}: "
        f"{show(w.shape)}), expected one K; {hint}"
    )
