"""What LitServe runs in its worker process, which imports it by name (see `serve_peers`)."""

from __future__ import annotations

from typing import Any

import litserve as ls
import numpy as np

import farandole


class Api(ls.LitAPI):  # type: ignore[misc]
    """A row in, probabilities out."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = folder

    def setup(self, device: str) -> None:
        self.predictor = farandole.load(self._folder)

    def decode_request(self, request):  # type: ignore[no-untyped-def]  # LitServe reads its types
        return np.array(request["row"], np.float32)

    def predict(self, row: Any) -> Any:
        return self.predictor.predict_columns([row[None]]).probability[0]

    def encode_response(self, output: Any) -> Any:
        return {"probability": output.tolist()}
