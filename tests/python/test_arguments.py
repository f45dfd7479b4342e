"""No argument is ignored: each that may be left out changes what comes of some call.

`CHANGES` has every optional argument of every public function: what is given for it, and beside
what. The same call without it must come to something else. What a function is offered and cannot
use, it refuses: `REFUSED`. A new argument without an entry fails the first test.
"""

import inspect
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import transformers as tf
from max.dtype import DType
from max.graph import DeviceRef, Graph, TensorType
from torch import nn

import mx_kernels as mx
from mx_kernels import checkpoints, max_graph

pytestmark = pytest.mark.filterwarnings("ignore:.*weights in layout")
E, N, K, INNER = 2, 64, 128, 32


def floats(*shape, seed=3):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).float()


def weights(*shape, format="mxfp4"):
    return mx.quantize(floats(*shape, seed=4), format=format)


X, BIAS = floats(5, K), floats(N, seed=5)
ROUTING = {
    "expert_ids": torch.tensor([[0, 1], [1, 0], [0, -1], [1, 1], [0, 0]]),
    "expert_weights": floats(5, 2, seed=6),
}


def layer_of_experts():
    return {"w_gate_up": weights(E, 2 * INNER, K), "w_down": weights(E, K, INNER)}


class Model(nn.Module):
    """Two linear layers, of which a rule keeps the second."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.up, self.lm_head = nn.Linear(K, K), nn.Linear(K, N)

    def forward(self, x):
        return self.lm_head(self.up(x))


# What is called: functions of what is always given, as the first argument, and of options.


def of_experts(function, **more):
    return lambda **options: function(**{"x": X, **layer_of_experts(), **ROUTING} | more | options)


def module_of(make):
    return lambda **options: make(**options)(X)


def experts_of(**options):
    w = layer_of_experts()
    made = mx.MXExperts(w["w_gate_up"], w["w_down"], **options)
    return made(X[: 2 * E]) if options.get("takes_rows") else made(X, *ROUTING.values())


def written(function):
    """Calls what writes to a path, "out" or `path`; returns names and bytes of what it wrote."""

    def call(tmp_path, path="out", **options):
        function(tmp_path, tmp_path / path, **options)
        return {
            file.name: file.read_bytes()
            for file in sorted(tmp_path.rglob("*"))
            if file.is_file() and "in" not in file.relative_to(tmp_path).parts
        }

    return call


def checkpoint(folder, quantized=False):
    tensors = {name: floats(N, K) for name in ("a.weight", "b.weight", "embed.weight")}
    tensors["stack"] = floats(E, N, K)
    if quantized:
        tensors = {"a.weight": weights(N, K), "b.weight": floats(N, K)}
        for e in range(E):
            for name, shape in (("gate", (N, K)), ("up", (N, K)), ("down", (K, N))):
                tensors[f"mlp.experts.{e}.{name}_proj.weight"] = weights(*shape)
    mx.save(tensors, folder / "in")
    return folder / "in"


def rewritten(tmp_path, path, *, quantized=False, **options):
    checkpoints.convert(checkpoint(tmp_path, quantized), path, **options)


def loaded(tmp_path, **options):
    found = mx.load(checkpoint(tmp_path, quantized=True), **options)
    return found, options.get("rotations")


def in_a_graph(call):
    """Builds a graph of a call; returns its text."""

    def build(**options):
        dtypes = {"x": DType.float32, "ids": DType.int64, "counts": DType.float32}
        dtypes |= {"sizes": DType.int32, "codes": DType.uint8, "scales": DType.uint8}
        shapes = [5, K], [5, 2], [5, 2], [E], [N, K // 2], [N, K // 32]
        types = [
            TensorType(dtype, shape, DeviceRef.CPU())
            for dtype, shape in zip(dtypes.values(), shapes, strict=True)
        ]
        with Graph(
            "arguments", input_types=types, custom_extensions=[max_graph.library()]
        ) as graph:
            values = dict(zip(dtypes, (value.tensor for value in graph.inputs), strict=True))
            made = call(values, **options)
            out, *others = made if isinstance(made, tuple) else (made,)
            graph.output(*others, *([out.codes, out.scales] if hasattr(out, "codes") else [out]))
            said = (out.format, out.layout, out.shape, out.dtype) if hasattr(out, "codes") else ()
        return repr(graph), said

    return build


def in_graph(i, options):
    """Returns options with what stands beside rows as values of a graph."""
    tensors = [name for name in ("residual", "up") if options.get(name) is not None]
    return options | {name: i["x"] for name in tensors}


SCALES_OF_64_BYTES = {"mxfp4": 4, "nvfp4": 8}
CALLS = {
    mx.quantize: lambda **options: mx.quantize(X, **options),
    mx.dequantize: lambda **options: mx.dequantize(weights(N, K), **options),
    mx.requantize: lambda format="mxfp8", **options: mx.requantize(
        weights(N, K), format, **options
    ),
    mx.tensor_scale_of: lambda: mx.tensor_scale_of(X),
    mx.preshuffle: lambda **options: mx.preshuffle(weights(N, K), **options),
    mx.unshuffle: lambda: mx.unshuffle(weights(N, K)),
    mx.matmul: lambda **options: mx.matmul(weights(5, K), weights(N, K), **options),
    mx.linear: lambda **options: mx.linear(X, weights(N, K), **options),
    mx.grouped_linear: lambda **options: mx.grouped_linear(
        X, weights(E, N, K), torch.tensor([3, 2]).int(), **options
    ),
    mx.moe: of_experts(mx.moe),
    mx.rms_norm_quantize: lambda **options: mx.rms_norm_quantize(X.bfloat16(), **options),
    mx.layer_norm_quantize: lambda **options: mx.layer_norm_quantize(X.bfloat16(), **options),
    mx.gate_quantize: lambda **options: mx.gate_quantize(X, **options),
    mx.mlp: lambda **options: mx.mlp(X, weights(2 * INNER, K), weights(K, INNER), **options),
    mx.MXTensor: lambda format="mxfp4", **options: mx.MXTensor(
        torch.ones(64, 64).byte(), torch.ones(64, SCALES_OF_64_BYTES.get(format, 2)).byte(),
        format=format, **options,
    ),
    mx.MXTensor.dequantize: lambda **options: weights(N, K).dequantize(**options),
    mx.MXTensor.preshuffle: lambda **options: weights(N, K).preshuffle(**options),
    mx.MXLinear: module_of(lambda **options: mx.MXLinear(weights(N, K), **options)),
    mx.MXLinear.from_linear: lambda **options: mx.MXLinear.from_linear(Model().up, **options),
    mx.MXExperts: experts_of,
    mx.convert: lambda filter=None, model=Model, **options: mx.convert(model(), filter, **options),
    mx.conversion_report: lambda: mx.conversion_report(mx.convert(Model())),
    mx.explain: lambda **options: mx.explain(5, N, K, **options),
    mx.load: loaded,
    mx.save: written(lambda _, path, **options: mx.save({"a": X, "b": X}, path, **options)),
    checkpoints.convert: written(rewritten),
    max_graph.quantize: in_a_graph(lambda i, **options: max_graph.quantize(i["x"], **options)),
    max_graph.dequantize: in_a_graph(
        lambda i, **options: max_graph.dequantize(weights(N, K), **options)
    ),
    max_graph.matmul: in_a_graph(
        lambda i, **options: max_graph.matmul(weights(5, K), weights(N, K), **options)
    ),
    max_graph.linear: in_a_graph(
        lambda i, **options: max_graph.linear(i["x"], weights(N, K), **options)
    ),
    max_graph.grouped_linear: in_a_graph(
        lambda i, **options: max_graph.grouped_linear(
            i["x"], weights(E, N, K), i["sizes"], **options
        )
    ),
    max_graph.moe: in_a_graph(
        lambda i, **options: max_graph.moe(
            i["x"], *layer_of_experts().values(), i["ids"], i["counts"], **options
        )
    ),
    max_graph.rms_norm_quantize: in_a_graph(
        lambda i, **options: max_graph.rms_norm_quantize(i["x"], **in_graph(i, options))
    ),
    max_graph.layer_norm_quantize: in_a_graph(
        lambda i, **options: max_graph.layer_norm_quantize(i["x"], **in_graph(i, options))
    ),
    max_graph.gate_quantize: in_a_graph(
        lambda i, **options: max_graph.gate_quantize(i["x"], **in_graph(i, options))
    ),
    max_graph.mlp: in_a_graph(
        lambda i, **options: max_graph.mlp(
            i["x"], weights(2 * INNER, K), weights(K, INNER), **options
        )
    ),
    max_graph.MXValue: in_a_graph(
        lambda i, format="mxfp4", **options: max_graph.MXValue(
            i["codes"], i["scales"][:, : 4 if format == "mxfp4" else 2], format=format, **options
        )
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Given:
    """What is given for an argument, beside others."""

    value: object
    beside: dict

    @classmethod
    def of(cls, entry):
        return entry if isinstance(entry, cls) else cls(entry, {})


def beside(value, **others):
    return Given(value, others)


PRODUCT = {"bias": BIAS, "out_dtype": "float16"}
LEFT = {"scale_rule": beside("floor", activations="mxfp4"), "activations": "mxfp8"}
OF_EXPERTS = {
    **{"out_dtype": "float16", **LEFT},
    **{"hidden_act": "silu", "interleaved": False, "limit": 0.5, "alpha": 3.0},
    **{name: beside(0.5, hidden_act="situ") for name in ("beta", "linear_beta")},
    "apply_router_weight_on_input": True,
    **{"bias_gate_up": floats(E, 2 * INNER), "bias_down": floats(E, K)},
}
QUANTIZED = {"format": "mxfp8", "scale_rule": "floor"}
TO_CODES = QUANTIZED | {"tensor_scale": beside(0.5, format="nvfp4")}
OF_GATES = {
    **{"hidden_act": "swiglu_oai", "interleaved": True, "limit": 0.5, "alpha": 3.0},
    **{name: beside(0.5, hidden_act="situ") for name in ("beta", "linear_beta")},
}
OF_NORMS = TO_CODES | {
    **{"weight": floats(K), "eps": 0.5, "residual": floats(5, K).bfloat16(), "rounds": "none"},
    "weight_offset": beside(1.0, weight=floats(K)),
}


OF_MLPS = {
    **OF_GATES,
    **LEFT,
    **{"bias_gate_up": floats(2 * INNER), "bias_down": floats(K), "out_dtype": "float16"},
}


def in_graphs(changes):
    """Returns arguments without those that the ops of a graph do not have."""
    return {name: given for name, given in changes.items() if name != "tensor_scale"}


def llama():
    sizes = {"hidden_size": K, "intermediate_size": K, "vocab_size": 32, "num_hidden_layers": 1}
    return tf.LlamaForCausalLM(tf.LlamaConfig(num_attention_heads=4, **sizes))


CHANGES = {
    mx.quantize: TO_CODES | {"hadamard": 64},
    mx.rms_norm_quantize: OF_NORMS,
    mx.layer_norm_quantize: OF_NORMS | {"bias": beside(floats(K), weight=floats(K))},
    mx.gate_quantize: TO_CODES | OF_GATES | {"up": floats(5, K)},
    mx.mlp: OF_MLPS,
    mx.requantize: {"scale_rule": "ceil", "tensor_scale": beside(0.5, format="nvfp4")},
    mx.tensor_scale_of: {},
    mx.dequantize: {"dtype": "float16", "out": np.zeros((N, K), np.float32)},
    mx.preshuffle: {"device": "gfx950"},
    mx.unshuffle: {},
    mx.matmul: PRODUCT,
    mx.linear: PRODUCT | LEFT | {"hadamard": 32},
    mx.grouped_linear: PRODUCT | LEFT | {"bias": floats(E, N)},
    mx.moe: OF_EXPERTS,
    mx.MXTensor: {
        "shape": beside((50, 128), layout="preshuffled_cpu"),
        "format": "mxint8",
        "layout": "preshuffled_cpu",
        "dtype": "float32",
        "tensor_scale": beside(0.5, format="nvfp4"),
    },
    mx.MXTensor.dequantize: {"dtype": "float16", "out": np.zeros((N, K), np.float32)},
    mx.MXTensor.preshuffle: {"device": "gfx950"},
    mx.MXLinear: {"bias": BIAS, **LEFT, "hadamard": 32},
    mx.MXLinear.from_linear: {**QUANTIZED, "device": "gfx950", "activations": "bf16"},
    mx.MXExperts: {
        **{"hidden_act": "swiglu_oai", **LEFT},
        **{"interleaved": True, "limit": 0.5, "alpha": 3.0},
        **{name: beside(0.5, hidden_act="situ") for name in ("beta", "linear_beta")},
        **{"apply_router_weight_on_input": True, "takes_rows": True},
        "gate_up_proj_bias": floats(E, 2 * INNER),
        "down_proj_bias": floats(E, K),
    },
    mx.convert: {
        "filter": beside(lambda name, _: name != "up", include="lm_head"),
        "keep": beside("up", include="lm_head"),
        "include": "lm_head",
        **{**QUANTIZED, "device": "gfx950", "activations": "bf16"},
        "fuse": beside("norms", model=llama),
        "rest": "mxint8",
    },
    mx.conversion_report: {},
    mx.explain: {
        **{"device": "gfx950", "op": mx.matmul, "activations": "mxfp8", "format": "mxint8"},
        "experts": beside(8, op=mx.grouped_linear, device="gfx950"),
        "slots": beside(2, op=mx.moe, device="gfx950", experts=8),
        "hidden_act": beside("silu", op=mx.moe, device="gfx950", experts=8, slots=2),
        "interleaved": beside(False, op=mx.moe, device="gfx950", experts=8, slots=2),
        "by_columns": beside(
            True, op=mx.matmul, device="gfx950", activations="fp8_block", format="fp8_block_2d"
        ),
    },
    mx.load: {
        **{"device": "meta", "preshuffle": False, "progress": True, "join_experts": False},
        **{"rotations": {}, "rest": "mxint8"},
    },
    mx.save: {"max_shard_bytes": 100, "metadata": {"a": "b"}},
    checkpoints.convert: {
        **{"to": "quark", **QUANTIZED, "include": ["embed.weight"], "exclude": ["a.weight"]},
        **{"max_shard_bytes": 100, "progress": True},
        "k_axis": beside(-2, include=["stack"]),
    },
    max_graph.quantize: QUANTIZED,
    max_graph.dequantize: {"dtype": "float16"},
    max_graph.matmul: PRODUCT,
    max_graph.linear: PRODUCT | LEFT,
    max_graph.grouped_linear: PRODUCT | LEFT | {"bias": floats(E, N)},
    max_graph.moe: OF_EXPERTS,
    max_graph.rms_norm_quantize: in_graphs(OF_NORMS),
    max_graph.layer_norm_quantize: in_graphs(
        OF_NORMS | {"bias": beside(floats(K), weight=floats(K))}
    ),
    max_graph.gate_quantize: in_graphs(TO_CODES | OF_GATES | {"up": floats(5, K)}),
    max_graph.mlp: OF_MLPS,
    max_graph.MXValue: {
        "shape": beside((50, 128), layout="preshuffled_cpu"),
        "format": "mxint8",
        "layout": "preshuffled_cpu",
        "dtype": "float32",
    },
}
ELSEWHERE = {
    max_graph.export: {"device": "tests/max_graph/test_gfx950.py"},
    max_graph.load: {"device": "tests/max_graph/test_cuda.py"},
    max_graph.constant: {"device": "tests/max_graph/test_cuda.py"},
    mx.mojo_path: {},
    max_graph.library: {},
    max_graph.library_build: {},
}
"""Arguments that take a machine or a minute, and where they are tried."""


OLD_NAMES = {"rounding": "scale_rule", "activation": "hidden_act"}
WITHOUT_OLD_NAMES = {
    *(max_graph.rms_norm_quantize, max_graph.layer_norm_quantize),
    *(max_graph.gate_quantize, max_graph.mlp, checkpoints.convert, mx.explain),
}
"""Functions that are younger than the new names, and two that read more than a call here does."""
MAX_OPS = {max_graph.matmul, max_graph.dequantize}


def test_old_names_of_arguments_are_taken_with_a_warning_and_not_beside_new_ones():
    tried = set()
    for function, changes in CHANGES.items():
        for old, new in OLD_NAMES.items():
            if new not in changes or function in WITHOUT_OLD_NAMES:
                continue
            given, call = Given.of(changes[new]), CALLS[function]
            with pytest.warns(DeprecationWarning, match=f"{old} is {new} now"):
                found = call(**given.beside, **{old: given.value})
            with warnings.catch_warnings():
                warnings.simplefilter("error", DeprecationWarning)
                expected = call(**given.beside, **{new: given.value})
            assert repr(found) == repr(expected), function
            with pytest.raises(TypeError, match=f"got both, expected {new} alone"):
                call(**given.beside, **{old: given.value, new: given.value})
            tried.add((function, new))
    assert len(tried) >= 12


def optional(function):
    """Returns the names of the arguments that may be left out."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name for p in parameters if p.default is not inspect.Parameter.empty}


