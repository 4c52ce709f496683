"""The floor: a bare aiohttp server that hands a question to the model and its answer back."""

from __future__ import annotations

import json
import sys

import aiohttp
from aiohttp import web


async def main(port: int, model: str) -> web.Application:
    app = web.Application()

    async def session(app: web.Application):  # type: ignore[no-untyped-def]
        async with aiohttp.ClientSession() as client:
            app["client"] = client
            yield

    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        question = {"model": "m", "stream": True, "messages": body["messages"]}
        text = ""
        async with request.app["client"].post(f"{model}/chat/completions", json=question) as response:
            async for line in response.content:
                if line.startswith(b"data: {"):
                    choices = json.loads(line[6:])["choices"]
                    text += (choices[0]["delta"].get("content") or "") if choices else ""
        return web.json_response({"choices": [{"message": {"role": "assistant", "content": text}}]})

    app.cleanup_ctx.append(session)
    app.router.add_post("/v1/chat/completions", answer)
    return app


if __name__ == "__main__":
    web.run_app(main(int(sys.argv[1]), sys.argv[2]), host="127.0.0.1", port=int(sys.argv[1]), print=None)
