"""The operations inside a MAX graph, with the bits that the torch route gives.

    with Graph("mlp", input_types=[...], custom_extensions=[max_graph.library()]) as graph:
        x = graph.inputs[0].tensor                      [..., K], leading dims may be symbolic
        graph.output(max_graph.linear(x, weights))      weights: an MXTensor, or an MXValue

    max_graph.export(graph, "mlp.mef")                  compiles: tens of seconds, once
    model = max_graph.load("mlp.mef")                   milliseconds, in any process

An `MXTensor` becomes constants of the graph; an `MXValue` is its counterpart for codes and
scales that the graph computes or takes as inputs. What can be checked is checked while the
graph is built; what depends on a symbolic dimension is checked again when it runs.

Tensors lie on the CPU, on an NVIDIA GPU, or on a gfx950 GPU, where weights have that device's
preshuffled layout and nothing is dequantized.
Codes and scales are uint8: MAX does not take float8_e8m0fnu tensors on the CPU.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from max.driver import CPU, Device, accelerator_architecture_name
from max.dtype import DType
from max.engine import InferenceSession, Model
from max.graph import DeviceRef, Dim, Graph, StaticDim, TensorType, TensorValue, ops

from mx_kernels import _builds, _native
from mx_kernels._arrays import Array, check_floats, float_code, kind_of, show
from mx_kernels._builds import Build, Sources
from mx_kernels._checks import (
    check_mode,
    check_operand,
    check_rounding,
    format_named,
    layout_named,
)
from mx_kernels._facts import DEFAULT_FORMAT, DEFAULT_ROUNDING, KEPT_FLOATS, Format, facts
from mx_kernels.tensor import MXTensor

PACKAGE = "mojo_kernels"
CPU_REF = DeviceRef.CPU()
CDNA4 = "gfx950"
"""A GPU that takes weights in its own layout alone."""


class MXValue:
    """A quantized tensor of logical shape `[..., K]` in a graph.

    Args:
        codes: the packed codes, uint8 in the order of `layout`; plain: [..., K] bytes of codes of
            8 bits, [..., K/2] of 4.
        scales: the block scales, uint8 in the order of `layout`; plain: [..., K/32].
        shape: the logical shape [N, K] of a padded layout. None takes it from `codes`, where
            every stored row then counts.
        format: a name from the format table.
        layout: a name from the layout table; "plain" is row-major.

    Raises:
        TypeError: if codes and scales are not uint8 tensors of a graph.
        ValueError: if shapes, devices and layout do not fit together.
    """

    def __init__(
        self,
        codes: TensorValue,
        scales: TensorValue,
        *,
        shape: tuple[int, int] | None = None,
        format: str = DEFAULT_FORMAT,
        layout: str = "plain",
    ):
        fmt, order = format_named(format), layout_named(layout)
        _check_bytes(codes, "codes")
        _check_bytes(scales, "scales")
        _check_device(scales, "scales", codes.device, "codes")
        self.codes = codes
        self.scales = scales
        self.format = format
        self.layout = layout
        self.k = fmt.elements(_static(codes, "codes"))
        _check_k("codes", self.k, fmt)
        if layout != facts().plain.name:
            rows = _padded_rows(codes, shape, self.k, layout)
            expected = order.storage(rows, self.k, fmt)
            self.lead = [Dim(rows)]
        else:
            self.lead = list(codes.shape[:-1])
            expected = codes.shape, [*self.lead, self.k // fmt.block_k]
            if shape is not None and list(shape) != self.shape:
                raise ValueError(f"shape: got {show(shape)}, expected {show(self.shape)}")
        for name, value, dims in (("codes", codes, expected[0]), ("scales", scales, expected[1])):
            if list(value.shape) != [Dim(dim) for dim in dims]:
                raise ValueError(
                    f"{name}: got {show(value.shape)}, expected {show(dims)} for "
                    f"{show(self.shape)} of {format} in layout {layout}"
                )

    @property
    def shape(self) -> list[Dim]:
        """The logical shape `[..., K]`."""
        return [*self.lead, Dim(self.k)]

    @property
    def device(self) -> DeviceRef:
        """Where codes and scales lie."""
        return self.codes.device

    def __repr__(self) -> str:
        return f"MXValue({show(self.shape)}, format={self.format!r}, layout={self.layout!r})"


def constant(q: MXTensor, device: DeviceRef = CPU_REF) -> MXValue:
    """Puts `q` into the current graph; the compiled model carries its bytes.

    Args:
        q: an MXTensor on the CPU, in the layout that the ops of `device` want.
        device: where the graph has it.

    Raises:
        TypeError: if q is not an MXTensor.
        ValueError: if q does not lie on the CPU.
    """
    check_operand(q, "q")
    if q.device.type != "cpu":
        raise ValueError(f'q: got device {q.device}, expected cpu; call q.to("cpu")')
    codes, scales = (
        ops.constant(part.detach().numpy(), DType.uint8, device) for part in (q.codes, q.scales)
    )
    return MXValue(codes, scales, shape=tuple(q.shape), format=q.format, layout=q.layout)


def quantize(
    x: TensorValue, *, format: str = DEFAULT_FORMAT, rounding: str = DEFAULT_ROUNDING
) -> MXValue:
    """Quantizes floats [..., K] in blocks along K, as `mx_kernels.quantize` does.

    Raises:
        TypeError: if x is not a float tensor of a graph.
        ValueError: if K is not a positive multiple of the block size, a name is unknown, or x
            lies on a gfx950 GPU, which has MXFP4 alone.
    """
    fmt = format_named(format)
    k = _check_floats(x, "x")
    _check_k("x", k, fmt)
    check_rounding(rounding)
    _check_formats(x, "format", format)
    widths = (fmt.packed_bytes(k), k // fmt.block_k)
    rows = _rows(x)
    types = [_type(DType.uint8, rows.shape[0], width, x.device) for width in widths]
    names = {"format": format, "rounding": rounding}
    values = ops.custom("mx_quantize", x.device, [rows], types, names)
    return MXValue(*(_with_lead(value.tensor, x.shape[:-1]) for value in values), format=format)


def dequantize(q: MXValue | MXTensor, *, dtype="bfloat16") -> TensorValue:
    """Decodes `q` to floats [..., K], as `mx_kernels.dequantize` does.

    Raises:
        TypeError: if q is neither an MXValue nor an MXTensor.
        ValueError: if the dtype is not bfloat16, float16 or float32, or q lies on a gfx950 GPU.
    """
    q = _as_value(q, "q", CPU_REF)
    if _is_on_cdna4(q.codes):
        raise ValueError(
            f"q: got device {q.device}, expected {CPU_REF}, the only one that decodes today; move "
            "codes and scales with ops.transfer_to"
        )
    codes, scales, rows = _parts(q)
    count = _row_count(q, codes)
    names = {"format": q.format, "layout": q.layout}
    floats = _call("mx_dequantize", [codes, scales, rows], count, q.k, dtype, **names)
    return _with_lead(floats, q.lead)


def matmul(
    a: MXValue | MXTensor,
    b: MXValue | MXTensor,
    *,
    out_dtype="bfloat16",
    bias: TensorValue | Array | None = None,
) -> TensorValue:
    """Multiplies quantized tensors: a @ b.T + bias as [..., N], as `mx_kernels.matmul` does.

    Raises:
        TypeError: if an operand is neither an MXValue nor an MXTensor.
        ValueError: if shapes or layouts do not fit together.
    """
    a = _as_value(a, "a", b.device if isinstance(b, MXValue) else CPU_REF)
    b = _as_value(b, "b", a.device)
    if a.layout != facts().plain.name:
        raise ValueError(
            f"a: got layout {a.layout!r}, expected {facts().plain.name!r}: only the weights are "
            "preshuffled; unshuffle the MXTensor first"
        )
    _check_weights(b, "b", a.k, "a", a.device)
    _check_formats(a.codes, "formats", a.format, b.format)
    codes, scales, _ = _parts(a)
    operands = [codes, scales, *_parts(b), _bias(bias, b)]
    names = {"left_format": a.format, "right_format": b.format, "layout": b.layout}
    out = _call("mx_matmul", operands, codes.shape[0], b.lead[0], out_dtype, **names)
    return _with_lead(out, a.lead)


def linear(
    x: TensorValue,
    w: MXValue | MXTensor,
    *,
    bias: TensorValue | Array | None = None,
    rounding: str = DEFAULT_ROUNDING,
    out_dtype=None,
    activations: str = DEFAULT_FORMAT,
) -> TensorValue:
    """Quantizes x and multiplies: x @ w.T + bias as [..., N], as `mx_kernels.linear` does.

    Args:
        x: floats [..., K]; leading dimensions may be symbolic.
        w: weights [N, K] in any format and layout; an MXTensor becomes a constant of the graph.
        bias: floats [N]: a tensor of the graph, or a torch tensor or NumPy array.
        rounding: how x is quantized: "floor", "even", "ceil" or "rceil".
        out_dtype: None is x's; else bfloat16, float16 or float32.
        activations: what x is multiplied as: a format or "bf16", which takes no `rounding`; a
            gfx950 GPU has "mxfp4" alone.

    Raises:
        TypeError: if x is not a float tensor of a graph, or w not a quantized one.
        ValueError: if shapes or layouts do not fit together, or a name is unknown.
    """
    k = _check_floats(x, "x")
    check_mode(activations, rounding)
    w = _as_value(w, "w", x.device)
    _check_weights(w, "w", k, "x", x.device)
    _check_formats(x, "activations and weights", activations, w.format)
    dtype = x.dtype if out_dtype is None else out_dtype
    rows = _rows(x)
    if activations == KEPT_FLOATS and x.device != CPU_REF:
        rows = ops.cast(rows, DType.bfloat16)
    operands = [rows, *_parts(w), _bias(bias, w)]
    names = {
        "activations": activations,
        "format": w.format,
        "rounding": rounding,
        "layout": w.layout,
    }
    out = _call("mx_linear", operands, rows.shape[0], w.lead[0], dtype, **names)
    return _with_lead(out, x.shape[:-1])


def library() -> Path:
    """Returns the op library for `Graph(custom_extensions=[...])`, precompiled once a version.

    Raises:
        NativeBuildError: if the Mojo compiler is missing or fails.
    """
    return library_build().find_or_make()


def library_build() -> Build:
    """Returns the op library as a file of the cache."""
    package = _native.source_folder()
    files = sorted(package.rglob("*.mojo"))
    sources = Sources("", {path.relative_to(package).as_posix(): path for path in files})
    return Build(
        f"graph-{sources.digest([_builds.toolchain()])}",
        f"{PACKAGE}.mojoc",
        "precompiling the MAX ops",
        lambda target: _builds.run_mojo(
            ["precompile", "-I", str(package.parent), "-o", str(target), str(package)]
        ),
    )


def export(graph: Graph, path: str | os.PathLike, *, device: Device | None = None) -> None:
    """Compiles `graph` and writes it, constants included, as a MEF.

    Args:
        graph: built with the ops of this module.
        path: the file to write; its folder is made.
        device: what the graph runs on; None is this machine's CPU. A virtual accelerator
            compiles for a GPU that is not here (`max.driver.set_virtual_device_api`).

    Raises:
        TypeError: if graph is no `max.graph.Graph`.
    """
    if not isinstance(graph, Graph):
        raise TypeError(f"graph: got {type(graph).__name__}, expected a max.graph.Graph")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    _session(device).compile(graph).export_mef(path)


def load(path: str | os.PathLike, *, device: Device | None = None) -> Model:
    """Loads what `export` wrote; neither sources nor compiler are needed.

    Args:
        path: the MEF, made with the same release of MAX for the same kind of device.
        device: what the graph runs on; None is this machine's CPU.

    Raises:
        FileNotFoundError: if there is no such file.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"path: got {os.fspath(path)!r}, which does not exist; see export")
    return _session(device).load(Path(path))


