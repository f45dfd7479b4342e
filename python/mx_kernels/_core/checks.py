"""What an operation asks of its arguments: each check raises unless the call can be made.

The one place of these rules and their messages, for every way to an operation: eager calls on
tensors and arrays, torch's operators, fake tensors that have shapes alone, modules and graphs.
What is common answers a few questions and is done; only the rest is checked rule by rule, and what
is wrong is put into words where it is found.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor

from mx_kernels._core import facts as _facts
from mx_kernels._core.arrays import (
    Array,
    check_floats,
    check_same_kind,
    check_together,
    dtype_name,
    intercepted,
    is_common,
    kind_of,
    show,
    watched,
)
from mx_kernels._core.facts import (
    DEFAULT_ROUNDING,
    KEPT_FLOATS,
    WIDE_INTEGERS,
    Activation,
    Format,
    Layout,
    Mode,
    activations_for,
    device_name,
    facts,
)
from mx_kernels._core.gates import GateOptions, check_gate
from mx_kernels._core.protocol import Gate
from mx_kernels._core.storage import check_axes, tensor_scales_for
from mx_kernels.tensor import MXTensor

K_OF_FLOATS = 32
"""Of products of floats by floats, K is a multiple of this."""
HADAMARD = 32, 64, 128
"""Elements that a quantizer rotates together."""
TENSOR_SCALES = 2.0**-115, 2.0**117
"""Between them no product with a scale, nor half the smallest number, leaves regular float32."""


def check_quantize(x: Array, format: str, scale_rule: str) -> tuple[Format, int, bool]:
    """Checks the arguments of `quantize`.

    Returns:
        The format, the code of the rounding, and whether x `is_common`.
    """
    table = _facts._facts or facts()
    if is_common(x, table.dtype_codes) and (shape := x.shape):
        try:
            fmt, code, k = table.formats[format], table.roundings[scale_rule], shape[-1]
            fits = scale_rule in fmt.roundings and (fmt.block_rows == 1 or len(shape) > 1)
            if k and not k % fmt.k_multiple and fits:
                return fmt, code, True
        except (KeyError, TypeError):
            pass
    check_floats(x, "x")
    shape = x.shape
    if not shape:
        raise _no_axis()
    code = check_rounding(scale_rule)
    fmt = format_named(format)
    check_rule(scale_rule, fmt, f"format={format!r}")
    check_axes("x", shape, fmt)
    k, block = shape[-1], fmt.k_multiple
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


def check_tensor_scale(given, x: Array, fmt: Format, *, is_fake: bool = False) -> Tensor | None:
    """Checks tensor scales of the rows of x; returns one for each, None for those of x itself.

    Numbers that are fake are not looked at.
    """
    if given is None:
        return None
    scales = tensor_scales_for("x", x, given, fmt)
    least, most = TENSOR_SCALES
    if not is_fake and not ((scales >= least) & (scales <= most)).all():
        got = scales[~((scales >= least) & (scales <= most))][0]
        raise ValueError(
            f"tensor_scale: got {float(got)}, expected numbers from 2**-115 to 2**117, such as the "
            "largest magnitude over 6 * 448"
        )
    return scales


def check_hadamard(block: int | None, x: Array) -> int | None:
    """Checks how many elements of checked floats are rotated together; returns it."""
    if block is None:
        return None
    if isinstance(block, bool) or block not in HADAMARD:
        known = " or ".join(map(str, HADAMARD))
        raise ValueError(f"hadamard: got {block!r}, expected None or {known}")
    if x.shape[-1] % block:
        raise ValueError(
            f"hadamard: got {block} for K = {x.shape[-1]}, expected K to be a multiple of it"
        )
    return block


def check_linear(
    x: Array, w: MXTensor, bias: Array | None, scale_rule: str, activations: str | None
) -> tuple[Mode, bool, bool]:
    """Checks the arguments of `linear` but for the result's dtype.

    Returns:
        What x becomes, whether all `is_common`, and whether the call is `watched`.
    """
    table = _facts._facts or facts()
    if (
        type(w) is MXTensor
        and is_common(x, table.dtype_codes)
        and (device := w._common_device()) == x.get_device()
        and len(w._checked[0]) == 2
        and (shape := x.shape)
        and shape[-1] == w._k
        and (bias is None or _is_common_bias(bias, w, device))
    ):
        try:
            return table.modes[asked_or_best(activations, w), scale_rule], True, intercepted()
        except (KeyError, TypeError):
            pass
    if isinstance(x, MXTensor):
        raise TypeError("x: got an MXTensor, expected floats; for two MXTensors use matmul(x, w)")
    check_floats(x, "x")
    if not x.shape:
        raise _no_axis()
    check_weights(w, "w")
    mode = check_mode(asked_or_best(activations, w), scale_rule)
    check_together("x", x, "w", w.codes)
    if bias is not None:
        check_bias(bias, w)
        check_same_kind("bias", bias, "x", x)
    is_watched = isinstance(x, torch.Tensor) and watched(x, w.codes, w.scales, bias)
    if x.shape[-1] != w._k:
        raise _disagreement("x", x.shape, "w", w)
    return mode, False, is_watched


def check_matmul(a: MXTensor, b: MXTensor, bias: Array | None) -> bool:
    """Checks the arguments of `matmul` but for the result's dtype.

    Returns:
        Whether all `is_common`.
    """
    if (
        type(a) is MXTensor
        and type(b) is MXTensor
        and (device := b._common_device()) is not None
        and device == a._common_device()
        and _have_like_batches(a, b, bias)
        and a._layout == _facts._facts.plain.name
        and a._k == b._k
        and (bias is None or _is_common_bias(bias, b, device))
    ):
        return True
    check_operand(a, "a")
    check_operand(b, "b")
    if b.ndim < 2 or (b.ndim > 2 and (a.ndim != b.ndim or a.shape[:-2] != b.shape[:-2])):
        raise ValueError(
            f"b: got shape {show(b.shape)} for a {show(a.shape)}, expected weights [N, K], or as "
            "many matrices as a has: [..., M, K] and [..., N, K]"
        )
    check_together("a", a.codes, "b", b.codes)
    if a.byte_layout != facts().plain.name:
        raise ValueError(
            f"a: got layout {a.byte_layout!r}, expected {facts().plain.name!r}: only the weights "
            "are preshuffled; call a.unshuffle()"
        )
    if a.k != b.k:
        raise _disagreement("a", a.shape, "b", b)
    if b.ndim > 2 and getattr(bias, "ndim", 1) > 1:
        check_floats(bias, "bias")
        check_together("bias", bias, "the weights", b.codes)
        if tuple(bias.shape) != tuple(b.shape[:-1]):
            raise ValueError(
                f"bias: got shape {show(bias.shape)}, expected [{b.shape[-2]}] or "
                f"{show(b.shape[:-1])}, a number for each row of b"
            )
    elif bias is not None:
        check_bias(bias, b)
    if bias is not None:
        check_same_kind("bias", bias, "b", b.codes)
    return False


def _have_like_batches(a: MXTensor, b: MXTensor, bias: Array | None) -> bool:
    """Says whether common operands are a product, or as many matrices each without a bias."""
    left, right = a._checked[0], b._checked[0]
    return len(right) == 2 or (bias is None and left[:-2] == right[:-2])


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


def check_float_matmul(a: Tensor, b: Tensor, bias: Tensor | None) -> None:
    """Checks the arguments of `matmul` of floats but for the device and the result's dtype."""
    for name, side in (("a", a), ("b", b), ("bias", bias)):
        if side is not None:
            check_floats(side, name)
            if side.requires_grad and torch.is_grad_enabled():
                raise ValueError(
                    f"{name}: got a tensor that requires a gradient, expected one that does not: "
                    "call it under torch.no_grad(), or torch.nn.functional.linear(a, b, bias)"
                )
    if a.dtype != b.dtype or a.dtype == torch.float32:
        raise ValueError(
            f"a and b: got {dtype_name(a)} and {dtype_name(b)}, expected bfloat16 or float16 for "
            "both; convert one with .to()"
        )
    check_together("a", a, "b", b)
    if not a.ndim or b.ndim != 2:
        raise ValueError(
            f"a and b: got shapes {show(a.shape)} and {show(b.shape)}, expected [..., K] and [N, K]"
        )
    if a.shape[-1] != b.shape[-1]:
        raise _disagreement("a", a.shape, "b", b)
    if not b.shape[-1] or b.shape[-1] % K_OF_FLOATS:
        raise ValueError(
            f"a and b: got K = {b.shape[-1]}, expected a positive multiple of {K_OF_FLOATS}; pad "
            "both with zeros, which add nothing to a product"
        )
    if bias is not None:
        check_bias(bias, b)


