"""Pages and pictures that explain: computed when they are asked for, never stored."""

from farandole.explain.activations import (
    activation_curves,
    activation_table,
    explain_activations,
)
from farandole.explain.depth import explain_depth
from farandole.explain.depth_study import FULL, QUICK, DepthPlan, DepthStudy, study_depth
from farandole.explain.depth_variants import VARIANTS, Variant
from farandole.explain.topics import TOPICS, Topic, explain

__all__ = [
    "FULL",
    "QUICK",
    "TOPICS",
    "VARIANTS",
    "DepthPlan",
    "DepthStudy",
    "Topic",
    "Variant",
    "activation_curves",
    "activation_table",
    "explain",
    "explain_activations",
    "explain_depth",
    "study_depth",
]
