"""Converting checkpoints: what is quantized, along which axis, what moves along, what raises."""

import importlib.util
import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

import mx_kernels as mx
import oracle
import tensorfiles
from checkpoint_forms import EXPERTS, FORMS, UP, assert_means, floats
from mx_kernels import checkpoints, ops
from mx_kernels._core.facts import weights_format
from mx_kernels.checkpoints import converting
from mx_kernels.checkpoints.floats import TURNED
from tests.python.test_cli import command

FLOATS = {
    "model.embed_tokens.weight": (10, 64),
    "model.layers.0.self_attn.q_proj.weight": (18, 64),
    "model.layers.0.mlp.down_proj.weight": (64, 96),
    "model.layers.0.mlp.odd_proj.weight": (6, 40),
    "model.layers.0.mlp.gate.weight": (4, 64),
    "model.layers.0.mlp.router.weight": (4, 64),
    "model.layers.0.input_layernorm.weight": (64,),
    "lm_head.weight": (10, 64),
}
LINEAR = {"model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.down_proj.weight"}


def model_of_floats(folder, rng, dtype=ml_dtypes.bfloat16):
    """Writes a checkpoint of floats with what belongs to it; returns its arrays."""
    folder.mkdir()
    arrays = {name: floats(rng, *shape).astype(dtype) for name, shape in FLOATS.items()}
    tensorfiles.write_sharded(folder, arrays, 2)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "dtype": "bfloat16"}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "pytorch_model.bin").write_bytes(b"")
    return arrays


def assert_quantized(got, array, format="mxfp4", scale_rule="even", **options):
    codes, scales = oracle.quantize(array.astype(np.float64), scale_rule, format, **options)
    oracle.assert_bitwise_equal(got.unshuffle().codes.numpy(), codes)
    oracle.assert_bitwise_equal(got.unshuffle().scales.numpy(), scales)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_convert_quantizes_linear_weights_and_leaves_the_rest(tmp_path, rng, dtype):
    arrays = model_of_floats(tmp_path / "in", rng, np.dtype(getattr(ml_dtypes, dtype, dtype)))
    text = command("convert", tmp_path / "in", tmp_path / "out")
    assert "2 quantized, 0 were MX, 6 as they were" in text
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {"config.json", "tokenizer.json", "model.safetensors"}
    loaded = mx.load(tmp_path / "out")
    assert {name for name, got in loaded.items() if isinstance(got, mx.MXTensor)} == LINEAR
    for name, array in arrays.items():
        assert loaded[name].dtype == getattr(torch, dtype)
        if name in LINEAR:
            assert_quantized(loaded[name], array)
        else:
            assert loaded[name].view(torch.uint8).numpy().tobytes() == array.tobytes()


def test_convert_takes_a_format_a_rounding_and_patterns(tmp_path, rng):
    arrays = model_of_floats(tmp_path / "in", rng)
    options = ["--format", "mxfp8", "--rounding", "floor"]
    patterns = ["--include", "*.weight", "--exclude", "*odd*", "--exclude", "*norm*"]
    command("convert", tmp_path / "in", tmp_path / "out", *options, *patterns)
    loaded = mx.load(tmp_path / "out")
    for name, array in arrays.items():
        if "odd" in name or "norm" in name:
            assert not isinstance(loaded[name], mx.MXTensor)
        else:
            assert_quantized(loaded[name], array, "mxfp8", "floor")


@pytest.mark.parametrize("format", oracle.FORMATS)
def test_every_format_is_written_as_the_oracle_has_it_and_saved_again(tmp_path, rng, format):
    arrays, kept = model_of_floats(tmp_path / "in", rng), weights_format(format)
    command("convert", tmp_path / "in", tmp_path / "out", "--format", format)
    loaded = mx.load(tmp_path / "out")
    mx.save(loaded, tmp_path / "again.safetensors")
    for found in (loaded, mx.load(tmp_path / "again.safetensors")):
        assert {name for name, got in found.items() if isinstance(got, mx.MXTensor)} == LINEAR
        for name in LINEAR:
            assert found[name].format == kept
            assert_quantized(found[name], arrays[name], kept)


