"""What can be checked while a graph is built; what cannot, the ops check when they run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from max.driver import accelerator_architecture_name
from max.dtype import DType
from max.graph import DeviceRef, Dim, StaticDim, TensorValue

from mx_kernels._core.arrays import float_code, show
from mx_kernels._core.checks import check_integers, check_mode
from mx_kernels._core.facts import (
    CDNA4,
    WIDE_INTEGERS,
    Format,
    Layout,
    activations_for,
    facts,
    quantized_by,
)
from mx_kernels._core.native import gpu_plans
from mx_kernels.hints import FloatType

CPU_REF: DeviceRef = DeviceRef.CPU()


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


def asked_or_best(activations: str | None, scale_rule: str, x: TensorValue, weights: str) -> str:
    """Returns what x is multiplied as by weights of a format; None is the best of its device."""
    if activations is None:
        device = "cpu" if x.device == CPU_REF else _gpu_architecture()
        activations = activations_for(device, weights)
    check_mode(activations, scale_rule)
    return activations


def check_formats(value: TensorValue, what: str, *names: str, of_experts: bool = False) -> None:
    """Raises unless the device of `value` has kernels for a format, or for a pair."""
    if names[0] == WIDE_INTEGERS:
        check_integers("cpu" if value.device == CPU_REF else _gpu_architecture(), names[-1])
    if is_on_cdna4(value):
        plans = gpu_plans()
        pairs = plans.expert_pairs_on_gfx950() if of_experts else plans.pairs_on_gfx950()
        known = pairs
        if len(names) == 1:
            known = {(name,) for name in quantized_by(pairs)}
        if names not in known:
            expected = " or ".join(" x ".join(map(repr, pair)) for pair in sorted(known))
            raise ValueError(
                f"{what}: got {' x '.join(map(repr, names))} on {value.device}, expected "
                f"{expected}: there are no other kernels for {CDNA4}"
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


def check_codes(value: TensorValue) -> None:
    """Raises unless `value` holds codes."""
    _check_stored(value, "codes", DType.uint8)


def check_scales(value: TensorValue, fmt: Format) -> None:
    """Raises unless `value` holds scales of a format."""
    _check_stored(value, "scales", scale_dtype(fmt))


def scale_dtype(fmt: Format) -> DType:
    """Returns what a graph holds scales as."""
    return DType.float32 if fmt.has_float_scales else DType.uint8


def _check_stored(value: TensorValue, name: str, dtype: DType) -> None:
    check_value(value, name)
    if value.dtype == dtype:
        return
    hint = "declare the graph's input so"
    if dtype == DType.uint8:
        hint = (
            f"declare the graph's input as uint8 and pass {name}.view(torch.uint8): MAX has no MX "
            "dtypes on the CPU"
        )
    raise TypeError(f"{name}: got dtype {value.dtype.name}, expected {dtype.name}; {hint}")


def plain_scales(name: str, lead: Iterable[Dim], k: int, fmt: Format) -> list[Dim]:
    """Returns the shape of the plain scales of [*lead, k]; rows that share one are known."""
    lead = list(lead)
    if fmt.block_rows > 1:
        if not lead or not isinstance(lead[-1], StaticDim):
            raise ValueError(
                f"{name}: got shape {show([*lead, k])}, expected [..., N, K] with N known for "
                f"{fmt.name}, whose blocks have {fmt.block_rows} rows"
            )
        lead[-1] = int(lead[-1])
    return [Dim(dim) for dim in fmt.scales_of([*lead, k])]


def check_one_matrix(name: str, shape: Sequence[Dim], fmt: Format) -> None:
    """Raises unless blocks of several rows lie in one matrix, as ops see it."""
    if fmt.block_rows > 1 and len(shape) != 2:
        raise ValueError(
            f"{name}: got shape {show(shape)}, expected one matrix [N, K] for {fmt.name}, whose "
            f"blocks have {fmt.block_rows} rows"
        )


def check_k(name: str, k: int, fmt: Format, layout: Layout) -> None:
    """Raises unless rows of `k` elements are made of blocks, and fill the tiles of a layout."""
    block = layout.k_multiple(fmt)
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


def float_dtype(dtype: FloatType | DType) -> DType:
    """The type of floats that a caller names."""
    code = float_code(dtype.name if isinstance(dtype, DType) else dtype, "dtype")
    return DType[list(facts().dtypes)[code]]
