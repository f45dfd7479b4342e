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

# The extension has tables of its own, which a test compares with these: what is not compiled yet
# can be collected.
LAYOUTS = {
    "plain": {"device": ""},
    "preshuffled_cpu": {"device": "cpu"},
    "preshuffled_cdna4": {"device": "gfx950"},
    "preshuffled_cuda": {"device": "cuda"},
}
"""What each layout is for."""
ROUNDINGS = list(oracle.ROUNDINGS)
DTYPES = ["bfloat16", "float16", "float32"]
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


def float32_corners():
    """Returns, at every float32 exponent, the mantissas where a scale or element rule turns.

    1.25, 1.5 and 1.75 are where elements tie, `rceil` and `even` turn; 1 is
    where `floor` and `ceil` do. Each comes with its two neighbours.
    """
    turns = np.array([0, 0x200000, 0x400000, 0x600000, 0x800000])
    mantissas = (turns[:, None] + [-1, 0, 1]).ravel()
    exponents = np.arange(255)[:, None] << 23
    bits = np.clip(exponents + mantissas, 0, 0x7F7FFFFF).astype(np.uint32).ravel()
    magnitudes = np.unique(bits).view(np.float32).astype(np.float64)
    return np.concatenate([magnitudes, -magnitudes])


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


def random_operand(rng, rows: int, k: int, low_scale: int = 117, high_scale: int = 137):
    """Returns plain codes and scales: every code alike, scales from a range."""
    codes = rng.integers(0, 256, (rows, k // 2), np.uint8)
    scales = rng.integers(low_scale, high_scale + 1, (rows, k // BLOCK)).astype(np.uint8)
    return codes, scales


def mx_tensor(codes, scales, layout: str = "plain"):
    """Returns the MXTensor of plain NumPy codes and scales, in `layout`."""
    q = mx.MXTensor(torch.tensor(codes), torch.tensor(scales))
    return q if layout == "plain" else mx.preshuffle(q, device=LAYOUTS[layout]["device"])


every_layout = pytest.mark.parametrize("layout", LAYOUTS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)
on_every_device = pytest.mark.usefixtures("device")


def assert_products_agree(got, expected):
    """Compares products of the same numbers in two layouts: the CPU has one kernel for all."""
    exact = {"rtol": 0, "atol": 0} if got.device.type == "cpu" else {}
    torch.testing.assert_close(got, expected, **exact)