def test_floats_beside_mx_are_quantized_only_if_asked_for(tmp_path, rng):
    _, arrays, _ = FORMS["quark_mxfp4"](rng)
    arrays["model.layers.0.self_attn.q_proj.weight"] = floats(rng, 18, 64)
    tensorfiles.write(tmp_path / "in.safetensors", arrays)
    command("convert", tmp_path / "in.safetensors", tmp_path / "1.safetensors")
    kept = mx.load(tmp_path / "1.safetensors")["model.layers.0.self_attn.q_proj.weight"]
    assert type(kept) is torch.Tensor
    asked = ["--include", "*.q_proj.weight"]
    command("convert", tmp_path / "in.safetensors", tmp_path / "2.safetensors", *asked)
    got = mx.load(tmp_path / "2.safetensors")["model.layers.0.self_attn.q_proj.weight"]
    assert_quantized(got, arrays["model.layers.0.self_attn.q_proj.weight"])


JOINED = ("experts_apart", "experts_of_bytes", "modelopt_nvfp4")
"""Forms with a tensor for each expert, which loading joins and converting does not."""


def forms_to(*targets):
    every = [(form, target) for form in FORMS for target in targets]
    return [
        (form, target) for form, target in every if form not in JOINED or target == "mx_kernels"
    ]


def parts_by_hand(target, name, format, codes, scales):
    """What the files of a form have of a parameter, told from models.md alone."""
    if target == "gpt-oss":
        base = name.removesuffix(".weight")
        blocks = codes.reshape(*codes.shape[:-1], -1, 16)
        return {f"{base}_blocks": blocks, f"{base}_scales": scales}
    is_fused = target == "fp8" and not name.endswith(".weight")
    name = name if is_fused or name.endswith(".weight") else f"{name}.weight"
    is_small = format in ("mxfp4", "mxfp6", "mxfp6_e3m2", "nvfp4")
    if not is_small:
        codes = codes.view(ml_dtypes.float8_e4m3fn)
    if target == "fp8":
        return {name: codes, f"{name}_scale_inv": scales}
    is_packed = target == "compressed-tensors" and is_small
    whole = {}
    if format == "nvfp4":
        scales, of_rows = scales[..., :-4], scales[..., -4:].copy().view(np.float32)
        scales, of_one = scales.copy().view(ml_dtypes.float8_e4m3fn), of_rows[..., 0, 0]
        is_divided = {f"{name}_global_scale": np.float32([1]) / of_one} if is_packed else None
        whole = is_divided or {f"{name}_scale_2": of_one}
    return {f"{name}_packed" if is_packed else name: codes, f"{name}_scale": scales} | whole


def fits(target, name, format, codes):
    is_experts, is_mx = codes.ndim == 3, format in ("mxfp4", "mxfp6", "mxfp8", "nvfp4")
    return {
        "gpt-oss": is_experts and format == "mxfp4",
        "compressed-tensors": not is_experts and is_mx,
        "quark": is_mx or format == "mxfp6_e3m2",
        "modelopt": is_mx and format != "mxfp6" and name.endswith("weight"),
        "fp8": format == "fp8_block_2d",
        "mx_kernels": True,
    }[target]


@pytest.mark.parametrize(
    "form, target",
    forms_to("mx_kernels", "compressed-tensors", "quark", "modelopt", "gpt-oss", "fp8"),
)
def test_every_form_becomes_every_form_that_can_hold_it(tmp_path, rng, form, target):
    config, arrays, meaning = FORMS[form](rng)
    (tmp_path / "in").mkdir()
    tensorfiles.checkpoint(tmp_path / "in", config, arrays)
    quantized = {n: m for n, m in meaning.items() if isinstance(m, tuple)}
    arguments = ["convert", tmp_path / "in", tmp_path / "out", "--to", target]
    if not all(fits(target, name, m[0], m[1]) for name, m in quantized.items()):
        text = command(*arguments, code=2)
        assert f"to write as {target}, expected" in text
        assert [path.name for path in tmp_path.iterdir()] == ["in"]
        return
    command(*arguments)
    files, written = tensorfiles.read_folder(tmp_path / "out")
    if target != "mx_kernels":
        assert written["quantization_config"]["quant_method"] == target.replace("gpt-oss", "mxfp4")
        for name, m in quantized.items():
            for part, array in parts_by_hand(target, name, *m).items():
                assert (files[part].dtype, files[part].shape) == (array.dtype, array.shape)
                pair = (np.atleast_1d(a).view(np.uint8) for a in (files[part], array))
                oracle.assert_bitwise_equal(*pair)
    # And back, through what `load` makes of it.
    loaded = mx.load(tmp_path / "out")
    assert len(loaded) == len(meaning)
    for name, (format, codes, scales) in quantized.items():
        names = name, f"{name}.weight", name.removesuffix(".weight")
        got = next(loaded[there] for there in names if there in loaded)
        assert got.format == format
        oracle.assert_bitwise_equal(got.unshuffle().codes.numpy(), codes)
        kept = scales
        if format == "nvfp4" and target == "compressed-tensors":
            # What is divided by is stored, and a reciprocal is rounded.
            whole = np.float32(1) / (np.float32(1) / scales[..., -4:].copy().view(np.float32))
            kept = np.concatenate([scales[..., :-4], whole.view(np.uint8)], -1)
        oracle.assert_bitwise_equal(got.unshuffle().scales.numpy(), kept)


