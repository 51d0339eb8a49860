"""The rows that a model was trained on, for its summary: they belong to a Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from farandole import _spark
from farandole.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class TrainingRows:
    """A DataFrame that copies of a model share, and that its pickles leave out.

    >>> rows = TrainingRows()
    >>> rows.known
    False
    """

    def __init__(self, frame: DataFrame | None = None) -> None:
        self._frame = frame

    def __deepcopy__(self, memo: dict[int, Any]) -> TrainingRows:
        return self  # it stands for something in a JVM, of which there is one

    def __reduce__(self) -> tuple[Any, ...]:
        return TrainingRows, ()

    @property
    def known(self) -> bool:
        """Whether there are any: not after loading."""
        return self._frame is not None

    def require(self, owner: str) -> DataFrame:
        """The DataFrame, if it is there and can still be read."""
        if self._frame is None:
            raise InputError(
                f"No training summary available for this {owner}: it was loaded. "
                "evaluate(dataset) gives the metrics."
            )
        if _spark.is_stopped(self._frame.sparkSession):
            raise InputError(
                f"The rows that this {owner} was trained on can't be read any more: the Spark "
                "session that they belong to has been stopped. evaluate(dataset) gives the metrics "
                "of a DataFrame of the new session."
            )
        return self._frame
