"""Compiled blocks: modules over lists of examples."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from weft.blocks.block import Block, convert_to_block
from weft.blocks.building import BlockProgram, merge
from weft.blocks.code import code_of
from weft.blocks.evaluate import evaluate, record, run
from weft.blocks.modules import SharedModule
from weft.blocks.results import check_ragged
from weft.data.batch import Batch
from weft.errors import StructureError, TypeMismatch
from weft.run.options import Options


class CompiledBlock(SharedModule):
    """A block over many examples at once, with the block's own parameters and `state_dict` keys. Made by `compile`."""

    _weft_batches = True

    def __init__(
        self,
        block: Block,
        ragged: str,
        options: Options,
        stack: bool = True,
        cache: Callable[[Any], Hashable] | bool | None = None,
    ) -> None:
        super().__init__()
        self.__dict__["block"] = block
        self.ragged, self.options, self.stack = ragged, options, stack
        self._cache_key = (lambda x: x) if cache is True else cache or None
        self._programs: dict[Hashable, BlockProgram] = {}
        code = code_of(block)
        check_ragged(block, ragged)
        if cache and code.value_dependent is not None:
            where = code.value_dependent._path()
            raise StructureError(f"{where}: what is computed depends on the values of tensors; no program can be kept (cache)")

    @property
    def training(self) -> bool:
        """That of the block: what is compiled is the block itself."""
        return self.__dict__["block"].training if "block" in self.__dict__ else True

    @training.setter
    def training(self, mode: bool) -> None:
        if "block" in self.__dict__:
            self.__dict__["block"].training = mode

    @property
    def metrics(self) -> dict[str, Tensor]:
        """What `Metric` blocks saw in the last call, by name, with gradient."""
        found: dict[str, Tensor] = self.__dict__["block"].metrics
        return found

    @property
    def metric_labels(self) -> dict[str, list[Any]]:
        """The labels that came with it."""
        found: dict[str, list[Any]] = self.__dict__["block"].metric_labels
        return found

    @property
    def one_example(self) -> Block:
        """The block that was compiled."""
        block: Block = self.__dict__["block"]
        return block

    def program(self, example: Any) -> BlockProgram:
        """The calls of one example: recorded, not computed. Can be kept, pickled and given to this module later."""
        return record(self.__dict__["block"], [example])

    def merge(self, programs: Sequence[BlockProgram]) -> BlockProgram:
        """Programs side by side, as one."""
        return merge(code_of(self.__dict__["block"]), programs)

    def run(self, programs: Sequence[BlockProgram]) -> Any:
        """Compute programs together."""
        block = self.__dict__["block"]
        results = run(block, programs, self.options)
        return self._shaped(results)

    def _shaped(self, results: Any) -> Any:
        type = code_of(self.__dict__["block"]).type
        return results.batched(type, self.ragged) if self.stack else results.single(type)

    def forward(self, examples: Any) -> Any:
        block = self.__dict__["block"]
        if isinstance(examples, Batch):
            examples = examples.content
        if isinstance(examples, BlockProgram):
            return self.run([examples])
        if isinstance(examples, Tensor) and examples.dim():
            examples = examples.unbind(0)
        if not isinstance(examples, list | tuple):
            raise TypeMismatch(f"{block!r}: expected a list or tuple of examples, a tensor or a Batch, got {_kind(examples)}")
        if examples and all(isinstance(example, BlockProgram) for example in examples):
            return self.run(examples)
        if self._cache_key is not None and examples:
            return self.run([self._cached(example, number) for number, example in enumerate(examples)])
        return self._shaped(evaluate(block, examples, self.options))

    def _cached(self, example: Any, number: int) -> BlockProgram:
        assert callable(self._cache_key)
        block, key = self.__dict__["block"], kept_under(self._cache_key(example), example)
        found = self._programs.get(key)
        if found is None or found.made_by != code_of(block).key:
            found = self._programs[key] = record(block, [example], number)
        return found

    def collate_examples(self, examples: Sequence[Any]) -> BlockProgram:
        """What a `weft.data.Batch` of these examples holds."""
        return record(self.__dict__["block"], examples)

    def cache_clear(self) -> None:
        """Forget the programs that were kept."""
        self._programs.clear()

    def _parts(self) -> Mapping[str, nn.Module]:
        block: Block = self.__dict__["block"]
        return block._parts()

    def __getattr__(self, name: str) -> Any:
        """Parts, parameters and buffers of the block, so that their paths lead somewhere from here as well."""
        block = self.__dict__.get("block")
        if block is not None:
            for found in (block._parts(), block._parameters, block._buffers):
                if name in found:
                    return found[name]
        return super().__getattr__(name)

    def _reach(self) -> Iterator[tuple[str, nn.Module]]:
        """Itself, and the block with all its parts under their own paths."""
        yield "", self
        yield from self.__dict__["block"]._reach()

    def __repr__(self) -> str:
        return f"compiled {self.__dict__['block']!r}"


def _kind(given: Any) -> str:
    return "a tensor without dimensions" if isinstance(given, Tensor) else type(given).__name__


def kept_under(key: Any, example: Any) -> Hashable:
    """The key together with the types in it and that of the example: 1, 1.0 and True are equal, what is made of them is not."""
    kinds: list[type] = [type(example)]
    pending = [key]
    while pending:
        each = pending.pop()
        kinds.append(type(each))
        if isinstance(each, tuple | list):
            pending += each
        elif isinstance(each, dict):
            pending += itertools.chain.from_iterable(each.items())
    return key, tuple(kinds)


def compile(block: Any, ragged: str = "list", **options: Any) -> CompiledBlock:
    """A module that evaluates a block on lists of examples, batched.

    Tensors come back with a batch dimension. Sequences come back as a list per example, as a padded tensor and a mask
    (`ragged="padded"`) or as a jagged nested tensor (`ragged="nested"`). `cache` keeps the program of each example under
    `cache(example)` (True: the example itself).

    >>> import weft.blocks as wb
    >>> net = wb.compile(wb.Map(wb.Scalar()), ragged="padded")
    >>> rows, mask = net([[1, 2], [3]])
    >>> rows.tolist()
    [[1.0, 2.0], [3.0, 0.0]]
    """
    return batched(block, ragged=ragged, **options)


def batched(
    block: Any, *, ragged: str = "list", stack: bool = True, in_dims: Any = None, cache: Any = None, **options: Any
) -> CompiledBlock:
    if in_dims is not None:
        raise TypeMismatch("in_dims: a block takes one list of examples")
    return CompiledBlock(convert_to_block(block), ragged, Options.of(options), stack, cache)
