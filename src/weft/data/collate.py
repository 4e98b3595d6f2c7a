"""`collate`: a `collate_fn` that turns a list of examples into a `Batch`, in whatever process the loader runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch.utils.data import default_collate

from weft.data.batch import Batch
from weft.errors import TypeMismatch

Pick = int | tuple[int, ...] | Callable[[Any], Any] | None

BOTH_PARTS = "where an item is a graph and its x, pass inputs=(0, 1)"


class Collating(Protocol):
    """A network that can build its mini-batches apart from running them."""

    def collate_examples(self, examples: Sequence[Any]) -> Any:
        """The content of a `Batch`: the examples merged, without touching a device."""


def collate(
    net: Collating, inputs: Pick = None, rest: Callable[[list[Any]], Any] = default_collate
) -> Callable[[list[Any]], tuple[Batch, Any]]:
    """A `collate_fn` for an ordinary `DataLoader`: it yields `(Batch, rest)`, and `net(batch)` runs the batch.

    Items are the examples themselves, or tuples. Of a tuple `inputs` picks the example: a position (default: the first),
    several positions (`inputs=(0, 1)` where items are a graph and its x), or a function of the item. What is not picked is
    collated by `rest`; of items without anything else it is None. A function leaves the whole item to `rest`.

    >>> import torch, weft, weft.data
    >>> tree = weft.Graph.from_parents([2, 2, -1])
    >>> items = [((tree, torch.randn(3, 4)), label) for label in (0, 1)]
    >>> model = weft.nn.TreeGRU(4, 5)
    >>> batch, labels = weft.data.collate(model)(items)
    >>> len(batch), model(batch).shape, labels
    (2, torch.Size([6, 5]), tensor([0, 1]))
    """
    if not hasattr(net, "collate_examples"):
        wanted, came = "a weft.VertexFunction, or what weft.batched or weft.blocks.compile gave", type(net).__name__
        raise TypeMismatch(f"collate: expected {wanted}, got {came}")
    return _Collate(net, inputs, rest)


class _Collate:
    """An object and not a closure, so that it can be sent to worker processes."""

    def __init__(self, net: Collating, inputs: Pick, rest: Callable[[list[Any]], Any]) -> None:
        self.net, self.inputs, self.rest = net, inputs, rest

    def __call__(self, items: list[Any]) -> tuple[Batch, Any]:
        parts = [_split(item, self.inputs) for item in items]
        others = [other for _, other in parts]
        rest = None if all(other is None for other in others) else self._rest(others)
        return Batch(len(items), self.net.collate_examples([example for example, _ in parts])), rest

    def _rest(self, others: list[Any]) -> Any:
        try:
            return self.rest(others)
        except Exception as error:
            if self.inputs is None:
                error.add_note(
                    "weft.data.collate: the first part of every item was taken as the example, and rest= failed on what is "
                    f"left; {BOTH_PARTS}"
                )
            raise


def _split(item: Any, inputs: Pick) -> tuple[Any, Any]:
    """An item as its example and everything else."""
    if callable(inputs):
        return inputs(item), item
    if not isinstance(item, tuple) and (inputs is None or not isinstance(item, list)):
        return item, None
    places = inputs if isinstance(inputs, tuple) else (inputs or 0,)
    others = tuple(part for at, part in enumerate(item) if at not in places)
    example = tuple(item[at] for at in places) if isinstance(inputs, tuple) else item[places[0]]
    return example, others[0] if len(others) == 1 else others or None
