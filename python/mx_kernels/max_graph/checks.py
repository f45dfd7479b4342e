"""What can be checked while a graph is built; what cannot, the ops check when they run."""

from __future__ import annotations

from max.driver import accelerator_architecture_name
from max.dtype import DType
from max.graph import DeviceRef, StaticDim, TensorValue

from mx_kernels._arrays import show
from mx_kernels._facts import KEPT_FLOATS, Format, facts

CPU_REF = DeviceRef.CPU()
CDNA4 = "gfx950"
"""A GPU that takes weights in its own layout alone."""


def check_value(value: TensorValue, name: str) -> None:
    """Raises unless `value` is a tensor of a graph, on a device with kernels, with an axis."""
    if hasattr(value, "codes"):
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


def is_on_cdna4(value: TensorValue) -> bool:
    """Says whether a tensor lies on a GPU that takes weights in its own layout alone."""
    return value.device != CPU_REF and _gpu_architecture() == CDNA4


def check_device(value: TensorValue, name: str, device: DeviceRef, other: str) -> None:
    """Raises unless `value` lies on the device of `other`."""
    if value.device != device:
        raise ValueError(
            f"{other} and {name}: got devices {device} and {value.device}, expected one device; "
            "move a tensor with ops.transfer_to"
        )


def check_formats(value: TensorValue, what: str, *names: str) -> None:
    """Raises unless the device of `value` has kernels for a format, or for a pair."""
    if is_on_cdna4(value):
        pairs = facts().native.pairs_on_gfx950()
        known = pairs if len(names) > 1 else {(left,) for left, _ in pairs if left != KEPT_FLOATS}
        if names not in known:
            expected = " or ".join(" x ".join(map(repr, pair)) for pair in sorted(known))
            raise ValueError(
                f"{what}: got {' x '.join(map(repr, names))} on {value.device}, expected "
                f"{expected}: there are no other kernels for {CDNA4}"
            )


def check_scales(what: str, name: str) -> None:
    """Raises for a format whose scales are floats: no op takes these yet."""
    formats = facts().formats
    if name in formats and formats[name].has_float_scales:
        known = [row.name for row in formats.values() if not row.has_float_scales]
        raise ValueError(
            f"{what}: got {name!r}, whose scales are {formats[name].scale}, expected "
            f"{' or '.join(map(repr, known))} in a graph"
        )


def check_floats(x: TensorValue, name: str) -> int:
    """Raises unless `x` is [..., K] floats; returns K."""
    check_value(x, name)
    check_float_dtype(x, name)
    return static_k(x, name)


def check_float_dtype(value: TensorValue, name: str) -> None:
    """Raises unless `value` holds floats."""
    if value.dtype.name not in facts().dtypes:
        raise TypeError(
            f"{name}: got dtype {value.dtype.name}, expected {' or '.join(facts().dtypes)}; "
            f"convert first, for example ops.cast({name}, DType.float32)"
        )


def check_bytes(value: TensorValue, name: str) -> None:
    """Raises unless `value` holds bytes."""
    check_value(value, name)
    if value.dtype != DType.uint8:
        raise TypeError(
            f"{name}: got dtype {value.dtype.name}, expected uint8; declare the graph's input as "
            f"uint8 and pass {name}.view(torch.uint8): MAX has no MX dtypes on the CPU"
        )


def check_k(name: str, k: int, fmt: Format) -> None:
    """Raises unless rows of `k` elements are made of blocks."""
    check_scales("format", fmt.name)
    block = fmt.block_k
    if k == 0 or k % block:
        raise ValueError(
            f"{name}: got K = {k}, expected a positive multiple of {block}; pad with zeros, "
            f"which add nothing to a product: ops.pad(..., [0, {block - k % block}])"
        )


def static_k(value: TensorValue, name: str) -> int:
    """Returns the last dimension of `value`."""
    dim = value.shape[-1]
    if not isinstance(dim, StaticDim):
        raise ValueError(
            f"{name}: got shape {show(value.shape)}, whose last dimension is symbolic; kernels "
            "need to know K, give the graph's input a number there"
        )
    return int(dim)
