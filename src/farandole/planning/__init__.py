"""Planning: what training would cost on machines that aren't there yet."""

from farandole.planning.auto import choose
from farandole.planning.case import Case, Price
from farandole.planning.cluster import Cluster
from farandole.planning.picture import require_matplotlib
from farandole.planning.plan import Plan, plan
from farandole.planning.profile import Layer, Profile
from farandole.planning.recommendation import Recommendation
from farandole.planning.strategies import STRATEGIES
from farandole.planning.subject import find as find_network
from farandole.planning.text import closing, tables

__all__ = [
    "STRATEGIES",
    "Case",
    "Cluster",
    "Layer",
    "Plan",
    "Price",
    "Profile",
    "Recommendation",
    "choose",
    "closing",
    "find_network",
    "plan",
    "require_matplotlib",
    "tables",
]
