"""A runtime of MLServer, which KServe and Seldon start: a saved predictor as an MLModel."""

from mlserver import MLModel
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.errors import InferenceError
from mlserver.types import InferenceRequest, InferenceResponse
from mlserver.utils import get_model_uri

import tvm_forest

OUTPUTS = ("predict", "predict_proba", "predict_margin", "apply")


class ForestRuntime(MLModel):
    """Answers with methods of the predictor, which are the names of outputs."""

    async def load(self) -> bool:
        """Load the predictor; nothing is compiled."""
        path = await get_model_uri(self._settings, wellknown_filenames=["model.tvmf"])
        self.predictor = tvm_forest.load_predictor(path)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Answer a request of one tensor of rows; who names no output gets `predict`."""
        names = [output.name for output in payload.outputs or []] or ["predict"]
        unknown = [name for name in names if name not in OUTPUTS]
        if unknown:
            raise InferenceError(f"output {unknown[0]!r} is unknown (have: {', '.join(OUTPUTS)})")
        rows = self.decode(payload.inputs[0], default_codec=NumpyCodec)
        try:
            arrays = {name: getattr(self.predictor, name)(rows) for name in names}
        except tvm_forest.InputError as error:
            raise InferenceError(str(error)) from None
        outputs = [
            StringCodec.encode_output(name, array.tolist())
            if array.dtype == object  # labels that are texts
            else NumpyCodec.encode_output(name, array)
            for name, array in arrays.items()
        ]
        return InferenceResponse(model_name=self.name, model_version=self.version, outputs=outputs)
