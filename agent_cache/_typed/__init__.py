"""Values as plain data and back: what leaves the process, and comes home with the types that it left with."""

from agent_cache._typed.annotations import Returns
from agent_cache._typed.failures import Undecodable, Unencodable
from agent_cache._typed.schema import Schema, schema_of
from agent_cache._typed.wires import JSON, MESSAGE_PACK, Wire

__all__ = ["JSON", "MESSAGE_PACK", "Returns", "Schema", "Undecodable", "Unencodable", "Wire", "schema_of"]
