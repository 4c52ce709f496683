"""WeCom AI bot (企业微信智能机器人): long connection and callback URL."""
