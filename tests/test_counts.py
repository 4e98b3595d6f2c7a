"""Counts are zeros that are made once for each stream."""

from __future__ import annotations

import pytest
import torch

from weft.run.gpu import counts


def test_each_stream_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "_counters", {})
    cpu = torch.device("cpu")
    one = counts.counter(cpu, 1)
    assert not one.any() and counts.counter(cpu, 1) is one and counts.counter(cpu, 2) is not one


def test_those_made_in_a_capture_belong_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their zeros are written when the capture is replayed, and not before."""
    monkeypatch.setattr(counts, "_counters", {})
    monkeypatch.setattr(torch, "zeros", lambda *shape, **looks: torch.full(shape, 0, dtype=looks["dtype"]))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    gpu = torch.device("cuda", 0)
    made = counts.counter(gpu, 1)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    kept = counts.counter(gpu, 1)
    assert made is not kept and counts.counter(gpu, 1) is kept
