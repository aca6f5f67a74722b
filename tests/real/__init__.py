"""The gate in front of a genuine SGLang: installed, started, measured and stopped by this package.

`install` builds the engine from the package registries, `launch` starts it on a CPU, `engine`
holds one running server, `gateproc` the gate as its users start it, `tap` listens between the two,
`load` has the clients and what they measure. `conftest` turns these into fixtures.
"""
