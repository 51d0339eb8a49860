"""Planning: what training would cost on machines that aren't there yet."""

from farandole.planning.auto import choose
from farandole.planning.cluster import Cluster
from farandole.planning.network import find as find_network
from farandole.planning.plan import Plan, plan
from farandole.planning.profile import Layer, Profile
from farandole.planning.report import closing, require_matplotlib, tables

__all__ = [
    "Cluster",
    "Layer",
    "Plan",
    "Profile",
    "choose",
    "closing",
    "find_network",
    "plan",
    "require_matplotlib",
    "tables",
]
