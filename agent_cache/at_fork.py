"""What is done around a fork of the process, in one place: not every platform has one."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final

__all__ = ["at_fork", "lock_of", "notice_fork"]

_process = os.getpid()
_in_child: Final[list[Callable[[], object]]] = []
_noticing = threading.Lock()
_owners: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
_register: Callable[..., object] = getattr(os, "register_at_fork", lambda **_: None)


def at_fork(*, after_in_child: Callable[[], object], **handlers: Any) -> None:
    """As `os.register_at_fork`. Nothing is done where processes cannot fork, as on Windows."""
    _in_child.append(after_in_child)
    if handlers:
        _register(**handlers)


def notice_fork() -> None:
    """Do what is to be done in a forked child, if Python was not told of the fork: uWSGI forks by itself."""
    if os.getpid() != _process:
        with _noticing:
            if os.getpid() != _process:
                _begin_child()


def lock_of(owner: Any) -> threading.RLock:
    """A lock to be kept as the `_lock` of an object, or of a module of this name. In a forked child it is replaced by
    another one: a thread of the parent may have had it, which nobody would give back there.
    """
    _owners.add(sys.modules[owner] if isinstance(owner, str) else owner)
    return threading.RLock()


def _begin_child() -> None:
    global _process  # noqa: PLW0603 - the module is about this process
    for owner in list(_owners):
        owner._lock = threading.RLock()
    for handler in _in_child:
        handler()
    _process = os.getpid()


_register(after_in_child=_begin_child)
