"""Hopper's rooms keep to themselves what they are there for."""

import re
from pathlib import Path

import pytest

from mx_kernels._core.builds import Sources

ROOT = Path(__file__).resolve().parents[2]
HOUSE = ROOT / "mojo_kernels"
HOST = [*sorted((HOUSE / "hopper" / "host").glob("*.mojo")), HOUSE / "simt" / "host.mojo"]
KNOWS_THE_DEVICE = re.compile(r"^\s*from max\.gpu|inlined_assembly|llvm_intrinsic", re.MULTILINE)
MOST_FILES_OF_HOPPER = 30
MOST_FILES_OF_PLANS = 48
COSTS = {"host/choices", "host/costs", "host/measured"}


def reached(*entries: Path) -> dict[str, Path]:
    """Returns the files that some are compiled from, but those of rooms, which say a sentence."""
    found = {}
    for entry in entries:
        found |= Sources.of(entry, [ROOT]).files
    return {name: path for name, path in found.items() if not name.endswith("__init__.mojo")}


def test_inline_assembly_is_in_one_room_and_in_a_file_of_the_portable_one():
    """Of NVIDIA's; on a CPU none has instructions, it only holds the compiler to an order."""
    users = {path for path in HOUSE.rglob("*.mojo") if "inlined_assembly" in path.read_text()}
    for text in (path.read_text() for path in users if "cpu" in path.parts):
        assert text.count("inlined_assembly[") == text.count('inlined_assembly["",')
    nvidia = {path for path in users if not {"cdna4", "cpu"} & {*path.parts}}
    shared = HOUSE / "simt" / "instructions.mojo"
    assert shared in nvidia
    assert {path.parent for path in nvidia - {shared}} == {HOUSE / "hopper" / "instructions"}


@pytest.mark.parametrize("entry", HOST, ids=lambda path: path.relative_to(HOUSE).as_posix())
def test_the_host_reaches_no_kernel_and_no_instruction(entry):
    for name, path in reached(entry).items():
        assert "/instructions/" not in name
        assert not KNOWS_THE_DEVICE.search(path.read_text()), name


def test_what_explains_launches_is_made_of_few_files():
    bindings = HOUSE / "bindings"
    common = bindings / "protocol.mojo", bindings / "record.mojo"
    assert len(reached(*HOST, *common)) <= MOST_FILES_OF_HOPPER
    assert len(reached(bindings / "plans.mojo")) <= MOST_FILES_OF_PLANS


def test_no_kernel_depends_on_a_cost():
    launches = HOUSE / "hopper" / "dispatch.mojo", HOUSE / "hopper" / "moe.mojo"
    files = reached(*launches).keys()
    assert {name for name in files if name.endswith("kernel.mojo")}
    assert not {f"mojo_kernels/hopper/{name}.mojo" for name in COSTS} & files
