"""Claims about `python -m gfx950`: what a user types, what they get, and how errors read."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import gfx950
from gfx950.cli.app import app
from gfx950.cli.launch_text import parse_arg, parse_size, read_launch
from gfx950.timing import profile
from tests.gfx950.support import DATA, corpus_names, kernel_text

M, N, K = 128, 128, 256
FP8 = DATA / "triton_fp8_e4m3_fp8_e4m3_64x64x128_w4_s2.s"
PNG_MAGIC = b"\x89PNG"
LAUNCH = DATA / "fp8_launch.json"
"""The fp8 GEMM on matrices of ones (code 0x38), so that every output is K."""
README = Path(gfx950.__file__).with_name("README.md")
OPTIONS = ["--grid", "2,2", "--block", "256", "--arg", "buf:32K:byte=0x38", "--arg",
           "buf:32768:byte=0x38", "--arg", "buf:32K", "--arg", "i32:128", "--arg", "i32:128",
           "--arg", "i32:256", "--arg", "u64:0", "--arg", "u64:0"]  # fmt: skip


def command(*arguments, code=0):
    """Runs the command line in this process and returns what it printed."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "120"})
    assert result.exit_code == code, result.output
    return result.output


def test_run_computes_and_dumps_a_buffer(tmp_path):
    out = tmp_path / "c.bin"
    text = command("run", FP8, "--launch", LAUNCH, "--dump", f"2={out}")
    bits = np.fromfile(out, np.uint16).astype(np.uint32) << 16
    assert (bits.view(np.float32) == K).all() and bits.size == M * N
    assert re.search(rf"2\s+{2 * M * N}\s+\d+", text)


def test_options_and_a_launch_file_say_the_same():
    assert command("run", FP8, *OPTIONS) == command("run", FP8, "--launch", LAUNCH)


def test_check_passes_a_correct_kernel():
    assert "no hazard found" in command("check", FP8, "--launch", LAUNCH)


def test_check_names_a_missing_wait(tmp_path):
    broken = tmp_path / "broken.s"
    text = FP8.read_text()
    waits = re.findall(r"\ts_waitcnt lgkmcnt\(0\)\n(?=\tv_mfma)", text)
    assert waits, "the kernel should wait for LDS before an MFMA"
    broken.write_text(re.sub(r"\ts_waitcnt lgkmcnt\(0\)\n(?=\tv_mfma)", "", text))
    report = command("check", broken, "--launch", LAUNCH, code=1)
    assert "in flight" in report and "v_mfma" in report and "line " in report


