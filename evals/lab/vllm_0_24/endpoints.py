"""The HTTP side of vLLM 0.24: what it serves always, and what only a server in development mode does."""

from __future__ import annotations

import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from random import Random

from aiohttp import web

from evals.lab.bodies import answer
from evals.lab.conversation import tokens
from evals.lab.metrics import Metrics
from evals.lab.scheduler import QueueFullError, Scheduler
from evals.lab.specimen import Specimen
from evals.lab.vllm_0_24.answers import Answers, Refused
from evals.lab.vllm_0_24.arguments import VERSION, Launch
from evals.lab.vllm_0_24.configuration import configuration
from evals.lab.vllm_0_24.log import VllmLog
from evals.lab.vllm_0_24.startup import Started

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Endpoints:
    """Every endpoint of one started worker.

    Args:
        launch: How it was started.
        started: What came of it.
        specimen: Model and cards.
        environ: The server's environment.
        scheduler: The loop that owns the batch.
        log: Where access lines go.
        metrics: Where figures go.
        chance: Source of ids.
    """

    def __init__(
        self,
        launch: Launch,
        started: Started,
        specimen: Specimen,
        environ: Mapping[str, str],
        scheduler: Scheduler,
        log: VllmLog,
        metrics: Metrics,
        chance: Random,
    ) -> None:
        self.answers = Answers(launch, scheduler, chance)
        """The endpoints that generate."""
        self._launch = launch
        self._started = started
        self._specimen = specimen
        self._develops = environ.get("VLLM_SERVER_DEV_MODE", "0") == "1"
        keys = launch.values["api_key"] or ([environ["VLLM_API_KEY"]] if environ.get("VLLM_API_KEY") else [])
        self._keys = {f"Bearer {key}" for key in keys}
        self._scheduler = scheduler
        self._log = log
        self._metrics = metrics
        self._born = time.time()

    def application(self) -> web.Application:
        """The routes, with the engine's access log and error shapes around them; each route is told in the log."""
        made = web.Application(middlewares=[self._shape], client_max_size=64 * 2**20)
        made.on_response_prepare.append(self._prepared)
        get: dict[str, Handler] = {
            "/load": self.load,
            "/version": self.version,
            "/health": self.health,
            "/metrics": self.metrics,
            "/v1/models": self.models,
            "/ping": self.health,
        }
        post: dict[str, Handler] = {
            "/tokenize": self.tokenize,
            "/ping": self.health,
            "/v1/chat/completions": self.answers.chat,
            "/v1/completions": self.answers.complete,
        }
        if self._develops:
            get["/server_info"] = self.server_info
            post["/reset_prefix_cache"] = self.reset_prefix_cache
        self._log.server("Available routes are:", "launcher.py:37")
        for path, handler in get.items():
            self._log.server(f"Route: {path}, Methods: GET", "launcher.py:46")
            made.router.add_get(path, handler, allow_head=False)
        for path, handler in post.items():
            self._log.server(f"Route: {path}, Methods: POST", "launcher.py:46")
            made.router.add_post(path, handler)
        return made

    @web.middleware
    async def _shape(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Ask for the key, and give errors the engine's shape."""
        guarded = self._keys and request.path.startswith("/v1")
        if guarded and request.headers.get("Authorization", "") not in self._keys:
            return answer({"error": "Unauthorized"}, status=401)
        try:
            return await handler(request)
        except Refused as refusal:
            return refusal.answer()
        except web.HTTPNotFound:
            return answer({"detail": "Not Found"}, status=404)
        except web.HTTPMethodNotAllowed:
            return answer({"detail": "Method Not Allowed"}, status=405)
        except QueueFullError:
            return Refused("The request queue is full.", 500).answer()
        except (web.HTTPException, ConnectionError):
            raise
        except Exception as failure:
            self._log.server(f"Exception in ASGI application\n{traceback.format_exc()}", "launcher.py:90", "ERROR")
            return Refused(str(failure), 500).answer()

    async def _prepared(self, request: web.Request, response: web.StreamResponse) -> None:
        """The access line, printed when the status is known, and the headers of the engine's server."""
        response.headers["Server"] = "uvicorn"
        self._metrics.add(
            "http_requests_total",
            handler=request.path,
            method=request.method,
            status=f"{response.status // 100}xx",
        )
        quiet = (self._launch.values["disable_access_log_for_endpoints"] or "").split(",")
        if self._launch.values["disable_uvicorn_access_log"] or request.path in quiet:
            return
        peer = request.transport.get_extra_info("peername") if request.transport else None
        host, port = peer[:2] if peer else ("127.0.0.1", 0)
        self._log.uvicorn(
            f'INFO:     {host}:{port} - "{request.method} {request.path_qs} HTTP/1.1" {response.status}'
            f" {response.reason or ''}"
        )

    # ------------------------------------------------------------------------------------------- state

    async def health(self, request: web.Request) -> web.Response:
        """Whether the engine's process lives; it is not asked for a token."""
        return web.Response(status=503 if self.answers.dead else 200)

    async def version(self, request: web.Request) -> web.Response:
        """The engine's version."""
        return answer({"version": VERSION})

    async def load(self, request: web.Request) -> web.Response:
        """Open requests, where they are tracked."""
        tracked = self._launch.values["enable_server_load_tracking"]
        return answer({"server_load": len(self.answers.open_requests) if tracked else 0})

    async def models(self, request: web.Request) -> web.Response:
        """The served names, as OpenAI lists them."""
        cards = [
            {
                "id": name,
                "object": "model",
                "created": int(time.time()),
                "owned_by": "vllm",
                "root": self._launch.model,
                "parent": None,
                "max_model_len": self._launch.context,
                "permission": [_permission(int(time.time()))],
            }
            for name in self._launch.names
        ]
        return answer({"object": "list", "data": cards})

    async def metrics(self, request: web.Request) -> web.Response:
        """The Prometheus exposition."""
        self._metrics.set("process_cpu_seconds_total", time.process_time())
        self._metrics.set("process_start_time_seconds", self._born)
        return web.Response(
            body=self._metrics.text(created=self._born).encode(),
            headers={"Content-Type": "text/plain; version=1.0.0; charset=utf-8; escaping=underscores"},
        )

    async def tokenize(self, request: web.Request) -> web.Response:
        """How many tokens a prompt has."""
        body = await request.json()
        count = tokens(str(body.get("prompt", "")))
        listed = list(range(count))
        return answer({"count": count, "max_model_len": self._launch.context, "tokens": listed, "token_strs": None})

    async def server_info(self, request: web.Request) -> web.Response:
        """The configuration as one text; in development mode only."""
        text = configuration(self._launch, self._specimen).partition("with config: ")[2]
        return answer({"vllm_config": text, "vllm_env": {}, "system_env": {}})

    async def reset_prefix_cache(self, request: web.Request) -> web.Response:
        """Forget cached prompts when nothing is in flight; in development mode only."""
        return web.Response(status=200 if self._scheduler.flush() else 500)


def _permission(created: int) -> dict[str, object]:
    allowed = dict.fromkeys(("allow_sampling", "allow_logprobs", "allow_view"), True)
    denied = dict.fromkeys(("allow_create_engine", "allow_search_indices", "allow_fine_tuning", "is_blocking"), False)
    head = {"id": f"modelperm-{created:032x}", "object": "model_permission", "created": created}
    return {**head, **allowed, **denied, "organization": "*", "group": None}
