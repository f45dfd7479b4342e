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
GATES = {
    "swiglu_oai": {"hidden_act": "swiglu_oai"},
    "silu": {"hidden_act": "silu"},
    "silu with a limit": {"hidden_act": "silu", "limit": 1.5},
    "silu in turns": {"hidden_act": "silu", "interleaved": True, "limit": 0.75, "alpha": 1.702},
    "swiglu_oai in halves": {"hidden_act": "swiglu_oai", "interleaved": False},
    "swiglu_step": {"hidden_act": "swiglu_step", "limit": 0.5},
    "gelu_tanh": {"hidden_act": "gelu_tanh"},
    "situ": {"hidden_act": "situ"},
    "situ of plain ups": {"hidden_act": "situ", "beta": 1.5, "linear_beta": float("inf")},
    "relu2": {"hidden_act": "relu2"},
}
"""What becomes of gates and ups: each activation, either order of rows, and limits that are met."""
USUAL_GATES = ["swiglu_oai", "silu"]
OTHER_GATES = [name for name in GATES if name not in USUAL_GATES]
"""Those that fewer tests have: a gate is elementwise, wherever it stands."""


def sums_of(gate: str, inner: int) -> int:
    """Returns how many sums make so many hidden numbers."""
    return inner if gate == "relu2" else 2 * inner


LAYOUTS = {
    "plain": {"device": ""},
    "preshuffled_cpu": {"device": "cpu"},
    "preshuffled_cdna4": {"device": "gfx950"},
    "preshuffled_cuda": {"device": "cuda"},
}
"""What each layout is for."""
FORMATS = [name for name, row in oracle.FORMATS.items() if row.scale == "e8m0"]
"""The MX formats; those with float scales have `test_fp8`."""
FP8_FORMATS = [name for name, row in oracle.FORMATS.items() if row.scale == "float32"]
NVFP4_FORMATS = [name for name, row in oracle.FORMATS.items() if row.scale == "e4m3"]
FLOAT_FORMATS = [*FP8_FORMATS, *NVFP4_FORMATS]
"""What has floats among its scales."""
E4M3_FORMATS = [name for name in FP8_FORMATS if oracle.FORMATS[name].element.name == "e4m3"]
"""Of those what Hopper multiplies as codes."""
ROW_FORMATS = [name for name in FP8_FORMATS if oracle.FORMATS[name].block_k == oracle.WHOLE_ROW]
"""Of those what has one scale a row."""
ACTIVATIONS = [*(name for name, row in oracle.FORMATS.items() if row.block_rows == 1)]
ACTIVATIONS += ["mxint16", "bf16"]
"""What `linear` takes for activations."""
INTEGER_FORMATS = ["mxfp4", "mxfp6", "mxint8", "nvfp4"]
"""Whose codes are small integers: what 16-bit integers are multiplied by."""
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


MX_PAIRS_OF_CODES = [("mxfp8", "mxfp8"), ("mxfp8", "mxfp4"), ("mxfp6", "mxfp4")]
"""What Hopper multiplies as codes of eight bits, of MX formats."""


def cut_off(got, pair, layout: str, a, b):
    """Returns what the tensor cores that computed `got` may lose of `a @ b.T`: `more_error`.

    Hopper multiplies codes of eight bits as they are where the weights are preshuffled for it, or
    plain under float scales, and `got` has two bytes a number. Blocks of MX get a common scale,
    by which those of MXFP6 lose nothing.
    """
    is_e4m3, is_mx = set(pair) <= set(E4M3_FORMATS), tuple(pair) in MX_PAIRS_OF_CODES
    is_fast = layout == "preshuffled_cuda" or (layout == "plain" and is_e4m3)
    if not (is_e4m3 or is_mx) or not is_fast or not got.is_cuda or got.dtype == torch.float32:
        return 0.0
    return oracle.fp8_cutoff_bound(a, b) + (
        oracle.common_scale_bound(a, b) if is_mx and pair[0] == "mxfp8" else 0.0
    )


