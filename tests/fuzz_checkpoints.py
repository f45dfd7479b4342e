"""Breaks checkpoints in many ways and loads them: a sentence or the right bytes, nothing else.

    python tests/fuzz_checkpoints.py FOLDER SEED TRIES

It prints how many were refused and how many loaded. It ends with a traceback if something else
is raised, a load gives other bytes than the files have, or memory grows beyond `SPARE`: the
files are small, so whatever needs more was announced by a lie. A test runs it as a process of
its own, which a crash would end.
"""

import json
import re
import resource
import shutil
import struct
import sys
from pathlib import Path

import numpy as np
import torch

import mx_kernels as mx
import tensorfiles
from checkpoint_forms import FORMS, codes, floats, scales

SPARE = 1 << 26
"""Bytes that a process may grow by; the address space may grow by eight times as much."""
HUGE = (2**31, 2**40, 2**62, 2**63 - 1, 2**63, 2**64, 10**30)
VALUES = (
    None, True, -1, 0, 1, 31, 1.5, 1e308, "", "x", "../x.safetensors",
    "/etc/passwd", "a\0.safetensors", "F32", "F4", "BF16", "U8", "F8_E4M3", "I64", [],
    [0], [1, 2, 3], {}, {"a": {}}, *HUGE,
    [2**62, 2**62], [2**40, 32], [[]], "quark", "fp4", "mxfp4", [8, 32], [32, 8], [0, 32],
    "mxfp4-pack-quantized", "per_block", "fp8", [128, 128], "float-quantized", float("nan"),
    "\ud800", "é" * 1000,
)  # fmt: skip


def main(folder: Path, seed: int, tries: int) -> None:
    originals = folder / "originals"
    forms = [*FORMS, "own"]
    for form in forms:
        make(originals / form, form)
    counts = {"refused": 0, "loaded": 0}
    mx.load(originals / "own")
    before = peak()
    limit = address_space() + 8 * SPARE
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for trial in range(tries):
        rng = np.random.default_rng([seed, trial])
        broken = folder / "broken"
        shutil.rmtree(broken, ignore_errors=True)
        shutil.copytree(originals / forms[trial % len(forms)], broken)
        what = [damage(broken, rng) for _ in range(rng.integers(1, 3))]
        try:
            counts[attempt(broken, rng)] += 1
        except BaseException:
            print(f"trial {trial} of seed {seed}: {what}", file=sys.stderr)
            raise
        assert peak() - before < SPARE, f"trial {trial} of seed {seed}: {what} took memory"
    print(counts["refused"], counts["loaded"])


