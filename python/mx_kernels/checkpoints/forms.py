"""Which tensors of a checkpoint are codes and scales of one parameter: a table, a row a form.

    form                codes                           scales                      parameter
    gpt-oss             P_blocks  [.., N, K/32, 16]     P_scales [.., N, K/32]      P
    compressed-tensors  P.weight_packed [.., N, K/2]    P.weight_scale              P.weight
    Quark, and others   P         [.., N, packed K]     P_scale [.., S, K/32]       P
    DeepSeek            P                               P_scale_inv                 P
    DeepSeek-V4         P.weight                        P.scale                     P.weight
    ComfyUI             P.weight                        P.scale_weight              P.weight
    Mistral             P.weight                        P.qscale_weight             P.weight
    ours                P.codes                         P.scales                    P

The P of Quark and DeepSeek is mostly called `*.weight`; of fused experts it is the parameter.
The dtype of the codes gives the format, bytes are MXFP4, FP8 is MXFP8; unless scales are floats,
or for more than 32 elements: see `float_scales`. Quark's bytes of scales may have fewer rows, S,
each for a number of rows of codes that the config says, else a power of two. What is no part of a
pair stays a tensor, if `leftovers` lets it; a pair of another kind is refused. Without a config
the names and dtypes decide, and of bytes the shapes: MXFP4 has 16 bytes of codes a scale.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mx_kernels._core.arrays import show
from mx_kernels._core.checks import format_named
from mx_kernels._core.facts import DEFAULT_FORMAT
from mx_kernels.checkpoints import float_scales, floats, leftovers
from mx_kernels.checkpoints.configs import OURS, Scheme, Spec, dtype_of
from mx_kernels.checkpoints.files import Checkpoint, Part
from mx_kernels.checkpoints.leftovers import described as _described

SCALES = (torch.uint8, torch.float8_e8m0fnu)
FLOATS = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
"""Dtypes that the numbers of a parameter can have."""
VERSION = 1
"""Of our own form."""


@dataclass(frozen=True)
class Form:
    """What the parts of a parameter are called."""

    name: str
    codes: str
    """How the name of the codes ends."""
    scales: str
    parameter: str
    """What stands there in the name of the parameter."""
    formats: Mapping[torch.dtype, str]
    """The format of codes of a dtype."""
    has_block_axis: bool = False
    """Whether blocks have an axis of their own."""

    def names(self, parameter: str) -> tuple[str, str]:
        """Returns what codes and scales of a parameter are called."""
        base = parameter.removesuffix(self.parameter)
        return base + self.codes, base + self.scales


FP8 = {torch.float8_e4m3fn: "mxfp8", torch.float8_e5m2: "mxfp8_e5m2"}
BYTES = {torch.uint8: DEFAULT_FORMAT, torch.int8: DEFAULT_FORMAT}
FORMS = (
    Form("gpt-oss", "_blocks", "_scales", "", BYTES, has_block_axis=True),
    Form("compressed-tensors", "weight_packed", "weight_scale", "weight", BYTES),
    Form("Quark", "", "_scale", "", {**BYTES, **FP8}),
    Form("DeepSeek", "", "_scale_inv", "", {**BYTES, **FP8}),
    Form("DeepSeek-V4", ".weight", ".scale", ".weight", {**BYTES, **FP8}),
    Form("ComfyUI", ".weight", ".scale_weight", ".weight", FP8),
    Form("Mistral", ".weight", ".qscale_weight", ".weight", FP8),
)
OWN = Form(OURS, ".codes", ".scales", "", BYTES)
CODES = (torch.uint8, torch.int8, *FP8)
"""Dtypes of quantized weights."""


@dataclass(frozen=True)
class Parameter:
    """A parameter that has not been read: a tensor, or codes and scales that fit."""

    name: str
    parts: tuple[Part, ...]
    shape: tuple[int, ...]
    """Logical."""
    dtype: torch.dtype
    """Of its numbers."""
    format: str = ""
    """Empty for a tensor."""
    scale_rows: int = 1
    """Rows that share a row of scales."""

    @property
    def nbytes(self) -> int:
        """Returns how much there is to read."""
        return sum(part.nbytes for part in self.parts)

    def read(self) -> tuple[Tensor, ...]:
        """Returns the tensor, or plain codes and scales as bytes; they may be a file's memory."""
        if not self.format:
            return (self.parts[0].read(),)
        codes, scales = (part.read().contiguous() for part in self.parts)
        codes, fmt = codes.view(torch.uint8), format_named(self.format)
        if fmt.has_float_scales:
            return codes, float_scales.read(scales, self.shape, fmt)
        scales = scales.view(torch.uint8)
        *lead, k = self.shape
        codes = codes.reshape(*lead, fmt.packed_bytes(k))
        if self.scale_rows > 1:
            scales = scales.repeat_interleave(self.scale_rows, -2)[..., : lead[-1], :].contiguous()
        return codes, scales


