"""convert: what it replaces, how layers are named, what moves along, the report, the errors.

Which layers are kept is in test_convert_kept.py, real models are in test_models.py.
"""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

import mx_kernels as mx
from cases import assert_products_agree, every_format, on_every_device
from tests.python.layers import Head, float_linear, reasons, x_of

pytestmark = on_every_device


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = float_linear()
        self.again = self.first
        self.blocks = nn.ModuleList([nn.Sequential(float_linear(seed=i)) for i in range(2)])
        self.ragged = nn.Linear(40, 70)
        self.attention = nn.MultiheadAttention(96, 2)

    def forward(self, x):
        parts = [self.first(x), self.again(x), *(block(x) for block in self.blocks)]
        return self.ragged(sum(parts))


RAGGED = "in_features 40 is no multiple of 32"


# What is converted.


def test_what_fits_is_converted_and_the_rest_is_kept_with_a_reason():
    model = Model()
    before = model(x_of(4))
    assert reasons(model) == {
        "first": None,
        "blocks.0.0": None,
        "blocks.1.0": None,
        "ragged": RAGGED,
        "attention.out_proj": "MultiheadAttention reads its weight",
    }
    kinds = {name: type(m) for name, m in model.named_modules(remove_duplicate=False)}
    for name in ("first", "again", "blocks.0.0", "blocks.1.0"):
        assert kinds[name] is mx.MXLinear
    assert kinds["ragged"] is nn.Linear
    after = model(x_of(4))
    assert torch.cosine_similarity(after.flatten(), before.flatten(), dim=0) > 0.97
    assert model.attention.eval()(*[x_of(3, 2)] * 3)[0].shape == (3, 2, 96)


def test_a_layer_in_two_places_stays_one():
    model = mx.convert(Model())
    assert model.first is model.again
    assert [layer.name for layer in mx.conversion_report(model).layers].count("again") == 0


def test_a_weight_in_two_layers_stays_one():
    model = nn.Sequential(float_linear(96), float_linear(96))
    model[1].weight = model[0].weight
    mx.convert(model)
    assert model[0].weight is model[1].weight and model[0].bias is not model[1].bias
    assert [row.bytes_after for row in mx.conversion_report(model).layers][1] == 96 * 4


def test_convert_returns_the_model_and_of_a_layer_another():
    model = Model()
    assert mx.convert(model) is model
    converted = mx.convert(float_linear())
    assert type(converted) is mx.MXLinear
    assert mx.conversion_report(converted)["model"].is_converted


def test_a_converted_model_loads_into_another_layout():
    source = mx.convert(Model(), activations="mxfp4")
    target = mx.convert(Model(), device="gfx950", activations="mxfp4")
    target.load_state_dict(source.state_dict())
    assert target.first.layout == "preshuffled_cdna4" != source.first.layout
    assert_products_agree(target(x_of(4)), source(x_of(4)))


def test_options_reach_the_layers():
    model = mx.convert(nn.Sequential(float_linear()), scale_rule="floor", device="gfx950")
    assert (model[0].scale_rule, model[0].layout) == ("floor", "preshuffled_cdna4")
    assert model[0].activations == "mxfp6"


@every_format
def test_convert_takes_any_format(format):
    model = mx.convert(nn.Sequential(float_linear()), format=format, activations="mxfp8")
    assert (model[0].format, model[0].activations) == (format, "mxfp8")
    assert model(x_of(4)).shape == (4, 40)


def test_a_second_call_converts_what_the_first_has_left():
    model = mx.convert(Model(), keep="blocks")
    first = mx.conversion_report(model)
    mx.convert(model)
    second = mx.conversion_report(model)
    assert {row.name for row in second.converted} == {"first", "blocks.0.0", "blocks.1.0"}
    assert second.bytes_before == first.bytes_before > first.bytes_after > second.bytes_after
    with pytest.raises(ValueError, match=r"no layer to convert: ragged \(in_features 40"):
        mx.convert(model)


