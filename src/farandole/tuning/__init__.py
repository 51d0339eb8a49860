"""Tuning: many networks side by side, the better ones getting more."""

from farandole.tuning.calls import tune_calls
from farandole.tuning.objective import REFUSED_OPTIONS, Training
from farandole.tuning.population import Population
from farandole.tuning.reporting import TrialPruned, report
from farandole.tuning.saved import load_study, save_study, space_from_json, space_to_json
from farandole.tuning.space import Choice, Float, Int, Space, Widths, names_of, params_of
from farandole.tuning.study import Study
from farandole.tuning.tune import tune

__all__ = [
    "REFUSED_OPTIONS",
    "Choice",
    "Float",
    "Int",
    "Population",
    "Space",
    "Study",
    "Training",
    "TrialPruned",
    "Widths",
    "load_study",
    "names_of",
    "params_of",
    "report",
    "save_study",
    "space_from_json",
    "space_to_json",
    "tune",
    "tune_calls",
]
