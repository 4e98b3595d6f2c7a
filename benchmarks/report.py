"""Tables for the eye and dated JSON files for the record."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from benchmarks.harness import Mode, Timing
from benchmarks.workloads.common import HAND, CaseSpec, Target

REPORTS = Path(__file__).parent / "reports"


@dataclass(frozen=True)
class Verdict:
    """A target beside what was measured."""

    of: str
    against: str
    at_most: float
    aim: float | None
    ratio: float

    @property
    def passed(self) -> bool:
        return self.ratio <= self.at_most

    def __str__(self) -> str:
        wanted = f"<= {self.at_most:.3g}x {self.against}" + (f" (aim {self.aim:.3g}x)" if self.aim else "")
        return f"{wanted}: {self.ratio:.3g}x {'pass' if self.passed else 'MISS'}"


@dataclass(frozen=True)
class Result:
    """One measured case in one mode."""

    case: CaseSpec
    mode: Mode
    timings: Mapping[str, Timing]
    hand: str
    facts: Mapping[str, float]
    largest_difference: float

    def verdicts(self) -> list[Verdict]:
        """Every target of this mode whose other side was measured."""
        return [verdict for target in self.case.targets if (verdict := self._verdict(target)) is not None]

    def _verdict(self, target: Target) -> Verdict | None:
        against = self.hand if target.against == HAND else target.against
        if target.mode != self.mode or against not in self.timings:
            return None
        ratio = self.timings[target.of].median / self.timings[against].median
        return Verdict(target.of, target.against, target.at_most, target.aim, ratio)


def table(result: Result) -> Table:
    """Variants from slow to fast as they were given, the fastest hand-batched form marked with *."""
    size = ", ".join(f"{value:g} {name}" for name, value in result.facts.items())
    title = f"{result.case.workload}, {result.case.label}, {result.mode} ({size})"
    shown = Table(title=title, title_justify="left")
    for column in ("variant", "ms (minimum)", "x hand-batched", "targets"):
        shown.add_column(column, justify="left" if column in ("variant", "targets") else "right")
    base = result.timings[result.hand].median
    for name, timing in result.timings.items():
        targets = "\n".join(str(verdict) for verdict in result.verdicts() if verdict.of == name)
        label = f"{name} *" if name == result.hand else name
        shown.add_row(label, f"{timing.median:.2f} ({timing.minimum:.2f})", f"{timing.median / base:.2f}", targets)
    return shown


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def environment() -> dict[str, Any]:
    """What the figures depend on besides the code."""
    return {
        "python": platform.python_version(),
        **{package: _version(package) for package in ("torch", "numpy", "weft")},
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "load": os.getloadavg()[0],
    }


def _record(result: Result) -> dict[str, Any]:
    base = result.timings[result.hand].median
    return {
        "workload": result.case.workload,
        "case": result.case.label,
        "batch": result.case.batch,
        "mode": result.mode,
        "facts": dict(result.facts),
        "largest_difference_float64": result.largest_difference,
        "hand_batched": result.hand,
        "variants": {name: {**asdict(t), "x_hand": t.median / base} for name, t in result.timings.items()},
        "targets": [{**asdict(v), "passed": v.passed} for v in result.verdicts()],
    }


def write(results: list[Result], folder: Path = REPORTS) -> Path:
    """Write `<date>.json`; the file names versions, processor and threads."""
    now = datetime.now(UTC)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{now:%Y-%m-%d-%H%M%S}.json"
    command = " ".join(["python -m benchmarks.run", *(_without_folders(word) for word in sys.argv[1:])])
    content = {
        "date": now.isoformat(timespec="seconds"),
        "command": command,
        "environment": environment(),
        "results": [_record(result) for result in results],
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


def _without_folders(word: str) -> str:
    """A report names programs and folders, not where they lie on one machine."""
    return Path(word).name if "/" in word else word
