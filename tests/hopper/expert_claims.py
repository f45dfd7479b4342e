"""What tests of experts on Hopper share: weights, and the bounds of a grouped product, expert by
expert, and of a layer."""

import numpy as np
import torch

import mx_kernels as mx
import oracle
from cases import GATES, numbers_of, same_bits, sums_of, values_of

NEAR, MOSTLY_NEAR = 0.1, 2.0**-7
"""How far a row of a layer may be from the exact one, of its norm, and how far half of them are."""
# Tokens, width, inner, and an extreme block of weights: tiles of eight to 24 rows, where shared
# memory has no room for all K of the second product or of the first one.
LONG_LAYERS = [
    (2, 64, 13824, 1), (5, 96, 5152, 0), (5, 5152, 96, 160), (15, 4096, 64, 127),
]  # fmt: skip
DTYPES = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}


def experts(count, n, k, scale=0.05, format="mxfp4"):
    """Returns plain weights, and the same as the kernels want them."""
    plain = mx.quantize(torch.randn(count, n, k) * scale, format=format)
    return plain, plain.preshuffle(device="cuda")


def left_numbers(x, mode):
    """Returns what activations are multiplied as."""
    if mode == "bf16":
        return oracle.round_to(values_of(x), "bfloat16")
    return numbers_of(mx.quantize(x, format=mode))


def bytes_error(left, w, mode):
    """Returns what FP8 tensor cores lose beside float32's roundings, of MXFP4 or MXFP8."""
    # Two stages are added before float32 has the sum.
    lost = oracle.fp8_cutoff_bound(left, w, stage=256)
    return lost + (oracle.common_scale_bound(left, w) if mode == "mxfp8" else 0)


def assert_is_product(got, x, plain, sizes, mode, bias=None, *, of_bytes=False):
    """Claims the bound for every expert, that of FP8 tensor cores or not, and zeros behind."""
    left, first = left_numbers(x, mode), 0
    for expert, size in enumerate(sizes):
        rows = slice(first, first + size)
        if size:
            added = None if bias is None else values_of(bias[expert])
            w = numbers_of(plain[expert])
            more_error = bytes_error(left[rows], w, mode) if of_bytes else 0
            oracle.assert_matmul(
                values_of(got[rows]), left[rows], w, DTYPES[got.dtype], added,
                scale_roundings=int(plain.format == "nvfp4") + int(mode == "nvfp4"),
                more_error=more_error,
            )  # fmt: skip
        first += size
    assert (got[first:] == 0).all()


def sizes_cut(sizes, rows):
    """Returns how many of so many rows each expert has, if sizes may be any numbers."""
    cut = []
    for size in sizes:
        cut.append(min(max(size, 0), rows - sum(cut)))
    return cut


def assert_stays_in_its_row(product, x, first, second):
    """Claims that NaN in one row and infinity in another one change no other row of a product."""
    expected = product(x)
    x[first, 40], x[second, 2] = torch.nan, torch.inf
    got = product(x)
    assert not got[[first, second]].isfinite().all(1).any()
    others = [row for row in range(len(x)) if row not in (first, second)]
    same_bits(got[others], expected[others])


def layer(count, width, inner, gate="silu"):
    """Returns gate-up and down weights, plain and preshuffled, with hidden numbers about one."""
    pairs = (
        experts(count, sums_of(gate, inner), width, width**-0.5),
        experts(count, width, inner, inner**-0.5),
    )
    return zip(*pairs, strict=True)


def assert_is_layer(got, x, gate_up, down, ids, counts, biases, gate, mode):
    """Claims that a layer is near one of float64 sums, whose hidden numbers have the type of `x`.

    A hidden number may be rounded to a neighbour, and a block of them may have another scale then.
    So the bound is for rows: of a row's norm, as much as rounding hidden numbers differently makes.
    """
    tokens, slots = ids.shape
    expected = np.zeros((tokens, down.shape[1]))
    left, weights = left_numbers(x, mode), values_of(counts)
    added = [None if bias is None else values_of(bias) for bias in biases]
    for token in range(tokens):
        for slot in range(slots):
            expert = int(ids[token, slot])
            if expert < 0:
                continue
            sums = numbers_of(gate_up[expert]) @ left[token]
            sums = sums if added[0] is None else sums + added[0][expert]
            hidden = oracle.gated(sums[None].astype(np.float32), **GATES[gate])[0]
            hidden = torch.tensor(oracle.round_to(hidden, DTYPES[x.dtype])).to(x.dtype)
            row = numbers_of(down[expert]) @ left_numbers(hidden.to(x.device), mode)[0]
            row = row if added[1] is None else row + added[1][expert]
            expected[token] += weights[token, slot] * row
    norm = np.linalg.norm(expected, axis=1)
    difference = np.linalg.norm(values_of(got) - expected, axis=1)
    assert np.isfinite(difference).all()
    assert (difference <= NEAR * norm).all(), (difference / np.maximum(norm, 1e-30)).max()
    assert np.median(difference / np.maximum(norm, 1e-30)) <= MOSTLY_NEAR


def long_layer(shape):
    """Returns a layer with a long K, and weights that bfloat16 cannot hold beside tiny tokens.

    Plain weights and shuffled ones, tokens, ids, counts and biases.
    """
    tokens, width, inner, block = shape
    (gate_up, down), _ = layer(2, width, inner)
    gate_up.scales[1, 7, block] = 254
    x = torch.randn(tokens, width)
    x[0], x[-1, 32 * block : 32 * block + 32] = x[0] * 2.0**-126, 0
    ids, counts = torch.randint(-1, 2, (tokens, 2)), torch.rand(tokens, 2)
    ids[0], ids[1:] = torch.tensor([0, 1]), torch.where(ids[1:] == 1, 0, ids[1:])
    ids[-1] = torch.tensor([1, 0])
    biases = [torch.randn(2, n) for n in (2 * inner, width)]
    shuffled = [w.preshuffle(device="cuda") for w in (gate_up, down)]
    return (gate_up, down), shuffled, x.bfloat16(), ids, counts, biases
