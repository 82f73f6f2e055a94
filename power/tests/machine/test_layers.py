# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The files of the translator call each other in one direction only.

What it cannot see: calls through pointers. There are none between these files.
"""

import graphlib
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

KVM = Path(__file__).resolve().parents[2] / "kvm"
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_DEFINED = re.compile(r"^(?!static\b)\w[\w \*]*?\b(kvmppc_\w+)\([^;{]*\)\s*\n\{", re.MULTILINE)


def calls(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Return file -> the other files whose functions it names."""
    code = {name: _COMMENT.sub("", text) for name, text in sources.items()}
    home = {function: name for name, text in code.items() for function in _DEFINED.findall(text)}
    return {
        name: {home[word] for word in re.findall(r"\bkvmppc_\w+", text) if home.get(word, name) != name}
        for name, text in code.items()
    }


def test_there_is_no_circle() -> None:
    found = calls({path.name: path.read_text() for path in KVM.glob("*.c")})
    assert len(found) >= 8 and found["e500_bt.c"] >= {"e500_bt_site.c", "e500_bt_tlb.c"}
    graphlib.TopologicalSorter(found).prepare()


def test_a_circle_is_found() -> None:
    one = "int kvmppc_one(int n)\n{\n\treturn kvmppc_two(n);\n}\n"
    two = "static int own(void)\n{\n}\nint kvmppc_two(int n,\n\tint m)\n{\n\treturn %s;\n}\n"
    assert calls({"a.c": one, "b.c": two % "/* kvmppc_one() */ 0"}) == {"a.c": {"b.c"}, "b.c": set()}
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(calls({"a.c": one, "b.c": two % "kvmppc_one(1)"})).prepare()
