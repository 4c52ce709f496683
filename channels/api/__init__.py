"""The bridge itself as an OpenAI-compatible API."""

from channels.api.channel import ApiChannel, ApiConfig
from channels.api.wire import error_response

__all__ = ["ApiChannel", "ApiConfig", "error_response"]
