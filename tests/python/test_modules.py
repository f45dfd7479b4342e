"""MXLinear: what it computes, its state dicts, its life. `convert` is in test_convert.py."""

import copy
import io
import json
import warnings

import pytest
import torch
from torch import nn

import mx_kernels as mx
from cases import (
    FORMATS,
    LAYOUTS,
    ROUNDINGS,
    assert_products_agree,
    every_format,
    every_layout,
    on_every_device,
)
from tests.python.layers import float_linear, x_of

pytestmark = on_every_device

PADDED = [name for name, row in LAYOUTS.items() if row["device"]]


def module(layout, seed=5, format="mxfp4"):
    linear = float_linear(seed=seed)
    weight = mx.quantize(linear.weight.detach(), format=format)
    device = LAYOUTS[layout]["device"]
    return mx.MXLinear(weight.preshuffle(device=device) if device else weight, linear.bias)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("scale_rule", ROUNDINGS)
def test_from_linear_computes_what_linear_computes(bias, scale_rule):
    linear = float_linear(bias=bias)
    weight = mx.quantize(linear.weight.detach(), scale_rule=scale_rule)
    module = mx.MXLinear.from_linear(linear, scale_rule=scale_rule, activations="mxfp4")
    got = module(x_of(2, 3))
    expected = mx.linear(
        x_of(2, 3), weight, bias=linear.bias, scale_rule=scale_rule, activations="mxfp4"
    )
    assert_products_agree(got, expected)
    # Close to the float layer: the error of two roundings to 4 bits, not another matrix.
    cosine = torch.cosine_similarity(got.flatten(), linear(x_of(2, 3)).flatten(), dim=0)
    assert cosine > 0.97


@every_format
@pytest.mark.parametrize("activations", [*FORMATS, "bf16"])
def test_weights_and_activations_have_their_formats(format, activations):
    linear = float_linear()
    got = mx.MXLinear.from_linear(linear, format=format, activations=activations)
    assert (got.format, got.weight.format, got.activations) == (format, format, activations)
    weight = mx.quantize(linear.weight.detach(), format=format)
    expected = mx.linear(x_of(4), weight, bias=linear.bias, activations=activations)
    assert_products_agree(got(x_of(4)), expected)
    assert f"format={format}, " in repr(got) and f"activations={activations})" in repr(got)


def test_from_linear_takes_the_layout_of_where_the_weights_lie(device):
    assert mx.MXLinear.from_linear(float_linear()).layout == f"preshuffled_{device}"
    assert mx.MXLinear.from_linear(float_linear(), device="gfx950").layout == "preshuffled_cdna4"
    assert mx.MXLinear.from_linear(float_linear().to("meta")).layout == "plain"


def test_from_linear_shares_the_bias_and_the_mode():
    linear = float_linear().eval()
    got = mx.MXLinear.from_linear(linear)
    assert got.bias is linear.bias
    assert not got.training


def test_repr_says_what_it_is():
    assert repr(mx.MXLinear(module("plain").weight, activations="mxfp4")) == (
        "MXLinear(in_features=96, out_features=40, bias=False, format=mxfp4, layout=plain, "
        "scale_rule=even, activations=mxfp4)"
    )


def test_it_refuses_what_is_not_a_weight():
    linear = float_linear()
    q = mx.quantize(linear.weight.detach())
    with pytest.raises(TypeError, match="weight: got Parameter, expected an MXTensor"):
        mx.MXLinear(linear.weight)
    with pytest.raises(ValueError, match=r"weight: got shape \[2, 40, 96\], expected \[out, in\]"):
        mx.MXLinear(mx.quantize(torch.ones(2, 40, 96)))
    with pytest.raises(ValueError, match="scale_rule: got 'up'"):
        mx.MXLinear(q, scale_rule="up")
    with pytest.raises(ValueError, match=r"bias: got shape \[7\], expected \[40\]"):
        mx.MXLinear(q, torch.ones(7))


# State dicts.


@every_layout
@pytest.mark.parametrize("saved", LAYOUTS)
@pytest.mark.parametrize("assign", [False, True])
def test_a_state_dict_loads_into_any_layout(layout, saved, assign):
    source, target = module(saved), module(layout, seed=99)
    assert not torch.equal(source(x_of(4)), target(x_of(4)))
    target.load_state_dict(source.state_dict(), assign=assign)
    assert target.layout == layout
    assert_products_agree(target(x_of(4)), source(x_of(4)))
    assert target.weight.codes.shape == module(layout).weight.codes.shape
    assert isinstance(target.weight, nn.Parameter) and not target.weight.requires_grad


def test_a_state_dict_survives_a_file_that_nobody_trusts():
    source, target, file = module("plain"), module(PADDED[0], seed=99), io.BytesIO()
    torch.save(source.state_dict(), file)
    file.seek(0)
    target.load_state_dict(torch.load(file, weights_only=True))
    assert_products_agree(target(x_of(4)), source(x_of(4)))


def test_a_state_dict_has_one_entry_for_the_weights():
    state = module(PADDED[0]).state_dict()
    assert set(state) == {"weight", "bias"}
    assert type(state["weight"]) is mx.MXTensor
    assert state["weight"].layout == PADDED[0]


