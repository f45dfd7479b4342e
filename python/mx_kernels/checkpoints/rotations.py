"""What layers are given is rotated at run time: by which weights, and in which blocks.

    compressed-tensors    transform_config: schemes by name, applied to modules by their names;
                          P.<scheme>_input.weight [n, n], of some of them, is the matrix
    mx_kernels            hadamard: the block, by the names of layers
    Quark                 algo_config says so, P.input_rotation [n, n] beside P.weight where

Carried out is `linear(x, w, hadamard=n)`: Sylvester's Hadamard matrices of 32, 64 or 128 along the
input of quantized linear layers. All else that is done at run time is refused by its name. What is
merged into weights, and queries and keys that are turned alike, changes no product.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mx_kernels._core.arrays import show
from mx_kernels._core.checks import HADAMARD

MERGED = ("weight_input", "weight_output")
KIND, LINEAR = "hadamard", "Linear"
ALIKE = {"q_attn", "k_cache"}
ORTHOGONAL = ("hadamard", "random-hadamard")
QUARK = "input_rotation"
"""The last name of Quark's matrices."""
SIZES = " or ".join(map(str, HADAMARD))
PATTERN_CHARACTERS = 512
_TOKEN = re.compile(
    r"(?P<text>[\w-]+)|(?P<dot>\\\.)|(?P<any>\.[*+])|(?P<one>\.)|(?P<digits>\\d\+|\[0-9\]\+)"
    r"|\((?:\?:)?(?P<choice>[\w|-]+)\)"
)
"""What a regular expression may be made of, so that it is matched in no time."""


@dataclass(frozen=True)
class Rotation:
    """A scheme that turns the input of some modules."""

    name: str
    said: str
    """Scheme, type and place, in words."""
    block: int | None
    """Elements that are rotated together; None for all of a row."""
    targets: tuple[re.Pattern[str], ...]
    ignored: tuple[re.Pattern[str], ...]
    is_of_linears: bool
    """Whether the targets are all linear layers, whatever they are called."""

    @property
    def ending(self) -> str:
        """How the names of its matrices end, behind those of modules."""
        return f".{self.name}_input.weight"

    def fits(self, module: str) -> bool:
        """Says whether a linear layer is a target."""
        is_target = self.is_of_linears or any(it.match(module) for it in self.targets)
        return is_target and not any(it.match(module) for it in self.ignored)


def rotations_in(transforms: Any) -> Iterator[Rotation]:
    """Yields the rotations of inputs that a transform_config of compressed-tensors asks for.

    Raises:
        ValueError: naming the scheme, and the part of it that is not carried out.
    """
    groups = transforms.get("config_groups") if isinstance(transforms, Mapping) else None
    if not isinstance(groups, Mapping):
        raise _refused(f"{transforms!r:.80}", "config_groups, schemes by name")
    for name, scheme in groups.items():
        entries = scheme if isinstance(scheme, Mapping) else {}
        kind, applied = entries.get("type", scheme), entries.get("apply")
        places = applied if isinstance(applied, list) else [None]
        places = [place if isinstance(place, Mapping) else {} for place in places]
        turned = {place.get("location"): place.get("inverse", False) for place in places}
        are_alike = turned.keys() >= ALIKE and kind in ORTHOGONAL
        are_alike = are_alike and len({turned[location] for location in ALIKE}) == 1
        for place in places:
            location = place.get("location")
            if location in MERGED or (are_alike and location in ALIKE):
                continue
            said = f"{name!r:.80} ({kind!r:.80} at {location!r:.80})"
            if location != "input":
                raise _refused(said, "'input', 'weight_input' or 'weight_output'")
            if kind != KIND:
                raise _refused(said, f"type {KIND!r}, Sylvester's matrix without random signs")
            if entries.get("randomize"):
                raise _refused(f"{said} with randomize", "randomize false, no permutation")
            block = entries.get("head_dim")
            if block is not None and (type(block) is not int or block not in HADAMARD):
                raise _refused(f"{said} with head_dim {block!r:.20}", SIZES)
            names = [_names(place.get(of), said) for of in ("targets", "ignore")]
            patterns = (tuple(_pattern(it, said) for it in of if it != LINEAR) for of in names)
            yield Rotation(str(name), said, block, *patterns, LINEAR in names[0])


def rotations_by_layer(said: Any) -> Iterator[Rotation]:
    """Yields those that our own config says.

    Raises:
        ValueError: if it says anything but blocks by names of layers.
    """
    blocks = list(said.values()) if isinstance(said, Mapping) else [said]
    if not all(type(block) is int and block in HADAMARD for block in blocks):
        raise ValueError(f"hadamard: got {said!r:.80}, expected {SIZES} by names of layers")
    for block in dict.fromkeys(blocks):
        names = (name for name, of in said.items() if of == block)
        patterns = tuple(re.compile(re.escape(name) + r"\Z") for name in names)
        yield Rotation("", f"{KIND!r} of {block}", block, patterns, (), is_of_linears=False)


def check_matrix(name: str, matrix: Tensor, block: int) -> None:
    """Raises unless a matrix of a file is the one that `hadamard` stands for."""
    expected = torch.ones(1, 1)
    while len(expected) < block:
        expected = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), expected)
    if not torch.equal(matrix.float(), expected):
        raise ValueError(
            f"got {name} {show(matrix.shape)}, which is another matrix, expected Sylvester's "
            f"Hadamard matrix {show((block, block))}: no other is carried out"
        )


def _refused(got: str, expected: str) -> ValueError:
    return ValueError(
        f"transform_config: got {got}, which is not carried out; expected {expected}, or weights "
        "without it"
    )


def _names(said: Any, scheme: str) -> list[str]:
    """Returns what modules are called by."""
    names = [said] if isinstance(said, str) else [] if said is None else said
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _refused(f"{scheme} of {said!r:.80}", "names of modules")
    for name in names:
        if name[:1].isupper() and name != LINEAR:
            raise _refused(f"{scheme} of {name!r:.80}", f"{LINEAR!r} or names of modules")
    return names


def _pattern(target: str, scheme: str) -> re.Pattern:
    """Returns what a name of modules, or a regular expression for them, matches.

    Between two `.*` what is found first is kept, so that nothing is tried again.
    """
    if not target.startswith("re:"):
        return re.compile(re.escape(target) + r"\Z")
    text = target.removeprefix("re:").removeprefix("^")
    end = r"\Z" if text.endswith("$") else ""
    text, at, parts = text.removesuffix("$"), 0, [""]
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None or len(text) > PATTERN_CHARACTERS:
            expected = r"letters, \., ., .*, \d+, (a|b), ^ and $ alone"
            raise _refused(f"{scheme} of {target!r:.80}", expected)
        at, kind = token.end(), token.lastgroup
        if kind == "any":
            parts[-1] += "." if token[0] == ".+" else ""
            parts.append("")
        elif kind == "choice":
            parts[-1] += f"(?:{'|'.join(map(re.escape, token['choice'].split('|')))})"
        else:
            parts[-1] += re.escape(token[0]) if kind == "text" else token[0]
    first, *rest = parts
    *middle, last = rest or [""]
    found = (f"(?=(?P<g{i}>.*?{part}))(?P=g{i})" for i, part in enumerate(middle))
    return re.compile(first + "".join(found) + (f".*{last}" if rest else "") + end)