def make(folder: Path, form: str) -> None:
    """Writes a small checkpoint."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(7)
    if form == "own":
        weights = {
            "a.weight": mx.MXTensor(*map(torch.from_numpy, (codes(rng, 6, 32), scales(rng, 6, 2)))),
            "b": torch.from_numpy(floats(rng, 8).astype(np.float32)),
            "c": mx.quantize(torch.ones(130, 160), format="fp8_block_2d"),
        }
        mx.save(weights, folder, max_shard_bytes=1)
        return
    config, arrays, _ = FORMS[form](rng)
    tensorfiles.write_sharded(folder, arrays, 2)
    (folder / "config.json").write_text(json.dumps(config))


def attempt(folder: Path, rng) -> str:
    """Loads what may be broken; returns what became of it."""
    try:
        loaded = mx.load(folder, preshuffle=bool(rng.integers(2)), join_experts=False)
    except (ValueError, FileNotFoundError) as error:
        text = str(error)
        assert "got" in text and "expected" in text and "\n" not in text, text
        assert "allocate" not in text, text
        return "refused"
    check(folder, loaded)
    return "loaded"


def check(folder: Path, loaded: dict) -> None:
    """Raises unless every byte that was loaded is one of the files', under its name."""
    raw = {}
    for file in folder.glob("*.safetensors"):
        raw |= raw_bytes(file)
    for name, got in loaded.items():
        if not isinstance(got, mx.MXTensor):
            if name not in raw or len(raw[name]) != got.nbytes:
                # Codes whose K no block divides become floats.
                assert got.dtype.is_floating_point and got.shape[-1] % 32, name
                continue
            assert raw[name] == got.reshape(-1).view(torch.uint8).numpy().tobytes(), name
            continue
        plain = got.unshuffle()
        base = name.removesuffix("weight")
        of_codes = [f"{name}.codes", f"{name}_blocks", f"{base}weight_packed", name]
        of_scales = [f"{name}.scales", f"{name}_scales", f"{name}_scale", f"{name}_scale_inv",
                     f"{base}scale", f"{base}scales", f"{base}scale_weight",
                     f"{base}qscale_weight"]  # fmt: skip
        ways = [plain.codes] + ([plain.codes.transpose(1, 2)] if plain.codes.ndim > 2 else [])
        mine = [way.contiguous().numpy().tobytes() for way in ways]
        assert set(mine) & {raw.get(part) for part in of_codes}, name
        found = next(raw[part] for part in of_scales if part in raw)
        if plain.scales.dtype == torch.float32:
            check_float_scales(found, plain, name)
            continue
        stored, mine = np.frombuffer(found, np.uint8), plain.scales.numpy()
        if plain.tensor_scale is not None:
            # MLX has none, which is 1.
            of_mlx = np.float32(1).tobytes() if f"{base}scales" in raw else None
            of_whole = [raw.get(f"{name}_scale_2"), raw.get(f"{base}weight_global_scale"), of_mlx]
            whole = np.frombuffer(next(filter(None, of_whole)), np.float32)
            of_rows = plain.tensor_scale.numpy()
            is_one = np.isin(of_rows, [*whole, *(1 / whole)]) | np.isnan(of_rows)
            assert is_one.all(), name
            mine = mine[..., :-4]
        assert any((grid == mine).all() for grid in grids(stored, mine.shape)), name


def check_float_scales(found: bytes, plain: mx.MXTensor, name: str) -> None:
    """Raises unless float scales are those of a file, repeated where rows share one."""
    mine = plain.scales.numpy().view(np.uint32)
    raw = torch.frombuffer(bytearray(found), dtype=torch.uint8)
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float8_e8m0fnu):
        if len(found) % dtype.itemsize == 0:
            stored = raw.view(dtype).float().numpy().view(np.uint32)
            repeats, rest = divmod(mine.size, max(1, len(stored)))
            if stored.size and not rest and (np.repeat(stored, repeats) == mine.reshape(-1)).all():
                return
            if any((grid == mine).all() for grid in grids(stored, mine.shape)):
                return
    raise AssertionError(name)