def public():
    """Yields every public function, and the methods of the same names as functions."""
    for module in (mx, max_graph, checkpoints):
        yield from (getattr(module, name) for name in module.__all__)
    yield from (mx.MXLinear.from_linear, mx.MXTensor.dequantize, mx.MXTensor.preshuffle)


def test_every_optional_argument_has_an_entry():
    found = {function: optional(function) for function in public()}
    del found[checkpoints.Conversion]
    found[mx.MXTensor] -= {"scales"}  # Left out to remake a parameter: test_tensor_libraries.py.
    assert {f: set(names) for f, names in (CHANGES | ELSEWHERE).items()} == found


def outcome(function, tmp_path, capfd, **options):
    """Returns what a call comes to: what it gives and prints, or its error."""
    call = CALLS[function]
    if "tmp_path" in inspect.signature(call).parameters:
        tmp_path.mkdir()
        options["tmp_path"] = tmp_path
    capfd.readouterr()
    try:
        return described(call(**options)), capfd.readouterr().err
    except (TypeError, ValueError) as error:
        return error


def described(value):
    """Returns text or bytes that tell any two results apart."""
    if isinstance(value, mx.MXTensor):
        return repr(value), described(value.codes), described(value.scales)
    if isinstance(value, torch.Tensor):
        told = str(value.dtype), tuple(value.shape), str(value.device)
        return (
            told
            if value.is_meta
            else (*told, bytes(value.detach().flatten().view(torch.uint8).numpy()))
        )
    if hasattr(value, "_asdict"):
        return described(value._asdict())
    if isinstance(value, nn.Module):
        return repr(value), described(value.state_dict())
    if isinstance(value, dict):
        return {name: described(v) for name, v in value.items()}
    return value if isinstance(value, bytes) else repr(value)


