# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Results that are kept, a file an experiment, so that a report goes on where it was stopped.

Invariant: a file is written when its experiment has ended, whole or not at all, and has the version of the
sources that made it. A result of another version, or of a quick run where a full one is wanted, is never
taken for a fresh one.
"""

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema

from .. import output
from ..errors import LabError
from .sources import Sources

Json = Mapping[str, Any]

# What every experiment's JSON has, for those who read it too.
RESULT = json.loads((files(__package__) / "result.schema.json").read_text())
_LARGEST = 1e30  # what is drawn is summed and squared
_TEXT = {"type": "string"}
_KEPT = jsonschema.Draft202012Validator(
    {
        "type": "object",
        "properties": {
            **dict.fromkeys(("experiment", "commit", "digest", "began", "failure"), _TEXT),
            "quick": {"type": "boolean"},
            "seconds": {"type": "number", "minimum": 0},
            "processors": {"type": "integer", "minimum": 1},
            "result": {"if": {"not": {"type": "null"}}, "then": RESULT},
        },
    }
)


@dataclass(frozen=True)
class Kept:
    """How an experiment went: ``result`` is its JSON, None if it failed, and ``failure`` says why."""

    experiment: str
    quick: bool
    commit: str
    digest: str
    began: str
    seconds: float
    processors: int
    result: Json | None = None
    failure: str = ""

    def fresh(self, sources: Sources) -> bool:
        """Whether these sources made it."""
        return self.digest == sources.digests.get(self.experiment)

    def usable(self, sources: Sources, *, quick: bool) -> bool:
        """Whether it need not be made again."""
        return self.result is not None and self.quick == quick and self.fresh(sources)

    @property
    def command(self) -> str:
        """The command that makes it alone."""
        return f"trapless-lab run {self.experiment}{' --quick' if self.quick else ''}"


def place(folder: Path, experiment: str, *, packed: bool = False) -> Path:
    """Return the file of an experiment."""
    return folder / f"{experiment}.json{'.gz' if packed else ''}"


def save(folder: Path, kept: Kept, *, packed: bool = False) -> None:
    """Keep it, packed with gzip if it is to be published: curves of thousands of points take megabytes."""
    text = (json.dumps(asdict(kept), indent=1) + "\n").encode()
    # Without the time: the same result is the same file.
    data = gzip.compress(text, mtime=0) if packed else text
    output.write_or_rescue(place(folder, kept.experiment, packed=packed), data)
    place(folder, kept.experiment, packed=not packed).unlink(missing_ok=True)


def load(folder: Path, experiments: Iterable[str]) -> dict[str, Kept]:
    """Return what a folder has of some experiments."""
    found = {}
    for experiment in experiments:
        path = place(folder, experiment)
        if not path.exists():
            path = place(folder, experiment, packed=True)
        try:
            data = path.read_bytes()
            text = gzip.decompress(data) if path.suffix == ".gz" else data
            fields = json.loads(text, parse_constant=_drawable, parse_float=_drawable, parse_int=_count)
            _KEPT.validate(fields)
            kept = Kept(**fields)
            if kept.result is None and not kept.failure:
                raise ValueError("it has neither a result nor a failure")
        except FileNotFoundError:
            continue
        except jsonschema.ValidationError as error:
            raise LabError(
                f"{path} is no kept result ({error.json_path}: {error.message[:200]}); move it away"
            ) from error
        except (OSError, EOFError, zlib.error, ValueError, TypeError, RecursionError) as error:
            raise LabError(f"{path} is no kept result ({error}); move it away") from error
        if kept.experiment != experiment:
            raise LabError(f"{path} is a result of {kept.experiment}; move it away")
        found[experiment] = kept
    return found


def _drawable(text: str) -> float:
    number = float(text)
    if not abs(number) <= _LARGEST:  # nor is it a number at all
        raise ValueError(f"{text[:20]} is no number that can be drawn")
    return number


def _count(text: str) -> int:
    _drawable(text)
    return int(text)