def _session(device: Device | None) -> InferenceSession:
    return InferenceSession(devices=[CPU() if device is None else device])


# Checks, while the graph is built.


def _check_value(value: TensorValue, name: str) -> None:
    """Raises unless `value` is a tensor of a graph, on a device with kernels, with an axis."""
    if isinstance(value, MXValue | MXTensor):
        raise TypeError(f"{name}: got an {type(value).__name__}, expected floats; see matmul")
    if not isinstance(value, TensorValue):
        hint = "; put it into the graph with ops.constant, or pass it as an input"
        raise TypeError(f"{name}: got {type(value).__name__}, expected a TensorValue{hint}")
    found = "" if value.device == CPU_REF else _gpu_architecture()
    if found and found != CDNA4 and not found.startswith("sm_"):
        raise ValueError(
            f"{name}: got device {value.device} ({found}), expected {CPU_REF} or a {CDNA4} GPU "
            "or one of NVIDIA's, the only ones with kernels today; move it with "
            f"ops.transfer_to({name}, DeviceRef.CPU())"
        )
    if value.rank == 0:
        raise ValueError(f"{name}: got a single number, expected shape [..., K]")


def _gpu_architecture() -> str:
    """The architecture of the GPU, real or virtual, that graphs compile for."""
    try:
        return accelerator_architecture_name()
    except ValueError:
        return "no GPU here"


