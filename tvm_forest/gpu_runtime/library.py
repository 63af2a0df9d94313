"""Functions made of kernels, by name, as a predictor calls them.

takes: source, plans, a backend; gives: KernelLibrary. It finds the GPU when it is called first, so
that a model can be built, looked at and saved where there is none.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ..errors import BuildError
from ..forest import Array
from ..process.locks import make_lock
from . import ModelArray
from .executor import BoundPlan, Executor
from .plan import Plan
from .staging import run_on_host

LOG = logging.getLogger(__name__)

STORED = ("kind", "source", "plans", "architecture", "images")


class Backend(NamedTuple):
    """How kernels get onto a GPU.

    Attributes:
        open: finds the GPU.
        translate: given the source, the architecture of the GPU, and the version of its driver if
            that is known, returns an image for it.
    """

    open: Callable[[], Any]
    translate: Callable[[str, str, int | None], bytes]


@dataclass
class KernelLibrary:
    """Functions of arrays, whose work is done by kernels.

    Attributes:
        kind: of the target.
        source: text of the kernels.
        plans: of each function.
        backend: how they get onto a GPU.
        architecture: for which code is made; None for that of the GPU at hand.
        images: code of the kernels by architecture, as far as it was made.
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
        """Return a function; what it binds is its own."""
        return KernelFunction(self, self.plans[name])

    @property
    def architectures(self) -> list[str]:
        """Architectures that it has, or will have, code for; none before a GPU was queried."""
        return [self.architecture] if self.architecture is not None else list(self.images)

    @property
    def executor(self) -> Executor:
        """The kernels on the GPU.

        Raises:
            DeviceError: no GPU, no driver, no compiler, or code of another GPU.
            BuildError: the compiler refuses the source.
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

        What a library has copied to the GPU stays there as long as the library.
        """
        return replace(self, _executor=None, _lock=make_lock())

    def image(self, architecture: str, driver: int | None = None) -> bytes:
        """Return the code of the kernels for an architecture.

        Args:
            architecture: of the GPU.
            driver: version of the driver that is to load it, None if that is not known.

        Raises:
            DeviceError: no compiler that will do.
            BuildError: it refuses the source.
        """
        if architecture not in self.images:
            made = self.backend.translate(self.source, architecture, driver)
            self.images[architecture] = made
            LOG.info("%s: compiled %d functions for %s", self.kind, len(self.plans), architecture)
        return self.images[architecture]

    def to_bytes(self) -> bytes:
        """Return all but the backend."""
        images = {key: base64.b64encode(x).decode() for key, x in self.images.items()}
        plans = {name: plan.to_json() for name, plan in self.plans.items()}
        values = (self.kind, self.source, plans, self.architecture, images)
        return json.dumps(dict(zip(STORED, values, strict=True))).encode()

    @classmethod
    def from_bytes(cls, data: bytes, backend: Backend) -> KernelLibrary:
        """Return what `to_bytes` was called on, over a backend."""
        kind, source, plans, architecture, images = (json.loads(data)[key] for key in STORED)
        plans = {name: Plan.from_json(plan) for name, plan in plans.items()}
        images = {key: base64.b64decode(x) for key, x in images.items()}
        return cls(kind, source, plans, backend, architecture, images)

    def inspect(self, kind: str) -> str:
        """Return the text of the kernels.

        Raises:
            BuildError: there is no such text.
        """
        if kind != self.kind:
            raise BuildError(f"source: argument 'kind': {kind!r} is not there; use {self.kind!r}")
        return self.source


class KernelFunction:
    """A function of rows, arrays of the model, and results.

    Attributes:
        library: that it is of.
        plan: what it does.
    """

    def __init__(self, library: KernelLibrary, plan: Plan) -> None:
        self.library, self.plan = library, plan
        self._bound: BoundPlan | None = None

    def __call__(self, rows: Array, *others: Any) -> None:
        """Compute results on the GPU for rows of the host; waits for them.

        Args:
            rows: (R, F).
            others: ModelArray of the model, then arrays that results are written to.
        """
        model = [x for x in others if isinstance(x, ModelArray)]
        run_on_host(self.bind(model), rows, others[len(model) :])

    def bind(self, model: Sequence[ModelArray], stream: int = 0) -> BoundPlan:
        """Return the plan bound to the GPU and to arrays of the model; always to the same.

        Raises:
            DeviceError: see `KernelLibrary.executor` and `Executor.bind`.
        """
        bound = self._bound
        if bound is None:
            arrays = [x.array for x in model]
            bound = self._bound = self.library.executor.bind(self.plan, arrays, stream)
        return bound
