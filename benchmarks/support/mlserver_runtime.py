"""What MLServer runs, which imports it by name (see `serve_peers`)."""

from __future__ import annotations

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse

import farandole


class Runtime(MLModel):  # type: ignore[misc]
    """A row in, probabilities out; the network is at the model's URI."""

    async def load(self) -> bool:
        self.predictor = farandole.load(self.settings.parameters.uri)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        rows = NumpyCodec.decode_input(payload.inputs[0]).astype(np.float32)
        found = self.predictor.predict_columns([rows]).probability
        output = NumpyCodec.encode_output("probability", found)
        return InferenceResponse(model_name=self.name, outputs=[output])
