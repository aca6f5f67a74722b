"""The version of this package, in the one place that names it at run time."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("kvgate")
except PackageNotFoundError:  # a source tree without an installation
    VERSION = "0+unknown"