def _is_on_cdna4(value: TensorValue) -> bool:
    return value.device != CPU_REF and _gpu_architecture() == CDNA4


def _check_device(value: TensorValue, name: str, device: DeviceRef, other: str) -> None:
    if value.device != device:
        raise ValueError(
            f"{other} and {name}: got devices {device} and {value.device}, expected one device; "
            "move a tensor with ops.transfer_to"
        )


def _check_formats(value: TensorValue, what: str, *names: str) -> None:
    """Raises unless the device of `value` has kernels for these formats."""
    if _is_on_cdna4(value) and any(name != DEFAULT_FORMAT for name in names):
        got = " x ".join(map(repr, names))
        raise ValueError(
            f"{what}: got {got} on {value.device}, expected {DEFAULT_FORMAT!r}, the only format "
            f"with kernels for {CDNA4}"
        )


def _check_floats(x: TensorValue, name: str) -> int:
    """Raises unless `x` is [..., K] floats; returns K."""
    _check_value(x, name)
    if x.dtype.name not in facts().dtypes:
        raise TypeError(
            f"{name}: got dtype {x.dtype.name}, expected {' or '.join(facts().dtypes)}; convert "
            f"first, for example ops.cast({name}, DType.float32)"
        )
    return _static(x, name)


def _check_bytes(value: TensorValue, name: str) -> None:
    _check_value(value, name)
    if value.dtype != DType.uint8:
        raise TypeError(
            f"{name}: got dtype {value.dtype.name}, expected uint8; declare the graph's input as "
            f"uint8 and pass {name}.view(torch.uint8): MAX has no MX dtypes on the CPU"
        )


