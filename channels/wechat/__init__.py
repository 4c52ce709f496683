"""WeChat official accounts, and the envelope, tokens and plain text that WeCom shares with them."""
