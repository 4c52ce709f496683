"""Slack: Web API, Socket Mode, Events API."""