def numbers_of(q):
    """Returns the float64 numbers that a plain MXTensor stands for, as the oracle decodes them."""
    return oracle.dequantize(bytes_of(q.codes), bytes_of(q.scales), q.format)


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
    tops = [oracle.octave_top(scale_rule, element)[0] for scale_rule in oracle.ROUNDINGS]
    turns = np.unique([*(2 * np.frexp(tops)[0]), 1.25, 1.5, 1.75])
    exponents = np.arange(-149, 128)
    bits = np.ldexp(turns[:, None], exponents).astype(np.float32).view(np.uint32).astype(np.int64)
    bits = np.clip(bits.ravel()[:, None] + [-1, 0, 1], 0, 0x7F7FFFFF)
    magnitudes = np.unique(bits).astype(np.uint32).view(np.float32).astype(np.float64)
    return np.concatenate([magnitudes, -magnitudes])


def turns_under_every_scale(format: str, dtype: str, scale_rule: str):
    """Returns blocks that hold, under each scale that `dtype` can reach, every turn of the element.

    The turns are the middles between neighbouring elements, with the next
    numbers of `dtype` on both sides, of both signs; the largest element of the
    rule's octave fixes each block's scale. Row `i` has the scale byte of entry
    `i` of the second array.
    """
    element, kind = oracle.FORMATS[format].element, oracle.FLOATS[dtype]
    top, _ = oracle.octave_top(scale_rule, element)
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


def code_of(value, format: str):
    """Returns the code of a value that a format holds."""
    return oracle.FORMATS[format].element.encode(value)


