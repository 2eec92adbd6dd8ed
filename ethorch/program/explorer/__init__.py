"""A Model Explorer extension for programs, used by ``model-explorer --extensions=ethorch.program.explorer model.pte``.

The extra ``explorer`` installs Model Explorer.
"""
