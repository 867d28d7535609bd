"""What pip installs: the backend as a plugin of sglang, and the command `mla-compact`.

plugin.py   called by sglang in each of its processes; registers the name, or lets nothing start
fitness.py  whether the plugin fits the sglang that it is loaded into
command.py  the tools of the repository under one command

A wheel holds the repository's `overlay`, `patches`, `scripts`, `bench` and `contract.toml` next to
these modules, as they lie in a clone.
"""

from pathlib import Path

_HERE = Path(__file__).resolve().parent
# In a clone, and where that is installed as editable, they lie one folder above.
HOME = _HERE if (_HERE / "patches").is_dir() else _HERE.parent


class UnfitError(Exception):
    """Why the plugin can't serve, and the remedy, in one sentence."""
