"""`python -m agent.doors` is `prudent`, for an interpreter that is not on the PATH."""

from agent.doors.cli import main

main()
