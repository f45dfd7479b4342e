"""What the compiler made of Hopper's kernels, in the module's PTX; no GPU is asked.

Tensor cores read the registers of their left operand until the wait that follows. The compiler
takes them for free once the instruction is written, and may load what comes next into them.
"""

import re

import pytest

from tests import artefacts

PRODUCT = re.compile(r"wgmma\.mma_async\S+ \{[^}]*\}, \{([^}]*)\}")
"""An instruction whose left operand lies in registers."""
IN_LINES = re.compile(r"(wgmma\.mma_async\S+)\s+(\{[^}]*\},)\s+(\{)")
"""The same, as the standard library writes it: in several lines."""
WRITTEN = re.compile(r"\s*(?:@!?%p\d+ )?([a-z]\S*)\s+(\{[^}]*\}|%r\d+)")
END_OF_BODY = "\n}\n"
OF_CLUSTERS = "mapa.shared::cluster"
"""What finds the memory of another CTA: of streaming kernels, those of dense products have it."""
READS_ONLY = ("st.", "bra", "bar", "red", "mbarrier")


def registers(text):
    return set(re.findall(r"%r\d+", text))


def written_in_flight(kernel):
    """Returns the lines that write a register which an instruction before may still read."""
    in_flight, lines = set(), []
    for line in kernel.splitlines():
        if "wgmma.wait_group" in line:
            in_flight = set()
        elif found := PRODUCT.search(line):
            in_flight |= registers(found[1])
        else:
            found = WRITTEN.match(line)
            writes = found and not found[1].startswith(READS_ONLY)
            if writes and registers(found[2]) & in_flight:
                lines.append(line.strip())
    return lines


@pytest.mark.deep
def test_no_register_is_written_that_an_instruction_in_flight_reads():
    module = artefacts.path("ptx/sm_90a").read_bytes().decode("latin-1")
    module = IN_LINES.sub(r"\1 \2 \3", module)
    # What follows a kernel's body are functions, with registers of their own.
    bodies = [text.split(END_OF_BODY)[0] for text in module.split(".entry")[1:]]
    kernels = [body for body in bodies if PRODUCT.search(body)]
    of_bf16 = [text for text in kernels if text.split("(")[0].count("hopper_gemm_rs_b")]
    assert len(of_bf16) >= 16
    assert len(kernels) >= len(of_bf16) + 2
    assert not [line for kernel in kernels for line in written_in_flight(kernel)]


@pytest.mark.deep
def test_few_rows_of_experts_have_eight_blocks_of_weights_on_the_way():
    """Those of the first round, and in every round as many as it multiplies; one way for any.

    Rounds that are not whole go another way, of up to seven blocks.
    """
    module = artefacts.path("ptx/sm_90a").read_bytes().decode("latin-1")
    bodies = [text.split(END_OF_BODY)[0] for text in module.split(".entry")[1:]]
    streaming = [text for text in bodies if "hopper_streaming" in text.split("(")[0]]
    kernels = [text for text in streaming if OF_CLUSTERS not in text]
    found = [(text.count("mma.sync") // 4, text.count("L1::no_allocate.v4")) for text in kernels]
    of_tiles = [(tiles * (8 + 7 + 1), 8 + 8 + 7 + 1) for tiles in (1, 2, 3)]
    # With a gate, without, and with K in parts; of 24 rows a long K with a gate, too. Of MXFP4 and
    # of NVFP4, and this with factors of rows.
    of_rows = 3 * of_tiles + [of_tiles[2]]
    assert sorted(found) == sorted(3 * of_rows)
    # Of a block's four rows a lane has sixteen pairs, each times a factor, and under E4M3 scales
    # four products make those; under any scale two factors, or one that is made for each row.
    products = [text.count("mul.rn.bf16x2") for text in kernels]
    of_blocks = 10 * [15 * of + anew for of, anew in ((16, 32), (20, 24), (20, 24))]
    assert sorted(products) == sorted(of_blocks)


def test_a_load_before_the_wait_is_found():
    product = "wgmma.mma_async.sync {%r1,%r2}, {%r7,%r8}, %rd1, p, 1, 1;\n"
    wait = "wgmma.wait_group.sync.aligned 0;\n"
    load = "ld.shared.v2.u32 {%r8, %r9}, [%r3];\n"
    assert written_in_flight(product + load + wait) == [load.strip()]
    assert not written_in_flight(product + wait + load)
