"""How an exception of a user function becomes an error that names operator, key and epoch."""

from __future__ import annotations

import traceback
from typing import Any

from holdfast.errors import UserFunctionError
from holdfast.kernel import debugger


def user_error(error: Exception, uid: str, key: Any, epoch: int, doing: str) -> UserFunctionError:
    """The error for a user function that raised: operator, key and epoch first, the user's traceback last.

    Where a debugger listens, it looks at the error first.
    """
    debugger.post_mortem(error)
    where = "" if key is None else f" for key {key!r}"
    text = "".join(traceback.format_exception(error))
    return UserFunctionError(
        uid,
        key,
        epoch,
        f"the function of operator {uid!r} raised {type(error).__name__} while {doing}{where} in epoch {epoch}; "
        "nothing of this epoch "
        f"was committed: fix the function and run the job again, it resumes from its last completed checkpoint\n{text}",
    )
