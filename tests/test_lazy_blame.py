"""Errors of shape come up where the code is written, in torch's words; those of numbers name the example and the line."""

from __future__ import annotations

import ctypes
import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import weft
from weft.lazy import boundary

torch.manual_seed(0)
LINEAR, EMBED = nn.Linear(4, 4), nn.Embedding(5, 4)
X = torch.randn(3, 4, generator=torch.Generator().manual_seed(2))

WRONG: dict[str, Callable[[Tensor], Any]] = {
    "softmax's dimension": lambda x: F.softmax(LINEAR(x), 5),
    "log_softmax's dimension": lambda x: torch.log_softmax(LINEAR(x), 2),
    "sum's dimension": lambda x: LINEAR(x).sum(7),
    "sort's dimension": lambda x: LINEAR(x).sort(3),
    "argsort's dimension": lambda x: torch.argsort(LINEAR(x), 3),
    "argmax's dimension": lambda x: LINEAR(x).argmax(3),
    "cumsum's dimension": lambda x: LINEAR(x).cumsum(4),
    "unsqueeze": lambda x: LINEAR(x).unsqueeze(9),
    "transpose": lambda x: LINEAR(x).transpose(0, 3),
    "permute": lambda x: LINEAR(x).permute(0, 1),
    "an index": lambda x: LINEAR(x)[99],
    "an index of what was given": lambda x: x[99],
    "two indices": lambda x: LINEAR(x)[0, 0],
    "select": lambda x: LINEAR(x).select(0, 9),
    "narrow": lambda x: LINEAR(x).narrow(0, 3, 3),
    "split": lambda x: LINEAR(x).split([1, 1]),
    "topk": lambda x: LINEAR(x).topk(9),
    "add": lambda x: LINEAR(x) + torch.ones(5),
    "matmul": lambda x: LINEAR(x) @ torch.ones(5),
    "a matrix": lambda x: torch.ones(7, 5) @ LINEAR(x),
    "mm": lambda x: torch.mm(LINEAR(x), LINEAR(x)),
    "linear": lambda x: LINEAR(torch.cat([x, x])),
    "dtypes": lambda x: LINEAR(x) @ torch.ones(4, dtype=torch.float64),
    "view": lambda x: LINEAR(x).view(3, 3),
    "expand": lambda x: LINEAR(x).expand(3),
    "cat": lambda x: torch.cat([LINEAR(x), LINEAR(x).view(2, 2)]),
    "stack": lambda x: torch.stack([LINEAR(x), LINEAR(x)[:2]]),
    "einsum": lambda x: torch.einsum("ij,j->i", LINEAR(x), LINEAR(x)),
    "layer_norm": lambda x: F.layer_norm(LINEAR(x), (5,)),
    "writing": lambda x: LINEAR(x).clone().__setitem__(99, 1.0),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_of_shape_come_up_in_the_frame_that_wrote_them_in_torchs_words(name: str) -> None:
    fn = WRONG[name]
    with pytest.raises((RuntimeError, IndexError)) as expected:
        fn(X[0])
    with pytest.raises(type(expected.value)) as error:
        weft.batched(fn)(X)
    assert str(error.value) == str(expected.value) and type(error.value) is type(expected.value)
    assert error.value.__notes__ == ["in example 0"]
    assert fn.__code__ in [frame.f_code for frame, _ in traceback.walk_tb(error.tb)]


def out_of_range(x: Tensor) -> Tensor:
    h = LINEAR(x)
    return h.index_select(0, torch.tensor([9]))


def unknown_word(x: Tensor) -> Tensor:
    h = LINEAR(x).tanh() * 2
    return h + EMBED(torch.tensor(7)) + 1


def no_such_class(x: Tensor) -> Tensor:
    return F.one_hot(LINEAR(x).argmax() + 4, 4)


def wrong_target(x: Tensor) -> Tensor:
    return F.cross_entropy(LINEAR(x), torch.tensor(9))


BY_NUMBERS = {
    out_of_range: ("index out of range in self", "return h.index_select(0, torch.tensor([9]))"),
    unknown_word: ("index out of range in self", "return h + EMBED(torch.tensor(7)) + 1"),
    no_such_class: ("Class values must be smaller than num_classes.", "return F.one_hot(LINEAR(x).argmax() + 4, 4)"),
    wrong_target: ("Target 9 is out of bounds.", "return F.cross_entropy(LINEAR(x), torch.tensor(9))"),
}


@pytest.mark.parametrize("fn", BY_NUMBERS, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("cache", [None, lambda x: tuple(x.tolist())], ids=["recorded", "kept"])
def test_errors_of_numbers_name_the_example_and_the_line(fn: Callable[..., Any], cache: Any) -> None:
    message, line = BY_NUMBERS[fn]
    lines, first = inspect.getsourcelines(fn)
    at = first + next(number for number, text in enumerate(lines) if text.strip() == line)

    def some(x: Tensor) -> Tensor:
        return fn(x) if x[0] < 5 else LINEAR(x)

    given = X.clone()
    given[0, 0] = given[1, 0] = 6.0
    with pytest.raises((RuntimeError, IndexError)) as error:
        weft.batched(some, stack=False, cache=cache)(given)
    assert str(error.value) == message
    assert error.value.__notes__ == ["in example 2", f"recorded in {fn.__name__}, {Path(__file__).name}:{at}: {line}"]


def test_long_lines_are_shortened() -> None:
    fn = lambda x: EMBED(torch.tensor(7)) + LINEAR(x) + LINEAR(x) + LINEAR(x) + LINEAR(x) + LINEAR(x) + LINEAR(x)  # noqa: E731
    with pytest.raises(IndexError) as error:
        weft.batched(fn)(X)
    line = fn.__code__.co_firstlineno
    assert error.value.__notes__[1] == (
        f"recorded in {fn.__code__.co_qualname}, {Path(__file__).name}:{line}: fn = lambda x: EMBED(torch.tensor(7)) + "
        "LINEAR(x) + LINEAR(x) + LINEAR(x) + LINEAR(x) + LINEAR(x) + ..."
    )


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.inner(x))


def test_running_statistics_say_the_way_out() -> None:
    rows = torch.randn(3, 5, 4)
    model = Normed()
    rest = (
        " in training mode changes its running statistics with every example, which cannot be batched; call .eval() on it, "
        "make it with track_running_stats=False, or use LayerNorm or GroupNorm"
    )
    for fn, name in {model: "BatchNorm1d in Sequential.1", weft.cell(Normed()): "BatchNorm1d in Normed.inner.1"}.items():
        with pytest.raises(weft.TraceError) as error:
            weft.batched(fn)(rows)
        assert str(error.value) == name + rest
    with pytest.raises(weft.TraceError) as error:
        weft.batched(lambda x: model.inner[1](x))(rows)
    assert str(error.value) == "BatchNorm1d" + rest
    model.eval()
    assert torch.allclose(weft.batched(model)(rows), torch.stack([model(x) for x in rows]), atol=1e-6)
    alone = nn.BatchNorm1d(4, track_running_stats=False)
    assert torch.allclose(weft.batched(alone)(rows), torch.stack([alone(x) for x in rows]), atol=1e-6)


def test_arrays_of_numpy_are_indices_and_nothing_else() -> None:
    def chosen(x: Tensor) -> Any:
        h = LINEAR(x)
        h = h.clone()
        h[np.array([3])] = 2.0
        return h[np.array([0, 1])], h[np.array([True, False, True, False])], torch.stack([h, h])[np.array([0]), np.array([1])]

    found = weft.batched(chosen)(X)
    for leaf, parts in zip(found, zip(*map(chosen, X), strict=True), strict=True):
        torch.testing.assert_close(leaf, torch.stack(list(parts)))
    message = (
        "an array of numpy of shape [4] beside a Value; make a tensor of it, with torch.from_numpy, or take the numbers with "
        "v.detach().numpy()"
    )
    for fn in (
        lambda x: LINEAR(x) * np.ones(4),
        lambda x: np.ones(4) + LINEAR(x),
    ):
        with pytest.raises(weft.TraceError) as error:
            weft.batched(fn)(X)
        assert str(error.value) == message
    with pytest.raises(weft.TraceError, match=r"put the call into a weft.cell, or pass weft.value\(v\)"):
        weft.batched(lambda x: np.exp(LINEAR(x)))(X)
    with pytest.raises(RuntimeError, match=r"Can't call numpy\(\) on Tensor that requires grad"):
        weft.batched(lambda x: np.asarray(LINEAR(x)))(X)


def test_who_walks_up_the_stack_of_a_fiber_ends_where_it_begins() -> None:
    """Torch does so for every error; above a fiber's first frame is what another call left there."""
    if boundary._begin() is None:
        pytest.skip("no compiler")
    library = ctypes.CDLL(None)
    if not hasattr(library, "backtrace_symbols"):
        pytest.skip("another C library")
    library.backtrace_symbols.restype = ctypes.POINTER(ctypes.c_char_p)
    outermost: list[bytes] = []

    def fn(x: Tensor) -> Tensor:
        frames = (ctypes.c_void_p * 500)()
        count = library.backtrace(frames, 500)
        outermost.append(library.backtrace_symbols(frames, count)[count - 1])
        return x

    weft.batched(fn)(X)
    assert len(outermost) == 3 and all(b"weft_begin" in symbol for symbol in outermost)
