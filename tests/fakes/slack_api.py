"""The methods of the fake's Web API. Each takes the parameters of a call and returns the answer's fields.

The words of the errors are Slack's. What is not written here answers `unknown_method`.
"""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING, Any

from tests.fakes.slack_judge import MAX_MARKDOWN, MAX_TEXT, MAX_UPDATE, Refused, judge_blocks

if TYPE_CHECKING:
    from tests.fakes.slack import FakeSlack, Place

Json = dict[str, Any]

#: The scopes of which one is needed, by method (docs.slack.dev/reference/methods).
SCOPES: dict[str, tuple[str, ...]] = {
    "chat.postMessage": ("chat:write",),
    "chat.postEphemeral": ("chat:write",),
    "chat.update": ("chat:write",),
    "chat.delete": ("chat:write",),
    "chat.startStream": ("chat:write",),
    "chat.appendStream": ("chat:write",),
    "chat.stopStream": ("chat:write",),
    "assistant.threads.setStatus": ("chat:write", "assistant:write"),
    "assistant.threads.setSuggestedPrompts": ("assistant:write", "chat:write"),
    "assistant.threads.setTitle": ("assistant:write", "chat:write"),
    "reactions.add": ("reactions:write",),
    "reactions.remove": ("reactions:write",),
    "users.info": ("users:read",),
    "users.conversations": ("channels:read", "groups:read", "im:read", "mpim:read"),
    "usergroups.list": ("usergroups:read",),
    "conversations.replies": ("channels:history", "groups:history", "im:history", "mpim:history"),
    "conversations.history": ("channels:history", "groups:history", "im:history", "mpim:history"),
    "conversations.info": ("channels:read", "groups:read", "im:read", "mpim:read"),
    "conversations.list": ("channels:read", "groups:read", "im:read", "mpim:read"),
    "conversations.members": ("channels:read", "groups:read", "im:read", "mpim:read"),
    "conversations.open": ("im:write", "mpim:write"),
    "files.getUploadURLExternal": ("files:write",),
    "files.completeUploadExternal": ("files:write",),
    "files.info": ("files:read",),
    "bots.info": ("users:read",),
}
#: The family of a history scope by the kind of chat.
_FAMILY = {"channel": "channels", "group": "groups", "im": "im", "mpim": "mpim"}
_TS = re.compile(r"\d+\.\d{6}")


