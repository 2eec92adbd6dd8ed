"""Programs in Model Explorer: ``model-explorer --extensions=ethorch.program.explorer model.pte``; the extra ``explorer`` installs
it.

``graphs`` makes the graphs as plain data; ``main`` is the extension, which Model Explorer imports.
"""
