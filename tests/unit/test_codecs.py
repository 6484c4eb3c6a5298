"""A codec gives back what it was given, for the same entry and annotation; everything else is one error."""

from __future__ import annotations

import pickle
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from agent_cache.errors import ConfigurationError
from agent_cache.remote.codecs import (
    Codec,
    EncryptedCodec,
    JsonCodec,
    MessagePackCodec,
    SignedCodec,
    Undecodable,
    Unencodable,
)
from tests.harness.searches import searched
from tests.harness.slow import slow
from tests.harness.typed import ANNOTATED, Frozen, Line, Parcel, Row, Spot, Status, Tree, same, schema_of

KEY, OTHER = b"k" * 32, b"o" * 32
ORDER = Frozen([Line("sku", 1.5, (1, 2)), Line("other", 2.0)], Status.OPEN)


def encrypted(inner: Codec, keys: Any = KEY) -> EncryptedCodec:
    pytest.importorskip("cryptography")
    return EncryptedCodec(inner, keys)


MAKERS: dict[str, Callable[[], Codec]] = {
    "msgpack": MessagePackCodec,
    "json": JsonCodec,
    "compressed": lambda: MessagePackCodec(compress_above=1),
    "uncompressed": lambda: JsonCodec(compress_above=None),
    "signed": lambda: SignedCodec(MessagePackCodec(), KEY),
    "encrypted": lambda: encrypted(JsonCodec()),
    "both": lambda: SignedCodec(encrypted(MessagePackCodec()), [KEY, OTHER]),
}


@pytest.fixture(params=MAKERS)
def codec(request: pytest.FixtureRequest) -> Codec:
    return MAKERS[request.param]()


def forged(codec: Codec, form: int, data: bytes, returns: Any, context: bytes = b"") -> bytes:
    """What an attacker who knows the code and no key sends: everything is right but what was encoded."""
    digest, body = blake2b(digest_size=16), bytes([form]) + data
    for bound in (header(codec), context, schema_of(returns).fingerprint):
        digest.update(b"%d:%b" % (len(bound), bound))
    digest.update(body)
    return header(codec) + digest.digest() + body


def header(codec: Codec) -> bytes:
    return b"\1" + codec.name.encode() + b"\0"


# -- What comes back ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("examples", [8, *slow(50)])
def test_any_value_comes_back_the_same(maker, examples):
    codec = maker()

    @settings(max_examples=examples)
    @given(ANNOTATED, st.binary(max_size=9))
    def check(case, context):
        annotation, value = case
        data = codec.encode(value, annotation, context=context)
        assert len(data) <= codec.max_size
        assert same(codec.decode(data, annotation, context=context), value)

    check()


def test_large_data_is_compressed_where_that_makes_it_smaller():
    text, noise = "a" * 5000, bytes(range(256)) * 3
    assert len(MessagePackCodec().encode(text, str)) < 200
    assert len(MessagePackCodec(compress_above=None).encode(text, str)) > 5000
    assert len(MessagePackCodec(compress_above=10_000).encode(text, str)) > 5000
    once = zlib.compress(noise * 20, 9)
    assert len(MessagePackCodec(compress_above=1).encode(once, bytes)) <= len(once) + 64


def test_the_size_is_bounded_on_the_way_out():
    codec = MessagePackCodec(max_size=1000, compress_above=10)
    assert codec.decode(codec.encode("a" * 990, str), str) == "a" * 990
    for value in ("a" * 1001, [0] * 2000, {str(n): n for n in range(500)}):
        with pytest.raises(Unencodable):
            codec.encode(value, Any)


# -- Keys -----------------------------------------------------------------------------------------------------------

GUARDS = [SignedCodec, encrypted]


@pytest.mark.parametrize("guard", GUARDS)
def test_the_first_key_writes_and_all_of_them_read(guard):
    old, both, new = (guard(MessagePackCodec(), keys) for keys in (KEY, [OTHER, KEY], OTHER))
    assert both.decode(old.encode(ORDER, Frozen), Frozen) == ORDER
    assert new.decode(both.encode(ORDER, Frozen), Frozen) == ORDER
    for data, reader in ((old.encode(ORDER, Frozen), new), (both.encode(ORDER, Frozen), old)):
        with pytest.raises(Undecodable):
            reader.decode(data, Frozen)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SignedCodec(KEY, KEY),
        lambda: encrypted(MessagePackCodec(), KEY + b"!"),  # which may sign
        lambda: MessagePackCodec(compress_above=0),
        lambda: MessagePackCodec(compress_above="1"),
        lambda: MessagePackCodec(max_size=None),
        lambda: MessagePackCodec(max_size=True),
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(make):
    with pytest.raises(ConfigurationError, match=r"codec|Codec"):
        make()


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("keys", [[], b"", "k" * 32, ["k" * 32], b"short", [KEY, b"short"], None, 32, [None]])
def test_bad_keys_are_refused_at_once(guard, keys):
    with pytest.raises(ConfigurationError) as caught:
        guard(MessagePackCodec(), keys)
    assert "short" not in str(caught.value)


def test_keys_show_in_no_repr():
    for codec in (SignedCodec(MessagePackCodec(), KEY), encrypted(MessagePackCodec())):
        assert "kkk" not in repr(codec)


def test_encryption_without_the_package_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(ConfigurationError, match=r"agent-cache\[crypto\]"):
        EncryptedCodec(MessagePackCodec(), KEY)


