"""What layers rotate at run time: of configs and matrices, carried out or refused by name."""

import re
import time

import numpy as np
import pytest

import mx_kernels as mx
from mx_kernels import checkpoints
from mx_kernels.checkpoints.rotations import rotations_in
from oracle import rotated
from tensorfiles import checkpoint as write
from tests.python.test_checkpoint_refusals import COMPRESSED, QUARK, at, turned


def checkpoint(folder, config, arrays):
    write(folder, {"quantization_config": config}, arrays)


SIGNS = np.float32(np.sqrt(32) * rotated(np.eye(32), 32, "float32")).round()
FLIPPED = np.where(np.arange(32) == 3, -SIGNS, SIGNS)
ROTATED = {
    "a name": (at("a"), {}),
    "a pattern": (at("re:^(q|a)$"), {}),
    "all but one": (at("Linear", ignore=["re:b.*"]), {}),
    "a whole row": (turned(head_dim=None), {}),
    "a matrix beside": (at("a"), {"a.R_input.weight": SIGNS}),
    "Quark's": (
        QUARK | {"algo_config": [{"name": "rotation", "r4": True, "rotation_size": 32}]},
        {"a.input_rotation": SIGNS.astype(np.int8)},
    ),
    "ours": ({"quant_method": "mx_kernels", "hadamard": {"a": 32}}, {}),
}
"""What rotates the input of a in blocks of 32, and tensors beside."""


def rotated_pair(case, config):
    of_k = {"a whole row": 32}.get(case, 64)
    codes = "weight" if config["quant_method"] == "quark" else "weight_packed"
    scales = np.full((4, of_k // 32), 127, np.uint8)
    return {f"a.{codes}": np.ones((4, of_k // 2), np.uint8), "a.weight_scale": scales}


@pytest.mark.parametrize("case", ROTATED)
def test_rotations_that_linear_carries_out_are_said_by_weight(tmp_path, case):
    config, beside = ROTATED[case]
    arrays = rotated_pair(case, config) | beside | {"b.weight": np.ones((4, 64), np.float32)}
    checkpoint(tmp_path, config, arrays)
    found = {}
    weights = mx.load(tmp_path, rotations=found)
    assert found == {"a.weight": 32} and weights.keys() == {"a.weight", "b.weight"}
    with pytest.raises(ValueError, match=r"turns what a layer is given.*load\(path, rotations"):
        mx.load(tmp_path)
    with pytest.raises(ValueError, match="turns what a layer is given"):
        checkpoints.convert(tmp_path, tmp_path / "out")


def fits(target, name):
    (rotation,) = rotations_in(at(target)["transform_config"])
    return rotation.fits(name)


def test_names_of_what_is_rotated_are_matched_as_python_does():
    name = "model.layers.10.mlp.down_proj"
    assert fits(name, name) and not fits(name[:-1], name) and not fits("down_proj", name)
    found = set()
    for pattern in (
        *("model", "^model", "layers", ".*down_proj$", ".*down$", r".*mlp\.(up|down)_proj"),
        *(r"model\.layers\.\d+\.mlp.*", r"model.layers.[0-9]+.mlp.+j$", r".*\.1\..*proj"),
        *(".*l.*l.*_.*", ".*l.*l.*l.*l.*l.*", ".*mlp.*mlp", ".*(?:a|mlp).down_proj$", "", "$"),
    ):
        found.add(fits(f"re:{pattern}", name))
        assert fits(f"re:{pattern}", name) == bool(re.match(pattern, name)), pattern
    assert found == {True, False}


def test_a_name_that_almost_matches_takes_no_time():
    begin = time.perf_counter()
    assert not fits("re:" + ".*a" * 100 + "b", "a" * 4000)
    assert time.perf_counter() - begin < 1


WRONG = {
    "another matrix": (at("a"), {"a.R_input.weight": FLIPPED}, "which is another matrix"),
    "a trained matrix": (
        ROTATED["Quark's"][0], {"a.input_rotation": SIGNS / np.float32(5)}, "another matrix",
    ),
    "Quark's without matrices": (ROTATED["Quark's"][0], {}, "expected a matrix ..input_rotation"),
    "floats": (at(["a", "b"]), {}, "for b.weight, which is floats"),
    "floats of a class": (at("Linear"), {}, "for b.weight, which is floats"),
    "a row of another multiple": (turned(head_dim=128), {}, "in blocks of 128 of K = 64"),
    "two": (
        COMPRESSED | {"transform_config": {"config_groups": {
            n: at("a")["transform_config"]["config_groups"]["R"] for n in "RS"}}},
        {}, "'R' .* and 'S' .*expected one",
    ),
    "ours of another size": (
        {"quant_method": "mx_kernels", "hadamard": {"a": 48}}, {}, "hadamard: got .*expected 32",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_rotations_that_no_layer_of_ours_has_are_refused_by_name(tmp_path, case):
    config, beside, message = WRONG[case]
    arrays = rotated_pair(case, config) | beside | {"b.weight": np.ones((4, 64), np.float32)}
    checkpoint(tmp_path, config, arrays)
    with pytest.raises(ValueError, match=message):
        mx.load(tmp_path, rotations={})


def test_experts_that_rotate_stay_apart(tmp_path):
    pair = {f"mlp.experts.{e}.down_proj{end}": a for e in (0, 1) for end, a in (
        (".weight_packed", np.ones((32, 32), np.uint8)),
        (".weight_scale", np.full((32, 2), 127, np.uint8)),
    )}  # fmt: skip
    checkpoint(tmp_path, at("re:.*down_proj"), pair)
    with pytest.raises(ValueError, match="rotation of 32 of what experts are given"):
        mx.load(tmp_path, rotations={})
    mx.load(tmp_path, rotations=(found := {}), join_experts=False)
    assert found == {f"mlp.experts.{e}.down_proj.weight": 32 for e in (0, 1)}
    with pytest.raises(TypeError, match="rotations: got bool, expected a dict"):
        mx.load(tmp_path, rotations=True)
