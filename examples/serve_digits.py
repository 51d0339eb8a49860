"""Train on digits, serve the network, ask for one of them. No Spark, no JVM.

python examples/serve_digits.py
"""

import json
import subprocess
import sys
import urllib.request

import pandas as pd
from sklearn.datasets import load_digits
from torch import nn

import farandole

data = load_digits()
table = pd.DataFrame({"pixels": list((data.data / 16).astype("float32")), "label": data.target})
network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
result = farandole.train(network, table, features="pixels", epochs=10, learning_rate=0.01)
result.save("digits-net", overwrite=True)

command = [sys.executable, "-m", "farandole", "serve", "digits-net", "--port", "0"]
server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
assert server.stdout is not None
address = server.stdout.readline().split(" at ")[1].strip()

rows = [{"pixels": row.tolist()} for row in table["pixels"][:100]]
with urllib.request.urlopen(f"{address}/predict", json.dumps({"rows": rows}).encode()) as reply:
    answers = [one["prediction"] for one in json.load(reply)["predictions"]]
accuracy = sum(one == label for one, label in zip(answers, table["label"], strict=False)) / 100
print(f"{address} says of the first digit: {answers[0]}; {accuracy:.0%} of 100 are right")
server.terminate()
server.wait(30)
