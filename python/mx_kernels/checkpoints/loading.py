"""Parameters as they are wanted: MXTensors on a device, in the layout that it reads fastest."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from mx_kernels._core.facts import facts
from mx_kernels.checkpoints import gguf_files
from mx_kernels.checkpoints.files import Checkpoint, open_path, open_state_dict
from mx_kernels.checkpoints.forms import Parameter, plan, warn_of_floats
from mx_kernels.checkpoints.joining import joined
from mx_kernels.checkpoints.rest import with_rest
from mx_kernels.checkpoints.writing import Stored
from mx_kernels.hints import FormatName
from mx_kernels.tensor import MXTensor


def load(
    path: str | Path | Mapping[str, Tensor],
    *,
    device: str | torch.device | None = None,
    preshuffle: bool = True,
    join_experts: bool = True,
    rotations: dict[str, int] | None = None,
    rest: FormatName | None = None,
    progress: bool | None = None,
) -> dict[str, MXTensor | Tensor]:
    """Returns the parameters of a checkpoint by name: MXTensors where they are MX, else tensors.

    Reads gpt-oss, compressed-tensors and AMD Quark (MXFP4, 6, 8, NVFP4, FP8 of both),
    ModelOpt (FP8, MXFP8, MXFP4, NVFP4), auto-round (MXFP4, MXFP8, NVFP4) and MLX (MXFP4, MXFP8),
    FBGEMM's FP8, DeepSeek's FP8 and MXFP8 with `weight_scale_inv`, DeepSeek-V4's E8M0 scales and
    E2M1 experts, FP8 of ComfyUI and Mistral, and what `save` writes; checkpoints of floats too.
    FP8 with one float scale for a tensor gets it for each row, FP8 in other blocks than 128 x 128
    scales that are repeated. A weight whose K is no multiple of 32 becomes floats, and a warning
    names it.

    A name is the checkpoint's without what marks its parts: `mlp.experts.gate_up_proj` for
    `_blocks` and `_scales`, `up_proj.weight` for `weight_packed` and `weight_scale`. Experts
    `[E, N, K]` are one MXTensor.

    Codes without their scales, scales without their codes, and a config that changes what weights
    mean raise; so do float8 matrices that never had a scale, which bfloat16 holds exactly.

    All headers are checked before the first tensor is read; then tensors are read one at a time,
    so that memory holds the result and one parameter more. The result shares no memory with files,
    but what of a state dict stays as it is shares its memory.

    >>> weights = load("gpt-oss-20b")
    >>> weights["model.layers.0.mlp.experts.down_proj"].shape
    torch.Size([32, 2880, 2880])

    Args:
        path: a safetensors file; a folder with such files and config.json, with an index or
            without; an index; a GGUF file, whose MXFP4 is read as such; or a state dict. What a
            single file or a state dict holds is told from names, dtypes and shapes: bytes `weight`
            [N, C] with bytes `weight_scale` [N, B] are MXFP4 if C = 16 B, and refused otherwise.
        device: where the parameters go. None leaves files' on the CPU, a state dict's where
            they are.
        preshuffle: whether MXTensors get the layout of their device, as `MXTensor.preshuffle`
            gives, if it has one of its own. False leaves them plain.
        join_experts: whether the codes of experts that have a tensor each become one MXTensor, if
            all are there, in one format. False leaves them apart.
        rotations: a dict that gets, by the names of weights, what `linear` and `MXLinear` are told
            as `hadamard`, for checkpoints that rotate what layers are given: compressed-tensors'
            and Quark's Hadamard matrices of 32, 64 or 128. None refuses such a checkpoint.
        rest: the format that weights of linear layers which the checkpoint has as floats are
            quantized to, the output head's too unless it is tied, as by `from_pretrained` of
            `integrations.transformers`. None leaves them floats.
        progress: whether to show a bar on stderr. None shows one on a terminal.

    Raises:
        FileNotFoundError: if there is no such file, or not all that an index names or that names
            of shards count.
        ValueError: if a file is broken; if codes or scales are missing or do not fit; if the
            checkpoint is quantized in another way (GPTQ, AWQ, ...), or something has to be done
            at run time that is not (rotations, zero points); if a folder has two checkpoints; if
            there is no rest.
        TypeError: if a state dict holds anything but tensors.
        ImportError: if safetensors is missing, gguf for GGUF, or rich where a bar is asked for.
    """
    if rotations is not None and not isinstance(rotations, dict):
        raise TypeError(f"rotations: got {type(rotations).__name__}, expected a dict to be filled")
    checkpoint = open_any(path)
    parameters = plan(checkpoint, takes_rotations=rotations is not None)
    warn_of_floats(parameters, checkpoint.where)
    found = {it.name: it.hadamard for it in parameters if it.hadamard}
    if rest is not None:
        parameters = with_rest(checkpoint, parameters, rest, "rest")
    parameters = joined(checkpoint, parameters) if join_experts else parameters
    if rotations is not None:
        rotations |= found
    with bar(progress, f"loading {checkpoint.where}", parameters) as done:
        result = {}
        for parameter in parameters:
            made = _made(parameter, device, preshuffle, copy=not isinstance(path, Mapping))
            result[parameter.name] = made
            done(parameter)
    return result


def open_any(path: str | Path | Mapping[str, Tensor]) -> Checkpoint:
    """Returns what there is to load at a path or in a state dict."""
    if isinstance(path, Mapping):
        return open_state_dict(path)
    if not isinstance(path, str | Path):
        raise TypeError(
            f"path: got {type(path).__name__}, expected a path or a dict of tensors by name"
        )
    is_gguf = Path(path).suffix == gguf_files.SUFFIX and Path(path).is_file()
    return gguf_files.open_gguf(Path(path)) if is_gguf else open_path(path)


def _made(
    parameter: Parameter, device: str | torch.device | None, preshuffle: bool, copy: bool
) -> MXTensor | Tensor:
    """Returns a parameter on a device; with `copy`, in memory of its own."""
    read, copy = parameter.read(), copy and not parameter.has_own_memory
    device = torch.device(device) if device is not None else read[0].device
    k = parameter.shape[-1] if parameter.format else 0
    layout = facts().layout_for(device, parameter.format, k)
    is_shuffled = preshuffle and len(parameter.shape) > 1 and layout not in (None, facts().plain)
    if parameter.format:
        # A change of layout makes memory of its own.
        codes, scales = (part.to(device, copy=copy and not is_shuffled) for part in read)
        made = MXTensor(codes, scales, format=parameter.format, dtype=parameter.dtype)
    else:
        made = read[0].to(device, copy=copy)
    return made.preshuffle(device) if is_shuffled and isinstance(made, MXTensor) else made


@contextlib.contextmanager
def bar(
    progress: bool | None, doing: str, items: Sequence[Parameter | Stored]
) -> Iterator[Callable[[Parameter | Stored], None]]:
    """Shows how many bytes are done; yields a function to call after each item.

    Raises:
        ImportError: if a bar is asked for, and rich is missing.
    """
    try:
        from rich.console import Console  # noqa: PLC0415  only who wants a bar needs it
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn  # noqa: PLC0415
    except ImportError as error:
        if progress:
            raise ImportError("a progress bar needs rich: pip install 'mx_kernels[cli]'") from error
        progress = False
    if progress is None:
        progress = sys.stderr.isatty()
    if not progress:
        yield lambda item: None
        return
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn()
    with Progress(*columns, console=Console(stderr=True)) as shown:
        task = shown.add_task(doing, total=sum(item.nbytes for item in items))
        yield lambda item: shown.advance(task, item.nbytes)