def check_bias(bias: Array, w: Tensor) -> None:
    """Checks that `bias` fits the weights."""
    check_floats(bias, "bias")
    check_together("bias", bias, "the weights", w)
    if tuple(bias.shape) != (w.shape[-2],):
        raise ValueError(
            f"bias: got shape {show(bias.shape)}, expected [{w.shape[-2]}], one number for each "
            "row of the weights"
        )


def check_rounding(scale_rule: str) -> int:
    """Checks the name of a rounding rule; returns its code."""
    known = facts().roundings
    if not isinstance(scale_rule, str) or scale_rule not in known:
        raise ValueError(
            f"scale_rule: got {scale_rule!r}, expected {' or '.join(map(repr, known))}"
        )
    return known[scale_rule]


def check_rule(scale_rule: str, fmt: Format, said: str) -> None:
    """Checks that the scales of a format can follow a rule."""
    if scale_rule not in fmt.roundings:
        known = "'even', the largest number over the element's"
        if len(fmt.roundings) > 1:
            known += ", or 'rceil', the next power of two"
        raise ValueError(
            f"scale_rule: got {scale_rule!r} with {said}, whose scales are {fmt.scale}, expected "
            + known
        )


def check_mode(activations: str, scale_rule: str) -> Mode:
    """Checks the name of what activations become, and that the rounding goes with it."""
    try:
        return facts().modes[activations, scale_rule]
    except (KeyError, TypeError):
        pass
    check_rounding(scale_rule)
    known = facts().activations
    if not isinstance(activations, str) or activations not in known:
        raise ValueError(
            f"activations: got {activations!r}, expected {' or '.join(map(repr, known))}"
        )
    if activations in facts().formats:
        check_rule(scale_rule, facts().formats[activations], f"activations={activations!r}")
    why = "floats that are kept have no scales"
    if activations == WIDE_INTEGERS:
        why = "its scales have a rule of their own"
    raise ValueError(
        f"scale_rule: got {scale_rule!r} with activations={activations!r}, expected none: {why}; "
        "leave it out"
    )