def plan(checkpoint: Checkpoint) -> list[Parameter]:
    """Returns the parameters of a checkpoint, in the order of its tensors.

    Raises:
        ValueError: if parts are missing, do not fit, or are of a kind that is not MX.
    """
    try:
        return _Planner(checkpoint).plan()
    except ValueError as error:
        raise ValueError(f"{checkpoint.where}: {error}") from None


class _Planner:
    """Takes pairs out of a checkpoint until only tensors are left."""

    def __init__(self, checkpoint: Checkpoint):
        self.config = checkpoint.config
        self.scheme = Scheme(checkpoint.config)
        self.dtype = dtype_of(checkpoint.config)
        self.own = _own_meanings(checkpoint)
        self.parts = checkpoint.parts
        self.place = {name: place for place, name in enumerate(checkpoint.parts)}
        self.found: dict[str, tuple[int, Parameter]] = {}
        self.used: set[str] = set()
        self.codes: dict[str, bool] = {}
        """The names of codes in pairs, and whether their scales are E8M0."""

    def plan(self) -> list[Parameter]:
        """Returns the parameters."""
        for name, (format, shape, dtype) in self.own.items():
            self._add_own(name, format, shape, dtype)
        # In our own form every name means what the metadata say.
        others = [name for name, part in self.parts.items() if not part.is_own]
        for form in FORMS:
            for name in others:
                if name.endswith(form.codes) and name not in self.used:
                    self._look(form, name)
        alone = [name for name in others if name not in self.used]
        is_quantized = self.scheme.method in ("quark", "fp8")
        leftovers.check(self.parts, alone, self.codes, FORMS, is_quantized)
        for name, part in self.parts.items():
            if name not in self.used:
                self._add(name, Parameter(name, (part,), part.shape, part.dtype), name)
        return [parameter for _, parameter in sorted(self.found.values(), key=lambda it: it[0])]

    def _look(self, form: Form, codes: str) -> None:
        """Takes a pair, if the names are those of one."""
        parameter = codes.removesuffix(form.codes) + form.parameter
        _, scales = form.names(parameter)
        if scales not in self.parts or self.parts[codes].dtype not in CODES:
            return
        if form.codes == "" and self.parts[codes].dtype in FP8:
            floats.check_codes(parameter, self.parts[codes].shape, self.config)
        module = parameter.removesuffix("weight").removesuffix(".")
        spec = self.scheme.spec(module, self.parts[codes].dtype)
        self._add_pair(form, parameter, codes, scales, spec)
        self.codes[codes] = not format_named(self.found[parameter][1].format).has_float_scales

    def _add_pair(self, form: Form, name: str, codes: str, scales: str, spec: Spec | None) -> None:
        """Adds a parameter made of two parts.

        Raises:
            ValueError: unless they fit each other, and what the config says.
        """
        kind, scale = self.parts[codes], self.parts[scales]
        got = f"{codes} {_described(kind)} and {scales} {_described(scale)}"
        said = spec and spec.format
        if kind.dtype in form.formats and float_scales.fits(kind, scale, said):
            format = float_scales.format_of(kind.dtype, kind.shape, scale.shape, said, got)
            parts = (kind, scale)
            self._add(name, Parameter(name, parts, kind.shape, self.dtype, format), codes, scales)
            return
        _check_scales(scales, kind.dtype, scale.dtype)
        format = form.formats.get(kind.dtype)
        if format is None:
            known = " or ".join(str(dtype).removeprefix("torch.") for dtype in form.formats)
            raise ValueError(f"got {got}, expected codes as {known} in the form of {form.name}")
        if spec is not None and spec.format != format:
            raise ValueError(f"got {got}, expected the codes of {spec.format}, as the config says")
        shape, rows = _shape(form, (kind.shape, scale.shape), format, spec, got)
        dtype = self.dtype
        self._add(name, Parameter(name, (kind, scale), shape, dtype, format, rows), codes, scales)

    def _add_own(self, name: str, format: str, shape: tuple, dtype: torch.dtype) -> None:
        """Adds a parameter in our own form."""
        fmt = format_named(format)
        codes, scales = OWN.names(name)
        if missing := [part for part in (codes, scales) if part not in self.parts]:
            raise ValueError(f"got no {' and no '.join(missing)}, expected both for {name}")
        parts = self.parts[codes], self.parts[scales]
        *lead, k = shape
        dtypes, unit = (torch.uint8, fmt.scale_dtype), fmt.k_multiple
        has_rows = fmt.block_rows == 1 or lead
        if k % unit or k == 0 or not has_rows or tuple(part.dtype for part in parts) != dtypes:
            kind = f"bytes, scales of {fmt.scale}," if fmt.has_float_scales else "bytes"
            raise ValueError(
                f"got {codes} {_described(parts[0])} and {scales} {_described(parts[1])} for "
                f"{show(shape)} of {format}, expected {kind} and K a multiple of {unit}"
            )
        wanted = (*lead, fmt.packed_bytes(k)), fmt.scales_of(shape)
        if wanted != tuple(part.shape for part in parts):
            raise ValueError(
                f"got {codes} {show(parts[0].shape)} and {scales} {show(parts[1].shape)}, expected "
                f"{show(wanted[0])} and {show(wanted[1])} for {show(shape)} of {format}"
            )
        self._add(name, Parameter(name, parts, shape, dtype, format), codes, scales)

    def _add(self, name: str, parameter: Parameter, *parts: str) -> None:
        """Adds a parameter, made of some parts."""
        if name in self.found:
            raise ValueError(f"got parameter {name} twice, once as codes and scales, once not")
        if used := [part for part in parts if part in self.used]:
            raise ValueError(f"got {used[0]} as a part of two parameters, expected of one")
        self.used.update(parts)
        self.found[name] = self.place[parts[0]], parameter


