"""Combinators: networks over nested data, put together from blocks.

>>> import torch, weft.blocks as wb
>>> net = wb.Record({"age": wb.Scalar(), "scores": wb.Map(wb.Scalar()) >> wb.Mean()}) >> wb.Concat()
>>> net.eval_one({"age": 30, "scores": [1, 2]})
tensor([30.0000,  1.5000])
"""

from weft.blocks.beyond import Attend as Attend
from weft.blocks.beyond import Filter as Filter
from weft.blocks.beyond import Pad as Pad
from weft.blocks.beyond import Softmax as Softmax
from weft.blocks.beyond import Stack as Stack
from weft.blocks.beyond import While as While
from weft.blocks.block import Block as Block
from weft.blocks.block import convert_to_block as convert_to_block
from weft.blocks.building import BlockProgram as BlockProgram
from weft.blocks.compiled import CompiledBlock as CompiledBlock
from weft.blocks.compiled import compile as compile
from weft.blocks.compose import AllOf as AllOf
from weft.blocks.compose import OneOf as OneOf
from weft.blocks.compose import Pipe as Pipe
from weft.blocks.compose import Record as Record
from weft.blocks.constants import Length as Length
from weft.blocks.constants import OneHot as OneHot
from weft.blocks.constants import OneHotFromList as OneHotFromList
from weft.blocks.constants import Scalar as Scalar
from weft.blocks.constants import Tensor as Tensor
from weft.blocks.constants import Vector as Vector
from weft.blocks.declare import ForwardDeclaration as ForwardDeclaration
from weft.blocks.functions import Concat as Concat
from weft.blocks.functions import Function as Function
from weft.blocks.indexing import Broadcast as Broadcast
from weft.blocks.indexing import GetItem as GetItem
from weft.blocks.indexing import NGrams as NGrams
from weft.blocks.indexing import Nth as Nth
from weft.blocks.indexing import Slice as Slice
from weft.blocks.indexing import Zip as Zip
from weft.blocks.indexing import ZipWith as ZipWith
from weft.blocks.layers import FC as FC
from weft.blocks.layers import Embedding as Embedding
from weft.blocks.layers import FractalNet as FractalNet
from weft.blocks.leaves import FromTensor as FromTensor
from weft.blocks.leaves import Identity as Identity
from weft.blocks.leaves import InputTransform as InputTransform
from weft.blocks.leaves import Optional as Optional
from weft.blocks.leaves import Void as Void
from weft.blocks.leaves import Zeros as Zeros
from weft.blocks.reductions import Max as Max
from weft.blocks.reductions import Mean as Mean
from weft.blocks.reductions import Metric as Metric
from weft.blocks.reductions import Min as Min
from weft.blocks.reductions import Sum as Sum
from weft.blocks.sequences import RNN as RNN
from weft.blocks.sequences import Fold as Fold
from weft.blocks.sequences import Map as Map
from weft.blocks.sequences import Reduce as Reduce
from weft.blocks.types import BroadcastSequenceType as BroadcastSequenceType
from weft.blocks.types import PyObjectType as PyObjectType
from weft.blocks.types import ResultType as ResultType
from weft.blocks.types import SequenceType as SequenceType
from weft.blocks.types import TensorType as TensorType
from weft.blocks.types import TupleType as TupleType
from weft.blocks.types import VoidType as VoidType
from weft.blocks.types import canonicalize_type as canonicalize_type
from weft.blocks.types import convert_to_type as convert_to_type
from weft.blocks.wiring import Composition as Composition