def former(m, prefix=""):
    """Returns the state dict that modules had when weights were buffers of bytes."""
    meaning = {"format": m.format, "layout": m.layout, "shape": list(m.weight.shape)}
    return {
        f"{prefix}weight_codes": m.weight.codes,
        f"{prefix}weight_scales": m.weight.scales,
        f"{prefix}bias": m.bias,
        f"{prefix}_extra_state": torch.tensor(
            list(json.dumps(meaning).encode()), dtype=torch.uint8
        ),
    }


@every_layout
@pytest.mark.parametrize("assign", [False, True])
def test_a_former_state_dict_loads_too(layout, assign):
    source, target = module(layout), nn.Sequential(module("plain", seed=99))
    target.load_state_dict(former(source, "0."), assign=assign)
    assert target[0].layout == "plain"
    assert_products_agree(target(x_of(4)), source(x_of(4)))


def test_loading_leaves_the_state_dict_as_it_was():
    state = module("plain").state_dict()
    before = copy.deepcopy(state)
    module(PADDED[0]).load_state_dict(state)
    assert torch.equal(state["bias"], before["bias"])
    assert state["weight"].layout == "plain"
    assert torch.equal(state["weight"].codes, before["weight"].codes)


def test_a_skeleton_on_meta_loads_real_weights():
    source = module("plain")
    skeleton = mx.MXLinear.from_linear(float_linear().to("meta"), activations=source.activations)
    skeleton.load_state_dict(source.state_dict(), assign=True)
    assert torch.equal(skeleton(x_of(4)), source(x_of(4)))


@every_format
def test_a_state_dict_keeps_its_format(format):
    source, target = module(PADDED[0], format=format), module("plain", seed=99, format=format)
    target.load_state_dict(source.state_dict())
    assert_products_agree(target(x_of(4)), source(x_of(4)))
    for other in set(FORMATS) - {format}:
        with pytest.raises(RuntimeError, match=f"got format {format}, expected {other}"):
            module("plain", format=other).load_state_dict(source.state_dict())


def without(name):
    return lambda state: state.pop(name)


def with_extra(**changes):
    def change(state):
        meaning = {"format": "mxfp4", "layout": "plain", "shape": changes.get("shape", [40, 96])}
        extra = torch.tensor(list(json.dumps(meaning).encode()), dtype=torch.uint8)
        state["_extra_state"] = changes.get("raw", extra)

    return change


BROKEN = {
    "no layout": (without("_extra_state"), "mean nothing without the layout"),
    "no scales": (without("weight_scales"), "mean nothing without the layout"),
    "no codes": (without("weight_codes"), "mean nothing without the layout"),
    "other shape": (with_extra(shape=[40, 64]), r"shape: got \[40, 64\], but codes"),
    "other bytes": (
        lambda state: state.update(weight_codes=torch.zeros(8, 48, dtype=torch.uint8)),
        r"codes: got \[8, 48\], expected \[48, 48\]",
    ),
    "lying layout": (with_extra(), r"codes: got \[48, 48\], expected \[40, 48\]|hold \[48, 96\]"),
    "noise": (with_extra(raw=torch.zeros(3, dtype=torch.uint8)), "expected what MXLinear saved"),
    "not a tensor": (with_extra(raw={"layout": "plain"}), "expected what MXLinear saved"),
}


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("case", BROKEN)
def test_a_state_dict_that_lost_its_meaning_is_refused(case, strict):
    change, message = BROKEN[case]
    target = nn.Sequential(module("preshuffled_cpu"))
    before, state = target(x_of(4)), former(module("preshuffled_cpu", seed=99))
    change(state)
    state = {f"0.{name}": value for name, value in state.items()}
    with pytest.raises(RuntimeError, match=f"0: .*({message})"):
        target.load_state_dict(state, strict=strict)
    assert torch.equal(target[0].weight.codes, module("preshuffled_cpu").weight.codes)
    assert torch.equal(target(x_of(4)), before)


WRONG_WEIGHTS = {
    "floats": (lambda: torch.ones(40, 96), "weight: got Tensor, expected an MXTensor; quantize"),
    "another shape": (lambda: mx.quantize(torch.ones(40, 64)), r"got shape \[40, 64\], expected"),
    "another format": (lambda: mx.quantize(torch.ones(40, 96), format="mxint8"), "format mxint8"),
}


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("assign", [True, False])
@pytest.mark.parametrize("case", WRONG_WEIGHTS)
def test_weights_that_do_not_fit_are_refused(case, assign, strict):
    make, message = WRONG_WEIGHTS[case]
    target = nn.Sequential(module("plain"))
    before = target(x_of(4))
    with pytest.raises(RuntimeError, match=f"0: .*{message}"):
        target.load_state_dict({"0.weight": make()}, assign=assign, strict=strict)
    assert torch.equal(target(x_of(4)), before)


def test_weights_that_are_missing_are_named():
    with pytest.raises(RuntimeError, match=r"Missing key.*weight"):
        module("plain").load_state_dict({"bias": torch.ones(40)})


