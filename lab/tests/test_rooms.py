# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The dependencies within the lab: an import leads into the same room or into one below, and never in a
circle, whether it is at the top of a file or in a function.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "lab" / "trapless_lab"

SYSTEMS = ("pagetable", "dirty", "power")
ROOF, GROUND = "roof", "ground"
ROOMS = (ROOF, *SYSTEMS, "papers", "profiler", "experiment", "machines", "plugins", GROUND)
FLOORS: Mapping[str, int] = {
    ROOF: 6,
    **dict.fromkeys(SYSTEMS, 5),
    **{"papers": 4, "profiler": 4, "experiment": 3, "machines": 2, "plugins": 1, GROUND: 0},
}
# Modules outside the rooms, at the top of the package.
ON_THE_ROOF = {"cli", "demo", "catalogue"}

Arrows = Mapping[str, set[str]]
"""A module -> those that it imports; names are relative to the package, a room's own is its folder's."""


def modules(package: Path) -> dict[str, Path]:
    """Return every module by its name."""
    found = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def arrows(package: Path) -> Arrows:
    """Read all imports of the package's own modules, anywhere in a file."""
    known = modules(package)
    return {name: set(_imports(name, path, known)) - {name} for name, path in known.items()}


def _imports(name: str, path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """Yield what a file imports: of ``from a import b`` the module a.b if there is one, else a."""
    folder = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            named = [(alias.name.split("."), "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = [PACKAGE.name, *folder[: len(folder) - node.level + 1]] if node.level else []
            source = [*base, *(node.module.split(".") if node.module else [])]
            named = [(source, alias.name) for alias in node.names]
        else:
            continue
        for source, what in named:
            if source[:1] == [PACKAGE.name]:
                inside = [".".join(source[1:]), ".".join([*source[1:], what])]
                yield next((module for module in reversed(inside) if module in known), inside[0])


def room(module: str) -> str:
    first = module.partition(".")[0]
    if first in FLOORS:
        return first
    return ROOF if first in ON_THE_ROOF else GROUND


def upward(found: Arrows) -> list[str]:
    """Return the imports that lead up, or from one system's room into another's."""
    return sorted(
        f"{module} -> {other}"
        for module, others in found.items()
        for other in others
        if room(module) != room(other) and FLOORS[room(other)] >= FLOORS[room(module)]
    )


def circle(found: Arrows) -> list[str]:
    """Return the modules of a circle, in order, or an empty list."""
    done: set[str] = set()

    def walk(module: str, way: list[str]) -> list[str]:
        if module in way:
            return [*way[way.index(module) :], module]
        if module in done:
            return []
        for other in sorted(found.get(module, ())):
            if closed := walk(other, [*way, module]):
                return closed
        done.add(module)
        return []

    return next(filter(None, (walk(module, []) for module in sorted(found))), [])


def test_imports_lead_down() -> None:
    assert upward(arrows(PACKAGE)) == []


def test_there_is_no_circle() -> None:
    assert circle(arrows(PACKAGE)) == []


def test_every_folder_is_a_room() -> None:
    folders = {path.parent.relative_to(PACKAGE).parts[0] for path in PACKAGE.glob("*/*.py")}
    assert folders == set(ROOMS) - {ROOF, GROUND}
    found = arrows(PACKAGE)
    assert len(found) > 60 and sum(map(len, found.values())) > 150  # otherwise the reader reads nothing


def build(directory: Path, files: Mapping[str, str]) -> Path:
    package = directory / "trapless_lab"
    for name, text in {"__init__.py": "", **files}.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        (path.parent / "__init__.py").touch()
    return package


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"host.py": "from .errors import E", "errors.py": "import re"}, []),
        (
            {"host.py": "from . import errors", "errors.py": "from .host import tool"},
            ["errors", "host", "errors"],
        ),
        (
            {
                "machines/qemu.py": "from . import trace",
                "machines/trace.py": "def late():\n    from .script import Step",
                "machines/script.py": "import trapless_lab.machines.qemu",
            },
            ["machines.qemu", "machines.trace", "machines.script", "machines.qemu"],
        ),
    ],
)
def test_a_circle_is_found(files: dict[str, str], found: list[str], tmp_path: Path) -> None:
    assert circle(arrows(build(tmp_path, files))) == found


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"cli.py": "from .power import machine", "power/machine.py": "from ..machines import runner"}, []),
        ({"machines/runner.py": "", "plugins/plugin.py": "from ..machines import runner"}, True),
        ({"experiment/plots.py": "", "machines/runner.py": "from ..experiment.plots import lines"}, True),
        ({"cli.py": "", "host.py": "def late():\n    from trapless_lab import cli"}, True),
        ({"dirty/formulas.py": "", "power/machine.py": "from ..dirty.formulas import tracker"}, True),
        ({"dirty/formulas.py": "", "power/machine.py": "import trapless_lab.dirty.formulas"}, True),
    ],
)
def test_an_import_that_leads_up_is_found(
    files: dict[str, str], found: list[str] | bool, tmp_path: Path
) -> None:
    made = arrows(build(tmp_path, files))
    if found:
        assert len(upward(made)) == 1
    else:
        assert any(made.values()) and upward(made) == []
