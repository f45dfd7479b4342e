"""Which tensors of a checkpoint are codes and scales of one parameter: a table, a row a form.

    form                codes                           scales                      parameter
    gpt-oss             P_blocks  [.., N, K/32, 16]     P_scales [.., N, K/32]      P
    compressed-tensors  P.weight_packed [.., N, K/2]    P.weight_scale              P.weight
        its NVFP4                                       and P.weight_global_scale
    Quark, and others   P         [.., N, packed K]     P_scale [.., S, K/32]       P
        their NVFP4, ModelOpt's                         and P_scale_2
    DeepSeek            P                               P_scale_inv                 P
    DeepSeek-V4         P.weight                        P.scale                     P.weight
    MLX                 P.weight, words of 32 bits      P.scales                    P.weight
    ComfyUI             P.weight                        P.scale_weight              P.weight
    Mistral             P.weight                        P.qscale_weight             P.weight
    ours                P.codes                         P.scales                    P

The P of Quark, ModelOpt and DeepSeek is mostly called `*.weight`; of fused experts it is the
parameter. What dtypes, shapes and the config say of a pair is in `scales`: the format, and which
rows and columns share a scale. What is no part of a pair stays a tensor, if `leftovers` lets it; a
pair of another kind is refused. A weight whose K no block of MX divides cannot be multiplied as
codes: it becomes floats when it is read.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from mx_kernels._core.arrays import show
from mx_kernels._core.checks import HADAMARD, format_named
from mx_kernels._core.facts import DEFAULT_FORMAT
from mx_kernels._core.storage import split_scales
from mx_kernels.checkpoints import floats, leftovers, rotations
from mx_kernels.checkpoints.configs import OURS, dtype_of
from mx_kernels.checkpoints.files import Checkpoint, Part, some
from mx_kernels.checkpoints.leftovers import described as _described
from mx_kernels.checkpoints.methods import Scheme
from mx_kernels.checkpoints.scales import (
    E8M0,
    FP8,
    MX_BLOCK,
    Meaning,
    as_stored,
    meaning_of,
    of_tensor_scale,
)
from mx_kernels.tensor import MXTensor

FLOATS = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
"""Dtypes that the numbers of a parameter can have."""
SHOWN = 5
"""Names in a warning."""
WORD_BYTES, NVFP4_BYTES = 4, 8
"""Of the words that MLX packs codes into, and of codes of NVFP4 for each scale."""
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
    whole: str = ""
    """How the name of the tensor scale of NVFP4 ends."""
    is_reciprocal: bool = False
    """Whether that is what values are divided by."""

    def names(self, parameter: str) -> tuple[str, str]:
        """Returns what codes and scales of a parameter are called."""
        base = parameter.removesuffix(self.parameter)
        return base + self.codes, base + self.scales

    def whole_name(self, codes: str) -> str:
        """Returns what the tensor scale beside codes is called, empty if this form has none."""
        return codes.removesuffix(self.codes) + self.whole if self.whole else ""


OF_FP8 = {torch.float8_e4m3fn: "mxfp8", torch.float8_e5m2: "mxfp8_e5m2"}
BYTES = {torch.uint8: DEFAULT_FORMAT, torch.int8: DEFAULT_FORMAT}
ALL = {**BYTES, **OF_FP8}
FORMS = (
    Form("gpt-oss", "_blocks", "_scales", "", BYTES, has_block_axis=True),
    Form(
        "compressed-tensors",
        "weight_packed",
        "weight_scale",
        "weight",
        BYTES,
        whole="weight_global_scale",
        is_reciprocal=True,
    ),
    Form("Quark", "", "_scale", "", ALL, whole="_scale_2"),
    Form("DeepSeek", "", "_scale_inv", "", ALL),
    Form("DeepSeek-V4", ".weight", ".scale", ".weight", ALL),
    Form("MLX", ".weight", ".scales", ".weight", ALL),
    Form("ComfyUI", ".weight", ".scale_weight", ".weight", OF_FP8),
    Form("Mistral", ".weight", ".qscale_weight", ".weight", OF_FP8),
)
OWN = Form(OURS, ".codes", ".scales", "", BYTES)
CODES = (*ALL, torch.uint32)
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
    meaning: Meaning | None = None
    """What the parts are, None for a tensor."""
    are_turned: bool = False
    """Whether codes are stored as [..., K, N]."""
    hadamard: int | None = None
    """How many neighbours of what it is multiplied by are rotated together first."""

    @property
    def nbytes(self) -> int:
        """Returns how much there is to read."""
        return sum(part.nbytes for part in self.parts)

    @property
    def has_own_memory(self) -> bool:
        """Whether what is read is no memory of a file or of a state dict."""
        return self.becomes_floats

    @property
    def becomes_floats(self) -> bool:
        """Whether there are codes, which are read as floats."""
        return self.meaning is not None and not self.format

    def read(self) -> tuple[Tensor, ...]:
        """Returns the tensor, or plain codes and scales; they may be a file's memory."""
        return self.made(part.read() for part in self.parts)

    def made(self, tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
        """Returns what `read` does, of the parts in their order."""
        tensors = tuple(tensors)
        if not self.format and self.meaning is None:
            return tensors
        codes, scales, *whole = tensors
        codes = codes.transpose(-1, -2) if self.are_turned else codes
        codes, scales = codes.contiguous().view(torch.uint8), scales.contiguous()
        fmt = format_named(self.meaning.format)
        *lead, k = self.shape
        codes = codes.reshape(*lead, fmt.packed_bytes(k))
        for part in whole:
            self._check_tensor_scales(part)
        scales = as_stored(scales, self.meaning, *whole)
        return (codes, scales) if self.format else (self._dequantized(codes, scales),)

    def _check_tensor_scales(self, whole: Tensor) -> None:
        """Raises unless tensor scales are numbers that codes can be multiplied by."""
        is_reciprocal = self.meaning.is_reciprocal
        is_right = whole.isfinite() & ((whole > 0) if is_reciprocal else (whole >= 0))
        if not is_right.all():
            least = "more than 0, which it divides by" if is_reciprocal else "0 or more"
            raise ValueError(
                f"{self.parts[-1].name or self.name}: got a tensor scale "
                f"{float(whole[~is_right][0])}, expected a number of {least}"
            )

    def _dequantized(self, codes: Tensor, scales: Tensor) -> Tensor:
        """Returns codes as floats, whatever K is."""
        fmt, k = format_named(self.meaning.format), self.shape[-1]
        padding = fmt.packed_bytes(-k % fmt.k_multiple)
        codes = nn.functional.pad(codes, (0, padding))
        if blocks := fmt.k_blocks(k + -k % fmt.k_multiple) - fmt.k_blocks(k):
            # Before the tensor scale of the row.
            of_blocks, of_rows = split_scales(scales, fmt)
            scales = torch.cat([nn.functional.pad(of_blocks, (0, blocks)), of_rows], -1)
        whole = MXTensor(codes, scales, format=fmt.name, dtype=self.dtype)
        return whole.dequantize()[..., :k].contiguous()

    def as_floats(self) -> Parameter:
        """Returns the same, to be read as floats."""
        return replace(self, format="") if self.meaning else self


def warn_of_floats(parameters: Iterable[Parameter], where: str) -> None:
    """Names the weights that are codes in a checkpoint and become floats."""
    found = [it for it in parameters if it.becomes_floats]
    if found:
        names = [f"{it.name} {show(it.shape)} of {it.meaning.format}" for it in found]
        warnings.warn(
            f"{where}: got {some(names, SHOWN)}, which become floats: no block of MX divides K, or "
            "no layer of ours is theirs",
            stacklevel=3,
        )


def plan(checkpoint: Checkpoint, *, takes_rotations: bool = False) -> list[Parameter]:
    """Returns the parameters of a checkpoint, in the order of its tensors.

    Args:
        checkpoint: what there is.
        takes_rotations: whether `Parameter.hadamard` is carried out; else one that has it raises.

    Raises:
        ValueError: if parts are missing, do not fit, or are of a kind that is not MX.
    """
    try:
        planner = _Planner(checkpoint)
        if not takes_rotations:
            planner.check_no_rotations()
        return planner.plan()
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
        self.matrices: dict[str, Part] = {}
        """Those that rotate what modules are given, by the names of these."""

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
        self._take_matrices()
        alone = [name for name in others if name not in self.used]
        leftovers.check(self.parts, alone, self.codes, FORMS, self.scheme.has_bare_codes)
        for name, part in self.parts.items():
            if name not in self.used:
                self._add(name, Parameter(name, (part,), part.shape, part.dtype), name)
        ordered = sorted(self.found.values(), key=lambda it: it[0])
        return [self._rotated(parameter) for _, parameter in ordered]

    def check_no_rotations(self) -> None:
        """Raises if layers are to rotate what they are given."""
        said = self.scheme.quark_rotates
        if self.scheme.rotations:
            said = f"transform_config: got {self.scheme.rotations[0].said}"
        if said:
            raise ValueError(
                f"{said}, which turns what a layer is given at run time; expected weights without "
                "it, or mx_kernels.load(path, rotations={}), which says what linear is to rotate"
            )

    def _take_matrices(self) -> None:
        """Takes matrices of rotations, which are no parameters."""
        ends = [rotation.ending for rotation in self.scheme.rotations]
        ends += [f".{rotations.QUARK}"] if self.scheme.quark_rotates else []
        for name, part in self.parts.items():
            if end := next((end for end in ends if name.endswith(end)), None):
                self.matrices[name.removesuffix(end)] = part
                self.used.add(name)
        if self.scheme.quark_rotates and not self.matrices:
            raise ValueError(
                f"{self.scheme.quark_rotates}, expected a matrix *.{rotations.QUARK} beside each "
                "weight whose input is rotated"
            )

    def _rotated(self, it: Parameter) -> Parameter:
        """Returns a parameter with the block of the rotation of what it is multiplied by.

        Raises:
            ValueError: if the rotation is none that `linear` has.
        """
        module = it.name.removesuffix("weight").removesuffix(".")
        matrix = self.matrices.get(module)
        fitting = [rotation for rotation in self.scheme.rotations if rotation.fits(module)]
        is_weight = it.name.endswith("weight") and len(it.shape) == 2
        if not is_weight or not (fitting or matrix):
            return it
        if not it.meaning and not matrix and "embed" in module:
            return it
        got = f"got {fitting[0].said if fitting else self.scheme.quark_rotates} for {it.name}"
        if not it.format:
            raise ValueError(
                f"{got}, which is floats, expected a quantized weight: no other has it"
            )
        if len(fitting) > 1:
            raise ValueError(f"{got} and {fitting[1].said}, expected one rotation")
        block = fitting[0].block if fitting else matrix.shape[0] if matrix.shape else 0
        block = it.shape[-1] if block is None else block
        if block not in HADAMARD or it.shape[-1] % block:
            raise ValueError(
                f"{got} in blocks of {block} of K = {it.shape[-1]}, expected {rotations.SIZES}, of "
                "which K is a multiple"
            )
        if matrix:
            rotations.check_matrix(matrix.name, matrix.read(), block)
        return replace(it, hadamard=block)

    def _look(self, form: Form, codes: str) -> None:
        """Takes a pair, if the names are those of one."""
        parameter = codes.removesuffix(form.codes) + form.parameter
        _, scales = form.names(parameter)
        if scales not in self.parts or self.parts[codes].dtype not in CODES:
            return
        kind, scale = self.parts[codes], self.parts[scales]
        of_tensor: list[Part] = []
        if kind.dtype == torch.uint32:
            if scale.dtype not in E8M0:
                return
            kind, scale, *of_tensor = _of_words(kind, scale)
        is_turned = form.codes == "" and kind.dtype in FP8
        is_turned = is_turned and floats.are_turned(parameter, kind.shape, self.config)
        if is_turned:
            kind, scale = _turned(parameter, kind, scale)
        module = parameter.removesuffix("weight").removesuffix(".")
        spec = self.scheme.spec(module, kind.dtype)
        names = [codes, scales]
        whole = form.whole_name(codes)
        is_nvfp4 = kind.dtype in BYTES and scale.dtype == torch.float8_e4m3fn
        if is_nvfp4 and whole in self.parts:
            names.append(whole)
            of_tensor = [self.parts[whole]]
        got = " and ".join(f"{name} {_described(self.parts[name])}" for name in names)
        parts = (kind, scale, *of_tensor)
        if len(parts) > 2:
            meaning = of_tensor_scale(*parts, spec, is_reciprocal=form.is_reciprocal, got=got)
        else:
            meaning = meaning_of(
                kind,
                scale,
                spec,
                formats=form.formats,
                has_block_axis=form.has_block_axis,
                got=got,
                scales_name=scales,
            )
        fmt = format_named(meaning.format)
        format = "" if meaning.shape[-1] % fmt.k_multiple else fmt.name
        made = Parameter(parameter, parts, meaning.shape, self.dtype, format, meaning, is_turned)
        self._add(parameter, made, *names)
        self.codes[codes] = not fmt.has_float_scales

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
        meaning = Meaning(format, shape, (fmt.block_rows, fmt.block_k))
        self._add(name, Parameter(name, parts, shape, dtype, format, meaning), codes, scales)

    def _add(self, name: str, parameter: Parameter, *parts: str) -> None:
        """Adds a parameter, made of some parts."""
        if name in self.found:
            raise ValueError(f"got parameter {name} twice, once as codes and scales, once not")
        if used := [part for part in parts if part in self.used]:
            raise ValueError(f"got {used[0]} as a part of two parameters, expected of one")
        self.used.update(parts)
        self.found[name] = self.place[parts[0]], parameter


def _turned(name: str, codes: Part, scales: Part) -> tuple[Part, Part]:
    """Returns codes and scales of a model that keeps [..., K, N] as those of [..., N, K].

    Raises:
        ValueError: unless there is a scale for each output, which shows that they are.
    """
    *lead, k, n = codes.shape
    if scales.shape != (*lead, 1, n):
        raise ValueError(
            f"got {name} {show(codes.shape)}, which this type of model keeps as [..., K, N], and "
            f"scales {show(scales.shape)}, expected codes [..., N, K], or scales "
            f"{show((*lead, 1, n))}"
        )
    return replace(codes, shape=(*lead, n, k)), replace(scales, shape=(*lead, n, 1))


def _of_words(words: Part, scales: Part) -> tuple[Part, ...]:
    """Returns words of 32 bits as the bytes in them, and scales, which are bytes, as what they are.

    How many bytes a scale has tells E4M3 codes, and NVFP4, whose tensor scale, 1, comes with it.
    """
    shape = (*words.shape[:-1], words.shape[-1] * WORD_BYTES) if words.shape else ()
    is_fp8 = shape and scales.shape[-1:] == (-(-shape[-1] // MX_BLOCK),)
    is_nvfp4 = shape and scales.shape[-1:] == (shape[-1] // NVFP4_BYTES,)
    dtype = torch.float8_e4m3fn if is_fp8 else torch.uint8
    codes = Part(dtype, shape, lambda: words.read().contiguous().view(dtype), words.name)
    if not is_nvfp4:
        return codes, scales
    e4m3 = torch.float8_e4m3fn
    of_blocks = replace(scales, dtype=e4m3, read=lambda: scales.read().contiguous().view(e4m3))
    return codes, of_blocks, Part(torch.float32, (), lambda: torch.ones(()), scales.name)


def _own_meanings(checkpoint: Checkpoint) -> dict[str, tuple[str, tuple[int, ...], torch.dtype]]:
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


def described(parameters: Mapping[str, tuple[str, tuple[int, ...], torch.dtype]]) -> str:
    """Returns the metadata of a file that holds parameters: format, shape and dtype by name."""
    tensors = {
        name: {"format": format, "shape": list(shape), "dtype": str(dtype).removeprefix("torch.")}
        for name, (format, shape, dtype) in parameters.items()
    }
    return json.dumps({"version": VERSION, "tensors": tensors})
