"""Whole models by MAX's engine on a CPU: our linear layers against MAX's own float32 and q4_k.

Each system generates with one random Llama in a process of its own, in the environment of MAX's
serving (`bench.serving.environment`): one prompt, read at once, and tokens behind it one by one.
MAX's q4_k gets the Llama's weights as llama.cpp's format has them; its codes are those nearest to
the floats under scales of 6 bits, without llama.cpp's search.

    start      the first start compiles, the second loads what the first has kept
    memory     beyond that of the process before, with the KV cache, beside the bytes of weights
    error      of the logits behind the prompt: root mean square of the difference to float64, by
               the weights that the system multiplies by, over that of the logits
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from bench.report import Table
from bench.rows import Origin
from bench.serving.environment import python_with_max, said

PROMPT, NEW, ROUNDS = 128, 32, 3
TINY = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
TINY |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512}
BILLION = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
BILLION |= {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32768}
SIZES = {"tiny": TINY, "1B": BILLION}
"""Of Llamas: 1B has the layers of Llama-3.2-1B, and a quarter of its vocabulary."""
OURS, FLOATS, Q4_K = "mx_kernels, mxint8", "MAX float32", "MAX q4_k"
SYSTEMS = (OURS, FLOATS, Q4_K)
WORKER = Path(__file__).parents[1] / "serving" / "max_worker.py"


@dataclass(frozen=True)
class MaxRow:
    """One system with one model."""

    model: str
    system: str
    threads: int
    first_start_s: float
    second_start_s: float
    prompt_tokens_per_s: float
    tokens_per_s: float
    memory_mb: float
    weights_mb: float
    logits_error: float
    load: float
    """Average of the machine, before: these threads make as many."""
    device: str
    commit: str
    date: str


def measure_rows(
    origin: Origin, progress: Callable[[str], None], *, quick: bool = False
) -> Iterator[MaxRow]:
    """Yields a row for each model and system."""
    python = python_with_max()
    with tempfile.TemporaryDirectory(prefix="mx_kernels-max-") as folder:
        for name, sizes in SIZES.items():
            if quick and sizes is not TINY:
                continue
            progress(f"writing {name}")
            written = write_llama(Path(folder) / name, sizes)
            for system in SYSTEMS:
                progress(f"{name}: {system}, which MAX compiles first")
                yield _measured(python, written, name, system, origin)


def _measured(python: Path, written: Path, name: str, system: str, origin: Origin) -> MaxRow:
    """Starts a system twice."""
    load = os.getloadavg()[0]
    prompt = torch.randint(500, (PROMPT,), generator=torch.Generator().manual_seed(1)).tolist()
    flags = {} if system == OURS else {"custom_architectures": []}
    if system == Q4_K:
        flags |= {"quantization_encoding": "q4_k", "weight_path": [str(written / "q4_k.gguf")]}
    out, mefs = written / f"out-{SYSTEMS.index(system)}", str(written / f"mefs-{len(system)}")
    found = []
    for kept in ("export_mefs", "precompiled_mefs"):
        job = {"folder": str(written), "out": str(out), "prompts": [prompt], "new": NEW}
        job |= {"rounds": ROUNDS, "flags": flags | {kept: mefs}}
        said([str(python), str(WORKER), json.dumps(job)], timeout=7200)
        found.append(json.loads((out / "found.json").read_text()))
    first, second = found
    logits = np.load(out / "logits.npy")[0, 0].astype(np.float64)
    exact, bytes_of_weights = _exact(written, system, prompt)
    return MaxRow(
        model=name,
        system=system,
        threads=len(os.sched_getaffinity(0)),
        first_start_s=first["start_seconds"],
        second_start_s=second["start_seconds"],
        prompt_tokens_per_s=PROMPT / second["prompt_seconds"],
        tokens_per_s=(NEW - 1) / second["new_seconds"],
        memory_mb=second["resident_bytes"] / 1e6,
        weights_mb=bytes_of_weights / 1e6,
        logits_error=float(np.sqrt(((logits - exact) ** 2).mean() / (exact**2).mean())),
        load=load,
        device=origin.device,
        commit=origin.commit,
        date=origin.date,
    )


# Models


def write_llama(folder: Path, sizes: dict) -> Path:
    """Writes a random Llama: floats, their tokenizer, and q4_k.gguf; returns the folder."""
    import transformers as tf  # noqa: PLC0415  an optional dependency
    from tokenizers import Tokenizer  # noqa: PLC0415
    from tokenizers.models import WordLevel  # noqa: PLC0415

    torch.manual_seed(7)
    config = tf.LlamaConfig(**sizes, max_position_embeddings=512, tie_word_embeddings=False)
    llama = tf.LlamaForCausalLM(config).float()
    for p in llama.parameters():
        if p.ndim > 1:
            torch.nn.init.normal_(p, std=p.shape[-1] ** -0.5)
    llama.save_pretrained(folder)
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(sizes["vocab_size"])}, unk_token="w0"))
    tf.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w1").save_pretrained(folder)
    write_gguf(folder / "q4_k.gguf", llama.state_dict(), config)
    return folder


NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "model.layers": "blk", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip
"""What llama.cpp calls the layers of a Llama."""


def write_gguf(path: Path, tensors: dict, config) -> None:
    """Writes a Llama as llama.cpp has it, matrices as Q4_K."""
    import gguf  # noqa: PLC0415  an optional dependency

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    for name, tensor in tensors.items():
        theirs = name
        for before, after in NAMES.items():
            theirs = theirs.replace(before, after)
        values = tensor.detach().float().numpy()
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
        if (layer := theirs.split(".")[-2]) in heads:
            values = _interleaved(values, heads[layer])
        if values.ndim == 1:
            writer.add_tensor(theirs, values)
        else:
            kind = gguf.GGMLQuantizationType.Q4_K
            writer.add_tensor(theirs, q4_k(values), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Returns rows of q or k as llama.cpp turns them: pairs beside each other."""
    n, k = rows.shape
    return rows.reshape(heads, 2, n // heads // 2, k).swapaxes(1, 2).reshape(n, k)


def q4_k(values: np.ndarray) -> np.ndarray:
    """Returns rows as blocks of Q4_K: 256 numbers in 144 bytes, (d * s) * code - (e * m).

    Two halves of float16 d and e; eight scales s and eight minima m of 6 bits in 12 bytes; codes of
    4 bits, those of two groups of 32 in the nibbles of 32 bytes.
    """
    n, k = values.shape
    groups = values.reshape(-1, 8, 32)
    least = np.minimum(groups.min(-1), 0)
    step = np.maximum((groups.max(-1) - least) / 15, 1e-12)
    d, e = (np.float16(x.max(-1, keepdims=True) / 63) for x in (step, -least))
    safe = [np.where(x > 0, x, 1).astype(np.float32) for x in (d, e)]
    s = np.clip(np.rint(step / safe[0]), 1, 63).astype(np.uint8)
    m = np.clip(np.rint(-least / safe[1]), 0, 63).astype(np.uint8)
    scale, offset = s * d.astype(np.float32), m * e.astype(np.float32)
    codes = np.rint((groups + offset[..., None]) / np.maximum(scale, 1e-12)[..., None])
    codes = np.clip(codes, 0, 15).astype(np.uint8)
    packed = np.empty((len(groups), 12), np.uint8)
    packed[:, :4] = (s[:, :4] & 63) | ((s[:, 4:] >> 4) << 6)
    packed[:, 4:8] = (m[:, :4] & 63) | ((m[:, 4:] >> 4) << 6)
    packed[:, 8:] = (s[:, 4:] & 15) | ((m[:, 4:] & 15) << 4)
    nibbles = (codes[:, 0::2] | (codes[:, 1::2] << 4)).reshape(len(groups), 128)
    blocks = np.concatenate([d.view(np.uint8), e.view(np.uint8), packed, nibbles], -1)
    return blocks.reshape(n, k // 256 * 144)


def _exact(written: Path, system: str, prompt: list[int]) -> tuple[np.ndarray, int]:
    """Returns logits in float64 by the weights that a system has, and their bytes."""
    import transformers as tf  # noqa: PLC0415

    import mx_kernels as mx  # noqa: PLC0415

    llama = tf.AutoModelForCausalLM.from_pretrained(written, dtype=torch.float32)
    size = 0
    with torch.inference_mode():
        for name, module in llama.named_modules():
            if not hasattr(module, "weight"):
                continue
            w, is_head = module.weight, name == "lm_head"
            size_here = w.nbytes
            if isinstance(module, torch.nn.Linear) and not is_head and system == OURS:
                q = mx.quantize(w)
                size_here = q.codes.nbytes + q.scales.nbytes
                w.copy_(q.dequantize(torch.float32))
            elif w.ndim == 2 and system == Q4_K:
                w.copy_(torch.from_numpy(_rounded_to_q4_k(w.numpy())))
                size_here = w.numel() * 144 // 256
            size += size_here
        logits = llama.double()(torch.tensor([prompt])).logits[0, -1].numpy()
    return logits, size


def _rounded_to_q4_k(values: np.ndarray) -> np.ndarray:
    """Returns what Q4_K makes of rows."""
    import gguf  # noqa: PLC0415

    kind = gguf.GGMLQuantizationType.Q4_K
    return gguf.quants.dequantize(q4_k(values), kind).reshape(values.shape)


# Tables


def tables(rows: Sequence[MaxRow]) -> list[Table]:
    """Returns a table for each model."""
    heads = ["system", "first start, s", "second start, s", "prompt, tokens/s"]
    heads += ["generated, tokens/s", "memory, MB", "weights, MB", "error of logits"]
    return [
        Table(
            f"Llama, {model}, {PROMPT} tokens and {NEW} behind them",
            heads,
            [_cells(row) for row in rows if row.model == model],
        )
        for model in dict.fromkeys(row.model for row in rows)
    ]


def _cells(row: MaxRow) -> list[str]:
    starts = f"{row.first_start_s:.0f}", f"{row.second_start_s:.1f}"
    speeds = f"{row.prompt_tokens_per_s:.0f}", f"{row.tokens_per_s:.1f}"
    memory = f"{row.memory_mb:.0f}", f"{row.weights_mb:.0f}"
    return [row.system, *starts, *speeds, *memory, f"{row.logits_error:.1e}"]


def text(rows: Sequence[MaxRow]) -> str:
    """Returns the tables as a document."""
    first = rows[0]
    load = max(row.load for row in rows)
    busy = "; a busy machine" if load > first.threads else ""
    origin = f"{first.device}, {first.threads} threads; commit {first.commit}, {first.date}. "
    origin += f"Load average {load:.1f}{busy}."
    return "\n\n".join([origin, *(t.to_markdown() for t in tables(rows))]) + "\n"
