"""Constants of the planner, all of them in one place, each with its reason.

One set for every prediction: tests hold it against published figures of others. What a strategy
sets by default is read from the strategy.
"""

from __future__ import annotations

LINK_EFFICIENCY = 0.8
"""Share of a link's nominal bits that carry gradients. TCP over Ethernet gives 90 to 95% to one
long stream; a collective stops and goes, and gets less."""

JITTER = 0.03
"""Spread (sigma of a lognormal) of a worker's time for one step. Of 512 workers the slowest is then
9% behind the average, which is about what synchronous jobs on shared machines lose."""

DRAWS = 64
"""Steps that are drawn to find how late the slowest worker is."""

LOCAL_BANDWIDTH = 10e9
"""Bytes a second between two workers of one host: PCIe 3.0 × 16, or a copy in memory."""

LOCAL_LATENCY = 5e-6
"""Seconds that a message between two workers of one host takes at least."""

RESTART_SECONDS = 180.0
"""From a failure to the first step after it: noticing, new workers, importing, loading."""

CHECKPOINT_SECONDS = 15.0
"""To write a checkpoint. They are as far apart as pays (Young's rule); a failure loses half of the
time between two."""

MICRO_BATCHES = 4
"""Micro-batches for each stage of a pipeline. GPipe's advice: the bubble is small from 4 on."""

WORTH_IT = 0.5
"""The least scaling efficiency at which more workers are recommended: half of what is paid for."""

CLEARLY = 0.9
"""A strategy has to take less than this share of the time of a simpler one to be preferred."""

MOST_WORKERS = 20_000
"""A ring of N has 2 (N - 1) steps of N transfers each: beyond this, a plan takes minutes."""
