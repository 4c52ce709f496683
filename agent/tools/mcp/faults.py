"""What can go wrong with a server, by what the caller does next."""

from __future__ import annotations


class McpFault(Exception):
    """Something went wrong with one server. The message is fit for a model and for an admin: it says what
    happened, why, and what to try, and holds no credential.

    McpFault
     ├─ StartFailed   the server cannot be used; `lasting` when trying again by itself will not help
     ├─ NeedsLogin    the server answers 401 or 403
     ├─ Unreachable   there is no session to call through; the call was not sent
     ├─ Down          the connection is gone; the outcome of the call is unknown
     ├─ SessionGone   a remote server forgot the session; the call was not run and may be sent again
     ├─ CallTimeout   no answer within the deadline
     └─ CallRefused   the server answered the call with a protocol error, or with something unreadable
    """


class StartFailed(McpFault):
    def __init__(self, message: str, *, lasting: bool = False) -> None:
        super().__init__(message)
        self.lasting = lasting


class NeedsLogin(McpFault):
    pass


class Unreachable(McpFault):
    pass


class Down(McpFault):
    pass


class SessionGone(McpFault):
    pass


class CallTimeout(McpFault):
    pass


class CallRefused(McpFault):
    pass
