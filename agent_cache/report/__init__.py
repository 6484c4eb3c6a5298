"""Shows a recorded run: as a page of HTML, and as a trace that Perfetto opens. For `agent-cache report` and `trace`."""
