"""Pages and pictures that explain: computed when they are asked for, never stored."""

from farandole.explain.activations import (
    activation_curves,
    activation_table,
    explain_activations,
)
from farandole.explain.depth import explain_depth
from farandole.explain.depth_study import QUICK, DepthPlan, DepthStudy, study_depth
from farandole.explain.depth_variants import VARIANTS
from farandole.explain.topics import TOPICS, explain

__all__ = [
    "QUICK",
    "TOPICS",
    "VARIANTS",
    "DepthPlan",
    "DepthStudy",
    "activation_curves",
    "activation_table",
    "explain",
    "explain_activations",
    "explain_depth",
    "study_depth",
]