def test_profile_prints_utilisation_stalls_conflicts_and_draws(tmp_path):
    picture, trace = tmp_path / "t.png", tmp_path / "t.json"
    text = command("profile", FP8, "--launch", LAUNCH, "--picture", picture,
                   "--perfetto", trace)  # fmt: skip
    for heading in ("Time of gemm (model)", "Where waves wait (model)", "LDS (model)",
                    "Bytes moved (model)", "MFMA utilisation, busiest loop",
                    "lost to bank conflicts", "Infinity Cache"):  # fmt: skip
        assert heading in text
    assert "measured" not in text
    assert picture.read_bytes().startswith(PNG_MAGIC)

    events = json.loads(trace.read_text())["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    assert {e["cat"] for e in slices} >= {"mfma", "valu", "lds", "load", "store", "wait"}
    tracks = {}
    for event in sorted(slices, key=lambda e: e["ts"]):
        key = event["pid"], event["tid"]
        assert event["ts"] >= tracks.get(key, 0) - 1e-9, "slices of one track overlap"
        tracks[key] = event["ts"] + event["dur"]
    assert len(tracks) == 8, "four waves and the matrix pipes of their four SIMDs"


def test_profile_draws_a_window(tmp_path):
    picture = tmp_path / "t.png"
    command("profile", FP8, "--launch", LAUNCH, "--picture", picture, "--cycles", "0:2000")
    assert picture.read_bytes().startswith(PNG_MAGIC)


def test_profile_takes_parameters():
    def cycles(*options):
        text = command("profile", FP8, "--launch", LAUNCH, *options)
        return int(re.search(r"first round on a CU\s+([\d,]+)", text).group(1).replace(",", ""))

    assert cycles("--set", "hbm_latency=2000") > cycles() > cycles("--warm")


def test_profile_leaves_the_arguments_alone():
    values = [np.full(M * K, 0x38, np.uint8), np.full(N * K, 0x38, np.uint8)]
    c = np.zeros(2 * M * N, np.uint8)
    args = [*values, c, *map(np.int32, (M, N, K)), 0, 0]
    result = profile(FP8.read_text(), (2, 2), 256, args)
    assert not c.any()
    assert result.flops == 2 * M * N * K


@pytest.mark.parametrize("name", corpus_names())
def test_every_kernel_of_the_corpus_has_a_timing(name):
    entry = json.loads((DATA / "manifest.json").read_text())["kernels"][name]
    sizes = {"M": 64, "N": 64, "K": 256, "K/2": 128, "K/32": 8}
    widths = {"u8": 1, "fp8_e4m3": 1, "bf16": 2, "f32": 4}
    args = []
    for arg in entry["args"]:
        if "shape" in arg:
            elements = int(np.prod([sizes[size] for size in arg["shape"]]))
            args.append(np.zeros(elements * widths[arg["dtype"]], np.uint8))
        else:
            args.append(sizes.get(arg["value"], 0))
    tile_m, tile_n, _ = entry["tile"]
    grid = (-(-64 // tile_m), -(-64 // tile_n))
    result = profile((DATA / entry["file"]).read_text(), grid, tuple(entry["block"]), args)
    assert result.flops >= 2 * 64 * 64 * 256
    assert 0 < result.mfma_utilisation < 1
    output_bytes = 64 * 64 * widths[next(a["dtype"] for a in entry["args"] if a.get("output"))]
    assert result.grid_bytes["hbm"] >= output_bytes


README_COMMANDS = re.findall(r"^python -m gfx950 (.*)$", README.read_text(), re.M)


@pytest.mark.parametrize("line", README_COMMANDS, ids=lambda line: " ".join(line.split()[::2])[:60])
def test_every_command_of_the_readme_runs(line, tmp_path, monkeypatch):
    arguments = [
        str(README.parents[2] / word) if word.startswith("tests/") else word
        for word in shlex.split(line)
    ]
    monkeypatch.chdir(tmp_path)
    assert command(*arguments)


def test_parameters_lists_value_range_and_source():
    text = command("parameters")
    assert re.search(r"hbm_gbps\s+8000\s+5600 .. 8000", text)


@pytest.mark.parametrize("arguments, message", [
    (["--arg", "buf:8:sevens"], "unknown fill 'sevens'"),
    (["--arg", "int:3"], "unknown argument type 'int'"),
    (["--grid", "0"], "--grid: got [0], expected one to three positive numbers"),
    (["--grid", "two"], "--grid: got 'two', expected one to three positive numbers"),
    (["--block", "8,8,8,8"], "--block: got [8, 8, 8, 8], expected one to three positive"),
    (["--arg", "i32:many"], "got 'many', expected a number that i32 holds"),
    (["--arg", "i32:4294967296"], "got '4294967296', expected a number that i32 holds"),
    (["--launch", str(LAUNCH), "--cycles", "soon"], "--cycles: got 'soon', expected FROM:TO"),
    (["--launch", str(LAUNCH), "--set", "clock_ghz=fast"], "clock_ghz: got 'fast', expected a"),
    (["--arg", "buf:3x"], "expected a size such as 512, 64K or 2M"),
    (["--grid", "2,2", "--block", "4096", *OPTIONS[4:]], "block has 4096 threads, expected at"),
    (["--grid", "4294967295", *OPTIONS[2:]], "expected at most 4294967295 threads along an axis"),
    ([*OPTIONS, "--whole-grid", "--whole-round"], "got whole_grid and whole_round"),
    (["--arg", "buf:1K:byte=300"], "fill 'byte=300': expected a number from 0 to 255"),
    (["--arg", "buf:1K:byte=many"], "fill 'byte=many': expected a number from 0 to 255"),
    (["--arg", "buf:1K:random=-1"], "fill 'random=-1': expected a number from 0 to"),
    (["--arg", "buf:1K:zeros=1"], "unknown fill 'zeros=1'"),
    (["--arg", "buf:1K:file=/dev/zero"], "/dev/zero has more, expected 1024 bytes"),
    (["--arg", "buf:99999999M"], "got a buffer of 99999999M, expected at most"),
    (["--arg", "f32:1e40"], "got '1e40', expected a number that f32 holds"),
    (["--arg", "A=i32:1", "--arg", "A=i32:2"], "got 'A' more than once"),
    (["--launch", str(LAUNCH), "--cycles", "9:3"], "--cycles: got '9:3', expected FROM:TO"),
    (["--launch", str(LAUNCH), "--cycles", "0:nan"], "--cycles: got '0:nan', expected FROM:TO"),
    (["--launch", str(LAUNCH), "--set", "clock_ghz=inf"], "clock_ghz must be positive, got inf"),
    (["--launch", str(LAUNCH), "--arg", "i32:1"], "got --launch and --grid, --block or --arg"),
    (["--launch", str(LAUNCH), "--set", "line_bytes=128", "--set", "line_bytes=64"], "more than"),
    (["--launch", str(LAUNCH), "--steps", "0"], "steps and timeout must be positive, got 0"),
    (["--launch", str(LAUNCH), "--timeout", "nan"], "steps and timeout must be positive, got"),
    (["--launch", str(LAUNCH), "--timeout", "1e-9"], "not finished after 1e-09 s, at pc"),
    (["--launch", str(LAUNCH), "--steps", "50"], "a wave has not ended after 50 steps, at pc"),
])  # fmt: skip
def test_a_wrong_launch_is_one_line(arguments, message):
    text = command("profile", FP8, *arguments, code=2)
    assert message in text
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize("content, message", [
    (b"# no kernel\n", "no kernel here: expected a code object, or text with an .amdhsa_kernel"),
    (b"\xff\xfe\x00", "is neither a code object nor assembly text"),
])  # fmt: skip
def test_a_file_without_a_kernel_is_one_line(tmp_path, content, message):
    path = tmp_path / "file"
    path.write_bytes(content)
    for name in ("run", "check", "profile"):
        assert message in " ".join(command(name, path, code=2).split())


def test_a_file_of_several_kernels_asks_for_one(tmp_path):
    path = tmp_path / "two.s"
    one = kernel_text("\ts_nop 0")
    path.write_text(one + one.replace("\nk:", "\nother:").replace("_kernel k", "_kernel other"))
    assert "several kernels, name one: k, other" in command("check", path, code=2)
    assert "no kernel 'l', got k, other" in command("check", path, "--kernel", "l", code=2)
    assert "no hazard found" in command("check", path, "--kernel", "other")


def test_too_few_arguments_certify_nothing():
    few = OPTIONS[: OPTIONS.index("u64:0") - 1]
    text = " ".join(command("check", FP8, *few, code=2).split())
    assert "gemm takes 8 arguments, got 6; expected pointer, pointer, pointer, 4 bytes" in text


def test_a_kernel_that_lists_no_arguments_is_checked_with_a_warning(tmp_path):
    path = tmp_path / "k.s"
    path.write_text(kernel_text("\ts_nop 0", kernarg=24))
    text = " ".join(command("check", path, "--arg", "buf:64").split())
    assert "16 of 24 bytes of arguments, which the kernel does not list, read as zero" in text


def test_a_run_that_changes_nothing_says_so(tmp_path):
    path = tmp_path / "k.s"
    path.write_text(kernel_text("\ts_nop 0", kernarg=8))
    assert "no buffer changed" in command("run", path, "--arg", "buf:64")
    assert "no buffer changed" not in command("run", FP8, *OPTIONS)


@pytest.mark.parametrize("item", ["1", "x=y", "3=path"])
def test_a_dump_of_no_buffer_is_one_line(item):
    text = command("run", FP8, "--launch", LAUNCH, "--dump", item, code=2)
    assert f"--dump: got '{item}', expected INDEX=PATH with an INDEX below 3" in text


@pytest.mark.parametrize("document, message", [
    ("[]", "launch.json: Expected `object`, got `array`"),
    ("{}", "Object missing required field `grid`"),
    ("{", "launch.json: Expecting property name"),
    ("[" * 100_000, "launch.json: nested too deeply"),
    ('{"grid": 2, "block": [64]}', "Expected `array`, got `int` - at `$.grid`"),
    ('{"grid": [1, true], "block": [64]}', "Expected `int`, got `bool` - at `$.grid[1]`"),
    ('{"grid": [NaN], "block": [64]}', "NaN is not JSON"),
    ('{"grid": [], "block": [64]}', "grid: got [], expected one to three positive numbers"),
    ('{"grid": [1], "grid": [2], "block": [64]}', "got 'grid' more than once"),
    ('{"grid": [1], "block": [64], "args": null}', "got `null` - at `$.args`"),
    ('{"grid": [1], "block": [64], "args": 5}', "got `int` - at `$.args`"),
    ('{"grid": [1], "block": [64], "args": [{"f32": [1]}]}', "got [1], expected a number that"),
    ('{"grid": [1], "block": [64], "args": [{"buffer": 8, "fill": 5}]}', "argument 0: Expected"),
    ('{"grid": [1], "block": [64], "args": [{"buffer": 8, "fil": ""}]}', "unknown field `fil`"),
    ('{"grid": [1], "block": [64], "args": [3]}', "argument 0: got 3, expected {"),
])  # fmt: skip
def test_a_wrong_launch_file_is_one_line(tmp_path, document, message):
    path = tmp_path / "launch.json"
    path.write_text(document)
    assert message in command("check", FP8, "--launch", path, code=2).replace("\n", "")


def test_commands_take_the_same_launch():
    """And a list of options of their own, which `--help` shows behind it."""
    shared = ("--launch", "--grid", "--block", "--arg", "--kernel")
    own = {"run": ["--dump"], "check": [], "profile": ["--set", "--warm", "--picture"]}
    for name, options in own.items():
        text = command(name, "--help")
        assert all(option in text for option in (*shared, *options)), name


@pytest.mark.parametrize("library", ["msgspec", "rich", "typer"])
def test_without_its_libraries_the_command_names_the_extra(library):
    code = f"import runpy, sys; sys.modules[{library!r}] = None; runpy.run_module('gfx950')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == (f"python -m gfx950 needs {library}: pip install 'mx_kernels[gfx950]'\n")


def test_an_unknown_parameter_is_named():
    text = command("profile", FP8, "--launch", LAUNCH, "--set", "speed=2", code=2)
    assert "no parameter 'speed'" in text


def test_launch_files_read_fills_relative_to_themselves(tmp_path):
    (tmp_path / "a.bin").write_bytes(bytes(range(16)))
    path = tmp_path / "launch.json"
    path.write_text(json.dumps({"grid": [1], "block": [64, 2],
                                "args": [{"buffer": 16, "fill": "file=a.bin"}]}))  # fmt: skip
    launch = read_launch(path)
    assert launch.args[0].tolist() == list(range(16))
    assert (launch.grid, launch.block) == ((1, 1, 1), (64, 2, 1))


def test_launch_files_reject_unknown_keys(tmp_path):
    path = tmp_path / "launch.json"
    path.write_text('{"grid": [1], "block": [64], "arguments": []}')
    with pytest.raises(ValueError, match="unknown field `arguments`"):
        read_launch(path)


@pytest.mark.parametrize("text, expected", [("512", 512), ("64K", 65536), ("2m", 1 << 21)])
def test_sizes_have_binary_units(text, expected):
    assert parse_size(text) == expected


def test_struct_arguments_are_tuples(tmp_path):
    path = tmp_path / "launch.json"
    path.write_text('{"grid": [1], "block": [64], "args": [[{"buffer": 8}, {"i64": 3}]]}')
    (from_file,) = read_launch(path).args
    from_option = parse_arg("buf:8+i64:3", 0)
    assert isinstance(from_file, tuple) and isinstance(from_option, tuple)
    assert from_file[0].size == from_option[0].size == 8
    assert from_file[1] == from_option[1] == np.int64(3)


def test_the_whole_grid_makes_cache_sharing_exact():
    args = [np.full(M * K, 0x38, np.uint8) for _ in range(2)]
    args += [np.zeros(2 * M * N, np.uint8), M, N, K, 0, 0]
    whole = profile(FP8.read_text(), (2, 2), 256, args, whole_grid=True)
    assert whole.flops == 2 * M * N * K
    fetched = whole.grid_bytes["hbm"] - 2 * M * N
    assert fetched == pytest.approx(2 * M * K, rel=0.2), "each operand comes from HBM once"


@pytest.mark.parametrize("fill, dtype", [("f32", np.float32), ("f16", np.float16)])
def test_float_fills_are_standard_normal_numbers(fill, dtype):
    values = parse_arg(f"buf:64K:{fill}", 0).view(dtype).astype(np.float64)
    assert abs(values.mean()) < 0.05 and abs(values.std() - 1) < 0.05


def test_a_random_fill_repeats_by_its_seed():
    assert np.array_equal(parse_arg("buf:8:random", 1), parse_arg("buf:8:random=1", 0))
    assert not np.array_equal(parse_arg("buf:8:random", 1), parse_arg("buf:8:random", 2))


def test_a_doubtful_wait_state_is_a_warning_and_no_failure(tmp_path):
    body = """
	s_load_dwordx2 s[8:9], s[0:1], 0x0
	s_movk_i32 s10, 0x100
	s_mov_b32 s11, 0x20000
	v_lshlrev_b32_e32 v1, 2, v0
	s_waitcnt lgkmcnt(0)
	s_mov_b32 m0, 0
	buffer_load_dword v1, s[8:11], 0 offen lds
	s_waitcnt vmcnt(0)
"""
    path = tmp_path / "soon.s"
    path.write_text(kernel_text(body, lds=256))
    done = CliRunner().invoke(app, ["check", str(path), "--arg", "buf:256"])
    assert done.exit_code == 0, done.output
    assert "warning, places: 1, first line" in done.output
    assert "no hazard found" in done.output
