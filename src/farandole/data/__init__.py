"""From columns to tensors: sources, shards, order and batches."""

from farandole.data.chunks import Extents, chunks, values_in
from farandole.data.columns import (
    BadColumn,
    BadRows,
    list_lengths,
    lists_with,
    rows_at_once,
    to_numpy,
)
from farandole.data.drive import Drive
from farandole.data.frame import ARROW_ERRORS, from_pandas, from_series
from farandole.data.images import pixels_of
from farandole.data.loader import Loader, Rows, split
from farandole.data.order import VIRTUAL_SHARDS, Array, positions_among_used
from farandole.data.parquet import row_groups
from farandole.data.pictures import EMPTY, PictureReader
from farandole.data.ragged_columns import RaggedArray, ragged_rows_at_once, to_ragged
from farandole.data.ragged_tensor import RaggedTensor
from farandole.data.schema import Columns, check_type, is_image, is_list, is_vector
from farandole.data.shards import Shard, Storage, scratch_folder, write_shard
from farandole.data.source import (
    ParquetSource,
    Placement,
    Source,
    StreamSource,
    TableSource,
    local_source,
    placed_rows,
    quoted,
    stream_source,
)

__all__ = [
    "ARROW_ERRORS",
    "EMPTY",
    "VIRTUAL_SHARDS",
    "Array",
    "BadColumn",
    "BadRows",
    "Columns",
    "Drive",
    "Extents",
    "Loader",
    "ParquetSource",
    "PictureReader",
    "Placement",
    "RaggedArray",
    "RaggedTensor",
    "Rows",
    "Shard",
    "Source",
    "Storage",
    "StreamSource",
    "TableSource",
    "check_type",
    "chunks",
    "from_pandas",
    "from_series",
    "is_image",
    "is_list",
    "is_vector",
    "list_lengths",
    "lists_with",
    "local_source",
    "pixels_of",
    "placed_rows",
    "positions_among_used",
    "quoted",
    "ragged_rows_at_once",
    "row_groups",
    "rows_at_once",
    "scratch_folder",
    "split",
    "stream_source",
    "to_numpy",
    "to_ragged",
    "values_in",
    "write_shard",
]
