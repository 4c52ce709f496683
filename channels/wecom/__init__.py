"""WeCom application (企业微信自建应用): callbacks in, message/send out."""