def test_float_weights_are_freed_layer_by_layer():
    model = nn.Sequential(*(float_linear(96) for _ in range(3)))
    weights = [weakref.ref(layer.weight) for layer in model]
    alive = []

    class Watching(nn.Module):
        def __setattr__(self, name, value):
            gc.collect()
            alive.append(sum(ref() is not None for ref in weights))
            super().__setattr__(name, value)

    watching = Watching()
    watching.a, watching.b, watching.c = model
    del model
    alive.clear()
    mx.convert(watching)
    assert alive[:3] == [3, 2, 1]
    gc.collect()
    assert not any(ref() is not None for ref in weights)


# Names.


def test_filter_sees_what_would_be_converted():
    names = []

    def only_blocks(name, module):
        names.append(name)
        return name.startswith("blocks")

    got = reasons(Model(), filter=only_blocks)
    assert names == ["first", "blocks.0.0", "blocks.1.0"]
    assert (got["first"], got["blocks.1.0"]) == ("left out by filter", None)


@pytest.mark.parametrize(
    ("pattern", "kept"),
    [
        ("first", ["first"]),
        ("again", ["first"]),
        ("blocks", ["blocks.0.0", "blocks.1.0"]),
        ("blocks.1", ["blocks.1.0"]),
        ("bl*.0.0", ["blocks.0.0"]),
        ("0", ["blocks.0.0", "blocks.1.0"]),
        (["first", "blocks.0"], ["first", "blocks.0.0"]),
    ],
)
def test_keep_means_a_module_and_all_in_it(pattern, kept):
    got = reasons(Model(), keep=pattern)
    assert [name for name, reason in got.items() if reason == "named in keep"] == kept


def test_a_pattern_does_not_mean_a_part_of_a_name():
    for pattern in ("irst", "firs", "block", "locks.0"):
        with pytest.raises(ValueError, match=f"keep: got '{pattern}', which fits no module"):
            mx.convert(Model(), keep=pattern)


def test_include_overrules_a_rule_and_keep_overrules_include():
    assert reasons(Head())["lm_head"] == "output head"
    assert reasons(Head(), include="lm_head")["lm_head"] is None
    assert reasons(Head(), include="lm_head", keep="*head")["lm_head"] == "named in keep"


class TiedHead(Head):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(*self.lm_head.weight.shape)
        self.words.weight = self.lm_head.weight


@pytest.mark.parametrize("rest", ["mxint8", "fp8_block"])
def test_rest_is_the_format_of_heads_alone(rest):
    floats = Head()
    model = mx.convert(copy.deepcopy(floats), rest=rest)
    report = mx.conversion_report(model)
    rows = {row.name: row for row in report.layers}
    head = rows.pop("lm_head")
    expected = mx.quantize(floats.lm_head.weight.detach(), format=head.format).preshuffle()
    assert head.format == {"fp8_block": "fp8_block_2d"}.get(rest, rest)
    assert {row.format for row in rows.values() if row.is_converted} == {"mxfp4"}
    assert torch.equal(model.lm_head.weight.codes, expected.codes)
    assert "output heads" not in str(report)


def test_the_report_says_what_rest_would_make_of_heads():
    model = mx.convert(Head())
    n, k = model.lm_head.weight.shape
    before, after = f"{4 * n * (k + 1) / 1e6:.3g}", f"{n * k * 33 / 32 / 1e6:.3g}"
    said = str(mx.conversion_report(model))
    assert (
        f'reads {before} MB of output heads as floats; rest="mxint8" makes that {after} MB' in said
    )
    assert "output heads" not in str(mx.conversion_report(mx.convert(TiedHead())))


@pytest.mark.parametrize(
    "model, options, message",
    [
        (TiedHead, {}, r"output head to convert: lm_head \(shares its weight with words.weight\)"),
        (Head, {"keep": "lm_head"}, r"lm_head \(named in keep\)"),
        (Head, {"include": "lm_head"}, "there is no output head to convert"),
        (Model, {}, "rest: got 'mxint8', expected None, for there is no output head to convert$"),
        (Head, {"rest": "int8"}, "format: got 'int8', expected mxfp4 or"),
    ],
)
def test_rest_of_nothing_is_refused(model, options, message):
    model = model()
    before = [*model.modules()]
    with pytest.raises(ValueError, match=message):
        mx.convert(model, **{"rest": "mxint8"} | options)
    assert [*model.modules()] == before