ONE_SCALE = ("compressed-tensors", "quark", "modelopt")
"""Forms with one tensor scale of NVFP4 for a matrix."""


@pytest.mark.parametrize("target", ONE_SCALE)
@pytest.mark.parametrize("source", ["floats", "mxfp8"])
def test_nvfp4_gets_one_tensor_scale_in_some_forms(tmp_path, rng, target, source, monkeypatch):
    """Of the largest number of all rows, in whichever steps it is looked for."""
    monkeypatch.setattr(converting, "FLOATS_AT_ONCE", 1)
    arrays, start = model_of_floats(tmp_path / "floats", rng), tmp_path / source
    values = {name: arrays[name].astype(np.float64) for name in LINEAR}
    if source == "mxfp8":
        checkpoints.convert(tmp_path / "floats", start, format="mxfp8")
        values = {name: oracle.dequantize(*oracle.quantize(v, format="mxfp8"), "mxfp8")
                  for name, v in values.items()}  # fmt: skip
    checkpoints.convert(start, tmp_path / "out", to=target, format="nvfp4")
    loaded = mx.load(tmp_path / "out")
    for name, value in values.items():
        whole = np.float32(abs(value).max()) / np.float32(6 * 448)
        if target == "compressed-tensors":
            whole = np.float32(1) / (np.float32(1) / whole)
        of_rows = np.full(len(value), whole)
        assert_quantized(loaded[name], value, "nvfp4", tensor_scale=of_rows)


@pytest.mark.parametrize("target", ONE_SCALE)
def test_rows_with_tensor_scales_of_their_own_get_a_sentence_and_no_file(tmp_path, rng, target):
    model_of_floats(tmp_path / "in", rng)
    checkpoints.convert(tmp_path / "in", tmp_path / "own", format="nvfp4")
    text = command("convert", tmp_path / "own", tmp_path / "out", "--to", target, code=2)
    assert "got nvfp4 with tensor scales from " in text and f"to write as {target}, exp" in text
    assert not (tmp_path / "out").exists()


def test_gpt_oss_gets_its_names_back_from_quark(tmp_path, rng):
    config, arrays, _ = FORMS["gpt_oss"](rng)
    (tmp_path / "0").mkdir()
    tensorfiles.write(tmp_path / "0" / "model.safetensors", arrays)
    (tmp_path / "0" / "config.json").write_text(json.dumps(config))
    command("convert", tmp_path / "0", tmp_path / "1", "--to", "quark")
    assert f"{EXPERTS}.gate_up_proj.bias" in tensorfiles.read_folder(tmp_path / "1")[0]
    command("convert", tmp_path / "1", tmp_path / "2", "--to", "gpt-oss")
    again, _ = tensorfiles.read_folder(tmp_path / "2")
    assert again.keys() == arrays.keys()
    for name, array in arrays.items():
        assert again[name].tobytes() == array.tobytes()


