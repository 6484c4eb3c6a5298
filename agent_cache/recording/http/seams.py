"""Puts the seams into the client libraries while a recording with HTTP is open, and takes them out after the last.

A seam replaces one method of a class of a library through which every request passes. The context decides in each call
whether the request concerns a recording, so clients that were made before, and tasks outside of the recording, need
nothing. Only libraries that the program has imported get a seam; those that it imports later get theirs then.
"""

from __future__ import annotations

import importlib.abc
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeAlias

from agent_cache.recording.http import aiohttp_seam, http_client_seams, httpx_seam

__all__ = ["Patch", "Seams"]

_LOG = logging.getLogger("agent_cache")

Patch: TypeAlias = tuple[type, str, Callable[[Any], Any]]
"""A class, the name of its method, and what makes the new method of the original one."""

_SEAMS: dict[str, Callable[[Any], list[Patch]]] = {
    "httpx": httpx_seam.patches,
    "httpx2": httpx_seam.patches,
    "aiohttp": aiohttp_seam.patches,
    "urllib3": http_client_seams.urllib3_patches,
    "urllib.request": http_client_seams.urllib_patches,
}
"""By the name of the library. Its function raises `LookupError`, with the reason, for a version that has no place."""


class Seams(importlib.abc.MetaPathFinder):
    """The seams of the process, in place while at least one block has entered and not left.

    As a finder of modules, it waits for the libraries.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._blocks = 0
        self._replaced: dict[str, list[tuple[type, str, Any, Any]]] = {}

    def enter(self) -> None:
        """Put them in place, for one more block."""
        with self._lock:
            self._blocks += 1
            if self._blocks == 1:
                sys.meta_path.insert(0, self)
                for name in _SEAMS:
                    if name in sys.modules:
                        self._place(name, sys.modules[name])

    def leave(self) -> None:
        """Take them away after the last block.

        A method that something else has replaced since then stays: it calls ours, which then calls the original.
        """
        with self._lock:
            self._blocks -= 1
            if self._blocks:
                return
            sys.meta_path.remove(self)
            for name, replaced in list(self._replaced.items()):
                for owner, attribute, original, ours in reversed(replaced[:]):
                    found = vars(owner).get(attribute)
                    if found is ours:
                        setattr(owner, attribute, original)
                    if found is ours or found is original:  # else it may be beneath that of something else
                        replaced.remove((owner, attribute, original, ours))
                if not replaced:
                    del self._replaced[name]

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """The spec of a library that others find, with a loader that puts the seam in place once it is imported."""
        if fullname not in _SEAMS or fullname in self._replaced:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self._imported)
                return spec
        return None

    def _imported(self, name: str, module: ModuleType) -> None:
        with self._lock:
            if self._blocks:
                self._place(name, module)

    def _place(self, name: str, module: ModuleType) -> None:
        try:
            patches = _SEAMS[name](module)
        except LookupError as error:
            _LOG.warning("recording: requests of %s are not recorded: %s", name, error)
            return
        except AttributeError:  # another thread is importing it
            return
        replaced = self._replaced.setdefault(name, [])
        for owner, attribute, make in patches:
            original = vars(owner)[attribute]
            if any(original is ours for *_, ours in replaced):
                continue
            ours = make(original)
            setattr(owner, attribute, ours)
            replaced.append((owner, attribute, original, ours))


class _Loader(importlib.abc.Loader):
    """A loader that tells when its module is there. Everything else is the original's."""

    def __init__(self, loader: Any, on_import: Callable[[str, ModuleType], None]) -> None:
        self._loader = loader
        self._on_import = on_import

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None:
            spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._on_import(module.__name__, module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