class Methods:
    def __init__(self, slack: FakeSlack) -> None:
        self.slack = slack

    def run(self, method: str, params: Json) -> Json:
        handler = getattr(self, method.replace(".", "_"), None)
        if handler is None:
            raise Refused("unknown_method", req_method=method)
        answer: Json = handler(params)
        return answer

    # -- places ------------------------------------------------------------------------------------------

    def place(self, params: Json, key: str = "channel", *, write: bool = False) -> Place:
        name = str(params.get(key) or "")
        if write and name in self.slack.users:
            name = self.slack.direct(name).id
        place = self.slack.places.get(name)
        if place is None:
            raise Refused("channel_not_found")
        if self.slack.bot_user not in place.members and place.kind != "channel":
            raise Refused("channel_not_found")
        if write and place.archived:
            raise Refused("is_archived")
        if write and self.slack.bot_user not in place.members:
            raise Refused("not_in_channel")
        return place

    def thread(self, place: Place, params: Json) -> str:
        """The thread of a message to be written; "" at top level."""
        ts = params.get("thread_ts")
        if ts in (None, ""):
            return ""
        if not isinstance(ts, str) or not _TS.fullmatch(ts):
            messages = [f"[ERROR] {ts} is not a valid thread_ts"]
            raise Refused("invalid_thread_ts", response_metadata={"messages": messages})
        parent = place.find(ts)
        if parent is None:
            raise Refused("thread_not_found")
        if parent.get("thread_ts", ts) != ts:
            raise Refused("cannot_reply_to_message")
        return ts

    def body(self, params: Json) -> Json:
        """What a call shows: text, blocks, attachments, metadata."""
        text, markdown, blocks = params.get("text"), params.get("markdown_text"), params.get("blocks")
        if markdown is not None and (text or blocks):
            raise Refused("markdown_text_conflict")
        if not (text or markdown or blocks or params.get("attachments")):
            raise Refused("no_text")
        body: Json = {}
        if markdown is not None:
            if len(markdown) > MAX_MARKDOWN:
                raise Refused("msg_too_long")
            body |= {"text": markdown, "_markdown": True}
        else:
            body["text"] = str(text or "")[:MAX_TEXT]
        if blocks:
            body["blocks"] = judge_blocks(blocks)
        for key in ("attachments", "metadata"):
            if params.get(key):
                body[key] = params[key]
        return body

    def own(self, place: Place, params: Json, refusal: str) -> Json:
        message = place.find(str(params.get("ts") or ""))
        if message is None:
            raise Refused("message_not_found")
        if message.get("bot_id") != self.slack.bot_id:
            raise Refused(refusal)
        return message

    # -- chat --------------------------------------------------------------------------------------------

    def chat_postMessage(self, params: Json) -> Json:
        place = self.place(params, write=True)
        body = self.body(params)
        thread = self.thread(place, params)
        if params.get("reply_broadcast") and thread:
            body["subtype"] = "thread_broadcast"
        message = self.slack.post_as_bot(place, body, thread)
        return {"channel": place.id, "ts": message["ts"], "message": self.slack.public(message)}

    def chat_postEphemeral(self, params: Json) -> Json:
        place = self.place(params, write=True)
        user = str(params.get("user") or "")
        if user not in place.members:
            raise Refused("user_not_in_channel")
        body, ts = self.body(params), self.slack.next_ts()
        thread = self.thread(place, params)
        place.ephemeral.append({**body, "ts": ts, "user": user, "thread_ts": thread})
        return {"message_ts": ts}

    def chat_update(self, params: Json) -> Json:
        place = self.place(params, write=True)
        message = self.own(place, params, "cant_update_message")
        window = self.slack.edit_window
        if window is not None and self.slack.now() - float(message["ts"]) > window:
            raise Refused("edit_window_closed")
        self.slack.expire(message)
        if message.get("_streaming"):
            raise Refused("streaming_state_conflict")
        if (
            len(str(params.get("text") or "")) > MAX_UPDATE
            or len(params.get("markdown_text") or "") > MAX_MARKDOWN
        ):
            raise Refused("msg_too_long")
        body = self.body(params)
        before = dict(message)
        for key in ("blocks", "attachments", "_markdown"):
            message.pop(key, None)
        edited = {"user": self.slack.bot_user, "ts": f"{int(self.slack.now())}.000000"}
        message.update(body, edited=edited)
        self.slack.changed(place, message, before)
        return {"channel": place.id, "ts": message["ts"], "text": message["text"]}

    def chat_delete(self, params: Json) -> Json:
        place = self.place(params, write=True)
        message = self.own(place, params, "cant_delete_message")
        place.messages.remove(message)
        return {"channel": place.id, "ts": message["ts"]}

    def chat_getPermalink(self, params: Json) -> Json:
        place = self.place(params)
        ts = str(params.get("message_ts"))
        if place.find(ts) is None:
            raise Refused("message_not_found")
        link = f"https://fake.slack.com/archives/{place.id}/p{ts.replace('.', '')}"
        return {"channel": place.id, "permalink": link}

    # -- streams -----------------------------------------------------------------------------------------

    def chat_startStream(self, params: Json) -> Json:
        place = self.place(params, write=True)
        if not self.slack.streams:
            raise Refused("unknown_method")
        thread = self.thread(place, params)
        if not thread and place.kind == "im":
            raise Refused("invalid_thread_ts")
        if place.kind != "im":
            for key in ("recipient_team_id", "recipient_user_id"):
                if not params.get(key):
                    raise Refused(f"missing_{key}")
        user, team = params.get("recipient_user_id"), params.get("recipient_team_id")
        if user and user not in self.slack.users:
            raise Refused("user_not_found")
        if team and team != self.slack.team:
            raise Refused("team_not_found")
        message = self.slack.post_as_bot(place, {"text": "", "_markdown": True}, thread)
        message |= {"_streaming": True, "_started": self.slack.now(), "_tasks": {}}
        self._stream(message, params)
        return {"channel": place.id, "ts": message["ts"]}

    def chat_appendStream(self, params: Json) -> Json:
        place, message = self._streamed(params)
        if not params.get("markdown_text") and not params.get("chunks"):
            raise Refused("no_text")
        self._stream(message, params)
        return {"channel": place.id, "ts": message["ts"]}

    def chat_stopStream(self, params: Json) -> Json:
        place, message = self._streamed(params)
        self._stream(message, params)
        if params.get("blocks"):
            message["blocks_after"] = judge_blocks(params["blocks"])
        if params.get("metadata"):
            message["metadata"] = params["metadata"]
        message["_streaming"] = False
        return {"channel": place.id, "ts": message["ts"], "message": self.slack.public(message)}

    def _streamed(self, params: Json) -> tuple[Place, Json]:
        place = self.place(params, write=True)
        message = self.own(place, params, "message_not_owned_by_app")
        self.slack.expire(message)
        if message.get("_stopped_by_user"):
            raise Refused("stopped_by_user")
        if not message.get("_streaming"):
            raise Refused("message_not_in_streaming_state")
        return place, message

    def _stream(self, message: Json, params: Json) -> None:
        pieces = [params["markdown_text"]] if params.get("markdown_text") else []
        chunks = params.get("chunks") or []
        if pieces and chunks:
            raise Refused("invalid_arguments")
        for chunk in chunks:
            kind = chunk.get("type")
            if kind == "markdown_text":
                pieces.append(str(chunk.get("text", "")))
            elif kind == "task_update":
                self._task(message, chunk)
            elif kind == "plan_update":
                message["_plan"] = str(chunk.get("title", ""))
            elif kind == "blocks":
                judge_blocks(chunk.get("blocks"))
            else:
                raise Refused("invalid_chunks")
        if sum(map(len, pieces)) > MAX_MARKDOWN:
            raise Refused("msg_too_long")
        for piece in pieces:
            # Measured by others: blanks at the beginning of a piece are lost where it joins.
            message["text"] += piece.lstrip(" ") if message["text"] else piece

    def _task(self, message: Json, chunk: Json) -> None:
        texts = [
            chunk.get(k) or "" for k in ("id", "title", "details", "output") if isinstance(chunk.get(k), str)
        ]
        if not chunk.get("id") or not chunk.get("title") or any(len(t) > 256 for t in texts):
            raise Refused("invalid_chunks")
        if chunk.get("status") not in ("pending", "in_progress", "complete", "error"):
            raise Refused("invalid_chunks")
        task = message["_tasks"].setdefault(chunk["id"], {"details": ""})
        task.update(title=chunk["title"], status=chunk["status"])
        task["details"] += chunk.get("details") or ""

    # -- reactions, people, conversations ----------------------------------------------------------------

    def reactions_add(self, params: Json) -> Json:
        _, message, name = self._reaction(params)
        users = message.setdefault("reactions", {}).setdefault(name, [])
        if self.slack.bot_user in users:
            raise Refused("already_reacted")
        users.append(self.slack.bot_user)
        return {}

    def reactions_remove(self, params: Json) -> Json:
        _, message, name = self._reaction(params)
        users = message.get("reactions", {}).get(name, [])
        if self.slack.bot_user not in users:
            raise Refused("no_reaction")
        users.remove(self.slack.bot_user)
        return {}

    def _reaction(self, params: Json) -> tuple[Place, Json, str]:
        place, name = self.place(params), str(params.get("name") or "")
        message = place.find(str(params.get("timestamp") or ""))
        if not re.fullmatch(r"[a-z0-9_+\-']+", name):
            raise Refused("invalid_name")
        if message is None:
            raise Refused("message_not_found")
        return place, message, name

    def users_info(self, params: Json) -> Json:
        user = self.slack.users.get(str(params.get("user") or ""))
        if user is None:
            raise Refused("user_not_found")
        shown = {**user}
        if params.get("include_locale") not in (True, "true", "1", 1):
            shown.pop("locale", None)
        return {"user": shown}

    def bots_info(self, params: Json) -> Json:
        if params.get("bot") != self.slack.bot_id:
            raise Refused("bot_not_found")
        return {"bot": {"id": self.slack.bot_id, "app_id": self.slack.app, "name": "causeway"}}

    def usergroups_list(self, params: Json) -> Json:
        return {"usergroups": []}

    def conversations_info(self, params: Json) -> Json:
        return {"channel": self._describe(self.place(params))}

    def conversations_list(self, params: Json) -> Json:
        kinds = {"public_channel": "channel", "private_channel": "group", "im": "im", "mpim": "mpim"}
        wanted = {kinds.get(k.strip(), "") for k in str(params.get("types") or "public_channel").split(",")}
        found = [p for p in self.slack.places.values() if p.kind in wanted]
        return {"channels": [self._describe(p) for p in found], "response_metadata": {"next_cursor": ""}}

    def users_conversations(self, params: Json) -> Json:
        answer = self.conversations_list(params)
        return {**answer, "channels": [c for c in answer["channels"] if c["is_member"]]}

    def conversations_members(self, params: Json) -> Json:
        return {"members": sorted(self.place(params).members)}

    def conversations_open(self, params: Json) -> Json:
        users = [u for u in str(params.get("users") or "").split(",") if u]
        if not users or any(u not in self.slack.users for u in users):
            raise Refused("user_not_found")
        if len(users) > 1:
            place = self.slack.place(f"G{len(self.slack.places):05d}", "mpim", members=users)
        else:
            place = self.slack.direct(users[0])
        return {"channel": {"id": place.id}}

    def _describe(self, place: Place) -> Json:
        return {
            "id": place.id,
            "name": place.name,
            "is_channel": place.kind == "channel",
            "is_group": place.kind == "group",
            "is_im": place.kind == "im",
            "is_mpim": place.kind == "mpim",
            "is_private": place.kind != "channel",
            "is_archived": place.archived,
            "is_member": self.slack.bot_user in place.members,
        }

    def conversations_replies(self, params: Json) -> Json:
        place, ts = self._readable(params), str(params.get("ts") or "")
        if place.find(ts) is None:
            raise Refused("thread_not_found")
        return self._page([m for m in place.messages if ts in (m["ts"], m.get("thread_ts"))], params)

    def conversations_history(self, params: Json) -> Json:
        place = self._readable(params)
        top = [m for m in place.messages if m.get("thread_ts", m["ts"]) == m["ts"]]
        return self._page(top[::-1], params)

    def _readable(self, params: Json) -> Place:
        place = self.place(params)
        if self.slack.bot_user not in place.members:
            raise Refused("not_in_channel")
        scope = f"{_FAMILY[place.kind]}:history"
        if scope not in self.slack.scopes:
            provided = ",".join(sorted(self.slack.scopes))
            raise Refused("missing_scope", needed=scope, provided=provided)
        return place

    def _page(self, found: list[Json], params: Json) -> Json:
        inclusive = params.get("inclusive") in (True, "true", "1", 1)
        for key, keep in (("latest", operator.lt), ("oldest", operator.gt)):
            if limit := str(params.get(key) or ""):
                edge = float(limit)
                found = [m for m in found if keep(float(m["ts"]), edge) or (inclusive and m["ts"] == limit)]
        size = max(1, min(int(params.get("limit") or 100), self.slack.page_size))
        start = int(params.get("cursor") or 0)
        page, more = found[start : start + size], len(found) > start + size
        messages = [self.slack.public(m) for m in page]
        cursor = str(start + size) if more else ""
        return {"messages": messages, "has_more": more, "response_metadata": {"next_cursor": cursor}}

    # -- the app -----------------------------------------------------------------------------------------

    def auth_test(self, params: Json) -> Json:
        return {
            "url": "https://fake.slack.com/",
            "team": "Fake",
            "user": "causeway",
            "team_id": self.slack.team,
            "user_id": self.slack.bot_user,
            "bot_id": self.slack.bot_id,
            "is_enterprise_install": False,
        }

    def apps_connections_open(self, params: Json) -> Json:
        if not self.slack.socket_mode:
            raise Refused("forbidden_team")
        return {"url": self.slack.sockets.new_url()}

    def views_publish(self, params: Json) -> Json:
        user, view = str(params.get("user_id") or ""), self._view(params, "home")
        if user not in self.slack.users:
            raise Refused("invalid_user_id")
        self.slack.homes[user] = view
        return {"view": view}

    def views_open(self, params: Json) -> Json:
        self.slack.take_trigger(str(params.get("trigger_id") or ""))
        view = self._view(params, "modal") | {"id": f"V{len(self.slack.modals):05d}"}
        self.slack.modals.append(view)
        return {"view": view}

    def views_update(self, params: Json) -> Json:
        found = next((v for v in self.slack.modals if v["id"] == params.get("view_id")), None)
        if found is None:
            raise Refused("not_found")
        found.update(self._view(params, "modal"))
        return {"view": found}

    def _view(self, params: Json, kind: str) -> Json:
        view = params.get("view")
        if not isinstance(view, dict) or view.get("type") != kind:
            raise Refused("invalid_arguments")
        title = view.get("title", {}).get("text", "")
        if kind == "modal" and not 0 < len(title) <= 24:
            raise Refused("invalid_arguments", response_metadata={"messages": ["[ERROR] title: 1 to 24"]})
        blocks = view.get("blocks")
        if not isinstance(blocks, list) or len(blocks) > 100:
            raise Refused("invalid_arguments")
        for start in range(0, len(blocks), 50):
            judge_blocks(blocks[start : start + 50])
        return dict(view)

    def assistant_threads_setStatus(self, params: Json) -> Json:
        place, ts = self._assistant(params)
        if "status" not in params:
            raise Refused("invalid_arguments")
        if len(params.get("loading_messages") or ()) > 10:
            raise Refused("invalid_arguments")
        place.statuses.append({"thread_ts": ts, "status": params["status"], "at": self.slack.now()})
        return {}

    def assistant_threads_setSuggestedPrompts(self, params: Json) -> Json:
        place, ts = self._assistant(params)
        prompts = params.get("prompts")
        if not isinstance(prompts, list) or not 1 <= len(prompts) <= 4:
            raise Refused("invalid_arguments")
        if any(not p.get("title") or not p.get("message") for p in prompts):
            raise Refused("invalid_arguments")
        place.prompts[ts] = prompts
        return {}

    def assistant_threads_setTitle(self, params: Json) -> Json:
        self._assistant(params)
        return {}

    def _assistant(self, params: Json) -> tuple[Place, str]:
        place = self.place(params, "channel_id", write=True)
        ts = str(params.get("thread_ts") or "")
        if not _TS.fullmatch(ts):
            raise Refused("invalid_thread_ts")
        return place, ts

    # -- files -------------------------------------------------------------------------------------------

    def files_upload(self, params: Json) -> Json:
        raise Refused("method_deprecated")

    def files_info(self, params: Json) -> Json:
        file = self.slack.files.get(str(params.get("file") or ""))
        if file is None:
            raise Refused("file_not_found")
        if file.meta.get("mode") == "tombstone":
            raise Refused("file_deleted")
        return {"file": {**file.meta, "file_access": "visible"}}

    def files_getUploadURLExternal(self, params: Json) -> Json:
        name, length = str(params.get("filename") or ""), int(params.get("length") or 0)
        if not name or length <= 0:
            raise Refused("invalid_arguments")
        file_id = self.slack.expect_upload(name, length)
        return {"upload_url": f"{self.slack.url}/upload/v1/{file_id}", "file_id": file_id}

    def files_completeUploadExternal(self, params: Json) -> Json:
        files = params.get("files")
        if not isinstance(files, list) or not files:
            raise Refused("invalid_arguments")
        found = [self.slack.files.get(str(f.get("id"))) for f in files]
        if any(f is None or f.data is None for f in found):
            raise Refused("file_not_found")
        metas = [f.meta for f in found if f is not None]
        if channel := params.get("channel_id"):
            place = self.place({"channel": channel}, write=True)
            thread = self.thread(place, params)
            body = {"text": str(params.get("initial_comment") or ""), "files": metas, "subtype": "file_share"}
            self.slack.post_as_bot(place, body, thread)
        return {"files": metas}
