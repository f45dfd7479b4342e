"""Finds the launches of experts on gfx950 and runs them in the simulator.

`Launches` asks `programs/experts.mojo`, whose launches are those of the dispatch. Every launch is
checked for hazards, and arrays are exactly as long as the operands.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import NamedTuple

import numpy as np

import gfx950
import oracle
from bench.simulated.catalogue import module_of
from bench.simulated.experts import launches_of
from cases import GATES
from mx_kernels._core.gates import GateOptions, check_gate
from tests import artefacts
from tests.cdna4.support import NUMPY_DTYPES, poisoned_weights

FUSED = "swiglu_oai"
"""The gate that products have; the others take a launch of their own."""
QUANTIZE_ARGUMENTS = 6
"""Arguments of the launch that encodes tokens: the second one, if there is one."""
WORKGROUPS = {17: 14, 18: 11}
"""The argument that says how many workgroups go through the tiles of a product of codes, or of
ordered rows, by how many arguments it has."""
LEFT, RESULT = 3, 6
"""The arguments that say where the left side of a product lies, and where its results go."""
ORDERED_RESULTS = 12, 15
"""The same of ordered rows: codes, and their scales."""
ORDER_ARGUMENTS = 10, 11
"""Arguments of the launch that orders rows by tiles, perhaps codes too: the third one, if there is
one."""
TILE_ROWS = 256
"""Rows of the tiles of such a product."""
STAGE_BLOCKS = 8
"""Encoded rows are whole stages."""


def gate_of(name: str) -> tuple[int, ...]:
    """Returns one of `GATES` as a call has it."""
    return tuple(check_gate(GateOptions(**GATES[name])))


class Types(NamedTuple):
    """What the name of a layer, or of a grouped product, says."""

    left: str
    """The format that activations are rounded to."""
    right: str
    """The format of weights."""
    x: str
    out: str
    bias: str


def types_of(name: str) -> Types:
    """Reads <left>[.<right>]_<x>_<out>_<bias>; weights are MXFP4 unless named."""
    both, x, out, bias = name.rsplit("_", 3)
    left, _, right = both.partition(".")
    return Types(left, right or "mxfp4", x, out, bias)


@cache
def program():
    """Returns the module that knows the launches."""
    return module_of(artefacts.path("cdna4/experts"), "experts")


@cache
def kernel(text: str) -> gfx950.Kernel:
    """Returns a kernel for the simulator."""
    return gfx950.parse(text)


def run(
    launches,
    operands: dict,
    workspace: np.ndarray | None = None,
    workgroups: int | None = None,
    **options,
) -> list:
    """Runs launches one after another; raises on hazards."""
    found = []
    for launch in launches:
        made = bound(launches, launch, operands, workspace, workgroups)
        found.append(gfx950.run(kernel(launch["text"]), *made, **options).raise_on_hazards())
    return found


def bound(
    launches,
    launch: dict,
    operands: dict,
    workspace: np.ndarray | None = None,
    workgroups: int | None = None,
) -> tuple:
    """Returns grid, threads and arguments of one of the launches of a layer.

    A place in the workspace ends where the next one begins; scales that a launch encodes lie in
    the place of their codes, for the launches that read both. Products of codes have so many
    `workgroups`, if told, instead of as many as the chip has room for.
    """
    arguments, grid = list(launch["arguments"]), launch["grid"]
    places = {place for one in launches for place in places_of(one)}
    scales = {arguments[2][0]} if is_quantization(launch) else set()
    ends = [*sorted(places | scales), None]
    if workgroups and len(arguments) in WORKGROUPS:
        arguments[WORKGROUPS[len(arguments)]], grid = workgroups, (workgroups, 1, 1)
    args = []
    for argument in arguments:
        if isinstance(argument, tuple):
            end = ends[ends.index(argument[0]) + 1]
            args.append(workspace[argument[0] : end])
        elif isinstance(argument, str):
            args.append(operands[argument])
        else:
            args.append(np.int32(argument))
    return grid, launch["threads"], args


def places_of(launch: dict) -> set[int]:
    """Returns where in the workspace a launch's arguments begin, less the scales it encodes."""
    arguments = launch["arguments"][:2] if is_quantization(launch) else launch["arguments"]
    return {argument[0] for argument in arguments if isinstance(argument, tuple)}


