"""Who sides with whom in Zachary's karate club? A graph network over neighbourhoods, on Spark.

Each row is one member: the subgraph of everybody they spend time with, that member first. The
network is told who the two leaders are, and learns from the members whose side is known.

python examples/karate_club.py
"""

import networkx as nx
import pandas as pd
from pyspark.sql import SparkSession

from farandole.networks import GNN
from farandole.spark import TorchEstimator

LEADERS = 0, 33  # the instructor and the president, who fell out
club = nx.karate_club_graph()


def neighbourhood(member: int) -> dict:
    """One row: nodes (features of each), edges (pairs of positions among them), and the side."""
    around = nx.ego_graph(club, member, radius=1)
    order = [member, *sorted(set(around) - {member})]
    place = {name: position for position, name in enumerate(order)}
    return {
        "member": member,
        "nodes": [[float(n == LEADERS[0]), float(n == LEADERS[1]), 1.0] for n in order],
        "edges": [[place[a], place[b]] for a, b in around.edges],
        "label": int(club.nodes[member]["club"] == "Officer"),
        "unknown": member % 3 == 2,  # every third member is only to be guessed
    }


spark = SparkSession.builder.master("local[2]").appName("karate").getOrCreate()
members = spark.createDataFrame(pd.DataFrame([neighbourhood(member) for member in club]))

model = TorchEstimator(
    network=GNN(features=3, outputs=2, hidden=16, layers=2, readout="first", seed=1),
    featuresCols=["nodes", "edges"],
    validationIndicatorCol="unknown",
    learningRate=0.01,
    epochs=40,
    batchSize=8,
    numWorkers=2,
    progress=False,
).fit(members)

guesses = model.transform(members).where("unknown").select("member", "label", "prediction")
guesses.show()
accuracy = guesses.where("label = prediction").count() / guesses.count()
print(f"{accuracy:.0%} of the unknown members were put on the right side")
