"""A saved network behind Ray Serve: five lines, with Ray's replicas, routes and autoscaling.

pip install '.[ray]' 'ray[serve]'
python examples/ray_serve.py
"""

import json
import urllib.request

import numpy as np
import ray
from sklearn.datasets import load_digits

import farandole
from farandole.networks import MLP

try:
    from ray import serve
except ImportError as error:
    raise SystemExit(
        f"Ray Serve is an extra of Ray's: pip install 'ray[serve]' ({error})"
    ) from None

PORT = 8123
data = load_digits()
pixels = (data.data / 16).astype(np.float32)
result = farandole.train(
    MLP((64, 32, 10), seed=1), (pixels, data.target), epochs=10, learning_rate=0.01, progress=False
)
result.save("digits-model", overwrite=True)


@serve.deployment(ray_actor_options={"num_cpus": 1})
class Digits:
    def __init__(self, folder: str) -> None:
        self.predictor = farandole.load(folder)  # runs no code of the folder's

    async def __call__(self, request) -> list[int]:
        rows = np.array((await request.json())["rows"], np.float32)
        return self.predictor.predict_columns([rows]).prediction.astype(int).tolist()


ray.init(num_cpus=2, include_dashboard=False, object_store_memory=200 << 20, log_to_driver=False)
serve.start(http_options={"port": PORT})
serve.run(Digits.bind("digits-model"), route_prefix="/digits")

body = json.dumps({"rows": pixels[:100].tolist()}).encode()
request = urllib.request.Request(
    f"http://127.0.0.1:{PORT}/digits", body, {"Content-Type": "application/json"}
)
with urllib.request.urlopen(request, timeout=30) as answer:
    digits = json.loads(answer.read())
own = farandole.load("digits-model").predict_columns([pixels[:100]]).prediction.astype(int).tolist()
accuracy = float(np.mean(np.array(digits) == data.target[:100]))
print(f"Ray Serve's answers equal our own: {digits == own}. Accuracy: {accuracy:.2f}")
serve.shutdown()
ray.shutdown()
