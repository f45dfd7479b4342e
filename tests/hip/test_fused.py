"""Norms and gates to codes on gfx950 through HIP: kernels of its own, or the portable one.

As in `test_ops`, a stand-in for the runtime, the simulator for the GPU: nothing here ran on one.
"""

from itertools import product

import numpy as np
import pytest
import torch

import mx_kernels as mx
import oracle
from cases import GATES, bytes_of, sums_of
from mx_kernels._core.hip import Rocm
from mx_kernels._core.native import gpu_plans

pytestmark = pytest.mark.deep

PORTABLE = "simt/prologue.mojo"
NORM = {"op": mx.rms_norm_quantize, "device": "gfx950"}
GATE = {"op": mx.gate_quantize, "device": "gfx950"}
NAME_LETTERS = 29
"""Those of its file that a kernel's name has at least."""
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
DTYPES = {"bfloat16": BF16, "float16": F16, "float32": F32}
OWN = {name for name in oracle.FORMATS if name not in {"nvfp4", "mxint8", "fp8_block_2d"}}
"""Formats that gfx950 has kernels for."""


def floats(rng, shape, dtype=BF16):
    sizes = np.exp2(rng.integers(-4, 5, (*shape[:-1], shape[-1] // 32))).repeat(32, -1)
    return torch.from_numpy(rng.standard_normal(shape) * sizes).to(dtype)


def values_of(t):
    return t.double().numpy()


def assert_quantized(q, values, fmt, scale_rule="even"):
    """Compares with what the oracle makes of float64 values."""
    expected = oracle.quantize(values, scale_rule, fmt)
    for got, part in zip((q.codes, q.scales), expected, strict=True):
        oracle.assert_bitwise_equal(bytes_of(got), part)


@pytest.mark.parametrize("fmt", oracle.FORMATS)
def test_a_norm_of_sums_gives_the_codes_of_its_definition_and_those(gpu, rng, fmt):
    x, residual = floats(rng, (6, 1056))[::2], floats(rng, (3, 1056))
    (weight,) = floats(rng, (1, 1056))
    q, stream = mx.rms_norm_quantize(x, weight, residual=residual, format=fmt)
    assert torch.equal(stream, x + residual)
    normed = oracle.norm(values_of(stream), values_of(weight), dtype="bfloat16")
    assert_quantized(q, normed, fmt)


@pytest.mark.parametrize("rounds", ["each", "result", "none"])
def test_a_layer_norm_gives_the_codes_of_its_definition(gpu, rng, rounds):
    x, (weight, bias) = floats(rng, (2, 544), F16), floats(rng, (2, 544), F32)
    options = {"rounds": rounds, "eps": 1e-5}
    q = mx.layer_norm_quantize(x, weight, bias, scale_rule="rceil", **options)
    arrays = (values_of(t) for t in (x, weight, bias))
    normed = oracle.norm(*arrays, dtype="float16", is_centered=True, **options)
    assert_quantized(q, normed, "mxfp4", "rceil")


@pytest.mark.parametrize("fmt", ["mxfp4", "mxfp6", "mxfp8", "fp8"])
@pytest.mark.parametrize(
    "dtype, of_weight, k", [(BF16, BF16, 7200), (F16, F32, 2080), (F32, F32, 4128)]
)
def test_a_row_of_several_waves_gives_the_codes_of_its_definition(
    gpu, rng, dtype, of_weight, k, fmt
):
    x, (weight,) = floats(rng, (2, k), dtype), floats(rng, (1, k), of_weight)
    q = mx.rms_norm_quantize(x, weight, format=fmt)
    named = str(dtype).removeprefix("torch.")
    assert_quantized(q, oracle.norm(values_of(x), values_of(weight), dtype=named), fmt)


def test_a_workgroup_has_row_after_row(gpu, rng):
    x, (weight,) = floats(rng, (4100, 64)), floats(rng, (1, 64))
    q = mx.rms_norm_quantize(x, weight, format="mxfp4")
    assert_quantized(q, oracle.norm(values_of(x), values_of(weight), dtype="bfloat16"), "mxfp4")


@pytest.mark.parametrize("fmt", oracle.FORMATS)
def test_rotated_rows_give_the_codes_of_their_definition(gpu, rng, fmt):
    for block, (name, dtype) in zip((32, 64, 128), DTYPES.items(), strict=True):
        x = floats(rng, (6, 1152), dtype)[::2]
        x[0, 5], x[1] = torch.nan if fmt in {"mxfp4", "mxfp8"} else 0.0, 0.0
        q = mx.quantize(x, format=fmt, hadamard=block)
        assert_quantized(q, oracle.rotated(values_of(x), block, name), fmt)
        kernel = "cdna4_prepare_ga" if fmt in OWN else "simt_prologue"
        (launch,) = gpu.launches
        assert launch.name.startswith(f"mojo_kernels_{kernel}")
        gpu.launches.clear()


@pytest.fixture
def gated_on_the_cpu(rng):
    """Gates, ups and their codes, made before tensors are taken for a device's.

    Some hidden numbers are subnormal, and some blocks have none that is a number.
    """
    made = {}
    for name, options in GATES.items():
        sums = floats(rng, (3, sums_of(name, 544)))
        sums[1] *= 2.0**-62
        sums[2, 5], sums[2, 300] = torch.nan, torch.inf
        made[name] = sums, mx.gate_quantize(sums, **options)
    return made


@pytest.mark.parametrize("gate", GATES)
def test_gates_to_codes_have_the_bits_of_a_cpu(gated_on_the_cpu, gpu, gate):
    sums, expected = gated_on_the_cpu[gate]
    q = mx.gate_quantize(sums, **GATES[gate])
    oracle.assert_bitwise_equal(q.codes.numpy(), expected.codes.numpy())
    oracle.assert_bitwise_equal(q.scales.numpy(), expected.scales.numpy())
    assert len(gpu.launches) == 1


@pytest.mark.parametrize("fmt", oracle.FORMATS)
def test_what_is_said_of_norms_and_gates_is_what_is_launched(gpu, monkeypatch, rng, fmt):
    """Every format, element type, gate and rounding, long rows and rows at odd addresses."""
    gpu.execute, launch, said = False, Rocm.launch, []

    def asked(self, operation, arguments, out):
        said.append(getattr(gpu_plans(), f"explain_{operation[:4]}_gfx950")(arguments))
        launch(self, operation, arguments, out)

    def launched(operation, *arrays, **options):
        operation(*arrays, format=fmt, **options)
        (file,), name = {*said}, gpu.launches[-1].name
        said.clear()
        words = f"mojo_kernels/{file}".removesuffix(".mojo").replace("/", "_")
        assert name.startswith(words[:NAME_LETTERS]), (file, name)
        return file

    monkeypatch.setattr(Rocm, "launch", asked)
    files = set()
    for dtype, rounds in product((BF16, F16, F32), ("each", "result", "none")):
        x = floats(rng, (2, 576), dtype)
        file = launched(mx.rms_norm_quantize, x[:, :544], rounds=rounds)
        assert launched(mx.layer_norm_quantize, x[:, :544], rounds=rounds) == file
        assert launched(mx.rms_norm_quantize, x[:, 1:545], rounds=rounds) == PORTABLE
        if dtype == BF16 and rounds == "each":
            assert mx.explain(2, 544, 544, format=fmt, **NORM).kernel == file
        files.add(file)
    for k in (32768, 32800):
        file = launched(mx.rms_norm_quantize, floats(rng, (1, k)))
        assert mx.explain(1, k, k, format=fmt, **NORM).kernel == file
        files.add(file)
    for dtype, (name, options) in product((BF16, F16, F32), GATES.items()):
        sums = floats(rng, (2, sums_of(name, 544)), dtype)
        file = launched(mx.gate_quantize, sums, **options)
        if dtype == BF16:
            asked_of = {
                key: options[key] for key in ("hidden_act", "interleaved") if key in options
            }
            found = mx.explain(2, 544, sums.shape[1], format=fmt, **GATE, **asked_of)
            assert found.kernel == file
        files.add(file)
    assert PORTABLE in files and len(files) in {1, 3}