def _check_k(name: str, k: int, fmt: Format) -> None:
    block = fmt.block_k
    if k == 0 or k % block:
        raise ValueError(
            f"{name}: got K = {k}, expected a positive multiple of {block}; pad with zeros, "
            f"which add nothing to a product: ops.pad(..., [0, {block - k % block}])"
        )


def _check_weights(w: MXValue, name: str, k: int, other: str, device: DeviceRef) -> None:
    """Raises unless `w` is [N, k] on `device`, in a layout that its kernels read."""
    if len(w.lead) != 1:
        raise ValueError(f"{name}: got shape {show(w.shape)}, expected weights [N, K]")
    if w.k != k:
        raise ValueError(
            f"{other} and {name}: got K = {k} and K = {w.k}, expected one K; {name} is [N, K], "
            "not [K, N]"
        )
    _check_device(w.codes, name, device, other)
    wanted = facts().layout_for(CDNA4).name
    if w.layout != wanted and _is_on_cdna4(w.codes):
        raise ValueError(
            f"{name}: got layout {w.layout!r}, on a {CDNA4} GPU expected {wanted!r}; "
            f'preshuffle the MXTensor for "{CDNA4}" first'
        )


def _static(value: TensorValue, name: str) -> int:
    """Returns the last dimension of `value`."""
    dim = value.shape[-1]
    if not isinstance(dim, StaticDim):
        raise ValueError(
            f"{name}: got shape {show(value.shape)}, whose last dimension is symbolic; kernels "
            "need to know K, give the graph's input a number there"
        )
    return int(dim)


