"""A server of MCP that keeps notes, by the SDK of either era: `python mcp_notes_server.py`. Nothing in it counts calls.

`share_note` changes the count of an author who stands only in its answer; `shred` is never called in the tests.
"""

import json

try:
    from mcp.server.mcpserver import MCPServer

    is_modern = True
except ImportError:
    from mcp.server.fastmcp import FastMCP as MCPServer

    is_modern = False

from mcp.types import ToolAnnotations


def hint(*, reads: bool) -> ToolAnnotations:
    return ToolAnnotations(**{"read_only_hint" if is_modern else "readOnlyHint": reads})


server = MCPServer("notes")
authors = {f"author-{number}": 0 for number in range(3)}
notes = {f"note-{number}": {"author_id": f"author-{number % 3}", "text": "empty"} for number in range(9)}


@server.tool(annotations=hint(reads=True))
def read_note(note_id: str) -> str:
    """Read a note."""
    return json.dumps({"note_id": note_id, **notes[note_id]})


@server.tool(annotations=hint(reads=True))
def read_author(author_id: str) -> str:
    """Read an author."""
    return json.dumps({"author_id": author_id, "shared": authors[author_id]})


@server.tool(annotations=hint(reads=False))
def change_note(note_id: str, text: str) -> str:
    """Change a note."""
    notes[note_id]["text"] = text
    return "changed"


@server.tool(annotations=hint(reads=False))
def share_note(note_id: str) -> str:
    """Share a note."""
    author_id = notes[note_id]["author_id"]
    authors[author_id] += 1
    return json.dumps({"shared": note_id, "author_id": author_id})


@server.tool(annotations=hint(reads=False))
def shred(note_id: str) -> str:
    """Remove a note."""
    del notes[note_id]
    return "gone"


if __name__ == "__main__":
    server.run()
