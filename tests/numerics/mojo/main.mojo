"""Runs the tests of one file of this folder, whose name is the argument.

One program has them all, since a program of its own costs each the compilation of what all use.
"""

from std.sys import argv
from std.testing import TestSuite

import test_codec
import test_gates
import test_layouts
import test_numbers
import test_quotients
import test_schedule


def main() raises:
    var name = String(argv()[1])
    if name == "test_codec":
        TestSuite.discover_tests[test_codec.TESTS](cli_args=List[StaticString]()).run()
    elif name == "test_gates":
        TestSuite.discover_tests[test_gates.TESTS](cli_args=List[StaticString]()).run()
    elif name == "test_layouts":
        TestSuite.discover_tests[test_layouts.TESTS](cli_args=List[StaticString]()).run()
    elif name == "test_numbers":
        TestSuite.discover_tests[test_numbers.TESTS](cli_args=List[StaticString]()).run()
    elif name == "test_quotients":
        TestSuite.discover_tests[test_quotients.TESTS](cli_args=List[StaticString]()).run()
    elif name == "test_schedule":
        TestSuite.discover_tests[test_schedule.TESTS](cli_args=List[StaticString]()).run()
    else:
        raise Error("no file of tests is called ", name)