def _shape(
    form: Form, shapes: tuple[tuple, tuple], format: str, spec: Spec | None, got: str
) -> tuple[tuple[int, ...], int]:
    """Returns the logical shape of a pair, and how many rows share a row of scales.

    Raises:
        ValueError: if the shapes do not fit.
    """
    fmt = format_named(format)
    codes, scales = shapes
    block = fmt.packed_bytes(fmt.block_k)
    if form.has_block_axis:
        if len(codes) < 3 or codes[-1] != block:
            raise ValueError(f"got {got}, expected codes [..., N, K/{fmt.block_k}, {block}]")
        codes = (*codes[:-2], codes[-2] * block)
    if len(codes) < 2 or len(scales) != len(codes) or scales[-1] * block != codes[-1]:
        hint = ""
        if format == DEFAULT_FORMAT and scales and codes and codes[-1] == scales[-1] * fmt.block_k:
            hint = "; bytes with a scale for 32 may be any format of eight bits: view them as such"
        raise ValueError(
            f"got {got}, expected {block} bytes of {format} for each scale along the last axis"
            f"{hint}"
        )
    k, rows, given = scales[-1] * fmt.block_k, codes[-2], scales[-2]
    share = spec.scale_rows if spec else _rows_of_a_scale(rows, given)
    if k == 0 or codes[:-2] != scales[:-2] or given != math.ceil(rows / share):
        raise ValueError(
            f"got {got}, expected scales for {show((*codes[:-1], k))}: "
            f"{show((*codes[:-2], math.ceil(rows / share), k // fmt.block_k))}, or a config.json "
            "that says how many rows share a row of scales"
        )
    return (*codes[:-1], k), share


def _rows_of_a_scale(rows: int, given: int) -> int:
    """Returns how many rows share a row of scales where no config says it; 1 if that is open.

    Blocks have a power of two of rows. If they fill the rows, no other power gives as many.
    """
    share, rest = divmod(rows, given) if given else (0, 0)
    is_power = share and share & (share - 1) == 0
    return share if not rest and (is_power or given == 1) and share else 1


def _check_scales(name: str, codes: torch.dtype, scales: torch.dtype) -> None:
    """Raises unless scales are E8M0."""
    if scales in SCALES:
        return
    what = f"{str(scales).removeprefix('torch.')} scales"
    if scales in FP8:
        what = "NVFP4, with E4M3 scales"
    elif codes in FP8:
        what = f"{str(codes).removeprefix('torch.')} with {what}"
    raise ValueError(f"got {name}, which is {what}, expected E8M0 scales of MX, as uint8")


def _own_meanings(checkpoint: Checkpoint) -> dict[str, tuple[str, tuple, torch.dtype]]:
    """Returns format, shape and dtype of each parameter that the files' metadata describe.

    Raises:
        ValueError: if they are not what `save` writes.
    """
    found = {}
    for metadata in checkpoint.metadata:
        if OURS not in metadata:
            continue
        try:
            meaning = json.loads(metadata[OURS])
            version, tensors = meaning["version"], dict(meaning["tensors"])
            if version != VERSION:
                raise ValueError(f"version {version!r}")
            for name, said in tensors.items():
                shape = tuple(said["shape"])
                if not shape or not all(type(size) is int and size >= 0 for size in shape):
                    raise ValueError(f"shape {said['shape']!r} of {name}")
                format_named(said["format"])
                described_as = said["format"], shape, FLOATS[said["dtype"]]
                # Files that transformers has written all say everything.
                if found.setdefault(name, described_as) != described_as:
                    raise ValueError(f"{name} twice")
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(
                f"metadata {OURS}: got {metadata[OURS]!r:.80} ({error}), expected version "
                f"{VERSION} of what mx_kernels.save writes"
            ) from None
    return found


def described(parameters: Mapping[str, tuple[str, tuple, torch.dtype]]) -> str:
    """Returns the metadata of a file that holds parameters: format, shape and dtype by name."""
    tensors = {
        name: {"format": format, "shape": list(shape), "dtype": str(dtype).removeprefix("torch.")}
        for name, (format, shape, dtype) in parameters.items()
    }
    return json.dumps({"version": VERSION, "tensors": tensors})