def asked_or_best(activations: str | None, w: MXTensor) -> str:
    """Returns the name of what activations become: None is what the device of `w` is best at."""
    if activations is None:
        return activations_for(w.device, w._format)
    if activations == WIDE_INTEGERS:
        check_integers(w.device, w._format)
    return activations


def check_integers(device: str | torch.device, weights: str) -> None:
    """Raises unless a device multiplies 16-bit integers by weights of a format."""
    known = [name for name, row in facts().formats.items() if row.has_integers]
    # What is on no device yet may come to a CPU.
    if device_name(device) not in ("cpu", "meta") or weights not in known:
        raise ValueError(
            f"activations: got {WIDE_INTEGERS!r} by {weights!r} on {device}, expected weights of "
            f"{' or '.join(map(repr, known))} on a CPU, or activations {KEPT_FLOATS!r}"
        )


def mode_rounding(activations: str, scale_rule: str) -> str:
    """Returns the rounding that activations take beside weights rounded by `scale_rule`."""
    fmt = facts().formats.get(activations)
    return scale_rule if fmt and scale_rule in fmt.roundings else DEFAULT_ROUNDING


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


def _disagreement(left: str, left_shape, right: str, w: Tensor) -> ValueError:
    """Returns the error for operands of different K."""
    k, of_right = left_shape[-1], w.shape[-1]
    block = facts().formats[w.format].k_multiple if isinstance(w, MXTensor) else K_OF_FLOATS
    hint = f"{right} is [N, K], not [K, N]"
    if 0 < of_right - k < block:
        missing = f"(0, {of_right - k})"
        hint = f"if {right} was padded, pad {left} too: torch.nn.functional.pad(x, {missing})"
    return ValueError(
        f"{left} and {right}: got K = {k} and K = {of_right} ({left}: {show(left_shape)}, {right}: "
        f"{show(w.shape)}), expected one K; {hint}"
    )


def check_grouped(  # noqa: PLR0917  as the operator has them
    x, w, group_sizes, bias, scale_rule: str, activations: str | None
) -> Mode:
    """Checks the arguments of `grouped_linear` but for the result's dtype and the sizes' numbers.

    Returns:
        What x becomes.
    """
    _check_rows(x, "[T, K], rows sorted by expert")
    _check_experts(w, "w", "[E, N, K]")
    mode = check_mode(asked_or_best(activations, w), scale_rule)
    check_together("x", x, "w", w.codes)
    if x.shape[1] != w.k:
        raise _disagreement("x", x.shape, "w", w)
    _check_integers(group_sizes, "group_sizes", (torch.int32,))
    if group_sizes.shape != w.shape[:1]:
        raise ValueError(
            f"group_sizes: got shape {show(group_sizes.shape)}, expected [{w.shape[0]}], the rows "
            "of each expert"
        )
    check_together("group_sizes", group_sizes, "w", w.codes)
    check_biases(bias, "bias", w, "w")
    return mode


