# SPDX-License-Identifier: Apache-2.0 OR MIT
"""scripts/mutant: all patches or nothing, and never in the product's own files."""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "mutant"
PRODUCT = "int flush(void)\n{\n\tdo_flush();\n\treturn 0;\n}\n"
PATCH = """\
Leaves the flush out.
--- a/power/flush.c
+++ b/power/flush.c
@@ -1,5 +1,4 @@
 int flush(void)
 {
-\tdo_flush();
 \treturn 0;
 }
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a repository with one system of one file, and a mutant of it."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPT, tmp_path / "scripts/mutant")
    (tmp_path / "power/tests/mutants").mkdir(parents=True)
    (tmp_path / "power/flush.c").write_text(PRODUCT)
    (tmp_path / "power/tests/mutants/no-flush.patch").write_text(PATCH)
    return tmp_path


def mutant(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [tree / "scripts/mutant", "power", "build/copy", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_copy_has_the_mistake_and_the_product_has_not(tree: Path) -> None:
    assert mutant(tree, "no-flush").returncode == 0
    assert "do_flush" not in (tree / "build/copy/power/flush.c").read_text()
    assert (tree / "power/flush.c").read_text() == PRODUCT


def test_a_patch_may_have_moved_but_its_context_must_match(tree: Path) -> None:
    (tree / "power/flush.c").write_text("\n\n" + PRODUCT)
    assert mutant(tree, "no-flush").returncode == 0
    (tree / "power/flush.c").write_text(PRODUCT.replace("return 0", "return 1"))
    result = mutant(tree, "no-flush")
    assert result.returncode == 1
    assert "no-flush.patch no longer applies" in result.stderr
    assert not (tree / "build/copy").exists(), "a copy without the mistake would pass for a mutant"
    assert not list((tree / "build").iterdir())


def test_an_unchanged_copy_is_left_alone_and_a_changed_product_is_copied(tree: Path) -> None:
    mutant(tree, "no-flush")
    built = tree / "build/copy/flush.o"
    built.touch()
    mutant(tree, "no-flush")
    assert built.exists()
    (tree / "power/flush.c").write_text("/* new */\n" + PRODUCT)
    mutant(tree, "no-flush")
    assert not built.exists()
    assert "/* new */" in (tree / "build/copy/power/flush.c").read_text()


@pytest.mark.parametrize("arguments", [[], ["no-such"]])
def test_missing_inputs_are_named(tree: Path, arguments: list[str]) -> None:
    result = mutant(tree, *arguments)
    assert result.returncode == 2
    assert result.stderr
