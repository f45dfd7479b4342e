"""Damaged input of `python -m gfx950`: it ends, with a result or with one line that says why.

Good code objects, assembly texts and launches are damaged by seeds: bytes flipped, parts cut,
repeated, dropped or exchanged. Each command ends with exit code 0, 1 (a finding) or 2, and with
2 prints one line. `make test-deep` takes more seeds.
"""

from __future__ import annotations

import json
import random
import re

import pytest
from typer.testing import CliRunner

import gfx950
from gfx950.cli.app import app
from gfx950.isa.code_object import code_objects
from tests.gfx950.support import DATA, kernel_text
from tests.gfx950.test_code_object import code_object

COMMANDS = "run", "check", "profile"
LAUNCH = json.loads((DATA / "fp8_launch.json").read_text())
TRITON = (DATA / "triton_fp8_e4m3_fp8_e4m3_64x64x128_w4_s2.s").read_text()
SMALL = kernel_text(
    """
	s_load_dwordx4 s[4:7], s[0:1], 0x0
	s_mov_b32 s8, 4
	v_lshlrev_b32_e32 v1, 2, v0
	s_waitcnt lgkmcnt(0)
.L1:
	global_load_dwordx2 v[2:3], v1, s[4:5] offset:64
	s_mov_b32 m0, 0
	s_waitcnt vmcnt(0)
	ds_write_b64 v1, v[2:3] offset:8
	s_waitcnt lgkmcnt(0)
	s_barrier
	ds_read2_b32 v[4:5], v1 offset0:2 offset1:3
	s_waitcnt lgkmcnt(0)
	v_mfma_f32_16x16x32_bf16 v[8:11], v[2:5], v[2:5], 0
	s_sub_u32 s8, s8, 1
	s_cmp_lg_u32 s8, 0
	s_cbranch_scc1 .L1
	v_add_f32_dpp v4, v4, v5 row_shr:1 row_mask:0xf bank_mask:0xf
	v_cmp_gt_i32_e32 vcc, 7, v0
	s_and_saveexec_b64 s[10:11], vcc
	global_atomic_add_f32 v1, v8, s[6:7]
	global_store_dwordx2 v1, v[4:5], s[6:7] offset:256
""",
    vgprs=16, sgprs=16, lds=1024,
)  # fmt: skip
SMALL_LAUNCH = {"grid": [2], "block": [128], "args": [{"buffer": "2K", "fill": "random"}] * 2}
NUMBERS = ("0", "-1", "1", "63", "64", "255", "256", "65535", "4294967295", "1e400", "NaN",
           "99999999999999999999", "0x", "null", "[]", "v[3:1]", "s[102:109]", "vcc", "exec",
           "a[0:3]", "m0", "off")  # fmt: skip


def damaged(rng: random.Random, text: str) -> str:
    """Returns a text with one to three damages."""
    for _ in range(rng.randint(1, 3)):
        lines = text.split("\n")
        at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        words = list(re.finditer(r"[\w.-]+", lines[at]))
        choice = rng.randrange(8)
        if choice == 0:
            del lines[at]
        elif choice == 1:
            lines.insert(at, lines[other])
        elif choice == 2:
            lines[at], lines[other] = lines[other], lines[at]
        elif choice == 3:
            lines[at:] = [lines[at][: rng.randrange(len(lines[at]) + 1)]]
        elif choice == 4 and lines[at]:
            place = rng.randrange(len(lines[at]))
            character = rng.choice('0123456789svax,:[]()-. \t"{}|&%\0é')
            lines[at] = lines[at][:place] + character + lines[at][place + 1 :]
        elif words:
            word = rng.choice(words)
            found = re.findall(r"[\w.-]+", lines[other])
            insert = (
                "" if choice == 5 else rng.choice(NUMBERS if choice == 6 or not found else found)
            )
            lines[at] = lines[at][: word.start()] + insert + lines[at][word.end() :]
        text = "\n".join(lines)
    return text


def outcome(command: str, kernel, launch) -> int:
    """Runs a command on files; returns its exit code, with 2 after exactly one line."""
    limits = ["--steps", "2000", "--timeout", "0.5"]
    arguments = [command, str(kernel), "--launch", str(launch), *limits]
    done = CliRunner().invoke(app, arguments)
    if done.exit_code not in (0, 1, 2) or not isinstance(done.exception, SystemExit | None):
        raise AssertionError(f"{command}: {done.exception!r}") from done.exception
    lines = [line for line in done.stderr.splitlines() if not line.startswith("warning: ")]
    assert "cannot be executed" not in done.output, "what a decoder should have refused"
    if done.exit_code == 2:
        assert len(lines) == 1 and lines[0].startswith("error: "), done.output
    return done.exit_code


def tiers(few: int, many: int) -> list:
    """Returns seeds; most are for the second tier."""
    return [*range(few), *(pytest.param(i, marks=pytest.mark.deep) for i in range(few, many))]


def damaged_bytes(rng: random.Random, image: bytes) -> bytes:
    """Returns a file with one to four damages, one in five of them cut."""
    image = bytearray(image)
    for _ in range(rng.randint(1, 4)):
        at, choice = rng.randrange(len(image)), rng.randrange(5)
        if choice == 0:
            image[at] ^= 1 << rng.randrange(8)
        elif choice == 1:
            image[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif choice == 2:
            del image[at : at + rng.randint(1, 16)]
        elif choice == 3:
            image[at:at] = image[at : at + rng.randint(1, 64)]
        else:
            image[at : at + 8] = rng.choice(
                (b"\xff" * 8, bytes(8), (1 << 63).to_bytes(8, "little"))
            )
    return bytes(image[: rng.randrange(len(image))] if rng.random() < 0.2 else image)


@pytest.mark.parametrize("part", tiers(1, 10))
def test_a_damaged_code_object_is_read_or_refused(part):
    good, refused = code_object(), 0
    for seed in range(part * 500, part * 500 + 500):
        try:
            for kernel in code_objects(damaged_bytes(random.Random(seed), good)):
                assert kernel.directives() and kernel.arguments is not None
        except gfx950.AsmError as error:
            refused += 1
            assert "\n" not in str(error)
    assert 250 < refused < 500, "most damages are found, and some are harmless"


def test_a_code_object_that_was_cut_anywhere_is_refused():
    good = code_object()
    for size in range(0, len(good), 3):
        with pytest.raises(gfx950.AsmError):
            code_objects(good[:size])


@pytest.mark.parametrize("part", tiers(1, 40))
def test_a_command_on_damaged_text_ends_with_a_result_or_one_line(tmp_path, part):
    kernel, launch = tmp_path / "k.s", tmp_path / "launch.json"
    codes = []
    for seed in range(part * 120, part * 120 + 120):
        is_large = seed % 4 == 0
        launch.write_text(json.dumps(LAUNCH if is_large else SMALL_LAUNCH))
        kernel.write_text(damaged(random.Random(seed), TRITON if is_large else SMALL))
        codes.append(outcome(COMMANDS[seed % 3], kernel, launch))
    assert {0, 2} <= set(codes)


@pytest.mark.parametrize("part", tiers(1, 10))
def test_a_command_on_a_damaged_launch_ends_with_a_result_or_one_line(tmp_path, part):
    kernel, launch = tmp_path / "k.s", tmp_path / "launch.json"
    kernel.write_text(SMALL)
    codes = []
    for seed in range(part * 120, part * 120 + 120):
        launch.write_text(damaged(random.Random(seed), json.dumps(SMALL_LAUNCH, indent=1)))
        codes.append(outcome(COMMANDS[seed % 3], kernel, launch))
    assert {0, 2} <= set(codes)
