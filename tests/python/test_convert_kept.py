"""convert: the layers that are kept, each for its reason, and what `include` does about it."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import mx_kernels as mx
from cases import on_every_device
from tests.python.layers import Head, float_linear, reasons

pytestmark = on_every_device


class Experts(nn.ModuleList):
    def __init__(self, count):
        super().__init__(float_linear(96, seed=i) for i in range(count))


class TopKRouter(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = float_linear(32)


def block_with(**children):
    block = nn.Module()
    for name, child in children.items():
        setattr(block, name, child)
    return nn.ModuleDict({"body": float_linear(96), "mlp": block})


def of_two(**outputs):
    """Returns a model with a layer `up` in each of these parts."""
    parts = {name: nn.ModuleDict({"up": float_linear(k)}) for name, k in outputs.items()}
    return block_with(embed_tokens=nn.Embedding(64, 96), **parts)


def tied():
    embedding = nn.Embedding(64, 96)
    out = nn.Linear(96, 64, bias=False)
    out.weight = embedding.weight
    return nn.ModuleDict({"body": float_linear(96), "words": embedding, "output": out})


def tied_memory():
    model = tied()
    model.output.weight = nn.Parameter(model.words.weight.detach())
    return model


class WithHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.unembed = float_linear(96), float_linear(200)

    def get_output_embeddings(self):
        return self.unembed


class LoRA(nn.Module):
    def __init__(self):
        super().__init__()
        self.base_layer, self.down = float_linear(96), float_linear(32)


class Scaled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Plain(nn.Linear):
    pass


def with_forward():
    layer = float_linear()
    layer.forward = lambda x: nn.Linear.forward(layer, x) + 1
    return layer


def with_state_dict_hook():
    layer = float_linear()
    layer.register_state_dict_post_hook(lambda *args: None)
    return layer


def with_more():
    layer = float_linear()
    layer.register_buffer("scale", torch.ones(1))
    return layer


KEPT = {
    "lm_head": (Head, "lm_head", "output head"),
    "get_output_embeddings": (WithHead, "unembed", "output head"),
    "weights of an embedding": (tied, "output", "shares its weight with words.weight"),
    "memory of an embedding": (tied_memory, "output", "shares its weight with words.weight"),
    "gate beside experts": (
        lambda: block_with(gate=float_linear(32), experts=Experts(3)),
        "mlp.gate",
        "router",
    ),
    "one row for each expert": (
        lambda: block_with(choose=float_linear(32), experts=Experts(32)),
        "mlp.choose",
        "router",
    ),
    "router": (lambda: block_with(router=float_linear(32)), "mlp.router", "router"),
    "class": (lambda: block_with(choose=TopKRouter()), "mlp.choose.proj", "router"),
    "gate of a shared expert": (
        lambda: block_with(shared_expert_gate=float_linear(32)),
        "mlp.shared_expert_gate",
        "router",
    ),
    "beside a base layer": (lambda: block_with(up=LoRA()), "mlp.up.down", "adapter"),
    "lora_A": (
        lambda: block_with(lora_A=nn.ModuleDict({"default": float_linear(32)})),
        "mlp.lora_A.default",
        "adapter",
    ),
    "vision": (lambda: of_two(vision_tower=96), "mlp.vision_tower.up", "tower or projector"),
    "pictures": (lambda: of_two(visual=96), "mlp.visual.up", "tower or projector"),
    "sound": (lambda: of_two(audio_encoder=96), "mlp.audio_encoder.up", "tower or projector"),
    "projector": (
        lambda: of_two(multi_modal_projector=96),
        "mlp.multi_modal_projector.up",
        "tower or projector",
    ),
    "beside a language model": (
        lambda: of_two(language_model=96, encoder=96),
        "mlp.encoder.up",
        "tower or projector",
    ),
    "subclass": (
        lambda: block_with(up=Plain(96, 96)),
        "mlp.up",
        "Plain, a subclass of nn.Linear",
    ),
    "few outputs": (
        lambda: block_with(up=float_linear(2)),
        "mlp.up",
        "2 outputs are too few to save memory",
    ),
    "subclass that computes": (
        lambda: block_with(up=Scaled(96, 96)),
        "mlp.up",
        "Scaled, a subclass of nn.Linear, has a forward of its own",
    ),
    "forward": (lambda: block_with(up=with_forward()), "mlp.up", "its forward was replaced"),
    "state-dict hook": (
        lambda: block_with(up=with_state_dict_hook()),
        "mlp.up",
        "its state-dict hooks expect float weights",
    ),
    "a buffer": (lambda: block_with(up=with_more()), "mlp.up", "it also holds scale"),
    "parametrized": (
        lambda: block_with(up=parametrizations.weight_norm(float_linear())),
        "mlp.up",
        "its weight is parametrized; see torch.nn.utils.parametrize",
    ),
    "pruned": (
        lambda: block_with(up=prune.l1_unstructured(float_linear(), "weight", 0.5)),
        "mlp.up",
        "its weight is computed in every call (weight_norm, pruning, ...)",
    ),
    "lazy": (
        lambda: block_with(up=nn.LazyLinear(96)),
        "mlp.up",
        "it has no weights yet; call the model once",
    ),
    "quantized": (
        lambda: block_with(up=with_mx_weight()),
        "mlp.up",
        "its weight is of type MXTensor",
    ),
}
OVERRULED = {
    "output head",
    "router",
    "adapter",
    "tower or projector",
    "shares its weight with words.weight",
    "Plain, a subclass of nn.Linear",
    "2 outputs are too few to save memory",
}


def with_mx_weight():
    layer = float_linear()
    layer.weight = nn.Parameter(mx.quantize(layer.weight.detach()), requires_grad=False)
    return layer


@pytest.mark.parametrize("case", KEPT)
def test_a_layer_is_kept_for_a_reason(case):
    make, name, reason = KEPT[case]
    model = make()
    layer = model.get_submodule(name)
    got = reasons(model)
    assert got[name] == reason
    assert model.get_submodule(name) is layer
    others = [other for other, why in got.items() if other != name and why is None]
    assert others, "nothing else was converted"


@pytest.mark.parametrize("case", KEPT)
def test_include_converts_what_a_rule_keeps_and_refuses_what_would_compute_otherwise(case):
    make, name, reason = KEPT[case]
    if reason in OVERRULED:
        assert reasons(make(), include=name)[name] is None
    else:
        with pytest.raises(ValueError, match="include: got " + name.replace(".", r"\.")):
            mx.convert(make(), include=name)


class FalconLinear(nn.Linear):
    def forward(self, x):
        return x @ self.weight.T + self.bias


class MultiheadAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.out_proj = float_linear(96)


def test_known_classes_that_compute_as_linear_layers_do_are_converted():
    model = block_with(up=FalconLinear(96, 96), attention=MultiheadAttention())
    assert set(reasons(model).values()) == {None}


def test_names_that_only_look_like_a_router_are_converted():
    model = block_with(gate=float_linear(96), gate_proj=float_linear(96), wg=float_linear(32))
    assert set(reasons(model).values()) == {None}


def test_a_tower_without_a_language_model_is_a_model():
    parts = {name: float_linear(96) for name in ("vision_model", "visual_projection", "classifier")}
    assert set(reasons(nn.ModuleDict(parts)).values()) == {None}


def test_names_that_only_look_like_a_tower_are_converted():
    names = ("vision_moe", "text_encoder", "encoder", "image_layers", "projectors", "revision")
    assert set(reasons(of_two(**dict.fromkeys(names, 96))).values()) == {None}


def test_a_tie_to_a_layer_that_is_left_out_is_kept():
    model = nn.Sequential(float_linear(96), float_linear(96), float_linear(96))
    model[1].weight = model[0].weight
    assert reasons(model, keep="0") == {
        "0": "named in keep",
        "1": "shares its weight with 0.weight",
        "2": None,
    }
