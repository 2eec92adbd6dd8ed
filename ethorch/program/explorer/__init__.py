"""Model Explorer for programs: ``model-explorer --extensions=ethorch.program.explorer model.pte``.

``graphs`` creates the graphs as plain data; ``main`` is the extension. The extra ``explorer`` installs Model Explorer.
"""
