"""A Python extension module of a catalogue of gfx950 kernels: what they are, how they are launched.

    assembly()              {name: text}
    launch(name, m, n, k)   {grid, threads, cleared_bytes, handed_over_bytes, arguments}, or None
                            if the kernel does not compute that shape
    cooperative()            how workgroups that share rows count, for those who play the others

Arguments are names where the kernel takes addresses, else integers of 32 bits.
"""

from std.python import Python, PythonObject
from std.python.bindings import PythonModuleBuilder

from ..cdna4.catalogue import Catalogue, Question, Texts
from ..cdna4.chip import BLOCK, SCALE_GROUP_ROWS
from ..cdna4.prologue.cooperative import Cooperative
from ..cdna4.ping_pong.shape import STAGE_BLOCKS
from ..cdna4.prologue.shape import CODE_BLOCKS, COUNTER_BYTES, PART_BLOCKS
from ..cdna4.types import ADDRESSES


def py_assembly[Kernels: Catalogue]() raises -> PythonObject:
    """Returns the assembly of every kernel, by name."""
    var texts = Texts()
    Kernels.walk(texts)
    var result = Python.dict()
    for i in range(len(texts.names)):
        result[PythonObject(texts.names[i])] = PythonObject(texts.assembler.texts[i])
    return result


def py_launch[
    Kernels: Catalogue
](name: PythonObject, m: PythonObject, n: PythonObject, k: PythonObject) raises -> PythonObject:
    """Takes (name, m, n, k); returns the launch."""
    var question = Question(String(py=name), Int(py=m), Int(py=n), Int(py=k))
    Kernels.walk(question)
    if not question.is_known:
        raise Error(String("no kernel is called ", question.name))
    if not question.supports:
        return Python.none()
    if len(question.recorder.launches) != 1:
        raise Error(String("got several launches, expected a shape that one can take"))
    ref launch = question.recorder.launches[0]
    var arguments = Python.list()
    for i in range(len(launch.arguments)):
        var value = launch.arguments[i]
        if launch.is_address[i]:
            comptime for number in range(len(ADDRESSES)):
                if value == number:
                    comptime address = ADDRESSES[number]
                    arguments.append(PythonObject(String(materialize[address]())))
        else:
            arguments.append(PythonObject(value))
    return Python.dict(
        grid=Python.tuple(launch.grid.x, launch.grid.y, launch.grid.z),
        threads=PythonObject(launch.grid.threads),
        cleared_bytes=PythonObject(launch.workspace.cleared_bytes),
        handed_over_bytes=PythonObject(launch.workspace.handed_over_bytes),
        arguments=arguments,
    )


def py_cooperative() raises -> PythonObject:
    """Returns where workgroups that prepare rows cooperatively count, and what a part is."""
    comptime WORD = 4
    return Python.dict(
        words=PythonObject(COUNTER_BYTES // WORD),
        finished_word=PythonObject(Int(Cooperative[1, 1].FINISHED) // WORD),
        pair_rows=PythonObject(SCALE_GROUP_ROWS),
        part_k=Python.dict(
            linear=PythonObject(STAGE_BLOCKS * BLOCK),
            matmul=PythonObject(PART_BLOCKS * BLOCK),
            matmul_by_tiles=PythonObject(CODE_BLOCKS * BLOCK),
        ),
    )


def catalogue_module[Kernels: Catalogue](name: StaticString) raises -> PythonObject:
    """Returns the module of a catalogue."""
    var module = PythonModuleBuilder(name)
    module.def_function[py_assembly[Kernels]]("assembly")
    module.def_function[py_launch[Kernels]]("launch")
    module.def_function[py_cooperative]("cooperative")
    return module.finalize()
