"""A user's program with types, which the lint checks by `mypy --strict`, too: see `.ci/lint`.

`assert_type` is for mypy; what stands beside it says that this is what comes out. A wrong argument
has the error that mypy has to find: with --strict, one that it does not find is an error itself.
"""

import ast
import math
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typing_extensions import assert_type

import mx_kernels as mx
from mx_kernels import hints
from mx_kernels._core.answers import DEVICES
from mx_kernels._core.facts import facts
from mx_kernels._core.fused_ops import ROUNDS
from mx_kernels.conversion import Report
from mx_kernels.explain import ExpertsExplanation, Explanation
from mx_kernels.hints import ActivationsName, AnyArray, FormatName
from mx_kernels.ops import Requantized


def test_each_literal_has_the_names_of_its_table() -> None:
    tables = facts()
    rows = {name for name, fmt in tables.formats.items() if fmt.block_rows == 1}
    assert set(get_args(hints.RowFormatName)) == rows
    assert set(get_args(hints.FormatName)) == set(tables.formats)
    assert set(get_args(hints.ActivationsName)) == set(tables.activations)
    assert set(get_args(hints.ScaleRule)) == set(tables.roundings)
    assert get_args(hints.RoundsName) == ROUNDS
    assert set(get_args(hints.GateName)) == set(tables.gates)
    assert set(get_args(hints.LayoutName)) == set(tables.layouts)
    assert set(get_args(hints.FloatName)) == set(tables.dtypes)
    devices = {row.device for row in tables.layouts.values()} - {""}
    assert set(get_args(hints.DeviceName)) == devices == set(DEVICES)