# Life of a module.


@every_layout
def test_copies_moves_and_casts_keep_the_weights(layout):
    m = module(layout)
    expected = m(x_of(4))
    assert torch.equal(copy.deepcopy(m)(x_of(4)), expected)
    assert torch.equal(m.to(expected.device)(x_of(4)), expected)
    there = copy.deepcopy(m).to("cpu")
    assert_products_agree(there(x_of(4).cpu()).to(expected.device), expected)
    m.bfloat16()
    assert m.weight.dtype == torch.bfloat16
    assert m.weight.codes.dtype == torch.uint8
    assert m.bias.dtype == torch.bfloat16
    assert m(x_of(4).bfloat16()).dtype == torch.bfloat16
    assert m.to("meta")(x_of(4).to("meta")).shape == (4, 40)
    assert isinstance(m.weight, nn.Parameter)


@every_layout
def test_a_module_on_meta_gets_memory_and_weights(layout):
    source = module(layout)
    skeleton = copy.deepcopy(source).to("meta").to_empty(device=source.weight.device)
    assert (skeleton.layout, skeleton.format) == (layout, "mxfp4")
    skeleton.load_state_dict(source.state_dict())
    assert torch.equal(skeleton(x_of(4)), source(x_of(4)))


def test_swapped_parameters_are_used_and_checked():
    m, other = module("plain"), module(PADDED[0], seed=99)
    m(x_of(4))
    m.weight, m.bias = other.weight, other.bias
    assert m.layout == PADDED[0]
    assert torch.equal(m(x_of(4)), other(x_of(4)))
    m.weight.data = mx.quantize(torch.zeros(40, 96))
    assert m.layout == "plain"
    assert torch.equal(m(x_of(4)), other.bias.expand(4, 40))
    m.weight.data = mx.quantize(torch.ones(8, 96))
    with pytest.raises(ValueError, match="bias: got shape"):
        m(x_of(4))
    with pytest.raises(TypeError, match="data: got Tensor, expected an MXTensor"):
        m.weight.data = torch.ones(40, 96)
    with pytest.raises(TypeError, match="cannot assign"):
        m.weight = mx.quantize(torch.ones(40, 96))


def test_functional_call_swaps_parameters():
    m, other = module("plain"), module("plain", seed=99)
    state = dict(other.named_parameters())
    assert torch.equal(torch.func.functional_call(m, state, x_of(4)), other(x_of(4)))


@every_layout
def test_a_module_compiles_as_one_graph(layout):
    torch._dynamo.reset()
    m = nn.Sequential(module(layout), nn.ReLU(), nn.Linear(40, 3))
    compiled = torch.compile(m, fullgraph=True, backend="aot_eager")
    for rows in (1, 5):
        torch.testing.assert_close(compiled(x_of(rows)), m(x_of(rows)))


def test_the_bias_trains_and_the_weights_do_not():
    m = module("preshuffled_cpu")
    assert {name: p.requires_grad for name, p in m.named_parameters()} == {
        "weight": False,
        "bias": True,
    }
    m(x_of(4)).sum().backward()
    assert m.bias.grad.tolist() == [4.0] * 40


def test_only_a_linear_layer_becomes_one():
    with pytest.raises(TypeError, match="linear: got Tensor, expected an nn"):
        mx.MXLinear.from_linear(x_of(2))


@pytest.mark.parametrize(
    ("target", "format", "expected"),
    [
        *((None, format, "mxint8") for format in ("mxfp4", "mxfp6", "mxfp8", "mxint8")),
        *((target, "nvfp4", "bf16") for target in (None, "cpu", "cuda", "gfx950")),
        *((target, "fp8_block", "fp8_block") for target in (None, "cpu", "cuda", "gfx950")),
        *(("cuda", format, "bf16") for format in ("mxfp4", "mxfp6", "mxfp6_e3m2")),
        *(("cuda", format, format) for format in ("mxfp8", "mxfp8_e5m2", "mxint8", "fp8")),
        ("gfx950", "mxfp4", "mxfp6"),
        *(("gfx950", format, format) for format in ("mxfp6", "mxfp6_e3m2", "mxfp8")),
    ],
)
def test_activations_are_what_the_device_is_best_at_and_never_four_bits(target, format, expected):
    linear = float_linear().cpu()
    module = mx.MXLinear.from_linear(linear, device=target, format=format)
    assert module.activations == expected
    if target in (None, "cpu"):
        again = mx.MXLinear(module.weight)
        assert again.activations == expected
        x = x_of(3).cpu()
        assert torch.equal(mx.linear(x, module.weight), again(x))
        assert torch.equal(again(x), mx.linear(x, module.weight, activations=expected))


def test_a_layer_that_reads_slowly_says_so():
    weight = mx.quantize(float_linear().weight.detach())
    best = weight.preshuffle().layout
    with pytest.warns(UserWarning, match=f"layout 'plain' on .* read '{best}' faster"):
        module = mx.MXLinear(weight)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module(x_of(2))
        mx.MXLinear(weight.preshuffle())(x_of(2))
