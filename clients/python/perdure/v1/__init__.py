"""Generated messages and stubs of the package perdure.v1; see proto/perdure/v1.

Everything here but this file and py.typed is written by `make generate`.
"""
