"""A model of Triton's Python backend: `model.tvmf`, made by `tvm-forest compile`, beside this file.

Requests that Triton has joined are predicted by one call; outputs are methods of the predictor.
"""

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

import tvm_forest


class TritonPythonModel:
    """What Triton makes once for each instance."""

    def initialize(self, args):
        """Load the predictor; nothing is compiled."""
        folder = Path(args["model_repository"]) / args["model_version"]
        self.predictor = tvm_forest.load_predictor(folder / "model.tvmf")
        self.outputs = [x["name"] for x in json.loads(args["model_config"])["output"]]

    def execute(self, requests):
        """Answer each request; one whose rows are refused fails by itself."""
        batches = [pb_utils.get_input_tensor_by_name(x, "rows").as_numpy() for x in requests]
        try:
            return self.answer(requests, batches)
        except tvm_forest.InputError as error:
            if len(requests) > 1:
                return [self.execute([request])[0] for request in requests]
            refusal = pb_utils.TritonError(str(error))
            return [pb_utils.InferenceResponse(output_tensors=[], error=refusal)]

    def answer(self, requests, batches):
        """Return the responses to all requests, from one call for each output that is wanted."""
        wanted = {name for request in requests for name in request.requested_output_names()}
        rows, ends = np.concatenate(batches), np.cumsum([len(batch) for batch in batches])[:-1]
        parts = {}
        for name in [name for name in self.outputs if name in wanted]:
            found = getattr(self.predictor, name)(rows)
            parts[name] = np.split(found.reshape(len(rows), -1), ends)
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor(x, parts[x][i]) for x in request.requested_output_names()]
            )
            for i, request in enumerate(requests)
        ]