def test_configs_name_what_stays_and_each_format(tmp_path, rng):
    model_of_floats(tmp_path / "in", rng)
    written = {}
    for target in ("compressed-tensors", "quark", "mx_kernels"):
        command("convert", tmp_path / "in", tmp_path / target, "--to", target)
        config = json.loads((tmp_path / target / "config.json").read_text())
        assert config.pop("model_type") == "llama"
        written[target] = config["quantization_config"]
    assert written["mx_kernels"] == {"quant_method": "mx_kernels"}
    assert written["quark"]["global_quant_config"]["weight"]["dtype"] == "fp4"
    assert written["quark"]["global_quant_config"]["weight"]["scale_format"] == "e8m0"
    assert "lm_head" in written["quark"]["exclude"]
    group = written["compressed-tensors"]["config_groups"]["group_0"]
    assert written["compressed-tensors"]["format"] == "mxfp4-pack-quantized"
    assert (group["weights"]["num_bits"], group["weights"]["group_size"]) == (4, 32)
    assert "model.layers.0.mlp.gate" in written["compressed-tensors"]["ignore"]


def test_what_models_in_a_model_said_of_quantization_goes(tmp_path, rng):
    config, arrays, meaning = FORMS["quark_mxfp4"](rng)
    said = {"thinker_config": {"text_config": config | {"x": 1}, "dtype": "float32"}}
    _, loaded = convert(tmp_path, arrays, said)
    written = json.loads((tmp_path / "out0" / "config.json").read_text())
    assert written["thinker_config"] == {"text_config": {"x": 1}, "dtype": "float32"}
    assert written["quantization_config"] == {"quant_method": "mx_kernels"}
    assert loaded.keys() == meaning.keys()


def test_a_file_becomes_a_file(tmp_path, rng):
    _, arrays, meaning = FORMS["quark_mxfp4"](rng)
    tensorfiles.write(tmp_path / "in.safetensors", arrays)
    command("convert", tmp_path / "in.safetensors", tmp_path / "out.safetensors")
    got = mx.load(tmp_path / "out.safetensors")[f"{UP}.weight"]
    oracle.assert_bitwise_equal(got.unshuffle().codes.numpy(), meaning[f"{UP}.weight"][1])


def test_shards_can_be_small(tmp_path, rng):
    model_of_floats(tmp_path / "in", rng)
    command("convert", tmp_path / "in", tmp_path / "out", "--max-shard-bytes", 2000)
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 2
    assert mx.load(tmp_path / "out").keys() == FLOATS.keys()


