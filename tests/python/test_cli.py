"""Claims about `python -m mx_kernels`: what a user types, what they get, and how errors read."""

import json
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import mx_kernels as mx
import oracle
import tensorfiles
from checkpoint_forms import EXPERTS, FORMS, UP, floats
from mx_kernels import _builds, _levels, _native
from mx_kernels.cli import app


def command(*arguments, code=0):
    """Runs the command line in this process and returns what it printed."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "120"})
    assert result.exit_code == code, result.output
    return result.output


def test_it_runs_as_a_module_and_knows_its_version():
    run = [sys.executable, "-m", "mx_kernels", "--version"]
    printed = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    assert printed == f"mx_kernels {mx.__version__}\n"


@pytest.mark.parametrize("library", ["typer", "rich"])
def test_a_missing_library_gets_one_sentence(library):
    code = f"import sys, runpy; sys.modules[{library!r}] = None; runpy.run_module('mx_kernels')"
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    wanted = f"python -m mx_kernels needs {library}: pip install 'mx_kernels[cli]'"
    assert (done.returncode, done.stderr.strip()) == (1, wanted)


def test_info_says_what_is_here():
    text = command("info")
    for word in (mx.__version__, torch.__version__, _levels.pick().name, _builds.cache_folder()):
        assert str(word) in text


def test_build_prints_the_paths_of_the_modules_that_are_used():
    paths = [_native.find_or_build(), _native.find_or_build(extension=_native.plans_extension())]
    assert command("build").split() == list(map(str, paths))
    assert command("build", "--level", _levels.pick().name).split() == list(map(str, paths))


def test_build_refuses_what_it_does_not_know():
    assert "error: --level: got 'avx9', expected avx512_bf16 or" in command(
        "build", "--level", "avx9", code=2
    )
    assert "error: --arch: got 'h100', expected sm_90a" in command(
        "build", "--arch", "h100", code=2
    )


def test_explain_says_what_the_function_says():
    text = command("explain", 16, 2112, 7168, "--device", "gfx950")
    assert text.strip() == str(mx.explain(16, 2112, 7168, device="gfx950"))
    text = command("explain", 1, 64, 64, "--activations", "bf16", "--format", "mxfp8")
    assert text.strip() == str(mx.explain(1, 64, 64, activations="bf16", format="mxfp8"))
    layer = "--op", "moe", "--experts", 8, "--slots", 2, "--device", "gfx950"
    found = mx.explain(4, 64, 96, op="moe", experts=8, slots=2, device="gfx950")
    assert command("explain", 4, 64, 96, *layer).strip() == str(found)
    assert "error: device: got 'tpu'" in command("explain", 1, 2, 32, "--device", "tpu", code=2)


# Converting checkpoints.

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


def assert_quantized(got, array, format="mxfp4", rounding="even"):
    codes, scales = oracle.quantize(array.astype(np.float64), rounding, format)
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


def forms_to(*targets):
    return [(form, target) for form in FORMS for target in targets]


def parts_by_hand(target, name, format, codes, scales):
    """What the files of a form have of a parameter, told from models.md alone."""
    if target == "gpt-oss":
        base = name.removesuffix(".weight")
        blocks = codes.reshape(*codes.shape[:-1], -1, 16)
        return {f"{base}_blocks": blocks, f"{base}_scales": scales}
    is_fused = target == "fp8" and not name.endswith(".weight")
    name = name if is_fused or name.endswith(".weight") else f"{name}.weight"
    if format != "mxfp4":
        codes = codes.view(ml_dtypes.float8_e4m3fn)
    if target == "fp8":
        return {name: codes, f"{name}_scale_inv": scales}
    is_packed = target == "compressed-tensors" and format == "mxfp4"
    return {f"{name}_packed" if is_packed else name: codes, f"{name}_scale": scales}


def fits(target, name, format, codes):
    is_experts, is_mx = codes.ndim == 3, format in ("mxfp4", "mxfp8")
    return {
        "gpt-oss": is_experts and format == "mxfp4",
        "compressed-tensors": not is_experts and is_mx,
        "quark": is_mx,
        "fp8": format == "fp8_block_2d",
        "mx_kernels": True,
    }[target]


@pytest.mark.parametrize(
    "form, target", forms_to("mx_kernels", "compressed-tensors", "quark", "gpt-oss", "fp8")
)
def test_every_form_becomes_every_form_that_can_hold_it(tmp_path, rng, form, target):
    config, arrays, meaning = FORMS[form](rng)
    (tmp_path / "in").mkdir()
    tensorfiles.write(tmp_path / "in" / "model.safetensors", arrays)
    (tmp_path / "in" / "config.json").write_text(json.dumps(config))
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
                assert files[part].dtype == array.dtype
                oracle.assert_bitwise_equal(files[part].view(np.uint8), array.view(np.uint8))
    # And back, through what `load` makes of it.
    loaded = mx.load(tmp_path / "out")
    assert len(loaded) == len(meaning)
    for name, (format, codes, scales) in quantized.items():
        names = name, f"{name}.weight", name.removesuffix(".weight")
        got = next(loaded[there] for there in names if there in loaded)
        assert got.format == format
        oracle.assert_bitwise_equal(got.unshuffle().codes.numpy(), codes)
        oracle.assert_bitwise_equal(got.unshuffle().scales.numpy(), scales)


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
    "a rounding nobody knows": (["--rounding", "up"], "rounding: got 'up'"),
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


def test_convert_does_not_overwrite(tmp_path, rng):
    model_of_floats(tmp_path / "in", rng)
    for target in (tmp_path / "in", tmp_path / "in" / "config.json"):
        text = command("convert", tmp_path / "in", target, code=2)
        assert "got something there, expected a new or an empty folder" in text
    text = command("convert", tmp_path / "in", tmp_path / "x.safetensors", code=2)
    assert "got a file for a folder's checkpoint, expected a folder" in text
    assert "error: " in command("convert", tmp_path / "nothing", tmp_path / "out", code=2)
