"""Hopper's rooms keep to themselves what they are there for."""

from pathlib import Path

HOUSE = Path(__file__).resolve().parents[2] / "mojo_kernels"


def test_inline_assembly_is_in_one_room_and_in_a_file_of_the_portable_one():
    users = {path for path in HOUSE.rglob("*.mojo") if "inlined_assembly" in path.read_text()}
    nvidia = {path for path in users if "cdna4" not in path.parts}
    shared = HOUSE / "simt" / "instructions.mojo"
    assert shared in nvidia
    assert {path.parent for path in nvidia - {shared}} == {HOUSE / "hopper" / "instructions"}