def test_include_of_what_cannot_be_converted_is_an_error():
    model = Model()
    with pytest.raises(ValueError, match=rf"include: got ragged \({RAGGED}\), expected layers"):
        mx.convert(model, include=["ragged", "first"])
    assert type(model.first) is nn.Linear


BY_NAME = {"blocks.0": "bf16", "blocks": "mxfp8"}


@pytest.mark.parametrize("choice", [BY_NAME, lambda name: BY_NAME.get(name[:8].rstrip("."))])
def test_activations_are_chosen_by_name(choice):
    model = mx.convert(Model().cpu(), activations=choice)
    assert model.blocks[0][0].activations == "bf16"
    if choice is BY_NAME:
        assert model.blocks[1][0].activations == "mxfp8"
    assert model.first.activations == "mxint8"


# What moves along.


def test_hooks_move_along_and_their_handles_still_remove_them():
    model, calls = nn.Sequential(float_linear()), []
    layer = model[0]

    def after(module, args, out):
        calls.append(("after", type(module)))
        return out + 1

    def before(module, args, kwargs):
        calls.append(("before", type(module)))
        return args, kwargs

    def gradient(module, grad_in, grad_out):
        calls.append(("gradient", type(module)))

    handles = [
        layer.register_forward_hook(after),
        layer.register_forward_pre_hook(before, with_kwargs=True),
        layer.register_full_backward_hook(gradient),
    ]
    plain = mx.convert(nn.Sequential(float_linear()))
    mx.convert(model)
    x = x_of(4).requires_grad_()
    got = model(x)
    got.sum().backward()
    assert calls == [(name, mx.MXLinear) for name in ("before", "after", "gradient")]
    assert torch.equal(got, plain(x) + 1)
    for handle in handles:
        handle.remove()
    assert torch.equal(model(x), plain(x)) and len(calls) == 3


def test_attributes_and_the_mode_move_along():
    model = nn.Sequential(float_linear()).eval()
    model[0].layer_idx = 7
    mx.convert(model)
    assert model[0].layer_idx == 7 and not model[0].training
    bias = model[0].bias
    assert isinstance(bias, nn.Parameter) and bias.requires_grad


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoders_of_torch_run_in_eval_mode(batch_first, activation):
    choices = {"batch_first": batch_first, "activation": activation}
    layer = nn.TransformerEncoderLayer(96, 2, 160, **choices)
    model = mx.convert(nn.TransformerEncoder(layer, 2))
    x = x_of(3, 5)
    for module in (model, model.layers[0]):
        trained = module.train()
        for part in trained.modules():
            if isinstance(part, nn.Dropout | nn.MultiheadAttention):
                part.p = part.dropout = 0.0
        expected = trained(x)
        with torch.no_grad():
            torch.testing.assert_close(module.eval()(x), expected, rtol=1e-4, atol=1e-4)


def test_an_encoder_whose_weights_are_kept_still_takes_the_fast_path():
    layer = nn.TransformerEncoderLayer(96, 2, 160, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 1), float_linear())
    mx.convert(model, keep="0")
    assert model[0].use_nested_tensor and model[0].layers[0].activation_relu_or_gelu == 1


# The report.


def test_the_report_counts_bytes():
    model = nn.Sequential(float_linear(), nn.LayerNorm(40), nn.Linear(40, 70))
    before = sum(p.nbytes for p in model.parameters())
    linear = sum(p.nbytes for p in model[0].parameters())
    report = mx.conversion_report(mx.convert(model))
    after = sum(p.nbytes for p in model.parameters())
    assert (report.bytes_before, report.bytes_after) == (before, after)
    converted, kept = report.layers
    assert (converted.bytes_before, converted.bytes_after) == (
        linear,
        model[0].weight.nbytes + 160,
    )
    assert kept.bytes_before == kept.bytes_after == (70 * 40 + 70) * 4
    assert (converted.kind, converted.shape, converted.format) == ("Linear", (40, 96), "mxfp4")
    assert (kept.shape, kept.format, kept.activations) == ((70, 40), None, None)


