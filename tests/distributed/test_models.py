"""Models of transformers over ranks, by its plans and by our styles, and the examples of ranks."""

import os
import subprocess
import sys

import pytest
import torch
import transformers

import mx_kernels as mx
from bench.gpt_oss import write_checkpoint
from mx_kernels.integrations.distributed.cuts import sizes
from mx_kernels.integrations.transformers import MXConfig, attach, from_pretrained
from tests.distributed import ranks

pytestmark = pytest.mark.deep
BLOCK = 32


def test_a_plan_of_transformers_cuts_our_layers_at_blocks(tmp_path):
    torch.manual_seed(11)
    sizes_of = {"hidden_size": 128, "intermediate_size": 224, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    config = transformers.LlamaConfig(**sizes_of, **heads, vocab_size=96, tie_word_embeddings=False)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "floats")
    whole = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "floats", quantization_config=MXConfig(activations="mxint8"), dtype=torch.float32
    )
    whole.save_pretrained(tmp_path / "saved")
    with torch.no_grad():
        expected = whole(torch.arange(9)[None]).logits
    for rank, one in enumerate(ranks.run("transformers_plan", 2, tmp_path)):
        for name in ("saved", "floats"):
            torch.testing.assert_close(one[name], expected, rtol=1e-2, atol=1e-2)
            assert one[f"{name}/rows"].tolist() == [sizes(224, 2, BLOCK)[rank], 128]
            assert one[f"{name}/heads"].tolist() == [64, 128]
        assert one["refusal"]


def test_plans_of_transformers_cut_experts(tmp_path):
    sizes_of = {"hidden_size": 128, "num_hidden_layers": 2, "vocab_size": 96}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    common = sizes_of | heads | {"num_experts_per_tok": 2, "tie_word_embeddings": False}
    inner, count = 224, 4
    configs = {
        "qwen3_moe": transformers.Qwen3MoeConfig(
            **common, moe_intermediate_size=inner, num_experts=count
        ),
        "mixtral": transformers.MixtralConfig(
            **common, intermediate_size=inner, num_local_experts=count
        ),
        "gpt_oss": transformers.GptOssConfig(
            **common, intermediate_size=inner, num_local_experts=count
        ),
    }
    expected = {}
    for name, config in configs.items():
        torch.manual_seed(12)
        model = transformers.AutoModelForCausalLM.from_config(config)
        # Weights that nothing initializes are what memory holds.
        for p in model.parameters():
            torch.nn.init.normal_(p, std=p.shape[-1] ** -0.5)
        whole = mx.convert(model, activations="mxint8")
        attach(whole)
        whole.save_pretrained(tmp_path / name)
        with torch.no_grad():
            expected[name] = whole(torch.arange(9)[None]).logits
    for rank, one in enumerate(ranks.run("transformers_experts", 2, tmp_path)):
        rows = 2 * sizes(inner, 2, BLOCK)[rank]
        for name, logits in expected.items():
            assert one[f"{name}/shape"].tolist() == [count, rows, 128], name
            torch.testing.assert_close(one[name], logits, rtol=1e-2, atol=1e-2)
        assert one["refusal"]


def said_by(example, folder, *arguments):
    """Returns the lines that an example on two ranks prints."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    path = os.pathsep.join([str(ranks.ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
    command += [str(ranks.ROOT / "examples" / example), *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=True)
    return done.stdout.splitlines()


def test_the_example_computes_on_two_ranks_what_one_would(tmp_path):
    lines = said_by("two_ranks.py", tmp_path)
    assert len(lines) == 2
    assert max(float(line.rpartition(" ")[2]) for line in lines) < 1e-6


def test_the_example_of_gpt_oss_generates_what_one_rank_would(tmp_path):
    sizes_of = {"experts": 4, "active": 2, "hidden": 64, "inner": 96, "vocabulary": 256}
    heads = {"heads": 4, "kv_heads": 2, "head": 16, "window": 8}
    write_checkpoint(tmp_path / "model", 2, **sizes_of, **heads)
    ids = [5, 70, 31]
    with torch.no_grad():
        logits = from_pretrained(tmp_path / "model")(torch.tensor([ids])).logits[0, -1]
    asked = ["--ids", " ".join(map(str, ids)), "--tokens", "4"]
    (line,) = said_by("gpt_oss_ranks.py", tmp_path, str(tmp_path / "model"), *asked)
    tokens = [int(word) for word in line.split()]
    assert len(tokens) == 4
    # The best, or as good in bfloat16.
    assert logits[tokens[0]] >= logits.max() - 2**-6 * logits.abs().max()
