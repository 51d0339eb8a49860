"""Thresholds of a classifier, under Spark ML's rules: the class with the largest p/t wins."""

from __future__ import annotations

from dataclasses import replace

from pyspark.ml.param.shared import HasThresholds

from farandole.artifact import Signature
from farandole.errors import InputError
from farandole.spark.params import refuse


def with_thresholds(signature: Signature, instance: HasThresholds) -> Signature:
    """What a network takes and gives, with the thresholds that are set, if they suit it."""
    classes = signature.num_classes if signature.is_classifier else None
    thresholds = chosen_thresholds(instance, classes)
    if thresholds and (signature.heads or signature.positions):
        raise InputError("thresholds are for one class a row, of a network with one head.")
    if thresholds and not signature.is_classifier:
        raise InputError("thresholds are for a classifier, and this network learns numbers.")
    return replace(signature, thresholds=thresholds) if thresholds else signature


def chosen_thresholds(instance: HasThresholds, classes: int | None) -> tuple[float, ...]:
    """The thresholds that are set, one a class, or none; where `classes` isn't known, any number.

    Raises unless there are as many as classes, none is negative, and at most one of them is zero.
    """
    if not instance.isSet("thresholds"):
        return ()
    thresholds = instance.getThresholds()
    if classes is not None and len(thresholds) != classes:
        raise InputError(
            f"{type(instance).__name__} has non-matching numClasses and thresholds.length. "
            f"numClasses={classes}, but thresholds has length {len(thresholds)}"
        )
    if min(thresholds, default=-1) < 0 or thresholds.count(0) > 1:
        refuse(instance, "thresholds", "positive numbers, of which one may be zero")
    return tuple(thresholds)