def check_moe(  # noqa: PLR0917  as the operator has them
    x,
    w_gate_up,
    w_down,
    expert_ids,
    expert_weights,
    biases: tuple,
    options: GateOptions,
    scale_rule: str,
    activations: str | None,
) -> tuple[Mode, Gate]:
    """Checks the arguments of `moe` but for the result's dtype and the numbers of the ids.

    Returns:
        What x and the hidden numbers become, and the gate as a call has it.
    """
    _check_rows(x, "[T, H], a row for each token")
    _check_experts(w_gate_up, "w_gate_up", "[E, 2I, H]")
    _check_experts(w_down, "w_down", "[E, H, I]")
    asked_or_best(activations, w_gate_up)
    mode, gate = check_mode(asked_or_best(activations, w_down), scale_rule), check_gate(options)
    for name, w in (("w_gate_up", w_gate_up), ("w_down", w_down)):
        check_together("x", x, name, w.codes)
    if x.shape[1] != w_gate_up.k:
        raise _disagreement("x", x.shape, "w_gate_up", w_gate_up)
    check_layer_shapes(w_gate_up.shape, w_down.shape, facts().gates[options.hidden_act])
    _check_routing(x, expert_ids, expert_weights)
    check_biases(biases[0], "bias_gate_up", w_gate_up, "w_gate_up")
    check_biases(biases[1], "bias_down", w_down, "w_down")
    return mode, gate


def _check_rows(x, expected: str) -> None:
    """Checks that x is floats of two dimensions."""
    if isinstance(x, MXTensor):
        raise TypeError("x: got an MXTensor, expected floats; quantized on the fly they are")
    check_floats(x, "x")
    if x.ndim != 2:
        raise ValueError(f"x: got shape {show(x.shape)}, expected {expected}")


def _check_experts(w, name: str, expected: str) -> None:
    """Checks that `w` holds matrices, one for each expert."""
    check_operand(w, name)
    if w.ndim != 3:
        raise ValueError(
            f"{name}: got shape {show(w.shape)}, expected the weights of all experts {expected}"
        )


def _check_integers(array, name: str, dtypes: tuple) -> None:
    """Checks that `array` is a tensor of integers; arrays of NumPy's are tensors by now, if any."""
    kind = kind_of(array, name)
    if kind == "numpy" or array.dtype not in dtypes:
        known = [str(dtype).removeprefix("torch.") for dtype in dtypes]
        got = array.dtype.str if kind == "numpy" else dtype_name(array)
        convert = f"astype(np.{known[0]})" if kind == "numpy" else f"to({dtypes[0]})"
        raise TypeError(
            f"{name}: got dtype {got}, expected {' or '.join(known)}; convert with {name}.{convert}"
        )


def _check_routing(x, expert_ids, expert_weights) -> None:
    """Checks ids and weights of the experts of each token."""
    _check_integers(expert_ids, "expert_ids", (torch.int32, torch.int64))
    check_floats(expert_weights, "expert_weights")
    check_routing_shapes(x.shape[0], expert_ids.shape, expert_weights.shape)
    check_together("expert_ids", expert_ids, "x", x)
    check_together("expert_weights", expert_weights, "x", x)


def check_layer_shapes(gate_up, down, hidden_act: Activation) -> None:
    """Checks that the weights of a layer of experts fit each other, as tensors or in a graph."""
    (experts, _, width), inner = gate_up, down[-1]
    each, rows = ("a gate and an up", "2I") if hidden_act.is_gated else ("an up", "I")
    for name, shape, expected, what in (
        ("w_gate_up", gate_up, (experts, hidden_act.sums(inner), width), f"{each} for each of the"),
        ("w_down", down, (experts, width, inner), "from the"),
    ):
        if tuple(shape) != expected:
            raise ValueError(
                f"{name}: got shape {show(shape)}, expected {show(expected)}: {what} {inner} "
                f"hidden numbers of {hidden_act.name!r}; w_gate_up is {show(gate_up)} = "
                f"[E, {rows}, H], w_down is {show(down)} = [E, H, I]"
            )


def check_routing_shapes(tokens, ids, weights) -> None:
    """Checks that each token has as many weights as experts, as tensors or in a graph."""
    if len(ids) != 2 or ids[0] != tokens:
        raise ValueError(
            f"expert_ids: got shape {show(ids)}, expected [{tokens}, k], k experts for each row of "
            "x"
        )
    if weights != ids:
        raise ValueError(
            f"expert_weights: got shape {show(weights)}, expected {show(ids)}, that of expert_ids"
        )


def check_biases(bias, name: str, w: MXTensor, weights: str) -> None:
    """Checks that `bias` has a number for each row of each expert, if it is there."""
    if bias is None:
        return
    check_floats(bias, name)
    check_together(name, bias, weights, w.codes)
    if bias.shape != w.shape[:2]:
        raise ValueError(
            f"{name}: got shape {show(bias.shape)}, expected {show(w.shape[:2])}, a number for "
            f"each row of each expert of {weights}"
        )