def test_this_program_uses_every_public_name() -> None:
    used = {
        node.attr
        for node in ast.walk(ast.parse(Path(__file__).read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if node.value.id == "mx"
    }
    assert used >= set(mx.__all__)


X = torch.randn(4, 64)
ARRAY = X.numpy()
WEIGHT = torch.randn(32, 64)
BIAS = torch.randn(32)


def product(x: AnyArray, w: mx.MXTensor, activations: ActivationsName | None) -> AnyArray:
    """As a user hands arrays on."""
    return mx.linear(x, w, activations=activations)


def test_quantized_numbers_are_an_mxtensor_and_floats_a_tensor() -> None:
    for q in (mx.quantize(X), mx.quantize(ARRAY, format="mxfp8", scale_rule="rceil")):
        assert_type(q, mx.MXTensor)
        assert type(q) is mx.MXTensor
    q = mx.quantize(X, format="nvfp4", tensor_scale=mx.tensor_scale_of(X))
    assert_type(q.format, FormatName)
    assert mx.quantize(X, format=q.format).byte_layout == q.byte_layout == "plain"
    floats = mx.dequantize(q, dtype=np.float32)
    assert_type(floats, Tensor)
    assert_type(mx.dequantize(q, out=torch.zeros_like(X)), Tensor)
    assert_type(mx.dequantize(q, out=np.zeros_like(ARRAY)), np.ndarray)
    assert_type(q.dequantize("float16"), Tensor)
    assert type(floats) is Tensor and floats.dtype == torch.float32
    assert_type(mx.preshuffle(q, device="gfx950"), mx.MXTensor)
    assert_type(mx.unshuffle(q.preshuffle("cpu")), mx.MXTensor)
    again = mx.requantize(q, "mxfp6")
    assert_type(again, Requantized)
    assert_type(again.tensor, mx.MXTensor)
    assert_type(again.error, float)
    made = mx.MXTensor(q.codes, q.scales, format="nvfp4", layout="plain", dtype="float16")
    assert_type(made, mx.MXTensor)
    assert made.shape == q.shape


def test_products_of_tensors_are_tensors_and_of_arrays_arrays() -> None:
    w = mx.quantize(WEIGHT)
    y = mx.linear(X, w, bias=BIAS, activations="mxint8", out_dtype=torch.float32)
    assert_type(y, Tensor)
    assert type(y) is Tensor
    z = mx.linear(ARRAY, w, bias=BIAS.numpy(), scale_rule="floor", activations="mxint8")
    assert_type(z, np.ndarray)
    assert type(z) is np.ndarray
    assert_type(product(X, w, "bf16"), Tensor)
    assert_type(product(ARRAY, w, None), np.ndarray)
    assert type(product(ARRAY, w, None)) is np.ndarray
    assert_type(mx.matmul(mx.quantize(X), w, out_dtype=np.dtype("float32"), bias=BIAS), Tensor)


def test_experts_of_tensors_give_tensors_and_of_arrays_arrays() -> None:
    up, down = mx.quantize(torch.randn(2, 64, 64)), mx.quantize(torch.randn(2, 64, 32))
    sizes, ids, weights = torch.tensor([3, 1]).int(), torch.zeros(4, 1).int(), torch.ones(4, 1)
    y = mx.grouped_linear(X, up, sizes, activations="mxint8")
    assert_type(y, Tensor)
    z = mx.grouped_linear(ARRAY, up, sizes.numpy(), activations="mxint8")
    assert_type(z, np.ndarray)
    assert (type(y), type(z)) == (Tensor, np.ndarray)
    y = mx.moe(X, up, down, ids, weights, hidden_act="silu", limit=math.inf)
    assert_type(y, Tensor)
    z = mx.moe(ARRAY, up, down, ids.numpy(), weights.numpy(), interleaved=True)
    assert_type(z, np.ndarray)
    assert (type(y), type(z)) == (Tensor, np.ndarray)
    experts = mx.MXExperts(
        up.preshuffle(), down.preshuffle(), hidden_act="swiglu_oai", scale_rule="even"
    )
    assert_type(experts.intermediate_size, int)
    assert type(experts(X, ids, weights)) is Tensor


def test_what_stands_beside_a_product_gives_codes() -> None:
    q = mx.rms_norm_quantize(X, torch.ones(64), rounds="result", format="mxfp8")
    assert isinstance(q, mx.MXTensor)
    both = mx.layer_norm_quantize(X, torch.ones(64), torch.zeros(64), residual=X)
    assert isinstance(both, tuple)
    hidden = mx.gate_quantize(X, X, hidden_act="silu")
    assert_type(hidden, mx.MXTensor)
    assert hidden.shape == X.shape
    up, down = mx.quantize(torch.randn(128, 64)), mx.quantize(torch.randn(64, 64))
    assert_type(mx.mlp(X, up, down, hidden_act="silu"), Tensor)
    assert_type(mx.mlp(mx.quantize(X), up, down), Tensor)


def test_a_converted_model_is_of_its_type() -> None:
    model = mx.convert(nn.Sequential(nn.Linear(64, 64), nn.ReLU()), format="mxfp8")
    assert_type(model, nn.Sequential)
    assert type(model) is nn.Sequential
    assert_type(mx.conversion_report(model), Report)
    layer = mx.convert(nn.Linear(64, 64), activations=lambda name: "mxint8")
    assert_type(layer, nn.Linear)
    assert isinstance(layer, nn.Linear)
    made = mx.MXLinear.from_linear(nn.Linear(64, 64), format="fp8_block")
    assert_type(made, mx.MXLinear)
    assert_type(made.activations, ActivationsName)
    assert type(made) is type(layer) is mx.MXLinear


def test_checkpoints_are_tensors_by_name(tmp_path: Path) -> None:
    mx.save({"w": mx.quantize(WEIGHT), "bias": BIAS}, tmp_path / "w.safetensors")
    weights = mx.load(tmp_path / "w.safetensors", device="cpu", rest=None)
    assert_type(weights, dict[str, mx.MXTensor | Tensor])
    assert {name: type(t) for name, t in weights.items()} == {"w": mx.MXTensor, "bias": Tensor}


def test_an_explanation_is_of_the_product() -> None:
    one = mx.explain(4, 32, 64, activations="bf16")
    assert_type(one, Explanation)
    layer = mx.explain(4, 32, 64, device="gfx950", op=mx.moe, experts=8, slots=2)
    assert_type(layer, ExpertsExplanation)
    asked = mx.explain(mx.linear, (4, 64), mx.quantize(WEIGHT))
    assert_type(asked, Explanation | ExpertsExplanation)
    assert [type(found) for found in (one, asked, layer)] == [
        *[Explanation] * 2,
        ExpertsExplanation,
    ]


def test_the_sources_lie_in_a_folder() -> None:
    assert_type(mx.mojo_path(), Path)
    assert mx.mojo_path().is_dir()


def refused(name: str) -> "pytest.RaisesExc[TypeError | ValueError]":
    """Expects a message that begins with the argument."""
    return pytest.raises((TypeError, ValueError), match=rf"^{name}: got ")


def test_what_is_refused_when_it_runs_does_not_type_check() -> None:
    w, model = mx.quantize(WEIGHT), nn.Sequential(nn.Linear(64, 64))
    experts = mx.quantize(torch.randn(2, 64, 64)), mx.quantize(torch.randn(2, 64, 32))
    ids, weights = torch.zeros(4, 1).int(), torch.ones(4, 1)
    with refused("format"):
        mx.quantize(X, format="mxfp5")  # type: ignore[arg-type]
    with refused("format"):
        mx.requantize(w, "mxfp5")  # type: ignore[arg-type]
    with refused("format"):
        mx.convert(model, format="mxfp5")  # type: ignore[arg-type]
    with refused("scale_rule"):
        mx.quantize(X, scale_rule="nearest")  # type: ignore[arg-type]
    with refused("activations"):
        mx.linear(X, w, activations="fp8_block_2d")  # type: ignore[arg-type]
    with refused("activations"):
        mx.MXLinear(w, activations="int8")  # type: ignore[arg-type]
    with refused("activations"):
        mx.convert(model, activations={"0": "w4a4"})  # type: ignore[dict-item]
    with refused("hidden_act"):
        mx.moe(X, *experts, ids, weights, hidden_act="gelu")  # type: ignore[arg-type]
    with refused("layout"):
        mx.MXTensor(w.codes, w.scales, layout="blocked")  # type: ignore[arg-type]
    with refused("dtype"):
        mx.dequantize(w, dtype="float64")  # type: ignore[call-overload]
    with refused("device"):
        mx.explain(4, 32, 64, device="gfx942")  # type: ignore[call-overload]
    with refused("a"):
        mx.matmul(ARRAY, w)  # type: ignore[arg-type]
    with refused("bias and x"):
        mx.linear(X, w, bias=BIAS.numpy())  # type: ignore[type-var]
