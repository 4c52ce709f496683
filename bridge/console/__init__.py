"""The console: one page that shows how the bridge is doing, and lets people in."""

from bridge.console.pages import routes

__all__ = ["routes"]