WRONG = {
    "a form nobody knows": (["--to", "gguf"], "to: got 'gguf', expected mx_kernels or compressed"),
    "a format nobody knows": (["--format", "mxfp3"], "format: got 'mxfp3'"),
    "a rounding nobody knows": (["--rounding", "up"], "scale_rule: got 'up'"),
    "a form that lacks the format": (
        ["--to", "quark", "--format", "mxint8"], "got mxint8 to write as quark, expected mxfp4 or",
    ),
    "a pattern for nothing": (["--exclude", "*.bais"], "pattern '*.bais', which matches no name"),
    "a row of no blocks": (["--include", "*odd*"], "odd_proj.weight: got torch.bfloat16 [6, 40]"),
    "all left out": (["--exclude", "*"], "got no weights to quantize, expected matrices *.weight"),
    "matrices as experts": (["--to", "gpt-oss"], "to write as gpt-oss, expected 3 axes"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_converted_gets_a_sentence_and_no_file(tmp_path, rng, case):
    options, message = WRONG[case]
    model_of_floats(tmp_path / "in", rng)
    text = command("convert", tmp_path / "in", tmp_path / "out", *options, code=2)
    assert f"error: {message}" in text or (text.startswith("error: ") and message in text)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def convert(tmp_path, arrays, config, **options):
    """Converts a checkpoint of these arrays; returns what was done, and what is loaded."""
    tensorfiles.write(tmp_path / "model.safetensors", arrays)
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    out = tmp_path / f"out{len(list(tmp_path.glob('out*')))}"
    source = tmp_path if config is not None else tmp_path / "model.safetensors"
    done = checkpoints.convert(source, out, **options)
    return done, mx.load(out)


KEPT = """
    shared.weight encoder.embed_tokens.weight transformer.wte.weight transformer.wpe.weight
    embeddings.word_embeddings.weight tok_embeddings.weight rwkv.emb.weight model.pos_emb.weight
    bert.embeddings.position_embeddings.weight t_embedder.mlp.0.weight time_embed.2.weight
    model.pos_encoding.weight
    lm_head.weight head.weight output.weight model.output.weight score.weight
    lm_head.decoder.weight cls.predictions.decoder.weight model.layers.61.shared_head.head.weight
    classifier.dense.weight qa_outputs.weight proj_out.weight transformer.output_layer.weight
    model.layers.0.mlp.gate.weight model.layers.0.mlp.gate.wg.weight block_sparse_moe.gate.weight
    layers.0.feed_forward.router.weight layers.0.mlp.router.layer.weight layers.0.moe.wg.weight
    layers.0.mlp.shared_expert_gate.weight layers.0.ffn.moe_gate.weight
    encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight attn.rel_pos_bias.weight
    model.norm.weight layers.0.norm1.linear.weight h.0.ln_1.weight decoder.layers.0.attn_ln.weight
    model.vision_tower.encoder.layers.0.mlp.fc1.weight visual.blocks.0.attn.qkv.weight
    vision_model.encoder.layers.0.fc1.weight multi_modal_projector.linear_1.weight
    model.mm_projector.0.weight audio_tower.layers.0.fc1.weight
""".split()  # noqa: SIM905
ORDINARY = """
    model.layers.0.mlp.gate_proj.weight model.layers.0.mlp.shared_expert.up_proj.weight
    encoder.layer.0.attention.output.dense.weight encoder.layer.0.output.dense.weight
    h.0.attn.proj.weight model.layers.0.self_attn.o_proj.weight layers.0.mlp.output.weight
    layers.0.shared.weight layers.0.mlp.experts.3.gate.weight layers.0.mlp.experts.3.w1.weight
    model.layers.0.mlp.shared_experts.gate_proj.weight layers.0.attention.wo.weight
    encoder.block.0.layer.0.SelfAttention.q.weight decoder.block.0.layer.2.DenseReluDense.wi.weight
    transformer.h.0.mlp.dense_h_to_4h.weight layers.0.self_attn.gate_up_proj.weight
    layers.0.linear_attn.in_proj_qkvz.weight layers.0.attn.member_proj.weight layers.0.wide.weight
""".split()  # noqa: SIM905


def test_convert_keeps_by_their_names_what_loses_most(tmp_path, rng):
    arrays = {name: floats(rng, 32, 64) for name in KEPT + ORDINARY}
    done, _ = convert(tmp_path, arrays, {"model_type": "x"})
    assert set(done.quantized) == set(ORDINARY) and set(done.kept) == set(KEPT)
    done, _ = convert(tmp_path, arrays, {"model_type": "x"}, include=KEPT)
    assert set(done.quantized) == set(KEPT), "include does not overrule what is kept"


UP_PROJ, DOWN_PROJ = f"{EXPERTS}.gate_up_proj", f"{EXPERTS}.down_proj"
SQUARE = {"hidden_size": 64}


def test_a_tower_is_kept_beside_anything_else(tmp_path, rng):
    tower, up = "vision_tower.layers.0.fc1.weight", "model.layers.0.mlp.up_proj.weight"
    arrays = {tower: floats(rng, 32, 64), up: floats(rng, 32, 64)}
    assert convert(tmp_path, arrays, {"model_type": "x"})[0].quantized == (up,)
    alone = {tower: arrays[tower], "vision_tower.norm.weight": floats(rng, 32)}
    assert convert(tmp_path, alone, {"model_type": "x"})[0].quantized == (tower,)


def test_one_pattern_is_no_list_of_letters(tmp_path, rng):
    arrays = {name: floats(rng, 32, 64) for name in ("a.weight", "w.weight")}
    for number, options in enumerate(({"include": "a.*"}, {"exclude": "w.*"})):
        tensorfiles.write(tmp_path / "in.safetensors", arrays)
        done = checkpoints.convert(tmp_path / "in.safetensors", tmp_path / str(number), **options)
        assert done.quantized == ("a.weight",)
    with pytest.raises(TypeError, match="exclude: got 3, expected names or patterns"):
        checkpoints.convert(tmp_path / "in.safetensors", tmp_path / "out", exclude=3)


AXES = {
    "gpt-oss": ({"model_type": "gpt_oss", **SQUARE}, UP_PROJ, (2, 64, 96), True),
    "gpt-oss, square": ({"model_type": "gpt_oss", **SQUARE}, DOWN_PROJ, (2, 64, 64), True),
    "Llama 4, square": ({"text_config": {"model_type": "llama4_text"}}, DOWN_PROJ,
                        (2, 64, 64), True),
    "Aria, square": ({"model_type": "aria"}, f"{EXPERTS}.fc2.weight", (2, 64, 64), True),
    "as transformers has it": ({"model_type": "x", **SQUARE}, UP_PROJ, (2, 96, 64), False),
    "its second": ({"model_type": "x", **SQUARE}, DOWN_PROJ, (2, 64, 96), False),
    "across by its sizes": ({"model_type": "qwen3_vl_moe", "text_config": SQUARE}, UP_PROJ,
                            (2, 64, 96), True),
    "its second across": ({"model_type": "x", **SQUARE}, DOWN_PROJ, (2, 96, 64), True),
    "sizes before the type": ({"model_type": "llama4", **SQUARE}, UP_PROJ, (2, 96, 64), False),
    "Conv1D": ({"model_type": "gpt2"}, "h.0.attn.c_proj.weight", (64, 64), True),
    "Conv1D in another": ({"decoder": {"model_type": "gpt2"}}, "h.0.mlp.c_fc.weight",
                          (64, 96), True),
    "Linear of such a name": ({"model_type": "gpt_bigcode"}, "h.0.attn.c_proj.weight",
                              (64, 64), False),
}  # fmt: skip


@pytest.mark.parametrize("case", AXES)
def test_blocks_lie_along_the_axis_that_is_summed(tmp_path, rng, case):
    config, name, shape, is_turned = AXES[case]
    array = floats(rng, *shape)
    _, loaded = convert(tmp_path, {name: array}, config, include=[name])
    wanted = np.ascontiguousarray(array.swapaxes(-1, -2)) if is_turned else array
    assert tuple(loaded[name].shape) == wanted.shape
    assert_quantized(loaded[name], wanted)


UNTOLD = {
    "a type that has both": ({"model_type": "qwen3_vl_moe", **SQUARE}, UP_PROJ, (2, 64, 64)),
    "a type nobody knows": ({"model_type": "x"}, UP_PROJ, (2, 64, 96)),
    "sizes that both are": ({"model_type": "x", **SQUARE}, DOWN_PROJ, (2, 64, 64)),
    "a name nobody knows": ({"model_type": "x", **SQUARE}, f"{EXPERTS}.bank", (2, 64, 96)),
    "no config": (None, UP_PROJ, (2, 64, 96)),
    "Conv1D without a config": (None, "h.0.attn.c_attn.weight", (64, 96)),
}


@pytest.mark.parametrize("case", UNTOLD)
def test_an_axis_that_nothing_tells_has_to_be_named(tmp_path, rng, case):
    config, name, shape = UNTOLD[case]
    array = floats(rng, *shape)
    with pytest.raises(ValueError, match=r"may be \[..., N, K\] or .*expected k_axis"):
        convert(tmp_path, {name: array}, config, include=[name])
    assert not list(tmp_path.glob("out*"))
    for k_axis, wanted in ((-1, array), (-2, np.ascontiguousarray(array.swapaxes(-1, -2)))):
        _, loaded = convert(tmp_path, {name: array}, config, include=[name], k_axis=k_axis)
        assert_quantized(loaded[name], wanted)


def test_the_table_of_axes_has_the_classes_of_transformers():
    """Told from their source: importing them all takes minutes."""
    models = Path(importlib.util.find_spec("transformers").origin).parent / "models"
    ways = "is_transposed=True", "import Conv1D", "torch.bmm(hidden_states, self.gate_up_proj)"
    files = models.glob("*/modeling_*.py")
    found = {f.parent.name for f in files if any(way in f.read_text() for way in ways)}
    known = {name.replace("openai-gpt", "openai").removesuffix("_text") for name in TURNED}
    assert {"gpt_oss", "gpt2"} <= found <= known


def test_codes_across_the_sums_are_refused(tmp_path):
    codes = np.zeros((2, 64, 64), ml_dtypes.float8_e4m3fn)
    arrays = {UP_PROJ: codes, f"{UP_PROJ}_scale_inv": np.ones((2, 1, 1), np.float32)}
    said = {"quantization_config": {"quant_method": "fp8"}}
    _, loaded = convert(tmp_path, arrays, said | {"model_type": "x"})
    assert loaded[UP_PROJ].format == "fp8"
    with pytest.raises(ValueError, match=r"gate_up_proj \[2, 64, 64\], which this type of"):
        convert(tmp_path, arrays, said | {"model_type": "llama4"})


def test_convert_copies_folders_and_says_what_it_leaves_out(tmp_path, rng):
    model_of_floats(tmp_path / "in", rng)
    tensorfiles.write(tmp_path / "in" / "old.safetensors", {"a": np.ones(3, np.float32)})
    files = ["1_Pooling/config.json", "encoding/deep/er/code.py", "2_Dense/model.safetensors",
             "original/model.safetensors", "original/params.json", ".git/config"]  # fmt: skip
    for file in files:
        path = tmp_path / "in" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file)
    modules = [{"path": ""}, {"path": "1_Pooling"}, {"path": "2_Dense"}]
    (tmp_path / "in" / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "in" / "loop").symlink_to(tmp_path / "in")
    (tmp_path / "in" / "self").symlink_to("self")
    (tmp_path / "in" / "link.txt").symlink_to("tokenizer.json")
    # The target is in the source, as its parent's name is what one types first.
    out = tmp_path / "in" / "out"
    text = command("convert", tmp_path / "in", out)
    left = "loop/, old.safetensors, pytorch_model.bin, self, original/model.safetensors"
    assert f"left out: {left}" in text.replace("\n", " ")
    there = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert there == {"config.json", "tokenizer.json", "modules.json", "link.txt",
                     "model.safetensors", *files[:3], files[4]}  # fmt: skip
    assert all((out / file).read_text() == file for file in (*files[:3], files[4]))


QUANTIZED = "which matches only what is quantized already, as model.layers.0.mlp.up_proj.weight in"
NO_EFFECT = {
    "format": (["--format", "fp8"], "format: got 'fp8' for a checkpoint that is quantized already"),
    "scale_rule": (["--rounding", "even"], "scale_rule: got 'even' for a checkpoint that is"),
    "axis": (["--k-axis", "-1"], "k_axis: got -1 for a checkpoint that is quantized already"),
    "include": (["--include", "*up_proj.weight"], QUANTIZED),
    "exclude": (["--exclude", "*up_proj.weight"], QUANTIZED),
    "axis of a matrix": (
        ["--k-axis", "-2", "--include", "*q_proj*"], "k_axis: got -2, expected none: no stack of",
    ),
    "an axis nobody knows": (["--k-axis", "0"], "k_axis: got 0, expected -1 or -2"),
    "no size": (["--max-shard-bytes", "0"], "max_shard_bytes: got 0, expected a positive number"),
    "less than no size": (["--max-shard-bytes", "-5"], "max_shard_bytes: got -5, expected a posi"),
}  # fmt: skip


@pytest.mark.parametrize("case", NO_EFFECT)
def test_an_option_without_effect_gets_a_sentence_and_no_file(tmp_path, rng, case):
    options, message = NO_EFFECT[case]
    config, arrays, _ = FORMS["fp8_of_rows"](rng)
    arrays["model.layers.0.self_attn.q_proj.weight"] = floats(rng, 18, 64)
    (tmp_path / "in").mkdir()
    tensorfiles.checkpoint(tmp_path / "in", config, arrays)
    text = command("convert", tmp_path / "in", tmp_path / "out", *options, code=2)
    assert message in text and "expected" in text
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize("size", [True, 1.5, 0, -5, "9", 2.0])
def test_a_size_of_shards_is_a_positive_int(tmp_path, rng, size):
    tensors = {"a.weight": torch.ones(4, 32)}
    with pytest.raises(ValueError, match=r"max_shard_bytes: got .*, expected a positive"):
        mx.save(tensors, tmp_path / "out", max_shard_bytes=size)
    mx.save(tensors, tmp_path / "in.safetensors")
    for target in ("out", "out.safetensors"):
        with pytest.raises(ValueError, match=r"max_shard_bytes: got .*, expected a positive"):
            checkpoints.convert(
                tmp_path / "in.safetensors", tmp_path / target, max_shard_bytes=size
            )
    assert [path.name for path in tmp_path.iterdir()] == ["in.safetensors"]


def test_a_file_that_is_too_small_is_refused(tmp_path, rng):
    arrays = {f"{name}.weight": floats(rng, 32, 64) for name in ("a", "b")}
    tensorfiles.write(tmp_path / "in.safetensors", arrays)
    with pytest.raises(ValueError, match="bytes for files of 9, expected the path of a folder"):
        checkpoints.convert(
            tmp_path / "in.safetensors", tmp_path / "o.safetensors", max_shard_bytes=9
        )
    assert [path.name for path in tmp_path.iterdir()] == ["in.safetensors"]


def test_convert_does_not_overwrite(tmp_path, rng):
    model_of_floats(tmp_path / "in", rng)
    for target in (tmp_path / "in", tmp_path / "in" / "config.json"):
        text = command("convert", tmp_path / "in", target, code=2)
        assert "got something there, expected a new or an empty folder" in text
    text = command("convert", tmp_path / "in", tmp_path / "x.safetensors", code=2)
    assert "got a file for a folder's checkpoint, expected a folder" in text
    assert "error: " in command("convert", tmp_path / "nothing", tmp_path / "out", code=2)


ANEW = {
    "experts_apart": "mxfp4",
    "deepseek": "mxfp4",
    "fused_fp8_blocks": "mxfp8",
    "fp8_of_a_tensor": "mxint8",
    "gpt_oss": "fp8_block_2d",
    "modelopt_mixed": "mxfp4",
}


@pytest.mark.parametrize("form", ANEW)
def test_codes_become_another_format_by_float32(tmp_path, rng, form, monkeypatch):
    """In steps of 128 rows, whatever the matrix has."""
    monkeypatch.setattr(ops, "_FLOATS_AT_ONCE", 1)
    config, arrays, meaning = FORMS[form](rng)
    (tmp_path / "in").mkdir()
    tensorfiles.checkpoint(tmp_path / "in", config, arrays)
    done = checkpoints.convert(
        tmp_path / "in", tmp_path / "out", format=ANEW[form], scale_rule="rceil"
    )
    assert not done.rewritten and done.quantized
    loaded = mx.load(tmp_path / "out")
    for name, m in meaning.items():
        if not isinstance(m, tuple):
            continue
        values = oracle.round_to(oracle.dequantize(m[1], m[2], m[0]), "float32")
        got = loaded[name].unshuffle()
        assert got.format == ANEW[form]
        error = np.square(got.dequantize("float32").double().numpy() - values).sum()
        error = np.sqrt(error / np.square(values).sum())
        if name in done.errors:
            np.testing.assert_allclose(done.errors[name], error, rtol=1e-6)
        for e in np.ndindex(values.shape[:-2]):
            codes, scales = oracle.quantize(values[e], "rceil", ANEW[form])
            oracle.assert_bitwise_equal(got.codes.numpy()[e], codes)
            oracle.assert_bitwise_equal(got.scales.numpy()[e], scales)


def test_patterns_say_which_codes_are_quantized_anew(tmp_path, rng):
    config, arrays, _ = FORMS["modelopt_mixed"](rng)
    (tmp_path / "in").mkdir()
    tensorfiles.checkpoint(tmp_path / "in", config, arrays)
    other = "model.layers.1.self_attn.o_proj.weight"
    for number, options in enumerate(({"include": "*o_proj*"}, {"exclude": "*up_proj*"})):
        out = tmp_path / str(number)
        done = checkpoints.convert(tmp_path / "in", out, format="mxint8", **options)
        assert (done.quantized, done.rewritten) == ((other,), (f"{UP}.weight",))
        assert {t.format for t in mx.load(out).values() if isinstance(t, mx.MXTensor)} == {
            "mxfp8", "mxint8",
        }  # fmt: skip


def test_weights_that_become_floats_are_named(tmp_path, rng):
    config, arrays, meaning = FORMS["odd_k"](rng)
    (tmp_path / "in").mkdir()
    tensorfiles.checkpoint(tmp_path / "in", config, arrays)
    done = checkpoints.convert(tmp_path / "in", tmp_path / "out", to="compressed-tensors")
    assert sorted(done.dequantized) == sorted(n for n in meaning if n.startswith("vision_tower"))
    assert not set(done.dequantized) & {*done.kept, *done.rewritten, *done.quantized}
    assert_means(mx.load(tmp_path / "out"), meaning)
    said = command("convert", tmp_path / "in", tmp_path / "again")
    assert "floats, by their K: " in said and "fc1_2.weight" in said
