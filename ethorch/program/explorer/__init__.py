"""A Model Explorer extension for programs, used by ``model-explorer --extensions=ethorch.program.explorer model.pte``.

``graphs`` creates graphs as JSON-compatible data, and ``main`` is the extension. The extra ``explorer`` installs Model Explorer.
"""
