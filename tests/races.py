"""Races in sweeps, found without a GPU: what tiles of one stage read and write, as Triton's interpreter tells it.

On a GPU the tiles of a stage run at once, in any order, and only between stages all programs wait for each other. The
interpreter runs one tile after the other; so what each of them touches is noted, and a tile must not touch what another tile
of the same stage has written, nor write what another has read. Tiles are made small, so that there are many.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weft.run.gpu import sweep, sweeptext, tiles
from weft.run.gpu.variables import Tile

SMALL = Tile(rows=2, columns=2, inner=16, precision="ieee")


class Races:
    """What the tiles of the stage that runs now have touched, by address."""

    def __init__(self) -> None:
        self.tile: Any = None
        self.written: dict[int, Any] = {}
        self.read: dict[int, set[Any]] = {}
        self.stages = self.shared = 0
        """Stages seen; and those with more than one tile."""
        self._tiles: set[Any] = set()

    def start_tile(self, kind: str, tile: int) -> None:
        self.tile = kind, tile
        self._tiles.add(self.tile)

    def end_stage(self) -> None:
        self.stages += 1
        self.shared += len(self._tiles) > 1
        self.tile = None
        self.written.clear()
        self.read.clear()
        self._tiles.clear()

    def reads(self, addresses: list[int]) -> None:
        if self.tile is not None:
            for at in addresses:
                assert self.written.get(at, self.tile) == self.tile, "a tile reads what another one of its stage has written"
                self.read.setdefault(at, set()).add(self.tile)

    def writes(self, addresses: list[int]) -> None:
        if self.tile is not None:
            for at in addresses:
                assert self.written.get(at, self.tile) == self.tile, "a tile writes what another one of its stage has written"
                assert not self.read.get(at, set()) - {self.tile}, "a tile writes what another one of its stage has read"
                self.written[at] = self.tile


def watch_races(monkeypatch: pytest.MonkeyPatch) -> Races:
    """From here on, an error where tiles of one stage depend on each other."""
    from triton.runtime import interpreter

    races, builder = Races(), interpreter.InterpreterBuilder
    load, store, steps = builder.create_masked_load, builder.create_masked_store, sweeptext._steps

    def loaded(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        races.reads(_addresses(pointers, mask))
        return load(self, pointers, mask, *rest)

    def stored(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        races.writes(_addresses(pointers, mask))
        return store(self, pointers, value, mask, *rest)

    def marked(member: Any, indent: str) -> list[str]:
        found, kind = list[str](), ""
        for line in steps(member, indent):
            found.append(line)
            text = line.strip()
            if text.startswith("tiles = "):
                kind = "edges" if "ehi" in text else "rows"
            elif text == "while tile < tiles:":
                found.append(f"{line[: len(line) - len(text)]}    start_tile({kind!r}, tile)")
            elif text.startswith("wait_for_all("):
                found.append(f"{line[: len(line) - len(text)]}end_stage()")
        return found

    _current[:] = [races]
    monkeypatch.setattr(builder, "create_masked_load", loaded)
    monkeypatch.setattr(builder, "create_masked_store", stored)
    monkeypatch.setattr(sweeptext, "_steps", marked)
    monkeypatch.setattr(sweeptext, "PRELUDE", f"from races import end_stage, start_tile\n{sweeptext.PRELUDE}")
    for module in (sweep, tiles):
        monkeypatch.setattr(module, "EXACT", SMALL)
    return races


def _addresses(pointers: Any, mask: Any) -> list[int]:
    found: list[int] = np.unique(pointers.data[np.broadcast_to(mask.data, pointers.data.shape)]).tolist()
    return found


# Called by the kernels, which find them by name.

_current: list[Races] = []


def start_tile(kind: str, tile: Any) -> None:
    _current[0].start_tile(kind, int(tile.handle.data.flat[0]))


def end_stage() -> None:
    _current[0].end_stage()
