# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs the oracle natively: every scenario, racing ones longer than the tests do, then 1,000 random programs.

One batch of ``scripts/soak.py``. The seed is the random programs'; what races with a collect has none.
"""

import json
import re
import subprocess
import sys

import click

from trapless_lab import artifacts

RACING_S = 20  # a racing scenario and back end
CASES = 1000


def _oracle(*arguments: str) -> str:
    """Return what it printed, which is shown while it comes; end like it if it fails."""
    command = [str(artifacts.program("dirty-oracle")), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as oracle:
        assert oracle.stdout
        lines = []
        for line in oracle.stdout:
            click.echo(line, nl=False)
            lines.append(line)
    if oracle.returncode:
        sys.exit(oracle.returncode)
    return "".join(lines)


@click.command(help=__doc__)
@click.argument("seed", type=click.IntRange(min=1))
def main(seed: int) -> None:
    """Run both once."""
    racing = _oracle("--seconds", str(RACING_S))
    found = re.search(r"^nothing missed, (\d+) writes", racing, re.MULTILINE)
    if not found:
        click.echo("the oracle did not say how many writes it tried")
        sys.exit(1)
    _oracle("property", "--cases", str(CASES), "--seed", str(seed))
    click.echo(json.dumps({"writes that raced with collects": int(found[1]), "random programs": CASES}))


if __name__ == "__main__":
    main()