@dataclass
class Experts:
    """Weights of all experts, as parts of plain tensors and as stored."""

    codes: np.ndarray
    """[E, N, K / 2], or [E, N, K] of eight bits."""
    scales: np.ndarray
    """[E, N, K / 32], or of "nvfp4" [E, N, K / 16 + 4]."""
    bias: np.ndarray | None
    """[E, N]."""
    format: str = "mxfp4"

    @classmethod
    def random(cls, rng, count, n, k, bias="none", top=127, format="mxfp4") -> Experts:
        """Draws weights: codes of four bits, whose largest scale is that of `top`, or small numbers
        in another format."""
        codes = rng.integers(0, 256, (count, n, k // 2), np.uint8)
        scales = rng.integers(top - 9, top, (count, n, k // oracle.BLOCK)).astype(np.uint8)
        if format != "mxfp4":
            numbers = rng.standard_normal((count * n, k)) / 8
            both = oracle.quantize(numbers, format=format)
            codes, scales = (part.reshape(count, n, -1) for part in both)
        addend = None
        if bias != "none":
            addend = rng.standard_normal((count, n)).astype(NUMPY_DTYPES[bias])
        return cls(codes, scales, addend, format)

    def stored(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns codes, scales and bias in memory; scales in the padding are NaN."""
        parts = zip(self.codes, self.scales, strict=True)
        pairs = [poisoned_weights(*pair, self.format) for pair in parts]
        codes, scales = map(np.stack, zip(*pairs, strict=True))
        return codes, scales, np.zeros(0, np.uint8) if self.bias is None else self.bias

    @property
    def k(self) -> int:
        """The numbers of a row."""
        return self.codes.shape[-1] * 8 // oracle.FORMATS[self.format].element.bits

    def matrix(self, expert: int) -> np.ndarray:
        """Returns what the weights of an expert stand for."""
        return oracle.dequantize(self.codes[expert], self.scales[expert], self.format)


def grouped(name: str, x, experts: Experts, sizes, **options) -> np.ndarray:
    """Runs a grouped product; returns C, which begins as NaN."""
    (m, k), (count, n, _) = x.shape, experts.codes.shape
    w_codes, w_scales, bias = experts.stored()
    c = np.full((m, n), np.nan, NUMPY_DTYPES[types_of(name).out])
    operands = {
        "x": x, "w_codes": w_codes, "w_scales": w_scales, "bias": bias, "c": c,
        "sizes": np.asarray(sizes, np.int32), "none": np.zeros(0, np.uint8),
    }  # fmt: skip
    launches = program().grouped(name, (m, n, k, count))
    assert len(launches) == (1 if m * n else 0)
    run(launches, operands, **options)
    return c


@dataclass
class Layer:
    """A layer of experts and what comes in; what its launches leave in the workspace."""

    name: str
    x: np.ndarray
    gate_up: Experts
    down: Experts
    ids: np.ndarray
    weights: np.ndarray
    gate: str = "swiglu_oai"

    def slots(self) -> int:
        """Returns the slots of all tokens."""
        return self.ids.size

    def launches(self) -> tuple[list, int]:
        """Returns the launches and the bytes of their workspace."""
        (tokens, width), count = self.x.shape, len(self.down.codes)
        weights = list(NUMPY_DTYPES).index(self.weights.dtype.name)
        sizes = (tokens, self.ids.shape[1], width, self.down.k, count)
        kinds = self.ids.dtype.itemsize, weights, *gate_of(self.gate)
        return launches_of(program(), self.name, (*sizes, *kinds))

    def operands(self) -> dict:
        """Returns what the launches are given, by name; results begin as NaN."""
        first, second = ("w_codes", "w_scales", "bias"), ("down_codes", "down_scales", "down_bias")
        return {
            **dict(zip(first, self.gate_up.stored(), strict=True)),
            **dict(zip(second, self.down.stored(), strict=True)),
            "x": self.x, "ids": self.ids, "weights": self.weights,
            "c": np.full(self.x.shape, np.nan, NUMPY_DTYPES[types_of(self.name).out]),
            "none": np.zeros(0, np.uint8),
        }  # fmt: skip

    def run(self, **options) -> Parts:
        """Runs the layer; returns what each of its launches computed."""
        launches, num_bytes = self.launches()
        width, count, inner = self.x.shape[1], len(self.down.codes), self.down.k
        workspace = np.full(num_bytes, 0xA5, np.uint8)
        operands = self.operands()
        y = operands["c"]
        run(launches, operands, workspace, **options)
        if not self.slots():
            return Parts(y)
        route, add = launches[0]["arguments"], launches[-1]["arguments"]
        part = partial(part_of, workspace)
        hidden, codes = None, None
        if not encodes(launches):
            hidden = part(launches[-2]["arguments"][LEFT], self.x.dtype, self.slots(), inner)
        elif self.gate != FUSED:
            encode = next(one for one in launches[::-1] if is_quantization(one))
            hidden = part(encode["arguments"][0], self.x.dtype, self.slots(), inner)
        elif orders(launches):
            places = [launches[3]["arguments"][at] for at in ORDERED_RESULTS]
            sizes = part(route[6], np.int32, count)
            left = types_of(self.name).left
            codes = ordered_codes_of(workspace, places, self.slots(), inner, sizes, left)
        else:
            place, left = launches[2]["arguments"][RESULT], types_of(self.name).left
            codes = codes_of(workspace, place, self.slots(), inner, left)
        return Parts(
            y,
            part(route[6], np.int32, count),
            part(route[7], np.int32, self.slots()),
            part(route[8], np.int32, self.slots()),
            hidden,
            codes,
            part(add[0], np.float32, self.slots(), width),
        )

    def sums(self) -> np.ndarray:
        """Returns gates and ups of rows, which the same kernels store where they do not gate."""
        apart = replace(self, gate="silu") if self.gate == FUSED else self
        launches, num_bytes = apart.launches()
        gates = len(launches) // 2
        workspace = np.full(num_bytes, 0xA5, np.uint8)
        run(launches[:gates], self.operands(), workspace, check=False)
        shape = self.slots(), self.gate_up.codes.shape[1]
        return part_of(workspace, launches[gates]["arguments"][0], np.float32, *shape)


def encodes(launches: list) -> bool:
    """Says whether the launches of a layer encode rows before they multiply them."""
    return is_quantization(launches[1])


def is_quantization(launch: dict) -> bool:
    """Says whether a launch encodes rows."""
    return len(launch["arguments"]) == QUANTIZE_ARGUMENTS


def orders(launches: list) -> bool:
    """Says whether the launches of a layer order rows by tiles before they multiply them."""
    return len(launches[2]["arguments"]) in ORDER_ARGUMENTS


def part_of(workspace: np.ndarray, place: tuple[int], dtype, *shape: int) -> np.ndarray:
    """Returns what lies at a place in the workspace."""
    return workspace[place[0] :].view(dtype)[: np.prod(shape)].reshape(shape)


def codes_of(workspace: np.ndarray, place: tuple[int], rows: int, k: int, format: str) -> tuple:
    """Returns codes and scales of rows that are encoded in a format, of k numbers each."""
    blocks, block_bytes = k // oracle.BLOCK, oracle.BLOCK * oracle.FORMATS[format].element.bits // 8
    stored = -(-blocks // STAGE_BLOCKS) * STAGE_BLOCKS
    both = workspace[place[0] :]
    row_bytes = stored * block_bytes
    codes = both[: rows * row_bytes].reshape(rows, row_bytes)[:, : blocks * block_bytes]
    scales = both[rows * row_bytes :][: rows * stored].reshape(rows, stored)
    return codes, scales[:, :blocks]


def ordered_codes_of(
    workspace: np.ndarray,
    places: list[tuple[int]],
    rows: int,
    k: int,
    sizes: np.ndarray,
    format: str,
) -> tuple:
    """Returns the same of rows whose scales are words of the tiles of groups."""
    blocks, block_bytes = k // oracle.BLOCK, oracle.BLOCK * oracle.FORMATS[format].element.bits // 8
    stored = -(-blocks // STAGE_BLOCKS) * STAGE_BLOCKS
    tiles = np.repeat(np.arange(len(sizes)), -(-sizes // TILE_ROWS))
    if oracle.FORMATS[format].element.bits == 6:
        codes = untiled(workspace, places[0], sizes, stored, block_bytes)
    else:
        codes = part_of(workspace, places[0], np.uint8, rows, stored * block_bytes)
    codes = codes[:, : blocks * block_bytes]
    # Word s * 16 + r of a group of 32 rows x 8 blocks: rows r, r + 16; blocks s, s + 4.
    words = part_of(
        workspace, places[1], np.uint8, len(tiles), TILE_ROWS // 32, stored // 8, 4, 16, 2, 2
    )
    plain = words.transpose(0, 1, 6, 4, 2, 5, 3).reshape(len(tiles), TILE_ROWS, stored)
    scales = np.zeros((rows, blocks), np.uint8)
    first = 0
    for expert, size in enumerate(sizes):
        of_expert = plain[tiles == expert].reshape(-1, stored)[:size, :blocks]
        scales[first : first + size] = of_expert
        first += size
    return codes, scales


def untiled(
    workspace: np.ndarray, place: tuple[int], sizes: np.ndarray, stored: int, block_bytes: int
) -> np.ndarray:
    """Returns the codes of rows in the order of groups, of those that lie 8 rows x 128 by tiles.

    A tile of C begins at the next of these tiles that no earlier one has begun.
    """
    slices, slice_bytes = stored // 4, 4 * block_bytes
    row_bytes = slices * slice_bytes
    starts = np.concatenate([[0], np.cumsum(sizes)])
    firsts = [
        (row, min(TILE_ROWS, end - row))
        for start, end in itertools.pairwise(starts)
        for row in range(start, end, TILE_ROWS)
    ]
    rows = [np.zeros((0, row_bytes), np.uint8)]
    for tile, (first, count) in enumerate(firsts):
        eights = -(-count // 8)
        begin = (first // 8 + tile) * 8 * row_bytes
        held = workspace[place[0] + begin :][: eights * 8 * row_bytes]
        of_rows = held.reshape(eights, slices, 8, slice_bytes).transpose(0, 2, 1, 3)
        rows.append(of_rows.reshape(eights * 8, row_bytes)[:count])
    return np.concatenate(rows)


@dataclass(frozen=True)
class Parts:
    """What the launches of a layer computed."""

    y: np.ndarray
    sizes: np.ndarray | None = None
    """Rows of each expert."""
    tokens: np.ndarray | None = None
    """Of rows."""
    places: np.ndarray | None = None
    """Rows of slots; negative for none."""
    hidden: np.ndarray | None = None
    """Of rows, where they are floats."""
    codes: tuple | None = None
    """Codes and scales of them, where those are what is stored."""
    rows: np.ndarray | None = None
    """Results of the second product."""
