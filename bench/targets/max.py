"""Whole models by MAX's engine on a CPU: our linear layers and experts against MAX's own.

Each system generates with one random model in a process of its own, in the environment of MAX's
serving (`bench.serving.environment`): one prompt, read at once, and tokens behind it one by one.
MAX's q4_k gets the Llama's weights as llama.cpp's format has them, head and embeddings too; its
codes are those nearest to the floats under scales of 6 bits, without llama.cpp's search.

    first start    compiles, and keeps what is compiled in the cache: a later run finds it there
    second start   loads what is kept, in a process whose times count
    memory         beyond that of the process before, with the KV cache, beside the bytes of weights
    error          of the logits behind the prompt: root mean square of the difference to float64,
                   by the weights that the system multiplies by, over that of the logits

    <cache>/bench-max/<model>-<digest>/files/                the model
                                      /<system>-<digest>/    MEFs, and what the first start said

A system that fails is a row without numbers, and a line with MAX's words; the others go on.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from bench.gpt_oss.checkpoint import write_checkpoint
from bench.report import Table
from bench.rows import Origin
from bench.serving.environment import ROOT, python_with_max, said
from mx_kernels import MXExperts, MXTensor, ops
from mx_kernels._core import builds

PROMPT, NEW, ROUNDS = 128, 32, 3
TINY = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
TINY |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512}
BILLION = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
BILLION |= {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32768}
EXPERTS = {"layers": 4, "vocabulary": 32768}
SIZES = {"Llama, tiny": TINY, "Llama, 1B": BILLION, "gpt-oss-20b, 4 layers": EXPERTS}
"""1B has the layers of Llama-3.2-1B and a quarter of its vocabulary, gpt-oss a sixth of its own."""
REST = "mxint8"
MEASURING_S = 30
"""Of a system, once it is compiled: for the time that is said beforehand."""
FAILED_S = 3600
WORDS = 400
"""Of what MAX says of a failure, the last characters."""
WORKER = ROOT / "bench" / "serving" / "max_worker.py"


@dataclass(frozen=True)
class System:
    """One way to run a model."""

    name: str
    compiling_s: float
    """What a first start took, on two cores of an AMD EPYC (family 25)."""
    flags: dict = field(default_factory=dict)
    weights: str = "mxfp4"
    """What linear layers of floats are multiplied as."""
    rest: str | None = None
    """The same of what stays floats without it."""

    @property
    def is_ours(self) -> bool:
        """Whether layers are ours."""
        return "custom_architectures" not in self.flags

    @property
    def slug(self) -> str:
        """Returns the name of its folder."""
        kind = f"ours-{self.weights}-{self.rest}" if self.is_ours else f"max-{self.weights}"
        return f"{kind}-{_digest(self.flags, _of_code(self.is_ours))}"


THEIRS = {"custom_architectures": []}
OURS = System("mx_kernels", 150)
OURS_WHOLE = replace(OURS, name="mx_kernels, rest MXINT8", rest=REST)
FLOATS = System("MAX float32", 120, THEIRS, "float32")
HALVES = System("MAX bfloat16", 15, THEIRS | {"quantization_encoding": "bfloat16"}, "bfloat16")
Q4_K = System("MAX q4_k", 780, THEIRS | {"quantization_encoding": "q4_k"}, "q4_k")
SYSTEMS = (OURS, OURS_WHOLE, FLOATS, HALVES, Q4_K)
OF_EXPERTS = (OURS, OURS_WHOLE, HALVES)
"""Of gpt-oss, which MAX has in bfloat16 and in MXFP4 on GPUs."""


@dataclass(frozen=True)
class MaxRow:
    """One system with one model; without numbers if it failed."""

    model: str
    system: str
    threads: int
    load: float
    """Average of the machine, before: these threads make as many."""
    device: str
    commit: str
    date: str
    first_start_s: float | None = None
    second_start_s: float | None = None
    prompt_tokens_per_s: float | None = None
    tokens_per_s: float | None = None
    memory_mb: float | None = None
    weights_mb: float | None = None
    logits_error: float | None = None
    failure: str = ""


def measure_rows(
    origin: Origin, progress: Callable[[str], None], *, quick: bool = False
) -> Iterator[MaxRow]:
    """Yields a row for each model and system."""
    names = list(SIZES)[:1] if quick else list(SIZES)
    pairs = [(name, system) for name in names for system in systems_of(name)]
    missing = [one for one in pairs if not _is_compiled(*one)]
    seconds = sum(system.compiling_s for _, system in missing) + MEASURING_S * len(pairs)
    progress(
        f"about {math.ceil(seconds / 60)} minutes on two idle cores: {len(missing)} of "
        f"{len(pairs)} graphs are compiled first, and kept in {cache()}"
    )
    python = python_with_max()
    for name, system in missing:
        progress(f"{name}: {system.name} is compiled, {system.compiling_s / 60:.0f} minutes or so")
        try:
            compile_first(python, name, system)
        except RuntimeError as error:
            progress(f"{name}: {system.name} failed: {error}")
    for name, system in pairs:
        row = measured(python, name, system, origin)
        progress(f"{name}: {' | '.join(_cells(row))}{row.failure and ' failed'}")
        yield row


def systems_of(model: str) -> tuple[System, ...]:
    """Returns those that have a chance."""
    return OF_EXPERTS if SIZES[model] is EXPERTS else SYSTEMS


def compile_first(python: Path, model: str, system: System) -> None:
    """Starts a system once, and keeps what is compiled and what it said.

    Raises:
        RuntimeError: with MAX's words, if it fails.
    """
    folder = _folder(model, system)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _started(python, model, system, "export_mefs").rename(folder / "first.json")


def measured(python: Path, model: str, system: System, origin: Origin) -> MaxRow:
    """Starts a system from what is kept, times it, and compares its logits."""
    row = MaxRow(
        model,
        system.name,
        len(os.sched_getaffinity(0)),
        os.getloadavg()[0],
        origin.device,
        origin.commit,
        origin.date,
    )
    folder = _folder(model, system)
    if not _is_compiled(model, system):
        why = folder / "failure.txt"
        return replace(row, failure=why.read_text() if why.exists() else "it was not compiled")
    try:
        second = json.loads(_started(python, model, system, "precompiled_mefs").read_text())
    except RuntimeError as error:
        return replace(row, failure=str(error))
    first = json.loads((folder / "first.json").read_text())
    logits = np.load(folder / "logits.npy")[0, 0].astype(np.float64)
    exact, num_bytes = exact_logits(model, system)
    return replace(
        row,
        first_start_s=first["start_seconds"],
        second_start_s=second["start_seconds"],
        prompt_tokens_per_s=PROMPT / second["prompt_seconds"],
        tokens_per_s=(NEW - 1) / second["new_seconds"],
        memory_mb=second["resident_bytes"] / 1e6,
        weights_mb=num_bytes / 1e6,
        logits_error=float(np.sqrt(((logits - exact) ** 2).mean() / (exact**2).mean())),
    )


def _started(python: Path, model: str, system: System, kept: str) -> Path:
    """Runs a system in a process of its own; returns what it wrote.

    Raises:
        RuntimeError: with MAX's words, if it fails.
    """
    written, folder = written_model(model), _folder(model, system)
    flags = system.flags | {kept: str(folder / "mefs")}
    if system.weights == Q4_K.weights:
        flags["weight_path"] = [str(written / GGUF)]
    job = {"folder": str(written), "out": str(folder), "prompts": [_prompt()], "new": NEW}
    job |= {"rounds": ROUNDS, "flags": flags, "environment": {}}
    if system.rest:
        job["environment"] = {"MX_KERNELS_REST": system.rest}
    try:
        said([str(python), str(WORKER), json.dumps(job)], timeout=FAILED_S)
    except (AssertionError, subprocess.TimeoutExpired) as error:
        lines = str(error).split("\n")
        why = next((line for line in reversed(lines) if "Error: " in line), lines[-1])[-WORDS:]
        (folder / "failure.txt").write_text(why)
        raise RuntimeError(why) from error
    return folder / "found.json"


def _is_compiled(model: str, system: System) -> bool:
    return (_folder(model, system) / "first.json").is_file()


def _prompt() -> list[int]:
    return torch.randint(500, (PROMPT,), generator=torch.Generator().manual_seed(1)).tolist()


# What is kept


def cache() -> Path:
    """Returns the folder of models and of what is compiled for them."""
    return builds.cache_folder() / "bench-max"


def _folder(model: str, system: System) -> Path:
    """Returns where a system keeps what it has compiled for a model."""
    return cache() / _slug(model) / system.slug


def _slug(model: str) -> str:
    """Returns the name of a model's folder."""
    return f"{model.replace(', ', '-').replace(' ', '-').lower()}-{_digest(SIZES[model])}"