def _padded_rows(codes: TensorValue, shape, k: int, layout: str) -> int:
    """Returns the logical rows of codes in a padded layout."""
    if codes.rank != 2 or not isinstance(codes.shape[0], StaticDim):
        raise ValueError(
            f"codes: got {show(codes.shape)}, but layout {layout} holds [N, K] of known size"
        )
    stored = int(codes.shape[0])
    rows = stored if shape is None else int(shape[0])
    if shape is not None and (len(shape) != 2 or shape[1] != k or not 0 < rows <= stored):
        raise ValueError(
            f"shape: got {show(shape)}, but codes {show(codes.shape)} hold [N, {k}] with N up to "
            f"{stored}"
        )
    return rows


# The graph side of a call: every op takes and gives tensors of two dimensions.


def _as_value(q: MXValue | MXTensor, name: str, device: DeviceRef) -> MXValue:
    """Returns `q` in the graph; an MXTensor becomes a constant on `device`."""
    if isinstance(q, MXValue):
        return q
    if isinstance(q, MXTensor):
        return constant(q, device)
    raise TypeError(
        f"{name}: got {type(q).__name__}, expected an MXTensor, or an MXValue made from codes "
        "and scales of the graph"
    )


def _parts(q: MXValue) -> tuple[TensorValue, TensorValue, TensorValue]:
    """Codes and scales as two-dimensional tensors, and the number of logical rows."""
    codes, scales = _rows(q.codes), _rows(q.scales)
    count = _row_count(q, codes)
    if isinstance(count, StaticDim):
        rows = ops.constant(int(count), DType.int64, CPU_REF)
    else:
        rows = ops.reshape(ops.shape_to_tensor([count]), [])
    return codes, scales, rows


def _row_count(q: MXValue, codes: TensorValue) -> Dim:
    """The number of logical rows; `codes` are two-dimensional."""
    return codes.shape[0] if q.layout == facts().plain.name else q.lead[0]


def _bias(bias: TensorValue | Array | None, w: MXValue) -> TensorValue:
    """The bias as float32 [N], empty for none."""
    if bias is None:
        return ops.constant(np.zeros(0, np.float32), DType.float32, w.device)
    if not isinstance(bias, TensorValue):
        kind = kind_of(bias, "bias")
        check_floats(bias, "bias")
        wide = bias.detach().cpu().float().numpy() if kind == "torch" else bias
        wide = np.ascontiguousarray(wide, dtype=np.float32)
        bias = ops.constant(wide, DType.float32, w.device)
    _check_value(bias, "bias")
    _check_device(bias, "bias", w.device, "weights")
    if bias.dtype.name not in facts().dtypes:
        raise TypeError(
            f"bias: got dtype {bias.dtype.name}, expected {' or '.join(facts().dtypes)}"
        )
    if list(bias.shape) != w.lead:
        raise ValueError(
            f"bias: got shape {show(bias.shape)}, expected {show(w.lead)}, one number for each "
            "row of the weights"
        )
    return bias if bias.dtype == DType.float32 else ops.cast(bias, DType.float32)


def _rows(value: TensorValue) -> TensorValue:
    """Folds the leading dimensions into one."""
    return value if value.rank == 2 else ops.reshape(value, [-1, value.shape[-1]])


def _with_lead(value: TensorValue, lead) -> TensorValue:
    """Unfolds what `_rows` folded."""
    return value if len(lead) == 1 else ops.reshape(value, [*lead, value.shape[-1]])


def _type(dtype: DType, rows: Dim, columns: Dim | int, device: DeviceRef) -> TensorType:
    return TensorType(dtype, [rows, columns], device)


def _call(name: str, operands, rows, columns, dtype, **parameters: str) -> TensorValue:
    """Adds an op with one result, floats [rows, columns] on the device of its first operand."""
    code = float_code(dtype.name if isinstance(dtype, DType) else dtype, "dtype")
    device = operands[0].device
    types = [_type(DType[list(facts().dtypes)[code]], rows, columns, device)]
    return ops.custom(name, device, operands, types, parameters)[0].tensor
