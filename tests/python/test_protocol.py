"""Python writes a call as Mojo reads it: the same names in the same order."""

import re
from pathlib import Path

import pytest

from mx_kernels._core.protocol import RECORDS

READER = Path(__file__).parents[2] / "mojo_kernels" / "bindings" / "protocol.mojo"
FUNCTION = re.compile(r"^def (_?read_\w+)\(mut args.*?\n(.*?)(?=^\S|\Z)", re.DOTALL | re.MULTILINE)
READ = re.compile(r"(\w+) ?= ?(?:[\w.]+(?:\[[\w.]+\])?\()*(?:args\.next\(\)|(_?read_\w+)\(args\))")
READERS = {
    "multiply": "read_problem",
    "multiply_grouped": "read_grouped",
    "multiply_experts": "read_experts",
    "quantize": "read_quantize",
    "norm_quantize": "read_norm_quantize",
    "gate_quantize": "read_gate_quantize",
    "hadamard_quantize": "read_hadamard_quantize",
    "dequantize": "read_dequantize",
    "relayout": "read_relayout",
}
"""The function that reads an operation's call."""


def names_read(function, functions):
    """Returns the names that a Mojo function gives to integers, in the order it reads them."""
    names = []
    for name, other in READ.findall(functions[function]):
        names += names_read(other, functions) if other else [name]
    return names


def functions_of(source):
    return dict(FUNCTION.findall(source))


def written(operation):
    return [name.split(".")[-1] for name in RECORDS[operation].names]


@pytest.mark.parametrize("operation", RECORDS)
def test_a_record_has_what_mojo_reads_in_its_order(operation):
    source = READER.read_text()
    assert names_read(READERS[operation], functions_of(source)) == written(operation)
    unnamed = [name for name, other in READ.findall(source) if not other]
    assert len(unnamed) == source.count("args.next()"), "an integer is read without a name"


@pytest.mark.parametrize("operation", RECORDS)
def test_another_order_is_seen(operation):
    shuffled = READER.read_text().replace("format=args.next()", "layout=args.next()")
    assert names_read(READERS[operation], functions_of(shuffled)) != written(operation)


def test_positions_and_parts_follow_from_the_names():
    for record in RECORDS.values():
        call = tuple(range(len(record.names)))
        assert [record.at(name) for name in record.names] == list(call)
        assert sum(map(tuple, record.split(call)), ()) == call
        assert len(set(record.names)) == len(record.names)