def _digest(*facts: object) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:8]


@functools.cache
def _of_code(is_ours: bool) -> str:
    """Returns what a compiled graph depends on beside the model."""
    facts = [builds.toolchain()]
    if is_ours:
        package = ROOT / "python" / "mx_kernels"
        files = [*(ROOT / "mojo_kernels").rglob("*.mojo"), *(package / "max_graph").glob("*.py")]
        files += (package / "integrations" / "max_pipelines").glob("*.py")
        facts += [_digest(file.read_bytes()) for file in sorted(files)]
    return _digest(facts)


def written_model(model: str) -> Path:
    """Returns the folder of a model, which is written if it is not there."""
    folder = cache() / _slug(model) / "files"
    if not folder.is_dir():
        scratch = folder.with_suffix(".making")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.parent.mkdir(parents=True, exist_ok=True)
        write = write_gpt_oss if SIZES[model] is EXPERTS else write_llama
        write(scratch, SIZES[model]).rename(folder)
    return folder


# Models


def write_llama(folder: Path, sizes: dict) -> Path:
    """Writes a random Llama: floats, their tokenizer, and as Q4_K; returns the folder."""
    import transformers as tf  # noqa: PLC0415  an optional dependency

    torch.manual_seed(7)
    config = tf.LlamaConfig(**sizes, max_position_embeddings=512, tie_word_embeddings=False)
    llama = tf.LlamaForCausalLM(config).float()
    for p in llama.parameters():
        if p.ndim > 1:
            torch.nn.init.normal_(p, std=p.shape[-1] ** -0.5)
    llama.save_pretrained(folder)
    _write_tokenizer(folder, sizes["vocab_size"])
    write_gguf(folder / GGUF, llama.state_dict(), config)
    return folder