ENTRIES = [(function, name) for function, given in CHANGES.items() for name in given]


def name_of(function):
    module = function.__module__.removeprefix("mx_kernels").partition(".")
    return f"{'max_graph.' if 'max_graph' in module[2] else ''}{function.__qualname__}"


@pytest.mark.parametrize(
    "function, name", ENTRIES, ids=lambda v: v if type(v) is str else name_of(v)
)
def test_it_changes_what_comes_of_a_call(tmp_path, capfd, function, name):
    given = Given.of(CHANGES[function][name])
    without = outcome(function, tmp_path / "without", capfd, **given.beside)
    with_it = outcome(function, tmp_path / "with", capfd, **given.beside | {name: given.value})
    assert not isinstance(with_it, Exception), with_it
    assert with_it != without


@pytest.mark.parametrize("function", CHANGES, ids=name_of)
def test_a_default_may_be_said(tmp_path, capfd, function):
    parameters = inspect.signature(function).parameters
    said = {name: parameters[name].default for name in CHANGES[function]}
    without = outcome(function, tmp_path / "without", capfd)
    assert not isinstance(without, Exception), without
    assert outcome(function, tmp_path / "with", capfd, **said) == without


KEPT = {"activations": "bf16"}
OTHERS = {"scale_rule": "floor", **KEPT}
REFUSED = [
    *(
        (function, "scale_rule", OTHERS)
        for function in (
            *(mx.linear, mx.grouped_linear, mx.moe, mx.mlp, mx.MXLinear, mx.MXExperts),
            *(max_graph.linear, max_graph.grouped_linear, max_graph.moe),
        )
    ),
    *(
        (function, name, {"hidden_act": hidden_act, name: 4.0})
        for function in (mx.moe, mx.mlp, mx.gate_quantize, mx.MXExperts, max_graph.moe)
        for name, hidden_act in (
            *(("beta", "silu"), ("linear_beta", "swiglu_oai")),
            *(("limit", "situ"), ("alpha", "gelu_tanh"), ("alpha", "swiglu_step")),
        )
    ),
    *(
        (function, "scale_rule", {"format": "fp8", "scale_rule": "floor"})
        for function in (
            *(mx.quantize, mx.rms_norm_quantize, mx.layer_norm_quantize, mx.gate_quantize),
            max_graph.quantize,
        )
    ),
    *(
        (function, "hadamard", {"hadamard": 48})
        for function in (mx.quantize, mx.linear, mx.MXLinear)
    ),
    (mx.rms_norm_quantize, "weight_offset", {"weight_offset": 1.0}),
    (mx.layer_norm_quantize, "bias", {"bias": floats(K)}),
    (mx.gate_quantize, "interleaved", {"up": floats(5, K), "interleaved": True}),
    (mx.explain, "experts", {"experts": 4}),
    (mx.explain, "slots", {"slots": 2, "op": mx.grouped_linear, "experts": 4, "device": "cuda"}),
    (mx.explain, "hidden_act", {"hidden_act": "silu"}),
    (mx.explain, "interleaved", {"interleaved": False}),
    (mx.explain, "by_columns", {"by_columns": True}),
    (checkpoints.convert, "scale_rule", {"quantized": True, "scale_rule": "rceil"}),
    (checkpoints.convert, "include", {"quantized": True, "include": ["a.weight"]}),
    (checkpoints.convert, "out", {"path": "out.safetensors", "max_shard_bytes": 100}),
    (checkpoints.convert, "max_shard_bytes", {"max_shard_bytes": 0}),
    (mx.save, "out", {"path": "out.safetensors", "max_shard_bytes": 100}),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{name_of(case[0])}-{case[1]}")
def test_what_a_call_cannot_use_is_refused(tmp_path, capfd, case):
    function, name, options = case
    error = outcome(function, tmp_path / "case", capfd, **options)
    assert isinstance(error, ValueError), error
    assert name in str(error) and "got" in str(error) and "expected" in str(error)
