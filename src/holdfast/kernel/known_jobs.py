"""The error for a job that does not exist: the name that was typed, similar names, and the jobs there are."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

from holdfast.kernel.user_traceback import short_repr

_SHOWN: Final = 10


def unknown_job(typed: str, jobs: Iterable[tuple[str, str]], where: str = "") -> str:
    """Return the text of the error.

    Args:
        typed: The id or name that was typed.
        jobs: Ids and names of the jobs there are; a name may be empty.
        where: Where the job was looked for, such as " in '/data'".
    """
    known = list(jobs)
    text = f"There is no job {short_repr(typed)}{where}. "
    if not known:
        return f"{text}There are no jobs."
    names = [each for job in known for each in job if each]
    near = difflib.get_close_matches(typed, names, n=1, cutoff=0.6)
    if near:
        text += f"Did you mean {near[0]!r}? "
    shown = [f"{job_id} ({name})" if name else job_id for job_id, name in known[:_SHOWN]]
    more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    return f"{text}Jobs: {', '.join(shown)}{more}."
