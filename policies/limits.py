"""What a policy allows at all: how far Prudent may go by itself, when, how much of it, and within which bounds."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, time, timedelta
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field

from agent.domain import Noun

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
Autonomy = Literal["watch", "propose", "ask"]
"""`watch`: questions are answered and no plan is made; `propose`: a plan is made and handed to a person, and never
carried out; `ask`: it is carried out once a person has approved it. There is no level without a person."""


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"{name!r} is no time zone, such as Europe/Berlin or UTC") from error
    return name


class Window(Noun):
    """A time of the week in which a change may be carried out."""

    days: tuple[Day, ...] = DAYS
    """The days on which it opens."""
    opens: time
    """When it opens, such as "09:00"."""
    closes: time
    """When it closes; earlier than `opens` means on the next day, and the same time means a whole day."""
    zone: Annotated[str, AfterValidator(_zone)] = "UTC"
    """The time zone of both."""

    def covers(self, moment: datetime) -> bool:
        """Whether it is open at a moment, which has a time zone."""
        here = moment.astimezone(ZoneInfo(self.zone))
        for back in (0, 1):
            day = (here - timedelta(days=back)).date()
            if DAYS[day.weekday()] not in self.days:
                continue
            begin = datetime.combine(day, self.opens, here.tzinfo)
            end = datetime.combine(day, self.closes, here.tzinfo)
            if end <= begin:
                end += timedelta(days=1)
            if begin <= here < end:
                return True
        return False

    def says(self) -> str:
        """The window for people."""
        days = "every day" if set(self.days) == set(DAYS) else ", ".join(self.days)
        return f"{days} {self.opens:%H:%M} to {self.closes:%H:%M} {self.zone}"


class Budgets(Noun):
    """The most that one run may cost."""

    minutes: Annotated[float, Field(gt=0, le=1440)] = 120
    """From the first change to the worker, just before its script is edited, to the verdict; a run that is resumed goes
    on counting."""
    sessions: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    """Tool-call sessions with known answers, before and after the change together. A soak may send what the other
    checks leave, and ends undecided once that is spent."""
    restarts: Annotated[int, Field(ge=2, le=100)] = 4
    """Starts of the worker, the one that takes the change back included."""


class Bound(Noun):
    """The values that a team allows for a knob, narrower than what the engine takes."""

    low: float | None = None
    """The smallest, inclusive; None: no limit of ours."""
    high: float | None = None
    """The largest, inclusive; None: no limit of ours."""
    because: str
    """Why, in one sentence."""

    def says(self) -> str:
        """The values that are allowed, for people."""
        ends = [f"at least {self.low:g}" if self.low is not None else ""]
        ends.append(f"at most {self.high:g}" if self.high is not None else "")
        return " and ".join(filter(None, ends)) or "any value"

    def refuses(self, value: float) -> bool:
        """Whether a value lies outside."""
        return (self.low is not None and value < self.low) or (self.high is not None and value > self.high)


class Limits(Noun):
    """All of it."""

    autonomy: Autonomy = "ask"
    """How far Prudent may go."""
    windows: tuple[Window, ...] = ()
    """When a change may be carried out; none: at any time."""
    budgets: Budgets = Budgets()
    """The most that one run may cost."""
    knobs: Mapping[str, Bound] = {}
    """Bounds by canonical knob name."""

    def open_at(self, moment: datetime) -> bool:
        """Whether a change may be carried out at a moment, which has a time zone."""
        return not self.windows or any(window.covers(moment) for window in self.windows)

    def windows_say(self) -> str:
        """The windows for people."""
        return "; ".join(window.says() for window in self.windows) or "at any time"
