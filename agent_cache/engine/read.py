"""Read tools: how a call is identified, and explicitly invalidated, filled and asked about.

How it is answered: `engine.call`.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Collection, Hashable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from agent_cache.clock import CLOCK
from agent_cache.config import CURRENT, Configuration
from agent_cache.core.asker import UnknownAsker, asker_in
from agent_cache.core.keys import Uncacheable, key_part
from agent_cache.core.options import ReadPolicy, no_life, plain_result
from agent_cache.core.parameters import PassedOn, are_one_tool, location_of
from agent_cache.core.store import Entry, Store
from agent_cache.core.tags import Tag, root_of
from agent_cache.core.versions import VERSIONS, EntryTag
from agent_cache.engine.audit import sampled_lookup
from agent_cache.engine.blocking import THREADS, in_background
from agent_cache.engine.call import load, run, run_uncached
from agent_cache.engine.flight import Flight
from agent_cache.engine.middleware import observed
from agent_cache.engine.operation import UNKEYED, CacheKey, Operation, Proceed, Setup
from agent_cache.engine.result import store_result
from agent_cache.engine.scope import PLACE, Call, Scope
from agent_cache.engine.stale import serve_expired
from agent_cache.engine.state import (
    SIZES,
    TOOLS,
    clear_tools,
    event_loop,
    mark_written,
    run_shielded,
    warn_of_unwritten_roots,
    warn_once,
    write_now,
)
from agent_cache.engine.tiers import lease_in, request_of
from agent_cache.engine.ttls import TTLS, Evidence
from agent_cache.engine.validate import validated_load
from agent_cache.engine.write import WRITING, Fill, Outside, Write
from agent_cache.errors import ConfigurationError
from agent_cache.values.canonical import canonical, lasting_digest
from agent_cache.values.compare import etag_of, is_empty

if TYPE_CHECKING:
    from agent_cache.remote.protocol import Request
    from agent_cache.remote.versioned import Tier

__all__ = ["CacheInfo", "ReadOperation"]


class CacheInfo(NamedTuple):
    """Counters and size of one tool's local cache, in the form of `functools.lru_cache`.

    Attributes:
        hits: calls answered from the local store or a tier, in this process, and validated answers.
        misses: runs of the tool that were started to fill the cache.
        maxsize: the ``maxsize=`` option: the bound on the entries of each scope.
        currsize: entries in the local store; of a tool with ``scope="session"``, in all running sessions together.
    """

    hits: int
    misses: int
    maxsize: int | None
    currsize: int


class ReadOperation(Operation[ReadPolicy]):
    """A decorated read tool.

    Attributes:
        declared: the policy that the code declares. `policy` differs from it by a ttl that was set at run time.
        evidence: what its loads have shown.
        flight_class, late_roots: the class of its loads, and the roots of the tags that come from their results.
        has_unknown_askers: whether calls ran uncached since nobody knows who made them.
        inherited_tiers: tiers that some answers depend on because of what their loads have read.
        number, is_named: its number in the tags of its entries, and whether any of these was ever written by its key.
        is_new: whether its roots are still to be looked at, after many calls: see `look_at_roots`.
        roots: roots that its entries may depend on, also by what its loads have read.
        store: the store of its answers in the global scope.
    """

    __slots__ = (
        "_returns", "_stores", "_tiers", "declared", "evidence", "flight_class", "has_unknown_askers",
        "inherited_tiers", "is_named", "is_new", "late_roots", "number", "roots", "store",
    )  # fmt: skip

    _is_read = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.is_new, self.has_unknown_askers, self.is_named = True, False, False
        self.late_roots = tuple(dict.fromkeys(rule.root for rule in self.tags.late))
        self.roots = dict.fromkeys(self.tags.roots)
        self.flight_class: type[Flight] = Flight
        self.inherited_tiers: Collection[Tier] = ()  # a WeakSet from the first one on: most tools have none
        self._returns: Any = None
        self._tiers: tuple[Configuration | None, tuple[Tier, ...]] = None, ()
        self.declared = self.policy
        self.evidence = Evidence(self.stats)
        self._stores: weakref.WeakSet[Store] = weakref.WeakSet()
        with VERSIONS.lock:  # from now on it is found by who sets the ttl of its name, or switches caching off
            self.number = TOOLS.add(self)
            self.set_policy(self.declared.with_ttl(TTLS.get(self.name)))
            self.store = self.new_store(None)
        try:
            self.check_name()
        except ConfigurationError:
            TOOLS.remove(self)
            raise
        if self.policy.validate is not None:
            self.own_load = validated_load
        share = self.audit_share(CURRENT.value)
        if share:
            self.store.sample(sampled_lookup(share))

    def check_name(self) -> None:
        """Refuse a tool that would be answered from another function's entries.

        On a shared tier only the names of tools distinguish their answers. The same function may be decorated again:
        when a module is reloaded, or a notebook cell runs again (`core.parameters.are_one_tool`).

        Raises:
            ConfigurationError: if another live tool has this name and shares a tier with it.
        """
        if self._namesake() is None:
            return
        gc.collect()  # 30 ms, before an error only: a tool that is no longer used is freed by the collector alone
        other = self._namesake()
        if other is not None:
            one, two = location_of(other.function), location_of(self.function)
            which = f"{one} and {two}" if one != two else f"{one}, which binds other things in each of them"
            raise ConfigurationError(
                f"two tools are called {self.name!r} and share a tier, so each would be answered with values that the "
                f"other has loaded: {which}; give one of them another name=, or delete the first"
            )

    def _namesake(self) -> ReadOperation | None:
        """Another function's tool that shares its name and a tier."""
        tiers = {id(tier) for tier in self.tiers()}
        others: list[ReadOperation] = TOOLS.readers() if tiers else []
        for other in others:
            shares = other is not self and other.name == self.name and not tiers.isdisjoint(map(id, other.tiers()))
            if shares and not are_one_tool(self.function, other.function):
                return other
        return None

    def set_policy(self, policy: ReadPolicy) -> None:
        """Use a policy with another ttl from now on. The caller holds the lock."""
        self.policy = policy
        self.evidence.restart()

    def new_store(self, owner: Any | None) -> Store:
        """Make a store for the answers of one scope."""
        store = Store(self.policy.maxsize, self, owner, self.tags.static)
        store.sizes, store.stats = SIZES, self.stats
        with VERSIONS.lock:
            store.switch(on=CURRENT.value.enabled)
            self._stores.add(store)
        return store

    def stores(self) -> list[Store]:
        """The stores of its answers in all scopes."""
        with VERSIONS.lock:
            return list(self._stores)

    def extend(self, tags: Iterable[Tag | EntryTag]) -> None:
        """Note that its entries depend on these tags, too. The caller holds the lock."""
        roots = (root_of(tag) for tag in tags if isinstance(tag, str))
        new = dict.fromkeys(root for root in roots if root not in self.roots)
        if new:
            self.roots |= new
            TOOLS.links += 1

    # Tiers

    def tiers(self) -> tuple[Tier, ...]:
        """Tiers behind the local store, nearest first: its own, else the configured ones."""
        under, tiers = self._tiers
        configured = CURRENT.value
        if under is not configured:
            tiers = (self.own_tiers or configured.tiers) if self.reaches_tiers else ()
            if self.policy.remote.is_strong:
                tiers = tiers[-1:]
            self._tiers = configured, tiers
        return tiers

    @property
    def reaches_tiers(self) -> bool:
        """Whether its answers are stored in tiers, where there are any."""
        return self.policy.scope == "global" or self.policy.remote.share

    def possible_tiers(self) -> tuple[Tier, ...]:
        """Every tier that may hold its answers, whatever is configured now."""
        now = self.tiers()
        if self.own_tiers or not self.reaches_tiers:
            return now
        return (*(tier for tier in CURRENT.tiers_once_configured() if all(tier is not one for one in now)), *now)

    def depend_on(self, tiers: tuple[Tier, ...]) -> None:
        """Drop the local copies of all answers, too, when messages of these tiers may have been lost."""
        own = self.tiers()
        if own != tiers and any(tier not in own and tier not in self.inherited_tiers for tier in tiers):
            others = [tier for tier in tiers if tier not in own]
            with VERSIONS.lock:
                self.inherited_tiers = weakref.WeakSet((*self.inherited_tiers, *others))

    @property
    def returns(self) -> Any:
        """The return annotation, for codecs: a `Returns`, made for the first tier that asks for it."""
        if self._returns is None:
            from agent_cache.values.typed import Returns

            self._returns = Returns(self.function)
        return self._returns

    def audit_share(self, configuration: Configuration) -> float:
        """The share of its hits that is audited."""
        return configuration.audit if self.policy.audit is None else self.policy.audit

    # Calls

    def make_setup(self, configuration: Configuration) -> Setup:
        """What stands around its calls: audit, middleware, strong consistency or expired results, then the load."""
        policy, tiers = self.policy, self.tiers()
        if tiers:
            self.check_name()
            if lasting_digest(self.name, (), namespace="", version=0) is None:  # a notebook, a prompt, a frozen program
                warn_once("no tier keeps its answers, as __main__ is no file here; give it a name=", self.name)
        elif policy.remote.share:
            warn_once("share=True has no effect without a remote tier: see remote_cache= and configure()", self.name)
        elif policy.remote.flight == "fleet":
            warn_once('flight="fleet" has no effect without a remote tier', self.name)
        work: Proceed = load
        if policy.kept_for and not (tiers and policy.remote.is_strong):  # which keeps no copy
            work = partial(serve_expired, work)
        setup = Setup(configuration, observed(self, work, configuration), observed(self, run_uncached, configuration))
        setup.reload = work
        setup.bare = run_uncached if self.around is None else partial(self.around, run_uncached)
        setup.tiers, setup.lease = tiers, lease_in(tiers)
        has_rules = tiers or self.late_roots or policy.kept_for or policy.cache_if
        setup.keeps_simply = not has_rules and configuration.max_bytes is None
        setup.follows_at_once = setup.run is load and not self.is_sync
        setup.audited = self.audit_share(configuration) if configuration.enabled else 0.0
        return setup

    def store_in(self, scope: Scope) -> tuple[Store | None, Hashable | None]:
        if self.policy.scope == "global":
            store: Store | None = self.store
            tenant = scope.tenant
        else:
            store = scope.participants[0].store_of(self) if scope.participants else None
            # A session has one tenant, and its answers stay in it unless they are shared.
            tenant = scope.tenant if self.policy.remote.share else None
        return (None if scope.bypasses else store), tenant

    def look_at_roots(self) -> None:
        """After many calls, warn of a root that nothing has written: it is misspelt, or the results should expire.

        The writes to a root may run in other processes of a fleet.
        """
        self.is_new = False
        if self.policy.ttl is None and not self.tiers():
            warn_of_unwritten_roots(self.name, self.tags.roots)

    async def fresh(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the tool now, whatever is cached, and store the answer; inside `bypass` it is not stored."""
        arguments = self.bind("fresh", args, kwargs)
        key = self.key_or_unkeyed(arguments)
        return await run(self, PLACE.get().scope, key, *self.parameters.split(arguments), is_fresh=True)

    def is_successful(self, value: Any) -> bool:
        """Whether an answer that was not stored is a success.

        An answer that `cache_if` rejects is none, unless it is empty: an empty answer is one like any other.
        """
        cache_if = self.policy.cache_if
        if cache_if is None or is_empty(value):
            return True
        try:
            return bool(cache_if(value))
        except Exception:  # noqa: BLE001 - the user's function; store_result has logged that it raises
            return True

    # Attributes of the decorated tool

    def bind(
        self, attribute: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, before: str = ""
    ) -> dict[str, Any]:
        """Parameter names and values of the call that an attribute of the tool was given.

        An instance hands on the attributes of its methods without itself: in ``shop.get.invalidate(2)`` the 2 would be
        taken for ``self``. A descriptor that binds them would double the time of a hit, so such a call is refused.

        Args:
            before: what the attribute takes in front of these arguments.

        Raises:
            TypeError: if the tool cannot be called so, or a method was not given the object whose method it is.
        """
        if self.parameters.owner and not self.parameters.has_receiver(args, kwargs):
            name = self.function.__qualname__.rpartition("<locals>.")[2]
            owner = name.rpartition(".")[0].rpartition(".")[2]
            receiver = self.parameters.all[0].name
            raise TypeError(
                f"{attribute} of the method {name} takes its {receiver!r} as first argument, which no instance "
                f"fills in; write {name}.{attribute}({before}{owner.lower() if receiver == 'self' else owner}, ...)"
            )
        return self.parameters.bind(args, kwargs)

    def contains(self, /, *args: Any, **kwargs: Any) -> bool:
        """Whether this call, made here and now, would be answered from the local store.

        It asks no tier, takes no copy of the value, counts as no use and as no call, and is seen by no loop guard.
        False where nothing is looked up: for arguments without identity, outside of a session with
        ``scope="session"``, while caching is switched off, inside `bypass`, and within a recording or a replay.
        """
        entry = self._find("contains", args, kwargs)
        return entry is not None and entry.is_valid_at(CLOCK.now(), self.policy.grace)

    def etag(self, /, *args: Any, **kwargs: Any) -> str | None:
        """A digest of the answer to this call that the local store has, expired or not: equal for equal answers.

        None if there is none, where `contains` says so, or it has no identity outside of this process.
        """
        entry = self._find("etag", args, kwargs)
        return None if entry is None else etag_of(entry.expired_value())

    def _find(self, attribute: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Entry | None:
        """The local entry of a call that is made here and now."""
        arguments = self.bind(attribute, args, kwargs)
        scope = PLACE.get().scope
        local = scope.local(self)
        if local.store is None or scope.hook is not None:
            return None
        try:
            found: Entry | None = local.store.find(local.qualify(self.key_of(arguments)))
        except Uncacheable:
            return None
        return found

    def cache_info(self) -> CacheInfo:
        """Counters and size of the local cache."""
        now = CLOCK.now()
        size = sum([store.count_current(now) for store in self.stores()])
        return CacheInfo(self.stats.hits + self.stats.validated, self.stats.misses, self.policy.maxsize, size)

    def cache_key(self, /, *args: Any, **kwargs: Any) -> CacheKey:
        """Identity of the call that these arguments would make, here and now.

        Raises:
            TypeError: if the tool cannot be called so.
            UncacheableArgumentsError: if an argument has no identity.
        """
        try:
            call = self._named_call(self.bind("cache_key", args, kwargs))
        except Uncacheable as error:
            raise type(error)(error.reason, self.name) from error.__cause__
        return CacheKey(self, call.key, request_of(call))

    async def invalidate(self, /, *args: Any, **kwargs: Any) -> bool:
        """Drop the answer to one call, in every scope; loads of it in flight are not stored.

        It goes on in the tiers if the caller is cancelled while it waits for them.

        Returns:
            Whether there was an answer.
        """
        try:
            call = self._named_call(self.bind("invalidate", args, kwargs))
        except Uncacheable:
            return False
        key, stores, tiers = call.key, self.stores(), self.possible_tiers()
        mark_written(self.tags.roots)
        was_there = any(store.find(key) is not None for store in stores)
        write_now(keys=((self, key),))
        with VERSIONS.lock:  # assigned, so that they are freed after the lock
            _dropped = [store.discard(key) for store in stores]
        for stats in call.local.stats:
            stats.invalidations += 1
        if tiers and self.is_sync:
            was_there |= await in_background(self.discard, tiers, key, request_of(call), is_shielded=True)
        elif tiers:
            was_there |= bool(await run_shielded(self.discard(tiers, key, request_of(call))))
        return was_there

    async def discard(self, tiers: tuple[Tier, ...], key: Hashable, request: Request) -> bool:
        """Drop an answer in the tiers, the farthest first, so that none is filled again from one that still has it."""
        was_there = False
        for tier in reversed(tiers):
            try:
                was_there |= await tier.discard(request)
            except Exception as error:  # noqa: BLE001 - a broken cache is not a broken agent
                warn_once(f"discarding in {type(tier).__name__} failed", self.name, error)
        write_now(keys=((self, key),))
        return was_there

    async def set(self, value: Any, /, *args: Any, **kwargs: Any) -> bool:
        """Store a result that the caller has, as if a load had returned it.

        Inside a write it is stored when that write commits, unless another write has overlapped it. Elsewhere it is
        itself a write of the entry, which drops it everywhere first. It is stored in this process alone.

        Returns:
            Whether it was stored, or inside a write, whether it will be. If not, what was stored before is dropped.
        """
        try:
            call = self._named_call(self.bind("set", args, kwargs, before="value, "))
        except Uncacheable:
            return False
        fill = None if PLACE.get().scope.bypasses else self._fill(call, value)
        write = WRITING.get()
        if write is not None and write.is_open:
            if fill is not None and write.take(fill):
                return True
            await self.invalidate(*args, **kwargs)
            return False
        for stats in call.local.stats:
            stats.invalidations += 1
        mark_written(self.tags.roots)
        writer = Outside(self.name, self.is_sync, self.tags.roots, self.own_tiers)
        write = Write(writer, (), keys=((self, call.key),), entries=(request_of(call),))
        await write.complete(fill)
        return fill is not None and call.local.store.peek(call.key) is fill.entry

    def _named_call(self, arguments: dict[str, Any]) -> Call:
        """The call of these arguments, as what names it sees it. Raises `Uncacheable`."""
        local = PLACE.get().scope.storing().local(self)
        key = local.qualify(self.key_of(arguments))
        return Call(self, local, key, *self.parameters.split(arguments), "write")

    def _fill(self, call: Call, value: Any) -> Fill | None:
        """A result with its copy, tags and expiry; None if it may not be stored."""
        store = call.local.store
        # Its loads may depend on more than its own tags, which a given result does not tell.
        if store is None or not call.local.configuration.enabled or len(self.roots) != len(self.tags.roots):
            return None
        fills: list[Fill] = []
        try:
            for rule in self.tags.early:
                call.tags += rule.make(call.arguments, None)
        except Exception as error:  # noqa: BLE001 - the user's function; the call goes on without it
            warn_once("tags of a given result could not be computed, so it was not cached", self.name, error)
            return None
        call.started = CLOCK.now()
        loop = THREADS if self.is_sync else event_loop(self.name)
        call.flight = Flight(store, (call.key, loop), store.static + call.tags, ())
        store_result(call, value, lambda *stored: fills.append(Fill(*stored)))
        return fills[0] if fills else None

    def clear(self) -> int:
        """Drop every local answer of this tool, in every scope; loads in flight are not stored.

        Returns how many, stale ones included. What has read them is dropped with them, and not counted.
        """
        mark_written(self.tags.roots)
        count = sum([len(store) for store in self.stores()])
        clear_tools((self,))
        return count

    # Identity

    def key_of(self, arguments: Mapping[str, Any]) -> Hashable:
        """Identity of a call by its arguments, by `key=`, and by what `vary=` adds, or its contexts say of the asker.

        Raises:
            UncacheableArgumentsError: if it has none.
        """
        if self.policy.key is None:
            key: Hashable = self.parameters.key(arguments)
        else:
            args, kwargs = self.parameters.split(arguments)
            key = self.part_by_key(*args, **kwargs)
        if self.heeds_contexts:
            return self.part_by_contexts(arguments), key
        if self.policy.vary is None:
            return key
        return self.part_by_vary(arguments), key

    def key_of_call(self, /, *args: Any, **kwargs: Any) -> Hashable:
        """The same by the arguments of a call in any spelling."""
        return self.key_of(self.parameters.bind(args, kwargs))

    def key_or_unkeyed(self, arguments: Mapping[str, Any]) -> Hashable:
        try:
            return self.key_of(arguments)
        except Uncacheable as error:
            return self.unkeyed(error)

    def unkeyed(self, error: Uncacheable) -> object:
        """The key of a call without identity: it runs uncached and is counted. Raises with ``uncacheable="raise"``."""
        if self.policy.uncacheable == "raise":
            raise type(error)(error.reason, self.name) from error.__cause__
        if isinstance(error, UnknownAsker):
            self.has_unknown_askers = True
            if self.policy.ttl is not no_life:
                warn_once("its context does not say who asks, so the call ran uncached", self.name, error)
        else:
            warn_once("an argument has no identity to cache under, so the call ran uncached", self.name, error)
        return UNKEYED

    def part_by_key(self, /, *args: Any, **kwargs: Any) -> Hashable:
        """The part of the key that `key=` returns."""
        assert self.policy.key is not None
        try:
            found = self.policy.key(*args, **kwargs)
        except Exception as error:
            raise Uncacheable(f"key= raised {type(error).__name__}", self.name) from error
        if found is None:  # perhaps of a function without `return`
            raise Uncacheable("key= returned None, which all such calls would share", self.name)
        return key_part(found)

    def part_by_contexts(self, arguments: Mapping[str, Any]) -> str | None:
        """The part of the key that its contexts give: who asks. In a session with a tenant, that says it at need.

        Raises:
            UnknownAsker: if a context may say who asks, in a form that cannot be compared.
        """
        try:
            return self.parameters.asker(arguments)
        except UnknownAsker:
            if PLACE.get().scope.tenant is not None:
                return asker_in(self.parameters.named_by_tags(arguments))
            raise

    def asker_of(self, arguments: Mapping[str, Any]) -> Any:
        given, vary = super().asker_of(arguments), self.policy.vary
        if vary is None:
            return given
        own = self.varied(arguments)
        return own if given is None else (own, given)

    def varied(self, arguments: Mapping[str, Any]) -> Any:
        """What `vary=` returns."""
        vary = self.policy.vary
        assert vary is not None
        try:
            # Of a call that is passed on, what was left out is not there: a decorator of the tool may fill it in.
            given = dict(arguments) if isinstance(self.parameters, PassedOn) else arguments
            found = vary(given) if self.policy.vary_takes_arguments else vary()
        except Exception as error:
            raise Uncacheable(f"vary= raised {type(error).__name__}", self.name) from error
        return plain_result(found, f"{self.name}: vary=")

    def part_by_vary(self, arguments: Mapping[str, Any]) -> Hashable:
        """The part of the key that `vary=` returns."""
        return canonical(self.varied(arguments))
