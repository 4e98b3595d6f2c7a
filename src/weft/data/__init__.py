"""Loading data: mini-batches built in the worker processes of an ordinary `DataLoader`."""

from weft.data.batch import Batch as Batch
from weft.data.collate import collate as collate
from weft.data.sampler import DepthSampler as DepthSampler
