"""Forest -> IRModule and arrays: the canonical functions, their operators and the layouts.

Every file `rep_<name>.py` of this folder is a layout and registers itself when it is imported.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    if _module.name.startswith("rep_"):
        importlib.import_module(f"{__name__}.{_module.name}")