def write_gpt_oss(folder: Path, sizes: dict) -> Path:
    """Writes a random gpt-oss and its tokenizer; returns the folder."""
    write_checkpoint(folder, **sizes)
    _write_tokenizer(folder, sizes["vocabulary"])
    return folder


def _write_tokenizer(folder: Path, words: int) -> None:
    """Writes a tokenizer of words w0, w1, ..."""
    import transformers as tf  # noqa: PLC0415  an optional dependency
    from tokenizers import Tokenizer  # noqa: PLC0415
    from tokenizers.models import WordLevel  # noqa: PLC0415

    model = Tokenizer(WordLevel({f"w{i}": i for i in range(words)}, unk_token="w0"))
    tf.PreTrainedTokenizerFast(tokenizer_object=model, eos_token="w1").save_pretrained(folder)


GGUF = "q4_k.gguf"
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


class Wide(nn.Module):
    """A linear layer in float64, whose weight [N, K] stays as small as it is."""

    def __init__(self, weight: MXTensor | Tensor, bias: Tensor | None):
        super().__init__()
        self.held: tuple = (weight, bias)

    def forward(self, x: Tensor) -> Tensor:
        """Returns x @ weight.T + bias."""
        weight, bias = (_wide(part) for part in self.held)
        return nn.functional.linear(x.double(), weight, bias)


