"""From columns to tensors: sources, shards, order and batches."""

from farandole.data.schema import Columns
from farandole.data.source import ParquetSource, Placement, Source, StreamSource, TableSource

__all__ = ["Columns", "ParquetSource", "Placement", "Source", "StreamSource", "TableSource"]
