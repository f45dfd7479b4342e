"""Code objects: what is read in them, from files that are put together here byte by byte."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from typer.testing import CliRunner

import gfx950
from gfx950.cli.app import app
from gfx950.isa.code_object import code_objects

NAME = "spread"
CODE = bytes.fromhex(
    "000106c000000000"  # s_load_dwordx2 s[4:5], s[0:1], 0x0
    "82000224"  # v_lshlrev_b32_e32 v1, 2, v0
    "0202047e"  # v_mov_b32_e32 v2, s2
    "7fc08cbf"  # s_waitcnt lgkmcnt(0)
    "{skip}"
    "ffffffff"  # no instruction
    "008070dc01020400"  # global_store_dword v1, v2, s[4:5]
    "000081bf"  # s_endpgm
    "ffffffff".format(skip="010082bf")  # s_branch 1
)
UNKNOWN = bytes.fromhex("ffffffff000081bf")
TEXT_AT, DESCRIPTOR_AT = 0x1100, 0x1000


def packed(value) -> bytes:
    """Encodes MessagePack."""
    if isinstance(value, dict):
        items = [packed(x) for pair in value.items() for x in pair]
        return bytes([0x80 | len(value)]) + b"".join(items)
    if isinstance(value, list):
        return bytes([0x90 | len(value)]) + b"".join(map(packed, value))
    if isinstance(value, str):
        return b"\xd9" + bytes([len(value)]) + value.encode()
    return b"\xce" + struct.pack(">I", value)


def code_object(code=CODE, *, machine=0x54F, kernarg=0) -> bytes:
    """Returns a file with one kernel; no symbol has a size, and one is in the middle of it."""
    args = [{".name": "out", ".offset": 0, ".size": 8, ".value_kind": "global_buffer"},
            {".name": "pad", ".offset": 8, ".size": 4, ".value_kind": "by_value"}]  # fmt: skip
    kernel = {".name": NAME, ".symbol": f"{NAME}.kd", ".kernarg_segment_size": 16,
              ".sgpr_count": 16, ".args": args}  # fmt: skip
    metadata = packed({"amdhsa.kernels": [kernel]})
    note = struct.pack("<III8s", 7, len(metadata), 32, b"AMDGPU\0\0") + metadata
    note += bytes(-len(note) % 4)
    registers, system = 1, 2 << 1 | 1 << 7  # 16 VGPRs; two user SGPRs, workgroup id x
    descriptor = struct.pack("<III4xq20xIIIHH4x", 0, 0, kernarg, TEXT_AT - DESCRIPTOR_AT,
                             3, registers, system, 1 << 3, 0)  # fmt: skip
    names = b"\0" + NAME.encode() + b"\0" + NAME.encode() + b".kd\0label_0004\0"
    starts = names.index(NAME.encode()), names.index(f"{NAME}.kd".encode()), names.index(b"label")
    symbols = bytes(24)
    for at, address, section in zip(
        starts, (TEXT_AT, DESCRIPTOR_AT, TEXT_AT + 16), (5, 4, 5), strict=True
    ):
        symbols += struct.pack("<IBBHQQ", at, 0x12, 0, section, address, 0)
    sections = {".note": (7, 0, note), ".dynsym": (11, 0, symbols), ".dynstr": (3, 0, names),
                ".rodata": (1, DESCRIPTOR_AT, descriptor), ".text": (1, TEXT_AT, code)}  # fmt: skip
    titles = b"\0" + b"".join(name.encode() + b"\0" for name in (*sections, ".shstrtab"))
    sections[".shstrtab"] = 3, 0, titles
    headers, body = [bytes(64)], b""
    for name, (kind, address, blob) in sections.items():
        body += bytes(-len(body) % 64)
        flags = 6 if address == TEXT_AT else 2 if address else 0
        title = titles.index(name.encode())
        headers.append(struct.pack("<IIQQQQIIQQ", title, kind, flags, address, 64 + len(body),
                                   len(blob), 3, 0, 8, 24))  # fmt: skip
        body += blob
    body += bytes(-len(body) % 64)
    ident = b"\x7fELF\x02\x01\x01\x40\x04" + bytes(7)
    header = struct.pack("<16sHHIQQQIHHHHHH", ident, 3, 224, 1, 0, 0, 64 + len(body), machine,
                         64, 56, 0, 64, len(headers), len(headers) - 1)  # fmt: skip
    return header + body + b"".join(headers)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "spread.co"
    path.write_bytes(code_object())
    return path


def test_a_code_object_runs_to_its_last_instruction(file):
    kernel = gfx950.load(file)
    assert kernel.name == NAME
    assert kernel.kernarg_bytes == 16, "the descriptor says 0, the metadata 16"
    assert [arg.name for arg in kernel.args] == ["out", "pad"]
    assert kernel.instructions[-1].name == "s_endpgm"
    for args in ([np.zeros(64, np.uint32), 0], {"out": np.zeros(64, np.uint32)}):
        gfx950.run(kernel, 1, 64, args).raise_on_hazards()
        out = args["out"] if isinstance(args, dict) else args[0]
        assert not out.any()


def test_the_descriptor_says_what_is_set_up():
    [code] = code_objects(code_object(kernarg=24))
    facts = code.directives()
    assert facts["kernarg_size"] == 24
    assert facts["next_free_vgpr"] == 16
    assert facts["accum_offset"] == 16
    assert facts["user_sgpr_count"] == 2
    assert facts["user_sgpr_kernarg_segment_ptr"] == facts["system_sgpr_workgroup_id_x"] == 1
    assert facts["system_sgpr_workgroup_id_y"] == 0
    assert code.entry == TEXT_AT


def test_an_unknown_instruction_is_named_by_its_bytes(tmp_path):
    path = tmp_path / "unknown.co"
    path.write_bytes(code_object(UNKNOWN))
    with pytest.raises(gfx950.AsmError, match="unknown"):
        gfx950.run(gfx950.load(path), 1, 64, [])


@pytest.mark.parametrize(
    "image, reason",
    [
        (b"\x7fELF" + bytes(60), "the code object is damaged: ELFError: Invalid EI_CLASS"),
        (
            code_object().replace(struct.pack("<HHI", 3, 224, 1), struct.pack("<HHI", 3, 62, 1)),
            "machine EM_X86_64, expected an AMD GPU",
        ),
        (code_object(machine=0x54C), "0x4c, expected gfx950"),
    ],
)
def test_other_files_are_refused(tmp_path, image, reason):
    path = tmp_path / "other.co"
    path.write_bytes(image)
    with pytest.raises(gfx950.AsmError, match=reason):
        gfx950.load(path)


def test_too_few_arguments_are_refused_by_every_command(file):
    for command in ("run", "check", "profile"):
        done = CliRunner().invoke(app, [command, str(file), "--arg", "buf:256"])
        assert done.exit_code == 2
        sentence = " ".join(done.output.split())
        assert "spread takes 2 arguments, got 1; expected out: pointer, pad: 4 bytes" in sentence


def test_arguments_by_name_must_exist(file):
    with pytest.raises(ValueError, match="no argument 'in'"):
        gfx950.run(gfx950.load(file), 1, 64, {"in": np.zeros(4, np.uint32)})


@pytest.mark.parametrize("command", ["run", "check", "profile"])
def test_every_command_takes_a_code_object(file, command):
    options = ["--grid", "2", "--block", "64", "--arg", "buf:256", "--arg", "i32:0"]
    done = CliRunner().invoke(app, [command, str(file), *options])
    if command == "check":
        assert done.exit_code == 1, "two workgroups write different words to one place"
        assert "race" in done.output
    else:
        assert done.exit_code == 0, done.output


def test_arguments_may_be_named_in_options_and_files(file, tmp_path):
    options = ["--grid", "1", "--block", "64"]
    done = CliRunner().invoke(app, ["run", str(file), *options, "--arg", "out=buf:256:byte=7"])
    assert done.exit_code == 0, done.output
    assert "arguments that are not given (pad) read as zero" in done.stderr
    launch = tmp_path / "launch.json"
    launch.write_text('{"grid": [1], "block": [64], "args": {"out": {"buffer": 256}}}')
    done = CliRunner().invoke(app, ["run", str(file), "--launch", str(launch)])
    assert done.exit_code == 0, done.output
    mixed = ["--arg", "out=buf:256", "--arg", "i32:1"]
    done = CliRunner().invoke(app, ["run", str(file), *options, *mixed])
    assert done.exit_code == 2
    assert "name all arguments or none" in done.output


def test_metadata_that_cannot_be_read_is_refused(tmp_path):
    image = code_object()
    at = image.index(packed("amdhsa.kernels")) - 1
    path = tmp_path / "broken.co"
    path.write_bytes(image[:at] + b"\xc1" + image[at + 1 :])
    with pytest.raises(gfx950.AsmError, match="damaged: DecodeError: MessagePack"):
        gfx950.load(path)
