"""From columns to tensors: sources, shards, order and batches."""

from farandole.data.arrow_file import read_table, table_file, write_table
from farandole.data.chunking import RowSizes, chunk_rows
from farandole.data.columns import (
    BadColumn,
    BadRows,
    list_lengths,
    lists_containing,
    rows_at_once,
    to_numpy,
)
from farandole.data.first_rows import (
    WIDEST_VECTOR,
    FirstRows,
    first_rows,
    keep_first_rows,
    narrow_vectors,
)
from farandole.data.folds import fold_of, stratified_fold_of
from farandole.data.image_decoding import decode_image, most_pixels, pixels_of
from farandole.data.image_files import EMPTY_FILE, ImageFileReader
from farandole.data.kept_table import KeptTable
from farandole.data.loader import Loader, Rows, train_validation_split
from farandole.data.mapped_array import MappedArray, RaggedColumn
from farandole.data.order import VIRTUAL_SHARDS, Array, positions_among_used
from farandole.data.packing import pack_groups, unpacked
from farandole.data.pandas_to_arrow import ARROW_ERRORS, array_from_series, table_from_pandas
from farandole.data.parquet import row_groups
from farandole.data.ragged_columns import RaggedArray, ragged_rows_at_once, to_ragged
from farandole.data.ray_rows import RayData, collected, is_ray_data, ray_data
from farandole.data.schema import (
    KEY,
    Columns,
    Fold,
    check_type,
    is_image,
    is_list,
    is_vector,
    refuse_reserved,
)
from farandole.data.scratch import scratch_folder
from farandole.data.shard_writer import Storage, write_shard
from farandole.data.shards import Shard
from farandole.data.source import (
    ParquetSource,
    Placement,
    Source,
    TableSource,
    local_source,
    packed_columns,
    placed_rows,
    quote_name,
    stream_source,
    vector_to_array,
    with_fold,
    with_plain_columns,
)

__all__ = [
    "ARROW_ERRORS",
    "EMPTY_FILE",
    "KEY",
    "VIRTUAL_SHARDS",
    "WIDEST_VECTOR",
    "Array",
    "BadColumn",
    "BadRows",
    "Columns",
    "FirstRows",
    "Fold",
    "ImageFileReader",
    "KeptTable",
    "Loader",
    "MappedArray",
    "ParquetSource",
    "Placement",
    "RaggedArray",
    "RaggedColumn",
    "RayData",
    "RowSizes",
    "Rows",
    "Shard",
    "Source",
    "Storage",
    "TableSource",
    "array_from_series",
    "check_type",
    "chunk_rows",
    "collected",
    "decode_image",
    "first_rows",
    "fold_of",
    "is_image",
    "is_list",
    "is_ray_data",
    "is_vector",
    "keep_first_rows",
    "list_lengths",
    "lists_containing",
    "local_source",
    "most_pixels",
    "narrow_vectors",
    "pack_groups",
    "packed_columns",
    "pixels_of",
    "placed_rows",
    "positions_among_used",
    "quote_name",
    "ragged_rows_at_once",
    "ray_data",
    "read_table",
    "refuse_reserved",
    "row_groups",
    "rows_at_once",
    "scratch_folder",
    "stratified_fold_of",
    "stream_source",
    "table_file",
    "table_from_pandas",
    "to_numpy",
    "to_ragged",
    "train_validation_split",
    "unpacked",
    "vector_to_array",
    "with_fold",
    "with_plain_columns",
    "write_shard",
    "write_table",
]
