"""Files of checkpoints: what is broken gets a sentence, what is saved is whole and comes back."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

import mx_kernels as mx
import oracle
import tensorfiles
from cases import FORMATS, LAYOUTS, bytes_of, every_format, on_every_device
from checkpoint_forms import FORMS, floats
from mx_kernels.checkpoints import writing
from tests.tiers import deep

FUZZ = Path(__file__).parents[1] / "fuzz_checkpoints.py"
ONE = {"a": np.arange(4, dtype=np.uint8)}
TWO = {"b": np.ones((2, 2), np.float32), "c": np.zeros(3, np.int64)}
INDEX = "model.safetensors.index.json"


def header(**entries):
    """The bytes of a file with some headers and eight bytes of data."""
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + bytes(8)


def entry(dtype="U8", shape=(8,), begin=0, end=8):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


SAME = json.dumps(entry())
TWICE = f'{{"a": {SAME}, "a": {SAME}}}'.encode()
BROKEN = {
    "empty": b"",
    "seven bytes": bytes(7),
    "a header longer than the file": struct.pack("<Q", 100) + b"{}",
    "a header of 2**63 bytes": struct.pack("<Q", 2**63) + b"{}",
    "no JSON": struct.pack("<Q", 4) + b"nope",
    "a list": struct.pack("<Q", 2) + b"[]",
    "nested deeply": struct.pack("<Q", 200_005) + b'{"a":' + b"[" * 200_000,
    "too little data": header(a=entry(shape=(9,), end=9)),
    "too much data": header(a=entry(shape=(7,), end=7)),
    "a gap": header(a=entry(shape=(2,), end=2), b=entry(shape=(2,), begin=6)),
    "an overlap": header(a=entry(shape=(6,), end=6), b=entry(shape=(6,), begin=2)),
    "a shape of other bytes": header(a=entry(shape=(4,))),
    "a huge shape": header(a=entry(shape=(2**40, 2**40))),
    "a negative size": header(a=entry(shape=(-8,))),
    "no size": header(a=entry(shape=("8",))),
    "offsets the wrong way": header(a=entry(begin=8, end=0)),
    "a dtype nobody knows": header(a=entry("F7")),
    "a dtype that is not read": header(a=entry("F4", (16,))),
    "one name twice": struct.pack("<Q", len(TWICE)) + TWICE + bytes(8),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_named(tmp_path, case):
    path = tmp_path / "model.safetensors"
    path.write_bytes(BROKEN[case])
    with pytest.raises(ValueError, match=r"model.safetensors.* expected ") as raised:
        mx.load(path)
    assert "\n" not in str(raised.value)


def test_every_truncation_is_noticed(tmp_path, rng):
    _, arrays, _ = FORMS["quark_mxfp4"](rng)
    path = tmp_path / "model.safetensors"
    tensorfiles.write(path, arrays)
    content = path.read_bytes()
    for size in [*range(0, len(content), 37), len(content) - 1]:
        path.write_bytes(content[:size])
        with pytest.raises(ValueError, match="expected"):
            mx.load(path)


def test_what_is_not_there_is_not_found(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"expected a checkpoint$"):
        mx.load(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="a repository's name is no path: download it fir"):
        mx.load("openai/gpt-oss-20b")
    with pytest.raises(FileNotFoundError, match=r"got no \*.safetensors"):
        mx.load(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ValueError, match=r"got a file '.bin', expected \*.safetensors"):
        mx.load(tmp_path / "pytorch_model.bin")


def indexed(folder, weight_map):
    tensorfiles.write(folder / "1.safetensors", ONE)
    tensorfiles.write(folder / "2.safetensors", TWO)
    text = weight_map if isinstance(weight_map, str) else json.dumps({"weight_map": weight_map})
    (folder / INDEX).write_text(text)
    return folder


ONE_THERE = {"a": "1.safetensors"}
INDEXES = {
    "a file that is not there": (ONE_THERE | {"b": "3.safetensors"}, "got no file 3.safetensors"),
    "a tensor that is not there": (ONE_THERE | {"d": "1.safetensors"}, "got no tensor 'd' in 1"),
    "a tensor in another file": ({"a": "2.safetensors"}, "got no tensor 'a' in 2.safetensors"),
    "a path out of the folder": ({"a": "../1.safetensors"}, "got '../1.safetensors' as the file"),
    "a path out on a detour": ({"a": "x/../../1.safetensors"}, "expected .* in its folder"),
    "an absolute path": ({"a": "/1.safetensors"}, "got '/1.safetensors' as the file of 'a'"),
    "a file of another kind": ({"a": "config.json"}, "got 'config.json' as the file of 'a'"),
    "a number": ({"a": 1}, "got 1 as the file of 'a'"),
    "nothing": ({}, "got no weight_map"),
    "no object": ("[]", "got a JSON list, expected an object"),
    "no JSON": ("{", "got no proper JSON"),
    "a tensor twice": ('{"weight_map": {"a": "1.safetensors", "a": "2.safetensors"}}', "'a' stand"),
    "depth": ('{"weight_map":' + "[" * 200_000, "got no proper JSON"),
}


@pytest.mark.parametrize("case", INDEXES)
def test_an_index_that_is_wrong_gets_a_sentence(tmp_path, case):
    weight_map, message = INDEXES[case]
    with pytest.raises((ValueError, FileNotFoundError), match=message) as raised:
        mx.load(indexed(tmp_path, weight_map))
    assert "expected" in str(raised.value)


def test_files_that_an_index_does_not_name_are_left_alone(tmp_path):
    indexed(tmp_path, ONE_THERE)
    (tmp_path / "2.safetensors").write_bytes(b"broken")
    assert mx.load(tmp_path).keys() == {"a"}


def test_an_index_decides_which_of_two_tensors_counts(tmp_path):
    first, second = {"a": np.zeros(2, np.uint8)}, {"a": np.ones(2, np.uint8), "b": TWO["b"]}
    tensorfiles.write(tmp_path / "1.safetensors", first | {"c": TWO["c"]})
    tensorfiles.write(tmp_path / "2.safetensors", second)
    for home in (1, 2):
        weight_map = {"a": f"{home}.safetensors", "b": "2.safetensors", "c": "1.safetensors"}
        (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
        loaded = mx.load(tmp_path)
        assert loaded["a"].tolist() == [home - 1] * 2 and loaded.keys() == {"a", "b", "c"}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"b": "2.safetensors"}}))
    assert mx.load(tmp_path).keys() == {"a", "b"}, "a tensor that no index lists is lost"


def test_a_whole_model_beside_an_index_needs_a_choice(tmp_path):
    indexed(tmp_path, ONE_THERE)
    tensorfiles.write(tmp_path / "model.safetensors", TWO)
    with pytest.raises(ValueError, match=r"index.json and model.safetensors, which it does not"):
        mx.load(tmp_path)
    assert mx.load(tmp_path / INDEX).keys() == {"a"}
    assert mx.load(tmp_path / "model.safetensors").keys() == TWO.keys()
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"b": "model.safetensors"}}))
    assert mx.load(tmp_path).keys() == TWO.keys()


def test_shards_without_an_index_are_all_there_or_refused(tmp_path):
    names = [f"model-{i:05}-of-00003.safetensors" for i in (1, 2, 3)]
    for name, tensors in zip(
        names, ({"a": ONE["a"]}, {"b": TWO["b"]}, {"c": TWO["c"]}), strict=True
    ):
        tensorfiles.write(tmp_path / name, tensors)
    assert mx.load(tmp_path).keys() == {"a", "b", "c"}
    tensorfiles.write(tmp_path / "model-00001-of-00002.safetensors", {"d": ONE["a"]})
    with pytest.raises(ValueError, match=r"of 2 and of 3 shards, expected one checkpoint"):
        mx.load(tmp_path)
    (tmp_path / "model-00001-of-00002.safetensors").unlink()
    (tmp_path / names[1]).unlink()
    with pytest.raises(FileNotFoundError, match=r"got 2 of 3 shards model-\*.safetensors"):
        mx.load(tmp_path)
    assert mx.load(tmp_path / names[0]).keys() == {"a"}


def test_scales_may_lie_in_another_shard_but_not_outside_of_what_is_read(tmp_path):
    c, s = np.zeros((4, 32), ml_dtypes.float8_e4m3fn), np.ones((4, 1), np.float32)
    files = {"1.safetensors": {"q.weight": c}, "2.safetensors": {"q.weight_scale": s}}
    for file, tensors in files.items():
        tensorfiles.write(tmp_path / file, tensors)
    assert mx.load(tmp_path)["q.weight"].format == "fp8"
    with pytest.raises(ValueError, match=r"got codes q.weight .*, expected scales q.weight_scale"):
        mx.load(tmp_path / "1.safetensors")
    with pytest.raises(ValueError, match=r"got scales q.weight_scale .* codes .*q.weight"):
        mx.load(tmp_path / "2.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"q.weight": "1.safetensors"}}))
    with pytest.raises(ValueError, match=r"got codes q.weight .*, expected scales q.weight_scale"):
        mx.load(tmp_path)


def test_a_file_of_another_form_beside_ours_is_read_as_what_it_is(tmp_path):
    mx.save({"a": mx.quantize(torch.ones(4, 32)), "odd.weight_scale": torch.ones(2)},
            tmp_path / "1.safetensors")  # fmt: skip
    others = {"q.weight": np.zeros((4, 32), ml_dtypes.float8_e4m3fn), "q.bias": TWO["b"]}
    tensorfiles.write(tmp_path / "2.safetensors", others)
    with pytest.raises(ValueError, match=r"got codes q.weight .*, expected scales"):
        mx.load(tmp_path)
    scales = {"q.weight_scale": np.ones((4, 1), np.float32)}
    tensorfiles.write(tmp_path / "2.safetensors", others | scales)
    formats = {name: getattr(t, "format", "") for name, t in mx.load(tmp_path).items()}
    assert formats == {"a": "mxfp4", "odd.weight_scale": "", "q.weight": "fp8", "q.bias": ""}


def test_links_are_followed_as_in_a_hub_cache(tmp_path):
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir(), snapshot.mkdir()
    tensorfiles.write(blobs / "0123", ONE)
    (snapshot / "model-1.safetensors").symlink_to(blobs / "0123")
    (snapshot / INDEX).write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))
    assert mx.load(snapshot)["a"].tolist() == [0, 1, 2, 3]


def test_a_tensor_in_two_files_is_refused(tmp_path):
    for name in ("x", "y"):
        tensorfiles.write(tmp_path / f"{name}.safetensors", ONE)
    with pytest.raises(ValueError, match=r"tensor 'a' in x.safetensors and in y.safetensors"):
        mx.load(tmp_path)


def test_two_indexes_need_a_choice(tmp_path):
    indexed(tmp_path, ONE_THERE)
    (tmp_path / INDEX).rename(tmp_path / "x.safetensors.index.json")
    assert mx.load(tmp_path).keys() == {"a"}
    (tmp_path / "y.safetensors.index.json").write_text("{}")
    with pytest.raises(ValueError, match="expected one index; pass the path of one"):
        mx.load(tmp_path)
    assert mx.load(tmp_path / "x.safetensors.index.json").keys() == {"a"}


CONFIGS = {
    "no JSON": "{",
    "a list": "[]",
    "a quantization_config that is no object": '{"quantization_config": [1]}',
    "depth": '{"quantization_config": ' + "[" * 200_000,
    "depth that is proper": '{"quantization_config": %s}' % ("[" * 900 + "]" * 900),
    "depth of objects": '{"x":' * 200 + "1" + "}" * 200,
    "a name twice": '{"quantization_config": null, "quantization_config": {}}',
    "a quantization_config without a method": '{"quantization_config": {}}',
}


@pytest.mark.parametrize("case", CONFIGS)
def test_a_broken_config_gets_a_sentence(tmp_path, case):
    tensorfiles.write(tmp_path / "model.safetensors", ONE)
    (tmp_path / "config.json").write_text(CONFIGS[case])
    with pytest.raises(ValueError, match="expected"):
        mx.load(tmp_path)


@pytest.mark.parametrize("seed, tries", [(20, 300), pytest.param(21, 3000, marks=deep)])
def test_broken_checkpoints_get_a_sentence_or_load_right_and_take_no_memory(tmp_path, seed, tries):
    path = os.pathsep.join([str(FUZZ.parent), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, FUZZ, tmp_path, str(seed), str(tries)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert run.returncode == 0, run.stdout + run.stderr
    refused, loaded = map(int, run.stdout.split())
    assert refused + loaded == tries and refused > tries // 2 and loaded > tries // 30


# What `save` writes.


def assert_same(got, expected):
    """Compares two dicts of tensors, MXTensors by their plain bytes."""
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        mine = got[name]
        assert (type(mine), mine.dtype, mine.shape) == (type(tensor), tensor.dtype, tensor.shape)
        if isinstance(tensor, mx.MXTensor):
            assert mine.format == tensor.format
            for part in ("codes", "scales"):
                one, other = (bytes_of(getattr(q.unshuffle(), part)) for q in (mine, tensor))
                oracle.assert_bitwise_equal(one, other)
        else:
            bits = [t.cpu().reshape(-1).view(torch.uint8) for t in (mine, tensor)]
            assert torch.equal(*bits), name


def some_tensors():
    return {
        "a": mx.quantize(torch.randn(3, 18, 96)),
        "b": mx.quantize(torch.randn(18, 96).bfloat16(), format="mxfp8").preshuffle(),
        "c": mx.quantize(torch.randn(64).half(), format="mxint8"),
        "bias": torch.randn(3, 5).bfloat16(),
        "step": torch.tensor(7),
        "none": torch.empty(0, 3),
    }


@on_every_device
@every_format
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("shape", [(64,), (18, 96), (2, 3, 18, 32)])
def test_what_is_saved_is_loaded_to_the_bit(device, tmp_path, format, dtype, shape):
    q = mx.quantize(torch.randn(shape).to(getattr(torch, dtype)), format=format)
    mx.save({"w": q}, tmp_path / "w.safetensors")
    for preshuffle in (True, False):
        loaded = mx.load(tmp_path / "w.safetensors", device=device, preshuffle=preshuffle)
        assert_same(loaded, {"w": q})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_files_are_plain_whatever_the_layout(tmp_path, layout):
    plain = mx.quantize(torch.randn(2, 18, 96))
    where = LAYOUTS[layout]["device"]
    q = plain.preshuffle(where) if where else plain
    assert q.layout == layout
    mx.save({"w": q}, tmp_path / "w.safetensors")
    arrays, metadata = tensorfiles.read(tmp_path / "w.safetensors")
    np.testing.assert_array_equal(arrays["w.codes"], plain.codes.numpy())
    np.testing.assert_array_equal(arrays["w.scales"], plain.scales.numpy())
    said = {"format": "mxfp4", "shape": [2, 18, 96], "dtype": "float32"}
    assert json.loads(metadata["mx_kernels"]) == {"version": 1, "tensors": {"w": said}}


DTYPES = [t for t in tensorfiles.DTYPES.values() if t != np.dtype(ml_dtypes.float8_e8m0fnu)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_every_dtype_come_back(tmp_path, dtype):
    tensor = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype.name))
    mx.save({"t": tensor, "transposed": tensor.T, "one": tensor[0, 1]}, tmp_path / "t.safetensors")
    loaded = mx.load(tmp_path / "t.safetensors")
    assert_same(loaded, {"t": tensor, "transposed": tensor.T, "one": tensor[0, 1]})
    arrays, metadata = tensorfiles.read(tmp_path / "t.safetensors")
    assert arrays["t"].dtype == dtype and metadata.keys() == {"format", "mx_kernels"}
    np.testing.assert_array_equal(arrays["t"].astype(np.int64), np.arange(6).reshape(2, 3))


def test_the_library_reads_what_is_saved(tmp_path):
    from safetensors.torch import load_file  # noqa: PLC0415

    tensors = {"odd": torch.zeros(3, dtype=torch.uint8), **some_tensors()}
    mx.save(tensors, tmp_path / "x.safetensors", metadata={"by": "me"})
    theirs = load_file(tmp_path / "x.safetensors")
    assert torch.equal(theirs["a.codes"], tensors["a"].codes)
    assert torch.equal(theirs["bias"], tensors["bias"])
    assert all(tensor.data_ptr() % tensor.itemsize == 0 for tensor in theirs.values())
    assert tensorfiles.read(tmp_path / "x.safetensors")[1]["by"] == "me"


@pytest.mark.parametrize("limit", [1, None])
def test_no_name_means_anything_in_our_own_form(tmp_path, limit):
    """Here these are tensors of bytes, whatever other forms use such names for."""
    names = ["a_blocks", "b_scales", "weight_packed", "c.weight_scale", "d.weight_scale_inv",
             "qweight", "e.codes", "e_blocks", "e_scales", "block.0.mlp.mlp1_bias", ""]  # fmt: skip
    tensors = {name: torch.arange(32, dtype=torch.uint8).reshape(2, 1, 16) for name in names}
    mx.save(tensors, tmp_path / "out", max_shard_bytes=limit)
    assert_same(mx.load(tmp_path / "out"), tensors)


@pytest.mark.parametrize("limit", [1, 2000, 10**9, None])
def test_a_folder_gets_shards_with_whole_parameters(tmp_path, limit):
    tensors = some_tensors()
    mx.save(tensors, tmp_path / "out", max_shard_bytes=limit)
    assert_same(mx.load(tmp_path / "out"), tensors)
    files = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert len(files) == {1: len(tensors), 2000: 2}.get(limit, 1)
    tensorfiles.read_folder(tmp_path / "out")
    for file in files:
        names = tensorfiles.read(tmp_path / "out" / file)[0].keys()
        assert {name.replace(".codes", ".scales") for name in names if "." in name} <= names
    if len(files) > 1:
        assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
        assert len(list((tmp_path / "out").iterdir())) == len(files) + 1
    else:
        assert files == ["model.safetensors"]


def test_a_folder_may_have_other_files(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    tensors = some_tensors()
    mx.save(tensors, tmp_path, max_shard_bytes=1)
    assert_same(mx.load(tmp_path), tensors)
    assert (tmp_path / "config.json").read_text() == "{}"


def test_a_checkpoint_is_not_overwritten_but_a_file_is(tmp_path):
    mx.save({"a": torch.zeros(1)}, tmp_path)
    with pytest.raises(FileExistsError, match="expected one without a checkpoint"):
        mx.save({"a": torch.ones(1)}, tmp_path)
    mx.save({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    assert mx.load(tmp_path)["a"].item() == 1
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError, match="got a file, expected a folder"):
        mx.save({"a": torch.ones(1)}, tmp_path / "file")


def mode_of(path):
    return path.stat().st_mode & 0o777


def test_files_and_folders_have_the_usual_rights(tmp_path):
    (tmp_path / "usual").mkdir()
    (tmp_path / "usual.txt").write_text("")
    mx.save({"a": torch.zeros(1)}, tmp_path / "out")
    assert mode_of(tmp_path / "out") == mode_of(tmp_path / "usual")
    assert mode_of(tmp_path / "out" / "model.safetensors") == mode_of(tmp_path / "usual.txt")


@pytest.mark.parametrize("path", ["out", "x.safetensors"])
def test_a_save_that_fails_leaves_everything_as_it_was(tmp_path, monkeypatch, path):
    mx.save({"old": torch.zeros(1)}, tmp_path / "x.safetensors")
    before = (tmp_path / "x.safetensors").read_bytes()
    wrote = []

    def fails_at_the_second(tensor):
        wrote.append(tensor)
        if len(wrote) > 1:
            raise OSError("disk full")
        return memoryview(bytes(tensor.nbytes))

    monkeypatch.setattr(writing, "_bytes", fails_at_the_second)
    with pytest.raises(OSError, match="disk full"):
        mx.save({"a": torch.zeros(3), "b": torch.zeros(3)}, tmp_path / path)
    assert len(wrote) == 2
    assert [file.name for file in tmp_path.iterdir()] == ["x.safetensors"]
    assert (tmp_path / "x.safetensors").read_bytes() == before


NOT_SAVED = {
    "no tensor": ({"a": [1]}, {}, TypeError, "a: got list, expected an MXTensor or a tensor"),
    "no name": ({1: torch.ones(1)}, {}, TypeError, "got the name 1"),
    "a dtype that files lack": (
        {"a": torch.ones(1).cdouble()}, {}, TypeError, "a: got dtype torch.complex128",
    ),
    "no memory": ({"a": torch.ones(1, device="meta")}, {}, ValueError, "a: got a meta tensor"),
    "sparse": ({"a": torch.ones(2, 2).to_sparse()}, {}, ValueError, "a: got a torch.sparse_coo"),
    "a name of files": ({"__metadata__": torch.ones(1)}, {}, ValueError, "or one that files need"),
    "metadata of ours": ({}, {"metadata": {"mx_kernels": ""}}, ValueError, "which is ours"),
    "metadata no strings": ({}, {"metadata": {"a": 1}}, TypeError, "got 'a': 1, expected strings"),
    "no size": ({}, {"max_shard_bytes": 0}, ValueError, "max_shard_bytes: got 0, expected"),
    "more than a file": (
        {"a": torch.ones(4), "b": torch.ones(4)}, {"max_shard_bytes": 20}, ValueError,
        "got 32 bytes for files of 20, expected the path of a folder",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NOT_SAVED)
def test_what_cannot_be_saved_is_refused_before_anything_is_written(tmp_path, case):
    tensors, options, error, message = NOT_SAVED[case]
    with pytest.raises(error, match=message):
        mx.save(tensors, tmp_path / "x.safetensors", **options)
    assert not list(tmp_path.iterdir())


def test_two_tensors_cannot_have_one_name(tmp_path):
    tensors = {"a": mx.quantize(torch.ones(4, 32)), "a.codes": torch.ones(1)}
    for path in ("x.safetensors", "out"):
        with pytest.raises(ValueError, match=r"got the name 'a.codes' twice"):
            mx.save(tensors, tmp_path / path, max_shard_bytes=10**6)
    assert not list(tmp_path.iterdir())


MEANING = {"format": "mxfp4", "shape": [4, 32], "dtype": "bfloat16"}
MEANINGS = {
    "no JSON": ("{", "metadata mx_kernels: got '{'"),
    "another version": ({"version": 2, "tensors": {}}, "version 2"),
    "no tensors": ({"version": 1}, "metadata mx_kernels"),
    "a format nobody knows": ({"a": MEANING | {"format": "mxfp3"}}, "mxfp3"),
    "a dtype nobody knows": ({"a": MEANING | {"dtype": "int8"}}, "int8"),
    "a shape of nothing": ({"a": MEANING | {"shape": []}}, r"shape \[\]"),
    "a negative shape": ({"a": MEANING | {"shape": [-4, 32]}}, r"shape \[-4, 32\]"),
    "another shape": ({"a": MEANING | {"shape": [4, 64]}}, r"expected \[4, 32\] and \[4, 2\]"),
    "no block": ({"a": MEANING | {"shape": [4, 33]}}, "K a multiple of 32"),
    "no such tensor": ({"b": MEANING}, "got no b.codes and no b.scales, expected both for b"),
}


@pytest.mark.parametrize("case", MEANINGS)
def test_metadata_that_lie_are_refused(tmp_path, case):
    said, message = MEANINGS[case]
    if isinstance(said, dict) and "version" not in said:
        said = {"version": 1, "tensors": said}
    said = said if isinstance(said, str) else json.dumps(said)
    arrays = {"a.codes": np.zeros((4, 16), np.uint8), "a.scales": np.zeros((4, 1), np.uint8)}
    tensorfiles.write(tmp_path / "x.safetensors", arrays, {"mx_kernels": said})
    with pytest.raises(ValueError, match=message):
        mx.load(tmp_path / "x.safetensors")


def test_gguf_without_its_library_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ImportError, match=r"pip install 'mx_kernels\[gguf\]'"):
        mx.load(tmp_path / "x.gguf")
    with pytest.raises(FileNotFoundError, match="got no file or folder"):
        mx.load(tmp_path / "y.gguf")


def test_loaded_weights_multiply(rng, tmp_path):
    weights = {"w": mx.quantize(torch.from_numpy(floats(rng, 18, 96).astype(np.float32)))}
    mx.save(weights, tmp_path / "w.safetensors")
    x = torch.randn(3, 96)
    loaded = mx.load(tmp_path / "w.safetensors")["w"]
    assert torch.equal(mx.linear(x, loaded), mx.linear(x, weights["w"]))
    assert set(FORMATS) >= {loaded.format}
