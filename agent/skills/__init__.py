"""Skills: folders that teach the agent how to do a kind of task."""
