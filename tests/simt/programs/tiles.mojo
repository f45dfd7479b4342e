"""The kernels of `simt.tiles` as PTX and as machine code; no GPU is asked. Two lines a kernel:

    kernel architecture: words of instructions that the PTX has, each with how often
    machine code, in hexadecimal digits
"""

from max.gpu.host.compile import _compile_code, get_gpu_target

from mojo_kernels.layouts import PreshuffledCdna4
from mojo_kernels.numbers.elements import Element
from mojo_kernels.simt.tiles.kernel import matmul_tile
from mojo_kernels.simt.tiles.marked import compute_marked
from mojo_kernels.simt.tiles.parts import add_parts
from mojo_kernels.simt.tiles.rows import stage_codes, stage_rows
from mojo_kernels.simt.host import ALL_FACTORS, ALL_TILES, NO_FACTORS


def say[
    declared: TypeList[Trait=AnyType, ...],
    //,
    kernel: def(* args: * declared) thin -> None,
    architecture: StaticString,
](name: String) raises:
    """Prints the lines of a kernel."""
    comptime target = get_gpu_target[architecture]()
    var ptx = String(_compile_code[kernel, target=target]().asm)
    var line = String(name, " ", architecture, ":")
    for word in ["mma.sync", "cp.async.cg", "ldmatrix", "wgmma"]:
        line += String(" ", word, "=", ptx.count(word))
    print(line)

    comptime DIGITS: StaticString = "0123456789abcdef"
    var code = _compile_code[kernel, target=target, emission_kind="object"]().asm
    var digits = String()
    for byte in code.as_bytes():
        digits += DIGITS[byte=Int(byte >> 4)]
        digits += DIGITS[byte=Int(byte & 15)]
    print(digits)


def say_tiles[
    element: Element, has_e4m3: Bool, architecture: StaticString
](of_element: String) raises:
    """Prints those of all tiles and factors; sums under E4M3 scales have some."""
    comptime for tile in ALL_TILES:
        comptime for factors in ALL_FACTORS:
            comptime if tile.beside(factors) == tile and (factors != NO_FACTORS or not has_e4m3):
                var name = String(of_element, "_", factors, "_", tile.rows, "x", tile.columns)
                say[matmul_tile[element, has_e4m3, tile, factors], architecture](name)


def main() raises:
    comptime for architecture in ["sm_80", "sm_89", "sm_90a"]:
        comptime for element in [Element.E2M1, Element.E4M3, Element.E5M2, Element.INT8]:
            say_tiles[element, False, architecture](String(materialize[element]().name()))
        say_tiles[Element.E2M1, True, architecture]("nvfp4")
        say[stage_rows[False, True], architecture]("stage_rows")
        say[stage_codes[Element.E4M3, True], architecture]("stage_codes")
        say[add_parts, architecture]("add_parts")
        say[compute_marked[PreshuffledCdna4], architecture]("compute_marked")
