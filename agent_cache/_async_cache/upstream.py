"""async-cache's own class, without ever running a stranger's module.

Its top-level module is called ``cache``, a name that many projects have a file of. So ``import cache`` is used only if
the installed distribution's metadata says that the file which would be run is async-cache's. Otherwise the
distribution's file is loaded under a private name, and whatever the project calls ``cache`` stays unseen and unrun.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

__all__ = ["Absent", "upstream_class"]

_NAME = "cache"
_PRIVATE = "agent_cache._async_cache.upstream.cache"
"""Ends in the real name: that is the part that finders look for, in folders and in zip files alike."""


class Absent:
    """Stands in for async-cache's class where there is no such distribution, as in a bundle without metadata."""


def upstream_class() -> type:
    """The class called ``AsyncCache`` of the installed async-cache, or `Absent`."""
    found = getattr(_module(), "AsyncCache", None)
    return found if isinstance(found, type) else Absent


def _module() -> Any:
    offered = _offered()
    if offered is not None and _is_vouched_for(offered):
        return importlib.import_module(_NAME)
    for root in _roots():
        installed = os.path.join(root, _NAME, "__init__.py")  # noqa: PTH118 - a root may lie inside a zip file
        if offered is not None and _is_same(offered, installed):
            return importlib.import_module(_NAME)
        if (module := _load_privately(root)) is not None:
            return module
    return None


def _offered() -> str | None:
    """The file that ``import cache`` stands for here and now, found without running it."""
    loaded = sys.modules.get(_NAME)
    if loaded is not None:
        return getattr(loaded, "__file__", None)
    spec = importlib.util.find_spec(_NAME)
    return None if spec is None else spec.origin


def _is_vouched_for(file: str) -> bool:
    """Whether async-cache's metadata, where pip puts it beside the package, lists this file.

    What is found here need not be looked for by `importlib.metadata`, whose import alone takes 12 ms.
    """
    package = Path(file).parent
    line = f"{package.name}/{Path(file).name},"
    for record in package.parent.glob("async_cache-*.dist-info/RECORD"):
        if any(listed.startswith(line) for listed in record.read_text("utf-8").splitlines()):
            return True
    return False


def _roots() -> list[str]:
    """Folders or zip files that the installed distribution says its package is in, most likely first."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        installed = distribution("async-cache")
    except PackageNotFoundError:
        return []
    listed = {str(file) for file in installed.files or ()}
    named = (installed.read_text("top_level.txt") or "").split()
    if f"{_NAME}/__init__.py" not in listed and _NAME not in named:
        return []
    return [str(installed.locate_file("")).rstrip("/"), *_sources(installed.read_text("direct_url.json"))]


def _sources(direct_url: str | None) -> list[str]:
    """Where an editable install has its code: pip notes the project's folder (PEP 610)."""
    if direct_url is None:
        return []
    import json
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    address = urlsplit(json.loads(direct_url).get("url", ""))
    folder = url2pathname(address.path)
    return [folder, str(Path(folder, "src"))] if address.scheme == "file" else []


def _is_same(one: str, other: str) -> bool:
    try:
        return Path(one).samefile(other)
    except OSError:  # inside a zip file
        return os.path.normcase(os.path.abspath(one)) == os.path.normcase(os.path.abspath(other))  # noqa: PTH100 - as above


def _load_privately(root: str) -> Any:
    spec = PathFinder.find_spec(_PRIVATE, [root])
    if spec is None or spec.loader is None or spec.origin is None:
        return None
    module = sys.modules[_PRIVATE] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[_PRIVATE]
        raise
    return module
