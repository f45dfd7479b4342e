"""Inputs that several tests share: whole domains, awkward tensors, random operands.

Arrays here are NumPy float64 or bytes, as the oracle wants them; `torch_of`,
`mx_tensor`, `values_of` and `bytes_of` are the only crossings to and from
torch, whose tensors lie on torch's default device.
"""

import ml_dtypes
import numpy as np
import pytest
import torch

import mx_kernels as mx
import oracle
from mx_kernels import _native

TABLES = _native.load().tables()
FORMATS = [row["name"] for row in TABLES["formats"]]
LAYOUTS = {row["name"]: row for row in TABLES["layouts"]}
ROUNDINGS = TABLES["roundings"]
DTYPES = TABLES["dtypes"]
BLOCK = oracle.BLOCK
NUMPY_DTYPES = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
}


def torch_of(values, dtype: str):
    """Returns a torch tensor of float64 values that `dtype` holds."""
    return torch.tensor(np.asarray(values)).to(getattr(torch, dtype))


def values_of(array):
    """Returns the float64 values of a torch tensor or NumPy array of any float type."""
    if isinstance(array, torch.Tensor):
        return array.detach().double().cpu().numpy()
    return np.asarray(array).astype(np.float64)


def bytes_of(array):
    """Returns the uint8 NumPy array behind codes or scales."""
    return array.cpu().numpy() if isinstance(array, torch.Tensor) else np.asarray(array)


def every_value(dtype: str):
    """Returns the values of all 65,536 patterns of a 16-bit float type."""
    patterns = np.arange(1 << 16, dtype=np.uint16)
    if dtype == "bfloat16":
        return oracle.decode_bfloat16(patterns)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return patterns.view(np.float16).astype(np.float64)


def float32_corners(format: str = "mxfp4"):
    """Returns, at every exponent, the mantissas where a scale rule turns, with both neighbours.

    1.25, 1.5 and 1.75 are there for the elements that tie; for every other
    element `turns_under_every_scale` has all.
    """
    element = oracle.FORMATS[format].element
    tops = [oracle.octave_top(rounding, element)[0] for rounding in oracle.ROUNDINGS]
    turns = np.unique([*(2 * np.frexp(tops)[0]), 1.25, 1.5, 1.75])
    exponents = np.arange(-149, 128)
    bits = np.ldexp(turns[:, None], exponents).astype(np.float32).view(np.uint32).astype(np.int64)
    bits = np.clip(bits.ravel()[:, None] + [-1, 0, 1], 0, 0x7F7FFFFF)
    magnitudes = np.unique(bits).astype(np.uint32).view(np.float32).astype(np.float64)
    return np.concatenate([magnitudes, -magnitudes])


def turns_under_every_scale(format: str, dtype: str, rounding: str):
    """Returns blocks that hold, under each scale that `dtype` can reach, every turn of the element.

    The turns are the middles between neighbouring elements, with the next
    numbers of `dtype` on both sides, of both signs; the largest element of the
    rule's octave fixes each block's scale. Row `i` has the scale byte of entry
    `i` of the second array.
    """
    element, kind = oracle.FORMATS[format].element, oracle.FLOATS[dtype]
    top, _ = oracle.octave_top(rounding, element)
    magnitudes = element.magnitudes[element.magnitudes <= top]
    middles = (magnitudes[1:] + magnitudes[:-1]) / 2
    largest = magnitudes[-1]
    scales = np.arange(255)
    powers = oracle.decode_e8m0(scales)
    # All turns are numbers of the type, if perhaps subnormal, and none is beyond it.
    smallest = 2.0 ** (kind.min_exponent - kind.precision + 1)
    reached = (middles[0] * powers >= smallest) & (largest * powers <= kind.largest)
    scales, powers = scales[reached], powers[reached, None]
    exact = middles * powers
    spacing = np.maximum(np.spacing(exact) * 2.0 ** (53 - kind.precision), smallest)
    above, below = exact + spacing, exact - spacing
    around = np.concatenate([exact, above, below], 1)
    around = np.concatenate([around, -around], 1)
    assert np.array_equal(oracle.round_to(around[:, :-1], dtype), around[:, :-1])
    blocks = -(-around.shape[1] // (BLOCK - 1))
    around = np.pad(around, ((0, 0), (0, blocks * (BLOCK - 1) - around.shape[1])))
    rows = np.empty((len(scales), blocks, BLOCK))
    rows[..., 0], rows[..., 1:] = largest * powers, around.reshape(len(scales), blocks, -1)
    return rows.reshape(len(scales), -1), scales.astype(np.uint8)


def blocks_under(amax, dtype: str):
    """Returns one block per `amax`: itself last, the others spread over [-amax, amax]."""
    finite = np.where(np.isfinite(amax), amax, 1.0)
    spread = oracle.round_to(finite[:, None] * np.linspace(-1, 1, BLOCK), dtype)
    spread[:, -1] = amax
    return spread


def blocks_of(elements, amax: float):
    """Returns `elements` no larger than `amax` in blocks that all contain `amax`."""
    elements = elements[abs(elements) <= amax]
    elements = np.resize(elements, (-(-len(elements) // (BLOCK - 1)), BLOCK - 1))
    return np.concatenate([np.full((len(elements), 1), amax), elements], axis=1)


def finite_codes(format: str):
    """Returns the codes of a format that are numbers, INT8's -2 included."""
    return np.flatnonzero(np.isfinite(oracle.FORMATS[format].element.values)).astype(np.uint8)


def pack(codes, format: str):
    """Returns codes `[..., K]` in the bytes of a format."""
    return oracle.pack(codes, oracle.FORMATS[format].element.bits)


def random_operand(
    rng, rows: int, k: int, low_scale: int = 117, high_scale: int = 137, *, format="mxfp4"
):
    """Returns plain codes and scales: every finite code alike, scales from a range."""
    if format == "mxfp4":
        codes = rng.integers(0, 256, (rows, k // 2), np.uint8)
    else:
        codes = pack(rng.choice(finite_codes(format), (rows, k)), format)
    scales = rng.integers(low_scale, high_scale + 1, (rows, k // BLOCK)).astype(np.uint8)
    return codes, scales


def mx_tensor(codes, scales, layout: str = "plain", format: str = "mxfp4"):
    """Returns the MXTensor of plain NumPy codes and scales, in `layout`."""
    q = mx.MXTensor(torch.tensor(codes), torch.tensor(scales), format=format)
    return q if layout == "plain" else mx.preshuffle(q, device=LAYOUTS[layout]["device"])


PAIRS = [(left, right) for left in FORMATS for right in FORMATS]
every_pair = pytest.mark.parametrize("left, right", PAIRS, ids="-".join)
every_format = pytest.mark.parametrize("format", FORMATS)
every_layout = pytest.mark.parametrize("layout", LAYOUTS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)
on_every_device = pytest.mark.usefixtures("device")


def assert_products_agree(got, expected):
    """Compares products of the same numbers in two layouts: the CPU has one kernel for all."""
    exact = {"rtol": 0, "atol": 0} if got.device.type == "cpu" else {}
    torch.testing.assert_close(got, expected, **exact)
