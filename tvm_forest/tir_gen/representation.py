"""What a layout outside the package imports, see `docs/new_layout.md`."""

from ..layouts.representation import Buffers as Buffers
from ..layouts.representation import BufferSpec as BufferSpec
from ..layouts.representation import Columns as Columns
from ..layouts.representation import Expr as Expr
from ..layouts.representation import Hold as Hold
from ..layouts.representation import NodeTest as NodeTest
from ..layouts.representation import Representation as Representation
from ..layouts.representation import TreeAccess as TreeAccess
from ..layouts.representation import find as find
from ..layouts.representation import register as register