class WideExperts(nn.Module):
    """gpt-oss' experts in float64, one after the other."""

    def __init__(self, experts: MXExperts, limit: float):
        super().__init__()
        self.held: tuple = (experts, limit)

    def forward(self, x: Tensor, ids: Tensor, shares: Tensor) -> Tensor:
        """Returns the sums [T, H] of what experts ids [T, k] make of x, by shares [T, k]."""
        ours, limit = self.held
        out = torch.zeros_like(x)
        for expert in ids.unique().tolist():
            token, place = (ids == expert).nonzero(as_tuple=True)
            first, first_bias, second, second_bias = (
                _wide(part[expert])
                for part in (
                    ours.gate_up_proj, ours.gate_up_proj_bias, ours.down_proj, ours.down_proj_bias
                )
            )  # fmt: skip
            both = nn.functional.linear(x[token], first, first_bias)
            gate, up = both[:, 0::2].clamp(max=limit), both[:, 1::2].clamp(-limit, limit)
            hidden = gate * torch.sigmoid(1.702 * gate) * (up + 1)
            made = nn.functional.linear(hidden, second, second_bias)
            out.index_add_(0, token, made * shares[token, place, None])
        return out


def _wide(part: MXTensor | Tensor | None) -> Tensor | None:
    """Returns numbers in float64."""
    if isinstance(part, MXTensor):
        part = part.dequantize(torch.float32)
    return None if part is None else part.detach().double()


def exact_logits(model: str, system: System) -> tuple[np.ndarray, int]:
    """Returns logits in float64 by the weights that a system has, and their bytes; kept too."""
    file = _folder(model, system) / "exact.npz"
    if not file.is_file():
        logits, num_bytes = _exact(written_model(model), system, _prompt())
        np.savez(file, logits=logits, num_bytes=num_bytes)
    with np.load(file) as found:
        return found["logits"], int(found["num_bytes"])


def _exact(written: Path, system: System, prompt: list[int]) -> tuple[np.ndarray, int]:
    """Returns logits in float64 by the weights that a system has, and their bytes."""
    import transformers as tf  # noqa: PLC0415

    from mx_kernels.integrations.transformers import from_pretrained  # noqa: PLC0415

    has_codes = "quantization_config" in json.loads((written / "config.json").read_text())
    load = from_pretrained if has_codes else tf.AutoModelForCausalLM.from_pretrained
    model, size = load(written, dtype=torch.float32), 0
    with torch.inference_mode():
        for name, module in list(model.named_modules()):
            if isinstance(module, MXExperts):
                size += sum(getattr(module, part).nbytes for part in MXExperts.WEIGHTS)
                _put(model, name, WideExperts(module, model.config.swiglu_limit))
            elif isinstance(module, nn.Linear):
                is_rest = has_codes or name == "lm_head"
                held = _held(module.weight, system, system.rest if is_rest else system.weights)
                size += held.nbytes if isinstance(held, MXTensor) else _bytes(held, system)
                _put(model, name, Wide(held, module.bias))
            elif isinstance(weight := getattr(module, "weight", None), Tensor):
                if isinstance(module, nn.Embedding):
                    weight.copy_(_held(weight, system, None))
                size += _bytes(weight, system)
        logits = model.double()(torch.tensor([prompt])).logits[0, -1].numpy()
    return logits, size


def _held(weight: Tensor, system: System, format: str | None) -> MXTensor | Tensor:
    """Returns what a system multiplies by, where ours has it in a format, or None for floats."""
    if system.weights == Q4_K.weights:
        return torch.from_numpy(_rounded_to_q4_k(weight.numpy()))
    return ops.quantize(weight, format=format) if system.is_ours and format else weight


def _bytes(weight: Tensor, system: System) -> int:
    """Returns how many a weight of floats has in a system."""
    is_packed = system.weights == Q4_K.weights and weight.ndim == 2
    return weight.numel() * 144 // 256 if is_packed else weight.nbytes


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    """Puts a module in the place of another."""
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)


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
            f"{model}, {PROMPT} tokens and {NEW} behind them",
            heads,
            [_cells(row) for row in rows if row.model == model],
        )
        for model in dict.fromkeys(row.model for row in rows)
    ]


def _cells(row: MaxRow) -> list[str]:
    if row.failure:
        return [row.system, *[""] * 7]
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
    failed = [f"{row.model}, {row.system} failed: {row.failure}" for row in rows if row.failure]
    return "\n\n".join([origin, *(t.to_markdown() for t in tables(rows)), *failed]) + "\n"
