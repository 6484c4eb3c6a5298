"""Tools that are known by name: `Toolbox`, and the rules that it is given."""

from agent_cache.toolbox.box import Toolbox
from agent_cache.toolbox.rules import Inner, Pass, Read, Rule, ToolInfo, ToolRow, ToolTable, Watch, Write

__all__ = ["Inner", "Pass", "Read", "Rule", "ToolInfo", "ToolRow", "ToolTable", "Toolbox", "Watch", "Write"]