def identity(k: int, format: str = "mxfp4"):
    """Returns plain operands of the [k, k] identity."""
    codes = pack(np.eye(k, dtype=np.uint8) * code_of(1.0, format), format)
    return codes, np.full((k, k // BLOCK), oracle.ONE_SCALE, np.uint8)


def representable(rng, rows: int, k: int, format: str):
    """Returns a plain operand of float32 values, under scales from all that allow it."""
    highest = 253 - oracle.FORMATS[format].element.emax
    return random_operand(rng, rows, k, 1, highest, format=format)


def every_code_a_row(format: str):
    """Returns a plain operand of one block a row, row `i` holding code `i` at every place."""
    element = oracle.FORMATS[format].element
    codes = np.arange(1 << element.bits, dtype=np.uint8)[:, None]
    return pack(codes.repeat(BLOCK, 1), format), np.full(codes.shape, oracle.ONE_SCALE, np.uint8)


def quarters(rng, rows: int, k: int, format: str):
    """Returns a plain operand of small multiples of 1/4 under scales of one."""
    codes = finite_codes(format)
    values = oracle.FORMATS[format].element.decode(codes)
    codes = codes[(values * 4 == np.rint(values * 4)) & (abs(values) <= 6)]
    scales = np.full((rows, k // BLOCK), oracle.ONE_SCALE, np.uint8)
    return pack(rng.choice(codes, (rows, k)), format), scales


def mx_tensor(codes, scales, layout: str = "plain", format: str = "mxfp4"):
    """Returns the MXTensor of plain NumPy codes and scales, in `layout`."""
    return in_layout(mx.MXTensor(torch.tensor(codes), torch.tensor(scales), format=format), layout)


def quantized_normal(rng, shape, layout: str = "plain", format: str = "fp8"):
    """Returns quantized normal numbers, for formats whose scales are no bytes to draw."""
    floats = torch.from_numpy(rng.standard_normal(shape).astype(np.float32))
    return in_layout(mx.quantize(floats, format=format), layout)


def floats_of(scales):
    """Views the floats among plain scales: all, or those behind the bytes of a row."""
    return scales if scales.dtype == np.float32 else scales[..., -4:].view(np.float32)


def layout_of_rows(k: int, layout: str, format: str):
    """Returns the layout that rows of `k` get where `layout` is asked for: plain, if they do not
    fill its tiles."""
    row_bytes = oracle.FORMATS[format].packed_bytes(k)
    return layout if row_bytes % oracle.LAYOUTS[layout].byte_multiple == 0 else "plain"


def in_layout(q, layout: str):
    """Returns a plain MXTensor in a layout, or as it is, see `layout_of_rows`."""
    return q if layout == "plain" else mx.preshuffle(q, device=LAYOUTS[layout]["device"])


def same_bits(got, expected):
    """Compares two torch tensors, minus zero told from zero."""
    oracle.assert_bitwise_equal(values_of(got), values_of(expected), zeros_are_the_claim=True)


def shifted(array, shift: int):
    """Returns a copy of a NumPy array that lies `shift` bytes from an aligned address."""
    room = np.zeros(array.nbytes + shift, np.uint8)
    room[shift:] = array.view(np.uint8).ravel()
    return np.frombuffer(room, array.dtype, offset=shift).reshape(array.shape)


# Ways to get K = 64 out of a [6, 128] tensor.
VIEWS = {
    "a row stride": lambda x: x[:, 32:96],
    "every other row": lambda x: x[::2, :64],
    "transposed": lambda x: x[:, :64].t().contiguous().t(),
    "every other element": lambda x: x[:, ::2],
    "one row for all": lambda x: x[:1, :64].expand(6, -1),
    "an odd storage offset": lambda x: x.reshape(-1)[3 : 3 + 4 * 64].view(4, 64),
}
VIEWS_OF_ANY_K = {
    "a row stride": lambda x: x[:, 32:96],
    "every other row": lambda x: x[::2],
    "reversed by index": lambda x: x.flip(0)[1:],
    "transposed": lambda x: x.t().contiguous().t(),
    "every other element": lambda x: x[:, ::2],
    "one row for all": lambda x: x[:1].expand(6, -1),
    "a storage offset": lambda x: x.reshape(-1)[3 : 3 + 4 * 64].view(4, 64),
    "permuted leading dimensions": lambda x: x.view(2, 3, 128).transpose(0, 1),
}
"""Ways to get rows out of a [6, 128] tensor."""
PAIRS = [(left, right) for left in FORMATS for right in FORMATS]
every_pair = pytest.mark.parametrize("pair", PAIRS, ids="-".join)
every_format = pytest.mark.parametrize("format", FORMATS)
every_layout = pytest.mark.parametrize("layout", LAYOUTS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)
on_every_device = pytest.mark.usefixtures("device")


def assert_products_agree(got, expected):
    """Compares products of the same numbers in two layouts: the CPU has one kernel for all."""
    exact = {"rtol": 0, "atol": 0} if got.device.type == "cpu" else {}
    torch.testing.assert_close(got, expected, **exact)


SPANS = (0, 1, 4, 8, 13, 14, 15, 30)
"""How far the scale of a block of MXFP8 may be below the largest one: some of them too far."""
MOST = 14
"""How far it may be for tensor cores, see `hopper/prepare/codes.mojo`."""


def codes_far_below(device="cpu", step=1):
    """Returns rows of MXFP8 with every code, far below the largest scale, and what comes of it.

    Of codes it takes every so many. A row has 448 at 0, a code at 32, and one at 128, of another
    stage, under a scale that is far below. Times `ones_there`, a row is what is said to come of it.
    """
    every = torch.tensor(
        [code for code in range(0, 256, step) if code & 0x7F != 0x7F], device=device
    )
    codes, spans = (t.flatten() for t in torch.meshgrid(every, torch.tensor(SPANS, device=device),
                                                        indexing="ij"))  # fmt: skip
    q = mx.quantize(torch.zeros(len(codes), 192, device=device), format="mxfp8")
    q.codes[:, 0], q.codes[:, 32], q.codes[:, 128] = 0x7E, codes.byte(), codes.byte()
    q.scales[:, 0], q.scales[:, 1], q.scales[:, 4] = 130, (130 - spans).byte(), 130 - 25
    values = codes.byte().view(torch.float8_e4m3fn).float()
    under = values * 2.0**-spans
    under = torch.where(spans <= MOST, under.to(torch.float8_e4m3fn).float(), under)
    return q, torch.stack([torch.full_like(values, 448), under, values * 2.0**-25], 1) * 8


def ones_there(format, device="cpu"):
    """Returns rows of a format with a one at 0, at 32 and at 128."""
    x = torch.zeros(3, 192, device=device)
    x[0, 0] = x[1, 32] = x[2, 128] = 1
    return mx.quantize(x, format=format)


def far_blocks(device="cpu"):
    """Returns MXFP8 tokens and weights of which small blocks count, beside much larger ones.

    Large blocks of tokens meet zeros, and large ones of a weight row too; 2 ** 12 is between them.
    """
    generator = torch.Generator().manual_seed(5)
    x, w = (torch.randn(n, 288, generator=generator) for n in (70, 130))
    x[:, 32:64] *= 2.0**12
    w[:, 200:224] *= 2.0**12
    w[:, 32:64], x[:, 192:224] = 0, 0
    return (mx.quantize(side.to(device), format="mxfp8") for side in (x, w))