def grids(stored: np.ndarray, shape: tuple[int, ...]):
    """Yields scales of this shape for each size of blocks that so many stored ones can have."""
    *lead, rows, columns = shape
    for of_rows in range(1, rows + 1):
        for of_columns in range(1, columns + 1):
            blocks = (*lead, -(-rows // of_rows), -(-columns // of_columns))
            if stored.size == np.prod(blocks, dtype=int):
                grid = stored.reshape(blocks).repeat(of_rows, -2).repeat(of_columns, -1)
                yield grid[..., :rows, :columns]


def raw_bytes(path: Path) -> dict[str, bytes]:
    """Returns the bytes of each tensor of a file that is whole."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__", None)
    data = content[8 + length :]
    return {name: data[slice(*entry["data_offsets"])] for name, entry in header.items()}


# Ways to break a checkpoint. Each returns what it did.


def damage(folder: Path, rng) -> str:
    """Breaks something."""
    ways = (truncate, flip_header, flip_header, flip_anywhere, lie, lie, lie, length, edit_json,
            edit_json, mutate_text, lose)  # fmt: skip
    way = ways[rng.integers(len(ways))]
    return way(folder, rng) or way.__name__


def pick(folder: Path, rng, pattern: str) -> Path | None:
    """Returns one of the files, None if there are none."""
    files = sorted(folder.glob(pattern))
    return files[rng.integers(len(files))] if files else None


def weights(folder: Path, rng) -> tuple[Path | None, bytearray]:
    """Returns a file of tensors and its content."""
    path = pick(folder, rng, "*.safetensors")
    return path, bytearray(path.read_bytes() if path else b"")


def truncate(folder, rng):
    path, content = weights(folder, rng)
    if path:
        path.write_bytes(content[: rng.integers(len(content) + 1)] + bytes(rng.integers(2)))


def flip_header(folder, rng):
    path, content = weights(folder, rng)
    if len(content) > 8:
        end = min(len(content), 8 + int.from_bytes(content[:8], "little"))
        flip(content, rng, end)
        path.write_bytes(content)


def flip_anywhere(folder, rng):
    path, content = weights(folder, rng)
    if content:
        flip(content, rng, len(content))
        path.write_bytes(content)


def flip(content: bytearray, rng, end: int) -> None:
    for _ in range(rng.integers(1, 5)):
        content[rng.integers(end)] ^= 1 << int(rng.integers(8))


def length(folder, rng):
    path, content = weights(folder, rng)
    if path:
        said = int(rng.choice([0, 1, 7, len(content), len(content) + 1, 2**31, 2**40, 2**63 - 1]))
        path.write_bytes(struct.pack("<Q", said) + content[8:])


def lie(folder, rng):
    """Changes values of a header, which stays JSON of the right length."""
    path, content = weights(folder, rng)
    try:
        (size,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + size])
    except (ValueError, struct.error):
        return "nothing"
    data = bytes(content[8 + size :])
    header = edited(header, rng)
    text = encoded(header, rng)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return f"lie: {text[:2000]!r}"


def edit_json(folder, rng):
    """Changes values of the index or the config."""
    path = pick(folder, rng, "*.json")
    try:
        content = json.loads(path.read_bytes())
    except (AttributeError, RecursionError, ValueError):
        return "nothing"
    text = encoded(edited(content, rng), rng)
    path.write_bytes(text)
    return f"{path.name}: {text[:2000]!r}"


def mutate_text(folder, rng):
    path = pick(folder, rng, "*.json")
    if path:
        content = bytearray(path.read_bytes() or b" ")
        flip(content, rng, len(content))
        hostile = [content, content[: len(content) // 2], b"[" * 10**5, b"{}", b"\xff\xfe", b""]
        path.write_bytes(bytes(hostile[rng.integers(len(hostile))]))


def lose(folder, rng):
    path = pick(folder, rng, "*")
    if path:
        path.unlink()


def edited(value, rng):
    """Replaces, drops, renames or doubles something somewhere in parsed JSON."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = list(value)[rng.integers(len(value))]
        if rng.random() < 0.75:
            return value | {key: edited(value[key], rng)}
        kept = {name: item for name, item in value.items() if name != key}
        other = list(value)[rng.integers(len(value))]
        names = (other, f"{other}_scales", f"{key}_blocks", "weight_scale_inv", "__metadata__", "")
        return kept | ({names[rng.integers(len(names))]: value[key]} if rng.random() < 0.6 else {})
    if isinstance(value, list) and value and rng.random() < 0.8:
        place = rng.integers(len(value))
        return [edited(v, rng) if i == place else v for i, v in enumerate(value)]
    if isinstance(value, str) and value.startswith("{") and rng.random() < 0.9:
        return json.dumps(edited(json.loads(value), rng))
    if type(value) is int and rng.random() < 0.5:
        return value + int(rng.choice([-32, -1, 1, 2, 32, value, -2 * value]))
    return VALUES[rng.integers(len(VALUES))]


def encoded(value, rng) -> bytes:
    """Encodes JSON, sometimes with a name that stands there twice."""
    text = json.dumps(value)
    if isinstance(value, dict) and value and rng.random() < 0.1:
        name = list(value)[rng.integers(len(value))]
        text = f"{text[:-1]}, {json.dumps(name)}: {json.dumps(value[name])}}}"
    return text.encode()


def peak() -> int:
    """Returns the most memory that this process has had, in bytes.

    `getrusage` would begin with that of the process which started this one.
    """
    said = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", said)[1]) * 1024


def address_space() -> int:
    """Returns the addresses that this process has, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
