"""What the API pages need to know beyond what mkdocstrings reads in the source.

Constructors of Equinox modules and of families are made from their fields, when they are imported: signatures are
taken from there. Doctests and trees in docstrings are code.
"""

import inspect
import re
from dataclasses import is_dataclass
from typing import Any

import griffe


class Reference(griffe.Extension):
    """Called by mkdocstrings for everything in the package."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = re.sub(r"(?ms)^(>>> .*?)(?=\n\n|\Z)", r"```pycon\n\1\n```", obj.docstring.value)
            obj.docstring.value = re.sub(r"(?ms)^(\w+\n├.*?)(?=\n\n|\Z)", r"```text\n\1\n```", text)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        found = griffe.dynamic_import(cls.path)
        if not is_dataclass(found) or "__init__" in cls.members:
            return
        given = [
            griffe.Parameter(
                name,
                annotation=re.sub(r"(\w+\.)+(?=\w)", "", inspect.formatannotation(parameter.annotation)),
                kind=griffe.ParameterKind[parameter.kind.name.lower()],
                default=None if parameter.default is inspect.Parameter.empty else repr(parameter.default),
            )
            for name, parameter in inspect.signature(found).parameters.items()
        ]
        cls.set_member("__init__", griffe.Function("__init__", parameters=griffe.Parameters(*given), parent=cls))
