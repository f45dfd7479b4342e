"""Quantized tensors of a graph: codes and scales with their meaning, as one value."""

from __future__ import annotations

from max.dtype import DType
from max.graph import DeviceRef, Dim, StaticDim, TensorValue, ops

from mx_kernels._core.arrays import show
from mx_kernels._core.checks import check_operand, format_named, layout_named
from mx_kernels._core.facts import DEFAULT_FORMAT, facts
from mx_kernels.hints import FloatType, FormatName, LayoutName
from mx_kernels.max_graph.checks import (
    CDNA4,
    CPU_REF,
    check_codes,
    check_device,
    check_k,
    check_scales,
    float_dtype,
    is_on_cdna4,
    plain_scales,
    scale_dtype,
    static_k,
)
from mx_kernels.tensor import MXTensor


class MXValue:
    """A quantized tensor of logical shape `[..., K]` in a graph.

    Args:
        codes: the packed codes, uint8 in the order of `layout`; plain: [..., K] bytes of codes of
            8 bits, [..., 3K/4] of 6, [..., K/2] of 4.
        scales: the block scales, uint8 in the order of `layout`; plain: [..., K/32]; or float32,
            as an MXTensor has them.
        shape: the logical shape [..., N, K] of a padded layout. None takes it from `codes`, where
            every stored row then counts.
        format: a name from the format table.
        layout: a name from the layout table; "plain" is row-major.
        dtype: what the numbers count as, as an MXTensor has it: what `matmul` and `dequantize`
            give where they are told nothing else.

    Raises:
        TypeError: if codes and scales are not tensors of a graph with those dtypes.
        ValueError: if shapes, devices and layout do not fit together.
    """

    def __init__(
        self,
        codes: TensorValue,
        scales: TensorValue,
        *,
        shape: tuple[int, ...] | None = None,
        format: FormatName = DEFAULT_FORMAT,
        layout: LayoutName = "plain",
        dtype: FloatType | DType = DType.bfloat16,
    ):
        fmt, order = format_named(format), layout_named(layout)
        check_codes(codes)
        check_scales(scales, fmt)
        check_device(scales, "scales", codes.device, "codes")
        self.codes = codes
        self.scales = scales
        self.format: FormatName = format
        self.layout: LayoutName = layout
        self.dtype: DType = float_dtype(dtype)
        self.lead: list[Dim]
        self.k: int = fmt.elements(static_k(codes, "codes"))
        check_k("codes", self.k, fmt, order)
        if layout != facts().plain.name:
            self.lead = _padded_lead(codes, shape, self.k, layout)
            matrix = order.storage(int(self.lead[-1]), self.k, fmt)
            expected = [[*self.lead[:-1], *dims] for dims in matrix]
        else:
            self.lead = list(codes.shape[:-1])
            expected = codes.shape, plain_scales("codes", self.lead, self.k, fmt)
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
    parts = (q.codes, DType.uint8), (q.scales, scale_dtype(format_named(q.format)))
    codes, scales = (
        ops.constant(part.detach().contiguous().numpy(), dtype, device) for part, dtype in parts
    )
    of_q = {"format": q.format, "layout": q.byte_layout, "dtype": q.dtype}
    return MXValue(codes, scales, shape=tuple(q.shape), **of_q)


def as_value(q: MXValue | MXTensor, name: str, device: DeviceRef) -> MXValue:
    """Returns `q` in the graph; an MXTensor becomes a constant on `device`."""
    if isinstance(q, MXValue):
        return q
    if isinstance(q, MXTensor):
        return constant(q, device)
    raise TypeError(
        f"{name}: got {type(q).__name__}, expected an MXTensor, or an MXValue made from codes "
        "and scales of the graph"
    )


def _padded_lead(codes: TensorValue, shape, k: int, layout: str) -> list[Dim]:
    """Returns the logical [..., N] of codes in a padded layout."""
    if codes.rank < 2 or not all(isinstance(dim, StaticDim) for dim in codes.shape):
        raise ValueError(
            f"codes: got {show(codes.shape)}, but layout {layout} holds [..., N, K] of known size"
        )
    *lead, stored = map(int, codes.shape[:-1])
    rows = stored
    if shape is not None:
        rows = int(shape[-2]) if len(shape) > 1 else 0
        if list(shape) != [*lead, rows, k] or not 0 < rows <= stored:
            of_each = ", ".join(map(str, [*lead, "N", k]))
            raise ValueError(
                f"shape: got {show(shape)}, but codes {show(codes.shape)} hold [{of_each}] with N "
                f"up to {stored}"
            )
    return [Dim(dim) for dim in (*lead, rows)]


def check_weights(w: MXValue, name: str, k: int, other: str, device: DeviceRef) -> None:
    """Raises unless `w` is [N, k] on `device`, in a layout that its kernels read."""
    if len(w.lead) != 1:
        raise ValueError(f"{name}: got shape {show(w.shape)}, expected weights [N, K]")
    check_operands(w, name, k, other, device)


def check_operands(w: MXValue, name: str, k: int, other: str, device: DeviceRef) -> None:
    """Raises unless the rows of `w` have `k` elements, on `device`, in a layout it reads."""
    if w.k != k:
        raise ValueError(
            f"{other} and {name}: got K = {k} and K = {w.k}, expected one K; {name} is [N, K], "
            "not [K, N]"
        )
    check_device(w.codes, name, device, other)
    wanted = facts().layout_for(CDNA4).name
    if w.layout != wanted and is_on_cdna4(w.codes):
        raise ValueError(
            f"{name}: got layout {w.layout!r}, on a {CDNA4} GPU expected {wanted!r}; "
            f'preshuffle the MXTensor for "{CDNA4}" first'
        )
