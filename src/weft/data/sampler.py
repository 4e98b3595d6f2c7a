"""`DepthSampler`: mini-batches of examples of similar depth.

The number of steps of a batch is the depth of its deepest example, so a batch of similar depths wastes least. The rule:
shuffle everything, cut it into pools of so many batches, sort each pool by depth, cut it into batches, shuffle the batches. A
pool of one batch is plain shuffling; one pool of everything is plain sorting, the same neighbours in every epoch.

    shuffled   5 1 9 2 | 8 3 7 1        pools of two batches of two
    sorted     1 2 5 9 | 1 3 7 8
    batches    (1 2) (5 9) (1 3) (7 8), in random order
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import Sampler

from weft.errors import TypeMismatch


class DepthSampler(Sampler[list[int]]):
    """A batch sampler of similar depths, reshuffled each epoch.

    `depths[i]` is the depth (or length, or size) of example i. Every epoch is shuffled anew; `set_epoch` chooses the epoch, as
    processes that train together need it, and `generator` the seed.

    >>> import weft.data
    >>> sampler = weft.data.DepthSampler([5, 1, 9, 2, 8], batch_size=2, pool=3)
    >>> len(sampler), sorted(i for batch in sampler for i in batch)
    (3, [0, 1, 2, 3, 4])
    """

    def __init__(
        self,
        depths: Sequence[int],
        batch_size: int,
        pool: int = 16,
        drop_last: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        for name, number in (("batch_size", batch_size), ("pool", pool)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise TypeMismatch(f"DepthSampler: {name}: expected a positive integer, got {number!r}")
        self.depths = torch.as_tensor(depths, device="cpu")
        if self.depths.dim() != 1:
            raise TypeMismatch(f"DepthSampler: depths: expected one number per example, got shape {list(self.depths.shape)}")
        self.batch_size, self.pool, self.drop_last = batch_size, pool, drop_last
        self.seed = int(
            torch.randint(1 << 62, (), generator=generator, device="cpu" if generator is None else generator.device)
        )
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration is."""
        self.epoch = epoch

    def __len__(self) -> int:
        whole, left = divmod(len(self.depths), self.batch_size)
        return whole + (left > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        self.epoch += 1
        order = torch.randperm(len(self.depths), generator=generator, device="cpu")
        batches: list[list[int]] = []
        for chosen in order.split(self.batch_size * self.pool):
            by_depth = chosen[torch.argsort(self.depths[chosen], stable=True)]
            batches += [batch.tolist() for batch in by_depth.split(self.batch_size)]
        full = [batch for batch in batches if len(batch) == self.batch_size]
        rest = [batch for batch in batches if 0 < len(batch) < self.batch_size and not self.drop_last]
        for at in torch.randperm(len(full), generator=generator, device="cpu").tolist():
            yield full[at]
        yield from rest
