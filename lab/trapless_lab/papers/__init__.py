# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The report: each table and figure of the five papers, theirs beside ours."""

from .item import Paper
from .pibooster import ABSTRACT, IOSUP, PIBOOSTER
from .power import POWER
from .slides import SLIDES

PAPERS: tuple[Paper, ...] = (PIBOOSTER, ABSTRACT, IOSUP, SLIDES, POWER)
"""In the order of docs/papers.md."""
