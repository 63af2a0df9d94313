"""Libraries of functions that run on a GPU, as a predictor calls them.

takes: source, plans, a backend; gives: KernelLibrary. It opens the GPU on the first call, so that a
model can be built, inspected and saved on a machine without one.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ...errors import BuildError
from ...forest import Array
from ...system.process.locks import make_lock
from . import ModelArray
from .executor import BoundPlan, Executor
from .plan import Plan
from .staging import run_on_host

LOG = logging.getLogger(__name__)

STORED = ("kind", "source", "plans", "architecture", "images")


class Backend(NamedTuple):
    """How kernels are compiled and loaded for a GPU.

    Attributes:
        open: function that opens the driver of the GPU.
        translate: function of the source, the architecture of the GPU and the version of its driver
            (or None); returns the image that the driver loads.
    """

    open: Callable[[], Any]
    translate: Callable[[str, str, int | None], bytes]


@dataclass
class KernelLibrary:
    """Functions that run kernels on arrays.

    Attributes:
        kind: kind of the target.
        source: text of the kernels.
        plans: launch plan of each function, by name.
        backend: how the kernels are compiled and loaded.
        architecture: architecture of the code; None for that of the GPU at hand.
        images: code of the kernels compiled so far, by architecture.
    """

    kind: str
    source: str
    plans: dict[str, Plan]
    backend: Backend
    architecture: str | None = None
    images: dict[str, bytes] = field(default_factory=dict)
    _executor: Executor | None = field(default=None, repr=False, compare=False)
    _lock: Any = field(default_factory=make_lock, repr=False, compare=False)

    def __getitem__(self, name: str) -> KernelFunction:
        """Return the function of this name, as a new object; each can be bound to other arrays."""
        return KernelFunction(self, self.plans[name])

    @property
    def architectures(self) -> list[str]:
        """The architectures that there is or will be code for; empty if none is decided yet."""
        return [self.architecture] if self.architecture is not None else list(self.images)

    @property
    def executor(self) -> Executor:
        """The kernels on the GPU, which is opened on first use.

        Raises:
            DeviceError: no GPU, no driver, no compiler, or code of another GPU.
            BuildError: the compiler refuses the source.
            InputError: the stored code for a GPU of AMD is no code object.
        """
        found = self._executor
        if found is not None:
            return found
        with self._lock:
            if self._executor is None:
                driver = self.backend.open()
                image = self.image(self.architecture or driver.architecture, driver.version)
                self._executor = Executor(driver, image)
            return self._executor

    def share(self) -> KernelLibrary:
        """Return a library of the same kernels for another model.

        Each library has its own copies of a model's arrays on the GPU, and frees them at its end.
        """
        return replace(self, _executor=None, _lock=make_lock())

    def image(self, architecture: str, driver: int | None = None) -> bytes:
        """Return the code of the kernels for an architecture; compile it on first use.

        Args:
            architecture: architecture of the GPU.
            driver: version of the driver that will load the code, None if it is not known.

        Raises:
            DeviceError: there is no suitable compiler, or the code was built for other GPUs.
            BuildError: the compiler refuses the source.
        """
        if architecture not in self.images:
            made = self.backend.translate(self.source, architecture, driver)
            self.images[architecture] = made
            LOG.info("%s: compiled %d functions for %s", self.kind, len(self.plans), architecture)
        return self.images[architecture]

    def to_bytes(self) -> bytes:
        """Return everything except the backend as bytes, from which `from_bytes` rebuilds it."""
        images = {key: base64.b64encode(x).decode() for key, x in self.images.items()}
        plans = {name: plan.to_json() for name, plan in self.plans.items()}
        values = (self.kind, self.source, plans, self.architecture, images)
        return json.dumps(dict(zip(STORED, values, strict=True))).encode()

    @classmethod
    def from_bytes(cls, data: bytes, backend: Backend) -> KernelLibrary:
        """Rebuild a library from the output of `to_bytes`, for a backend."""
        kind, source, plans, architecture, images = (json.loads(data)[key] for key in STORED)
        plans = {name: Plan.from_json(plan) for name, plan in plans.items()}
        images = {key: base64.b64decode(x) for key, x in images.items()}
        return cls(kind, source, plans, backend, architecture, images)

    def inspect(self, kind: str) -> str:
        """Return the source text of the kernels.

        Raises:
            BuildError: `kind` is not that of the library.
        """
        if kind != self.kind:
            raise BuildError(f"source: argument 'kind': {kind!r} is not there; use {self.kind!r}")
        return self.source


class KernelFunction:
    """A function of rows, arrays of the model, and results.

    Attributes:
        library: library that contains the function.
        plan: its launch plan.
    """

    def __init__(self, library: KernelLibrary, plan: Plan) -> None:
        self.library, self.plan = library, plan
        self._bound: BoundPlan | None = None

    def __call__(self, rows: Array, *others: Any) -> None:
        """Compute results on the GPU for host rows, synchronously.

        Args:
            rows: (R, F).
            others: first the arrays of the model, each a ModelArray, then arrays for the results.

        Raises:
            DeviceError: see `bind`, or the driver refuses a call.
        """
        model = [x for x in others if isinstance(x, ModelArray)]
        run_on_host(self.bind(model), rows, others[len(model) :])

    def bind(self, model: Sequence[ModelArray], stream: int = 0) -> BoundPlan:
        """Return the plan bound to the GPU and to arrays of the model.

        The first call binds it; later calls return the same object.

        Raises:
            DeviceError: see `KernelLibrary.executor` and `Executor.bind`.
        """
        bound = self._bound
        if bound is None:
            arrays = [x.array for x in model]
            bound = self._bound = self.library.executor.bind(self.plan, arrays, stream)
        return bound
