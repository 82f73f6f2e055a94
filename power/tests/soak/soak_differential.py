# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Compares translated guests with an untranslated one over 2,048 random instruction sequences.

The same as test_differential.py on other seeds: one batch of ``scripts/soak.py``. It ends with an error at
the first setting that ends in another state.
"""

import json

import click

from differential import BASE, MANY, MANY_TIMEOUT_S, TRANSLATED, checksums, require_same, run


@click.command(help=__doc__)
@click.argument("seed", type=click.IntRange(min=1))
def main(seed: int) -> None:
    """Run one boot."""
    console = run([(setting, f"seed={seed} count={MANY}") for setting in (BASE, *TRANSLATED)], MANY_TIMEOUT_S)
    for setting in TRANSLATED:
        require_same(console, setting, checksums(console, BASE))
    click.echo(json.dumps({"sequences": MANY, "settings compared": MANY * len(TRANSLATED)}))


if __name__ == "__main__":
    main()
