"""Talk to the bot where the bridge was started."""

from channels.terminal.channel import TerminalChannel, TerminalConfig

__all__ = ["TerminalChannel", "TerminalConfig"]
