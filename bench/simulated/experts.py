"""A layer of gpt-oss's experts on the simulator's timing model, beside its two floors.

The launches are those of the dispatch, as the tests' catalogue of experts has them. Each is
timed by itself; routes are random and the same for all. Of a launch with many workgroups those
of one compute unit's first round are timed. For a product those of the whole chip's are executed
too: they are the tiles of a few experts, which share what the L2 of their XCD holds.

The grid of a product is for as many tiles as sizes could make. Workgroups that have no tile are
timed as a launch of their own, whose kernel time is added. Products of encoded rows have no more
workgroups than the chip has room for, one round, which go through all tiles.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType

import ml_dtypes
import numpy as np

import gfx950
import mx_kernels
from bench.device import REPOSITORY
from bench.report import Table
from bench.rows import Origin
from bench.simulated import catalogue, peaks
from gfx950.timing import Profile, profile
from gfx950.timing.parameters import Machine
from mx_kernels._core.facts import KEPT_FLOATS, facts
from mx_kernels._core.gates import GateOptions, check_gate
from mx_kernels._core.hip import Kind
from mx_kernels._core.native import gpu_plans
from mx_kernels._core.protocol import NO_CODE

PROGRAM = REPOSITORY / "tests" / "cdna4" / "programs" / "experts.mojo"
TYPES = "bfloat16_bfloat16_float32"
"""Activations, results and biases."""
MODELS = {"gpt-oss-20b": 32, "gpt-oss-120b": 128}
"""Experts of a layer."""
WIDTH, INNER, PER_TOKEN = 2880, 2880, 4
QUANTIZE_ARGUMENTS = 6
"""Arguments of the launch that encodes rows."""
EVEN = 1
"""The position of the rule by which activations are rounded."""
COLUMNS = {"gate_up": 2 * INNER, "down": WIDTH}
"""Of both products."""
TOKENS = (1, 16, 64, 256, 1024, 4096, 16384)
QUICK_TOKENS = (1, 64)
ACTIVATIONS = {"mxfp4": TOKENS, "mxfp6": TOKENS[3:], "mxfp8": TOKENS[3:]}
"""What activations are rounded to, and how many tokens then; with few of them layers of all take
as long, as they read the same weights."""
_EIGHT_BITS = {
    ("gpt-oss-120b", 1): 25.5, ("gpt-oss-120b", 16): 137, ("gpt-oss-120b", 64): 278,
    ("gpt-oss-120b", 1024): 361, ("gpt-oss-120b", 4096): 698, ("gpt-oss-120b", 16384): 2088,
}  # fmt: skip
PUBLISHED = dict.fromkeys(ACTIVATIONS, _EIGHT_BITS) | {
    "mxfp4": _EIGHT_BITS | {("gpt-oss-120b", 4096): 615}
}
"""What AITER publishes for an MI355X, us, activations of eight bits (615: of four), padded to 3072:
measured there, not modelled."""
FLOPS_PER_CYCLE = {"mxfp4": 4096, "mxfp6": 4096, "mxfp8": 2048}
"""Of a SIMD, weights of four bits."""
BF16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class LayerRow:
    """A layer for some tokens."""

    model: str
    activations: str
    """What they are rounded to."""
    tokens: int
    launches: int
    time_us: float
    """All launches, their cost included."""
    latency_us: float
    """The same in the other reading of the machine (timing.parameters)."""
    weight_floor_us: float
    """Reading the weights of the experts that have rows, once."""
    flop_floor_us: float
    """The products at the peak."""
    times_floor: float
    """Time over the larger of the two."""
    aiter_us: float | None
    """What AITER publishes for hardware."""
    steps: str
    """Time of each launch."""
    source: str
    commit: str
    date: str


@dataclass(frozen=True)
class Routes:
    """Which experts tokens go to."""

    ids: np.ndarray
    """[tokens, slots]."""
    experts: int

    @classmethod
    def random(cls, tokens: int, experts: int) -> Routes:
        """Draws different experts for each token."""
        scores = np.random.default_rng(0).standard_normal((tokens, experts))
        return cls(np.argsort(scores, axis=1)[:, :PER_TOKEN].astype(np.int32), experts)

    def sizes(self) -> np.ndarray:
        """Returns the rows of each expert."""
        return np.bincount(self.ids.reshape(-1), minlength=self.experts).astype(np.int32)

    def order(self) -> np.ndarray:
        """Returns the slots in the order of rows."""
        return np.argsort(self.ids.reshape(-1), kind="stable").astype(np.int32)

    def tiles(self, rows: int) -> int:
        """Returns the tiles of so many rows."""
        return int((-(-self.sizes() // rows)).sum())


def launches_of(program: ModuleType, name: str, sizes: Sequence[int]) -> tuple[list, int]:
    """Returns the launches of a layer as planned, and the bytes of their workspace.

    Args:
        program: the catalogue of experts.
        name: the types of the layer, as the catalogue names them.
        sizes: what it takes of a layer.
    """
    tokens, slots, width, inner, experts, _, _, gate, interleaved, *_ = sizes
    formats, x, _, _ = name.rsplit("_", 3)
    left, _, right = formats.partition(".")
    of_left = NO_CODE if left == KEPT_FLOATS else facts().formats[left].code
    kind = Kind(of_left, facts().formats[right or "mxfp4"].code, facts().dtypes[x], EVEN, 0, None)
    asked = tokens, slots, experts, width, inner, gate, interleaved, *kind.codes()
    return program.layer(name, tuple(sizes), *gpu_plans().plan_experts_gfx950(asked))


class SimulatedLayer:
    """The launches of a layer and what they read; most of it is zeros.

    Activations are rounded to MXFP4, or to another format.
    """

    def __init__(self, model: str, tokens: int, activations: str = "mxfp4"):
        self.routes = Routes.random(tokens, MODELS[model])
        path = catalogue.build(PROGRAM, [PROGRAM.parent, REPOSITORY]).find_or_make()
        module = catalogue.module_of(path, PROGRAM.stem)
        experts, slots = self.routes.experts, self.routes.ids.size
        sizes = (tokens, PER_TOKEN, WIDTH, INNER, experts)
        int32, float32, gate = 4, 2, check_gate(GateOptions("swiglu_oai"))
        types = f"{activations}_{TYPES}"
        sizes = *sizes, int32, float32, *gate
        self.launches, num_bytes = launches_of(module, types, sizes)
        size = {"experts": experts, "slots": PER_TOKEN, "activations": activations}
        self.explained = mx_kernels.explain(
            tokens, INNER, WIDTH, device="gfx950", op=mx_kernels.moe, **size
        ).launches
        self.workspace = np.zeros(num_bytes, np.uint8)
        route = self.launches[0]["arguments"]
        order = self.routes.order()
        self._put(route[6], self.routes.sizes())
        self._put(route[7], order // PER_TOKEN)
        places = np.empty(slots, np.int32)
        places[order] = np.arange(slots)
        self._put(route[8], places)
        for explained, launch in zip(self.explained, self.launches, strict=True):
            if explained.name == "order":
                self._put_tiles(launch, explained.tile[0], order // PER_TOKEN)
        self.operands = {
            "x": np.ones((tokens, WIDTH), BF16), "ids": self.routes.ids,
            "weights": np.ones((tokens, PER_TOKEN), np.float32),
            "c": np.zeros((tokens, WIDTH), BF16), "none": np.zeros(0, np.uint8),
            **_weights(("w_codes", "w_scales", "bias"), experts, 2 * INNER, WIDTH),
            **_weights(("down_codes", "down_scales", "down_bias"), experts, WIDTH, INNER),
        }  # fmt: skip

    def _put(self, place: tuple[int], values: np.ndarray) -> None:
        """Puts what an earlier launch computes into the workspace."""
        self.workspace[place[0] : place[0] + values.nbytes] = values.view(np.uint8)

    def _put_tiles(self, launch: dict, height: int, tokens: np.ndarray) -> None:
        """Puts the tiles of groups, and their rows, into the workspace."""
        tiles, rows = launch["arguments"][7:9]
        records, lists = [], []
        first = 0
        for expert, size in enumerate(self.routes.sizes()):
            end = first + int(size)
            for row in range(first, end, height):
                records.append((expert, row, end, 0))
                lists.append(np.full(height, -1, np.int32))
                lists[-1][: min(end - row, height)] = tokens[row : min(end, row + height)]
            first = end
        self._put(tiles, np.array([(len(records), 0, 0, 0), *records], np.int32).reshape(-1))
        self._put(rows, np.concatenate(lists))

    def times(self) -> Iterator[tuple[str, float, float]]:
        """Yields name and time of each launch, in both readings of the machine."""
        for explained, launch in zip(self.explained, self.launches, strict=True):
            name, used = explained.name, launch["grid"]
            if explained.cut:
                used = self._used(launch["grid"], explained.tile, COLUMNS[name])
            found = self._profile(launch, used, {}, whole_round=bool(explained.cut))
            rest_us = 0.0
            rest = int(np.prod(launch["grid"]) - np.prod(used))
            if rest:
                nothing = {
                    self.launches[0]["arguments"][6]: np.zeros(self.routes.experts, np.int32)
                }
                grid = (used[0], rest // used[0], 1) if launch["grid"][1] > 1 else (rest, 1, 1)
                rest_us = self._profile(launch, grid, nothing).kernel_us
            yield name, found.time_us + rest_us, found.variants["latency"] + rest_us

    def _used(
        self, grid: tuple[int, ...], tile: tuple[int, int], columns: int
    ) -> tuple[int, int, int]:
        """Returns the part of a product's grid whose workgroups have tiles."""
        rows, width = tile
        if grid[1] > 1:
            return grid[0], self.routes.tiles(rows), 1
        tiles = _of_xcds(self.routes.tiles(rows) * -(-columns // width))
        return min(grid[0], tiles), 1, 1

    def _profile(
        self, launch: dict, grid: tuple[int, ...], instead: dict, whole_round: bool = False
    ) -> Profile:
        """Times a launch; `instead` has other contents for places in the workspace."""
        starts = {place for one in self.launches for place in _places_of(one)}
        starts |= {a[0] for a in launch["arguments"] if isinstance(a, tuple)}
        ends = [*sorted(starts), None]
        args = []
        for a in launch["arguments"]:
            if isinstance(a, tuple):
                args.append(instead.get(a, self.workspace[a[0] : ends[ends.index(a[0]) + 1]]))
            else:
                args.append(self.operands[a] if isinstance(a, str) else np.int32(a))
        kernel = gfx950.parse(launch["text"])
        options = {"whole_round": whole_round, "with_variants": True}
        return profile(kernel, grid, launch["threads"], args, **options)


def _places_of(launch: dict) -> Iterator[int]:
    """Yields where in the workspace a launch's arguments begin.

    Scales that a launch encodes lie behind their codes, in one place for those that read both.
    """
    arguments = launch["arguments"]
    encodes = len(arguments) == QUANTIZE_ARGUMENTS
    yield from (a[0] for a in arguments[: 2 if encodes else None] if isinstance(a, tuple))


def _of_xcds(workgroups: int) -> int:
    """Returns a grid that the XCDs share evenly."""
    xcds = Machine().num_xcds
    return -(-workgroups // xcds) * xcds


def _weights(names: tuple[str, str, str], experts: int, n: int, k: int) -> dict:
    """Returns codes and scales of preshuffled weights, and biases, by name."""
    codes = np.zeros((experts, n, k // 2), np.uint8)
    scales = np.zeros((experts, n, -(-k // 256) * 8), np.uint8)
    return dict(zip(names, (codes, scales, np.zeros((experts, n), np.float32)), strict=True))


def floors_us(routes: Routes, machine: Machine, activations: str) -> tuple[float, float]:
    """Returns how long reading weights takes at least, and multiplying."""
    products = 3 * WIDTH * INNER
    num_bytes = np.count_nonzero(routes.sizes()) * products * (1 / 2 + 1 / 32)
    flops = 2 * routes.ids.size * products
    return peaks.floors_us(machine, num_bytes, flops, FLOPS_PER_CYCLE[activations])


def rows(
    origin: Origin, progress: Callable[[str], None], tokens: Sequence[int]
) -> Iterator[LayerRow]:
    """Yields a row for each kind of activations, model and number of tokens."""
    for activations, measured in ACTIVATIONS.items():
        for model, count in itertools.product(MODELS, tokens):
            if count in measured:
                progress(f"{model}, {count} tokens: compiling, executing and timing on the model")
                yield row_of(origin, model, activations, count)


def row_of(origin: Origin, model: str, activations: str, tokens: int) -> LayerRow:
    """Returns the row of a layer."""
    layer = SimulatedLayer(model, tokens, activations)
    found = list(layer.times())
    time_us = sum(us for _, us, _ in found)
    weights, flops = floors_us(layer.routes, Machine(), activations)
    return LayerRow(
        model, activations, tokens, len(found), time_us, sum(us for *_, us in found), weights,
        flops, time_us / max(weights, flops), PUBLISHED[activations].get((model, tokens)),
        " + ".join(f"{name} {us:.1f}" for name, us, _ in found),
        "model", origin.commit, origin.date,
    )  # fmt: skip


def tables(found: Sequence[LayerRow]) -> list[Table]:
    """Returns one table."""
    headings = [
        "model", "activations", "tokens", "launches", "us", "weights, us", "FLOPs, us", "x floor",
        "AITER, published", "each launch, us",
    ]  # fmt: skip
    cells = [
        [
            row.model, row.activations, str(row.tokens), str(row.launches),
            f"{min(row.time_us, row.latency_us):.1f} .. {max(row.time_us, row.latency_us):.1f}",
            f"{row.weight_floor_us:.1f}", f"{row.flop_floor_us:.1f}", f"{row.times_floor:.2f}",
            "" if row.aiter_us is None else f"{row.aiter_us:g}", row.steps,
        ]
        for row in found
    ]  # fmt: skip
    return [Table("A layer of experts, weights of MXFP4, *simulated*", headings, cells)]


def text(found: Sequence[LayerRow]) -> str:
    """Returns the table as a document."""
    origins = "; ".join(dict.fromkeys(f"{row.commit}, {row.date}" for row in found))
    title = (
        "A layer of experts, weights of MXFP4, *simulated*: a timing model of "
        "gfx950, no number of ours was measured on a GPU. A range is between the two readings of "
        "what the model was fitted to; launch cost included, once a launch. Floors: reading the "
        "weights of the experts that have rows once, and the products at the peak, which is half "
        "as high for activations of eight bits. AITER: published for an MI355X, activations of "
        "eight bits (MXFP4, 4096 tokens: of four), padded to 3072; measured on hardware, so not to "
        "be divided by. "
        f"Commit {origins}."
    )
    return "\n\n".join([title, tables(found)[0].to_markdown()]) + "\n"
