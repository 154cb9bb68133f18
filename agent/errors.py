"""What can go wrong, sorted by what should happen next.

    PrudentError
      Refused                the operator can do something about it: one sentence, a remedy, an exit code, no traceback
        UnknownWorker        20    BadSettings        21    UnreadableScript   22    AmbiguousLaunch   23
        OutOfBounds          24    WorkerDown         25    RunInFlight        26    UsersOnWorker     27
        ApprovalExpired      28    ForeignApproval    29    SpentApproval      30    DiskFull          31
        StaleState           32    EditRefused        33    CorruptBaseline    34    DoesNotFit        35
        StoreUnusable        36    UnknownRun         37    NotUnderstood      38    EngineRefuses      39
        CannotProve          40    HostUnreachable    41    LoginRefused       42    UnknownHostKey    43
        ChangedHostKey       44    ServiceUnusable    45    HostUnfit          46    NotAllowed        47
      HostError              the host did not do what it was asked: host, command, status, and what it said
        NoAnswer             nobody knows whether it was done: never success, and for a change never tried again blindly
        HelperRefused        the helper on the host said no, with the kind of refusal
      Stopped                the operator wants to end the run; what was begun is taken back
      Superseded             another process has taken the run over: this one lets go and touches nothing more
      ModelSlip              the model's answer cannot be used: goes back to it as advice, then to the rules

Anything else is a bug and shows its traceback.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class PrudentError(Exception):
    """Everything that Prudent raises on purpose."""


class Refused(PrudentError):
    """Something that the operator can put right."""

    code: ClassVar[int] = 12
    """Exit code of the command line."""

    def __init__(self, sentence: str, remedy: str) -> None:
        super().__init__(f"{sentence} {remedy}".strip())
        self.sentence = sentence
        self.remedy = remedy


class UnknownWorker(Refused):
    """No worker of that name in the settings."""

    code = 20


class BadSettings(Refused):
    """`prudent.toml`, the environment or a policy has a mistake."""

    code = 21


class UnreadableScript(Refused):
    """The serve script is missing, unreadable, or not a launch file."""

    code = 22


class AmbiguousLaunch(Refused):
    """The serve script launches more than one server."""

    code = 23


class OutOfBounds(Refused):
    """The value lies outside what the knob takes."""

    code = 24


class WorkerDown(Refused):
    """The worker does not run or does not answer."""

    code = 25


class RunInFlight(Refused):
    """Another run holds the worker's lease."""

    code = 26


class UsersOnWorker(Refused):
    """People are being served and the policy says to wait for them."""

    code = 27


class ApprovalExpired(Refused):
    """The approval came too late, or nobody answered in time."""

    code = 28


class ForeignApproval(Refused):
    """The approval belongs to another plan or run."""

    code = 29


class SpentApproval(Refused):
    """The approval has already opened a transaction."""

    code = 30


class DiskFull(Refused):
    """There is no room for the backup or the journal."""

    code = 31


class StaleState(Refused):
    """The host is not as it was when the plan was made."""

    code = 32


class EditRefused(Refused):
    """The script cannot be edited safely."""

    code = 33


class CorruptBaseline(Refused):
    """The worker is already broken before the change."""

    code = 34


class DoesNotFit(Refused):
    """The forecast says that the change does not fit."""

    code = 35


class StoreUnusable(Refused):
    """The state database cannot be used."""

    code = 36


class UnknownRun(Refused):
    """No run of that id, or not in a state for this."""

    code = 37


class NotUnderstood(Refused):
    """The request means nothing that Prudent can do."""

    code = 38


class EngineRefuses(Refused):
    """This engine version would not start with the setting, or would clamp, cut or ignore it."""

    code = 39


class CannotProve(Refused):
    """What a proof needs is not at hand: the listener cannot be seen, or the log holds no start."""

    code = 40


class HostUnreachable(Refused):
    """No connection to the worker's machine comes about."""

    code = 41


class LoginRefused(Refused):
    """The worker's machine does not let us in."""

    code = 42


class UnknownHostKey(Refused):
    """Nobody has said yet that the worker's machine is the one with this key."""

    code = 43


class ChangedHostKey(Refused):
    """The worker's machine shows another key than the one that is known, or a revoked one."""

    code = 44


class ServiceUnusable(Refused):
    """The service manager does not answer, or the unit may not be restarted by us."""

    code = 45


class HostUnfit(Refused):
    """The worker's machine lacks what Prudent needs there, or another machine answers than before."""

    code = 46


class NotAllowed(Refused):
    """The policy does not allow it: not at all, not now, or not at this cost."""

    code = 47


class HostError(PrudentError):
    """A command on a host failed."""

    def __init__(self, host: str, command: Sequence[str], status: int | None, said: str) -> None:
        shown = " ".join(command)
        super().__init__(f"{host}: {shown!r} ended with status {status}: {said.strip() or 'no output'}")
        self.host = host
        self.command = tuple(command)
        self.status = status
        self.said = said


class NoAnswer(HostError):
    """No answer within the time limit, or the link broke: not known whether it was done."""


class HelperRefused(HostError):
    """The helper on the host refused; `kind` says why in one word."""

    def __init__(self, host: str, command: Sequence[str], kind: str, said: str) -> None:
        super().__init__(host, command, 1, said)
        self.kind = kind


class Stopped(PrudentError):
    """Somebody asked to stop while something took long; the law treats what is missing as missing."""


class Superseded(PrudentError):
    """Another process has taken the run over, and owns its change and its record from now on."""


class ModelSlip(PrudentError):
    """The model's answer cannot be used; the text is the advice that goes back to it."""


def refusals() -> dict[str, type[Refused]]:
    """Every leaf of `Refused` by its class name."""
    return {leaf.__name__: leaf for leaf in Refused.__subclasses__()}


def kind_of(refusal: Refused) -> str:
    """The name of the leaf that a refusal is, or is a special case of."""
    leaves = refusals()
    return next((kind.__name__ for kind in type(refusal).__mro__ if kind.__name__ in leaves), type(refusal).__name__)