def test_the_report_prints_a_table_of_groups():
    lines = str(mx.conversion_report(mx.convert(Model().cpu()))).splitlines()
    heads = ["layer", "count", "kind", "shape", "now", "MB", "before", "MB", "after"]
    assert lines[0].split() == heads
    assert [line.split()[:2] for line in lines[1:-1]] == [
        ["first", "1"],
        ["blocks.*.*", "2"],
        ["ragged", "1"],
        ["attention.out_proj", "1"],
    ]
    assert "mxfp4, mxint8" in lines[2] and f"kept: {RAGGED}" in lines[3]
    assert lines[-1].startswith("3 layers converted, 0.0466 MB to ")
    assert ", 2 kept; the model from " in lines[-1]


def test_the_report_goes_with_copies_and_is_refused_elsewhere():
    model = mx.convert(Model())
    assert mx.conversion_report(copy.deepcopy(model)) == mx.conversion_report(model)
    with pytest.raises(ValueError, match="got a Sequential without a report, expected what"):
        mx.conversion_report(nn.Sequential(model))
    with pytest.raises(TypeError, match="model: got NoneType"):
        mx.conversion_report(None)
    with pytest.raises(KeyError, match="got 'second', expected first or"):
        mx.conversion_report(model)["second"]


# What is refused.


def sequential():
    return nn.Sequential(float_linear())


def on_meta():
    model = nn.Sequential(float_linear(), float_linear(96, 40))
    model.append(float_linear().to("meta"))
    return model


REFUSED = {
    "no model": (None, {}, TypeError, r"model: got NoneType, expected an nn\.Module"),
    "filter": (sequential, {"filter": ["0"]}, TypeError, "filter: got list, expected a function"),
    "keep": (sequential, {"keep": 0}, TypeError, "keep: got 0, expected names or patterns"),
    "include": (sequential, {"include": [0]}, TypeError, r"include: got \[0\], expected names"),
    "misspelt": (
        sequential,
        {"include": "1"},
        ValueError,
        "include: got '1', which fits no module",
    ),
    "format": (sequential, {"format": "fp9"}, ValueError, "format: got 'fp9', expected"),
    "scale_rule": (sequential, {"scale_rule": "up"}, ValueError, "scale_rule: got 'up', expected"),
    "device": (sequential, {"device": "tpu"}, ValueError, "device: got 'tpu', expected"),
    "mode": (sequential, {"activations": "fp9"}, ValueError, "activations: got 'fp9', expected"),
    "mode of a name": (
        sequential,
        {"activations": {"0": "fp9"}},
        ValueError,
        "activations: got 'fp9', expected",
    ),
    "mode of a function": (
        sequential,
        {"activations": lambda name: 3},
        ValueError,
        "activations: got 3, expected",
    ),
    "mode of no name": (
        sequential,
        {"activations": {"1": "bf16"}},
        ValueError,
        "activations: got '1', which fits no module",
    ),
    "modes in a list": (
        sequential,
        {"activations": ["bf16"]},
        TypeError,
        "activations: got list, expected a name, a mapping",
    ),
    "float64": (
        lambda: nn.Sequential(float_linear(), float_linear().double()),
        {},
        TypeError,
        r"1\.weight: got dtype float64, expected bfloat16",
    ),
    "meta": (on_meta, {}, ValueError, r"2\.weight: got a tensor on meta, which has no numbers"),
    "no layers": (
        lambda: nn.Sequential(nn.ReLU()),
        {},
        ValueError,
        r"model: got one without nn\.L",
    ),
    "none left": (
        Model,
        {"filter": lambda name, module: False},
        ValueError,
        r"no layer to convert: first \(left out by filter\), .*ragged \(in_features 40",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_done_is_refused_before_anything_is_replaced(case):
    make, choices, kind, message = REFUSED[case]
    model = make and make()
    before = None if model is None else [*model.modules()]
    with pytest.raises(kind, match=message):
        mx.convert(model, **choices)
    assert model is None or [*model.modules()] == before


def test_what_is_kept_may_lie_on_meta_or_hold_float64():
    got = reasons(on_meta(), keep="2")
    assert got["2"] == "named in keep" and got["0"] is None
    model = nn.Sequential(float_linear(), float_linear().double())
    assert reasons(model, keep="1")["0"] is None
