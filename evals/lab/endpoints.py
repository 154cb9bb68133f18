"""The HTTP side of the worker: SGLang's endpoints and OpenAI's, on one asyncio loop."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from random import Random

from aiohttp import web

from evals.lab.answers import Answers
from evals.lab.arguments import Launch
from evals.lab.ask import Ask
from evals.lab.bodies import answer, error, read
from evals.lab.clock import Clock
from evals.lab.conversation import Conversation
from evals.lab.loads import document, exposition, load_of, wanted
from evals.lab.log import Log
from evals.lab.memory import Allocation, context_length
from evals.lab.metrics import Metrics
from evals.lab.replies import Reply, Token
from evals.lab.scheduler import Scheduler
from evals.lab.specimen import Specimen

HEALTH_TIMEOUT = 20.0
"""Seconds of life after which a health check gives up (`SGLANG_HEALTH_CHECK_TIMEOUT`)."""
_NO = {"0", "false", "no", "off", "n"}
_OPEN = ("/health", "/metrics")
"""Beginnings of the paths that no key is needed for."""
_FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details."
    " (When there are running or waiting requests, the operation will not be performed.)\n"
)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Endpoints:
    """Every endpoint of one started worker.

    Args:
        launch: How it was started.
        allocation: Where its memory went.
        graphs: GiB that the graphs take.
        specimen: Model and cards.
        scheduler: The loop that owns the batch.
        clock: Serving clock.
        log: Where access lines go.
        metrics: Where figures go.
        chance: Source of ids.
        environ: The server's environment: how health is checked.
    """

    def __init__(
        self,
        launch: Launch,
        allocation: Allocation,
        graphs: float,
        specimen: Specimen,
        scheduler: Scheduler,
        clock: Clock,
        log: Log,
        metrics: Metrics,
        chance: Random,
        environ: Mapping[str, str],
    ) -> None:
        self.status = "Starting"
        """`Starting`, `Up` or `UnHealthy`, as the engine names it."""
        self.leaving = False
        """A signal to end has come."""
        self._launch = launch
        self._allocation = allocation
        self._graphs = graphs
        self._specimen = specimen
        self._scheduler = scheduler
        self._clock = clock
        self._log = log
        self._metrics = metrics
        self.answers = Answers(launch, specimen, scheduler, clock, chance)
        """The endpoints that generate."""
        self._context = context_length(launch.arguments, specimen)
        self._model = launch.arguments["served_model_name"]
        self._born = int(time.time())
        self._generates = environ.get("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "true").lower() not in _NO
        self._patience = float(environ.get("SGLANG_HEALTH_CHECK_TIMEOUT") or HEALTH_TIMEOUT)

    def application(self) -> web.Application:
        """The routes, with the engine's access log and error shapes around them."""
        made = web.Application(middlewares=[self._shape], client_max_size=64 * 2**20)
        made.on_response_prepare.append(self._prepared)
        get: dict[str, Handler] = {
            "/health": self.health,
            "/health_generate": self.health,
            "/model_info": self.model_info,
            "/get_model_info": self._deprecated(self.model_info, "/get_model_info", "/model_info"),
            "/server_info": self.server_info,
            "/get_server_info": self._deprecated(self.server_info, "/get_server_info", "/server_info"),
            "/v1/models": self.models,
            "/v1/loads": self.loads,
            "/get_load": self._deprecated(self.load, "/get_load", "/v1/loads"),
            "/flush_cache": self.flush_cache,
            "/ping": self.ping,
        }
        if self._launch.arguments["enable_metrics"]:
            get["/metrics"] = self.metrics
        post: dict[str, Handler] = {
            "/v1/chat/completions": self.answers.chat,
            "/v1/completions": self.answers.complete,
            "/generate": self.answers.generate,
            "/abort_request": self.abort_request,
            "/flush_cache": self.flush_cache,
            "/pause_generation": self.pause,
            "/continue_generation": self.go_on,
        }
        for path, handler in get.items():
            made.router.add_get(path, handler, allow_head=False)
        for path, handler in post.items():
            made.router.add_post(path, handler)
        return made

    @web.middleware
    async def _shape(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Count requests, and give errors the engine's shape."""
        method, endpoint = request.method, request.path
        key = self._launch.arguments["api_key"]
        if key and not endpoint.startswith(_OPEN) and request.headers.get("Authorization") != f"Bearer {key}":
            return answer({"error": "Unauthorized"}, status=401)
        self._metrics.add("http_requests_total", method=method, endpoint=endpoint)
        self._metrics.add("http_requests_active", method=method, endpoint=endpoint)
        try:
            return await handler(request)
        except web.HTTPNotFound:
            return answer({"detail": "Not Found"}, status=404)
        except web.HTTPMethodNotAllowed:
            return answer({"detail": "Method Not Allowed"}, status=405)
        except (web.HTTPException, ConnectionError):
            raise
        except ValueError as slip:
            return error(str(slip), 400)
        except Exception:
            self._log.server(f"ERROR:    Exception in ASGI application\n{traceback.format_exc()}")
            return web.Response(text="Internal Server Error", status=500)
        finally:
            self._metrics.add("http_requests_active", -1, method=method, endpoint=endpoint)

    async def _prepared(self, request: web.Request, response: web.StreamResponse) -> None:
        """The access line, printed when the status is known, and the headers of the engine's server."""
        response.headers["Server"] = "uvicorn"
        peer = request.transport.get_extra_info("peername") if request.transport else None
        host, port = peer[:2] if peer else ("127.0.0.1", 0)
        reason = response.reason or ""
        self._metrics.add(
            "http_responses_total", method=request.method, endpoint=request.path, status_code=str(response.status)
        )
        self._log.server(
            f'INFO:     {host}:{port} - "{request.method} {request.path_qs} HTTP/1.1" {response.status} {reason}'
        )

    def _deprecated(self, handler: Handler, old: str, new: str) -> Handler:
        async def warned(request: web.Request) -> web.StreamResponse:
            self._log.server(
                f"Endpoint '{old}' is deprecated and will be removed in a future version. Please use '{new}' instead."
            )
            return await handler(request)

        return warned

    # ------------------------------------------------------------------------------------------- state

    async def ping(self, request: web.Request) -> web.Response:
        """Answer at once."""
        return web.Response()

    async def health(self, request: web.Request) -> web.Response:
        """Generate a token and see whether anything leaves the loop, as the engine does on both paths."""
        if self.status == "Starting" or self.leaving:
            return web.Response(status=503)
        if not self._generates and request.path == "/health":
            return web.Response()
        asked, asked_clock = self._clock.now(), time.strftime("%H:%M:%S")
        ask = None
        if self._scheduler.idle:
            conversation = Conversation("", 0, (), (), None, "", 1, ())
            said = Reply((Token("text", "."),), None, "")
            ask = Ask(f"HEALTH_CHECK_{time.time()}", conversation, said, most=1, own=True)
            self._scheduler.submit(ask)
        while self._clock.now() < asked + self._patience:
            await asyncio.sleep(self._clock.wall(1.0))
            # A loop that answered within the timeout counts as answering: what sits in the detokenizer is not seen.
            heard = self._scheduler.heard
            if self._scheduler.pretends or heard > asked or self._clock.now() - heard < self._patience:
                self.status = "Up"
                return web.Response()
        if ask is not None:
            self._scheduler.abort(ask)
        silent = self._clock.wall(self._clock.now() - self._scheduler.heard)
        last = time.strftime("%H:%M:%S", time.localtime(time.time() - silent))
        self._log.server(
            f"Health check failed. Server couldn't get a response from detokenizer for last {self._patience:g} seconds."
            f" tic start time: {asked_clock}. last_heartbeat time: {last}"
        )
        self.status = "UnHealthy"
        return web.Response(status=503)

    async def model_info(self, request: web.Request) -> web.Response:
        """What model is served."""
        arguments = self._launch.arguments
        return answer(
            {
                "model_path": arguments["model_path"],
                "tokenizer_path": arguments["tokenizer_path"],
                "is_generation": True,
                "preferred_sampling_params": arguments["preferred_sampling_params"],
                "weight_version": arguments["weight_version"],
                "has_image_understanding": False,
                "has_audio_understanding": False,
                "model_type": self._specimen.model_type,
                "architectures": [self._specimen.architecture],
            }
        )

    async def server_info(self, request: web.Request) -> web.Response:
        """The server arguments as they took effect, and the engine's own state."""
        arguments, dialect = self._launch.arguments, self._launch.dialect
        told = dialect.fields(arguments)
        state = {
            **told,
            **self._launch.internal,
            # The scheduler's own copy of the arguments differs in what it decided late (recordings).
            "pp_max_micro_batch_size": self._allocation.requests // arguments["pp_size"],
            "disable_chunked_prefix_cache": True,
            "disable_shared_experts_fusion": arguments["disable_shared_experts_fusion"] or self._specimen.pool == "mla",
            "use_mla_backend": self._specimen.pool != "mha",
            **({} if dialect.flat else {"_cuda_graph_config_locked": self._launch.locked}),
            "last_gen_throughput": self._scheduler.reports.throughput,
            "memory_usage": self._memory(),
            "effective_max_running_requests_per_dp": self._allocation.requests,
        }
        return answer(
            {
                **told,
                "status": "ready",
                "max_total_num_tokens": self._allocation.tokens,
                # The engine keeps six tokens of the context back (recording: 8192 and 8186).
                "max_req_input_len": self._context - 6,
                "internal_states": [state],
                "version": self._launch.dialect.version,
                "kv_events": None,
            }
        )

    def _memory(self) -> dict[str, float | int]:
        """What memory went where; DeepSeek-V4's pools do not report their size, so the engine shows 0."""
        kept = 0.0 if self._specimen.pool == "dsv4" else round(self._allocation.pool, 2)
        return {
            "weight": round(self._allocation.weights, 2),
            "kvcache": kept,
            "token_capacity": self._allocation.tokens,
            "graph": round(self._graphs, 2),
        }

    async def models(self, request: web.Request) -> web.Response:
        """The served model, as OpenAI lists it."""
        card = {
            "id": self._model,
            "object": "model",
            "created": self._born,
            "owned_by": "sglang",
            "root": self._model,
            "parent": None,
            "max_model_len": self._context,
        }
        return answer({"object": "list", "data": [card]})

    async def loads(self, request: web.Request) -> web.Response:
        """How busy the loop is right now."""
        sections = wanted(request.query.get("include", "core"))
        shape = request.query.get("format", "json")
        if shape not in {"json", "prometheus"}:
            raise ValueError(f"Invalid format: {shape}. Valid: json, prometheus")
        if request.query.get("dp_rank", "0") != "0":
            raise ValueError(f"dp_rank={request.query['dp_rank']} not found")
        mode = self._launch.arguments["disaggregation_mode"]
        load = load_of(self._scheduler, self._memory(), self._allocation.requests, sections, mode)
        if shape == "prometheus":
            return web.Response(text=exposition(load))
        return answer(document(load, self._launch.dialect.version))

    async def load(self, request: web.Request) -> web.Response:
        """The deprecated short form."""
        tokens = self._scheduler.used
        waiting = len(self._scheduler.waiting)
        running = len(self._scheduler.running)
        return answer(
            [{"dp_rank": 0, "num_reqs": running + waiting, "num_waiting_reqs": waiting, "num_tokens": tokens}]
        )

    async def metrics(self, request: web.Request) -> web.Response:
        """The Prometheus exposition."""
        self._metrics.set("process_cpu_seconds_total", time.process_time(), component="tokenizer")
        self._metrics.set("process_cpu_seconds_total", 0.0, component="detokenizer")
        body = self._metrics.text().encode()
        return web.Response(
            body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"}
        )

    # ----------------------------------------------------------------------------------------- changes

    async def flush_cache(self, request: web.Request) -> web.Response:
        """Forget cached prompts when nothing is in flight."""
        if self._scheduler.flush():
            return web.Response(text=_FLUSHED)
        return web.Response(text="Flush cache failed.\n", status=400)

    async def abort_request(self, request: web.Request) -> web.Response:
        """Abort by prefix of the request id, or everything."""
        body = await read(request)
        prefix = str(body.get("rid") or "")
        if prefix or body.get("abort_all"):
            for ask in self._scheduler.find("" if body.get("abort_all") else prefix):
                self._scheduler.abort(ask)
        return web.Response()

    async def pause(self, request: web.Request) -> web.Response:
        """Stop after the pass in flight: taking requests back, or leaving them where they are."""
        mode = str((await read(request)).get("mode") or "abort") if request.can_read_body else "abort"
        if mode not in {"abort", "in_place", "retract"}:
            raise ValueError(f"Invalid mode: {mode}. Valid: abort, in_place, retract")
        self._scheduler.pause(mode)
        return answer({"message": "Generation paused successfully.", "status": "ok"})

    async def go_on(self, request: web.Request) -> web.Response:
        """Go on after a pause."""
        self._scheduler.go_on()
        return answer({"message": "Generation continued successfully.", "status": "ok"})
