from __future__ import annotations

from hypothesis import HealthCheck, settings

# How fast examples come is the machine's load, not a fault of the code.
settings.register_profile("any load", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any load")
