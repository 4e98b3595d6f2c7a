"""Every common call on a value records, needs the value, or raises; none is silently wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import weft
import weft.testing
from lazy_calls import CALLS, NEEDS, RAISES, RECORDS, Layers, _result, table
from weft.lazy.fibers import Fibers

DOC = Path(__file__).parents[1] / "docs" / "recording.md"
X = torch.tensor([[0.5, -1.0, 2.0, 0.25], [1.5, 1.0, -0.5, 0.75]], dtype=torch.float64)


@pytest.fixture(scope="module")
def layers() -> Layers:
    return Layers()


@pytest.mark.parametrize("text", CALLS)
def test_status(text: str, layers: Layers, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    need = Fibers.need
    monkeypatch.setattr(Fibers, "need", lambda self, value: (asked.append(True), need(self, value))[1])

    def fn(x: Any, i: int) -> Any:
        return _result(layers.run(text, x, i))

    net = weft.batched(fn, stack=False, backend="reference")
    if CALLS[text] == RAISES:
        with pytest.raises(weft.TraceError):
            net(X, [0, 2])
        return
    found = net(X, [0, 2])
    assert bool(asked) == (CALLS[text] == NEEDS)
    for result, x, i in zip(found, X, [0, 2], strict=True):
        assert_same(result, fn(x, i))


def assert_same(got: Any, expected: Any) -> None:
    if isinstance(expected, list):
        assert len(got) == len(expected)
        for a, b in zip(got, expected, strict=True):
            assert_same(a, b)
    elif isinstance(expected, torch.Tensor):
        assert got.dtype == expected.dtype and torch.allclose(got, expected, atol=1e-12)
    else:
        assert got == expected


def test_all_that_records_equals_the_loop_batched_with_gradients(layers: Layers) -> None:
    layers.names = [text for text, status in CALLS.items() if status == RECORDS and text not in ("v.float()", "v // 2")]
    weft.testing.assert_equivalent(
        weft.batched(layers, stack=False), X, [0, 2], policies=["auto"], backends=["eager"], tolerance=1e-10
    )


def test_there_are_enough_calls_and_the_documentation_lists_them() -> None:
    assert len(CALLS) >= 82
    assert table() in DOC.read_text(encoding="utf-8"), "run tests/lazy_calls.py and put its output into docs/recording.md"
