from ..functional import __getattr__ as __getattr__