def test_encrypted_data_shows_nothing_and_never_repeats():
    codec = encrypted(MessagePackCodec())
    first, second = (codec.encode("hunter2 " * 4, str, context=b"entry") for _ in range(2))
    assert b"hunter2" not in first
    assert first != second


# -- What must not be read ------------------------------------------------------------------------------------------


def test_a_value_does_not_move_to_another_entry(codec: Codec):
    data = codec.encode(ORDER, Frozen, context=b"entry:1")
    for context in (b"entry:2", b"", b"entry:", b"entry:1\0"):
        with pytest.raises(Undecodable):
            codec.decode(data, Frozen, context=context)


def test_a_value_is_not_read_as_another_type(codec: Codec):
    data = codec.encode(ORDER, Frozen)
    for returns in (Line, Any, Frozen | None, list[Frozen], dict, str, Spot, "Frozen"):
        with pytest.raises(Undecodable):
            codec.decode(data, returns)


def test_data_of_another_codec_or_version_is_not_read(codec: Codec):
    for maker in MAKERS.values():
        other = maker()
        if other.name != codec.name:
            with pytest.raises(Undecodable, match="codec"):
                codec.decode(other.encode(1, int), int)
    with pytest.raises(Undecodable, match="version"):
        codec.decode(b"\2" + codec.encode(1, int)[1:], int)


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_every_flipped_bit_is_seen(maker):
    codec = maker()
    data = codec.encode(ORDER, Frozen, context=b"c")
    for at in range(len(data)):
        for bit in range(8):
            flipped = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
            with pytest.raises(Undecodable):
                codec.decode(flipped, Frozen, context=b"c")


class Bomb:
    """Runs code where a pickle of it is read."""

    def __reduce__(self):
        return (exec, ("import sys; sys.modules['exploded'] = sys",))


@pytest.mark.parametrize("returns", [Any, Frozen, bytes, str, list[Line]])
def test_pickles_are_not_read(codec: Codec, returns):
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps(Bomb(), protocol)
        for hostile in (data, header(codec) + data, forged(codec, 0, data, returns)):
            with pytest.raises(Undecodable):
                codec.decode(hostile, returns)
    assert "exploded" not in sys.modules


PLAIN = [MessagePackCodec, JsonCodec]
KINDS = [
    Any,
    Frozen,
    Tree,
    Parcel,
    Row,
    list[Line],
    tuple[int, str],
    dict[int, Spot],
    set[str],
    Line | Spot | None,
    int,
]
TAGS = st.sampled_from([
    *("$tuple", "$set", "$frozenset", "$dict", "$object", "$enum", "$model", "$int", "$float", "$str", "$bytes"),
    *("$datetime", "$time", "$date", "$timedelta", "$Decimal", "$UUID", "$IPv4Network", "$PosixPath", "$", "$x"),
])  # fmt: skip
NAMES = st.sampled_from(
    ["Line", "Frozen", "Status", "Spot", "OPEN", "lines", "status", "sku", "price", "os.system", "Europe/Berlin"]
)
HOSTILE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | NAMES | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(NAMES | st.text(max_size=3), inner, max_size=3)
        | st.dictionaries(TAGS, inner, min_size=1, max_size=1)
        | st.tuples(NAMES, inner).map(list)
    ),
    max_leaves=10,
)


@searched(75, 1000, st.sampled_from(PLAIN), st.sampled_from(KINDS), HOSTILE, st.sampled_from([0, 1]))
def test_forged_data_is_undecodable_or_a_value_of_the_annotation(maker, returns, plain, form):
    codec = maker()
    data = (msgspec.msgpack if maker is MessagePackCodec else msgspec.json).encode(plain)
    try:
        value = codec.decode(forged(codec, form, data, returns), returns)
    except Undecodable:
        return
    if returns is not Any:
        codec.encode(value, returns)  # refuses what is not of the annotation


def nested(codec: Codec, depth: int) -> bytes:
    return b"[" * depth + b"]" * depth if isinstance(codec, JsonCodec) else b"\x91" * depth + b"\x90"


@pytest.mark.parametrize("maker", PLAIN)
@pytest.mark.parametrize("form", [0, 1])
@pytest.mark.parametrize("depth", [500_000])
@pytest.mark.parametrize("returns", [Any, list, Tree])
def test_deep_nesting_is_undecodable(maker, form, depth, returns):
    codec = maker()
    with pytest.raises(Undecodable):
        codec.decode(forged(codec, form, nested(codec, depth), returns), returns)


@pytest.mark.parametrize("maker", PLAIN)
def test_a_bomb_is_undecodable_in_bounded_memory(maker):
    codec = maker(max_size=100_000)
    bomb = zlib.compress(b"\0" * 50_000_000, 9)
    assert len(bomb) < codec.max_size
    hostile = forged(codec, 2, bomb, Any)
    tracemalloc.start()
    try:
        with pytest.raises(Undecodable, match="more than"):
            codec.decode(hostile, Any)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_guard_does_not_read_what_is_only_well_made():
    for codec in (SignedCodec(MessagePackCodec(), KEY), encrypted(MessagePackCodec())):
        inner = MessagePackCodec().encode(1, int)
        for filler in (b"", b"\0" * 12, b"\0" * 32):
            with pytest.raises(Undecodable):
                codec.decode(header(codec) + filler + inner, int)
