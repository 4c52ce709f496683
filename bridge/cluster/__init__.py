"""More than one process: gateways that hold the channels, workers that run the agents, Redis between them.

`wire` carries requests between processes, `gateway` is the one kind of process, `worker` the other, `remote`
is a gateway's channel as a worker sees it. See docs/architecture.md.
"""
