"""The learning rates of single layers, as factors of that of the step."""

import math
from collections.abc import Sequence

from resnet.base.errors import UserError


def parse(text: str) -> dict[str, float]:
    """Returns the factors in a text such as `stem:0,stage1:0.1,/beta:64`.

    Args:
        text: The factors by the beginnings of the layers' names, or by kinds of
            variables, such as /beta; empty for none.

    Raises:
        UserError: If the text has another form, a name twice, or a factor that is
            negative or not finite.
    """
    factors: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, _, number = (word.strip() for word in part.partition(":"))
        try:
            factor = float(number)
        except ValueError:
            factor = math.nan
        if not name or name in factors or not 0 <= factor < math.inf:
            raise UserError(
                "--layer_rates must be beginnings of layers' names, or kinds of"
                " variables such as /beta, each once, with factors of at least 0, such"
                f" as stem:0,stage1:0.1,classifier:10; got {text!r}."
            )
        factors[name] = factor
    return factors


def factors_of(text: str, names: Sequence[str]) -> tuple[float, ...]:
    """Returns the factor of each variable's learning rate; empty if all are 1.

    The longest beginning that fits a variable's name counts, and its factor is
    multiplied by that of the kind of variable, the end of the name. Variables that none
    fits have the factor 1.

    Args:
        text: The factors, as `parse` takes them.
        names: The names of the variables, such as `stage1_block1_1/kernel`.

    Raises:
        UserError: If a beginning or a kind fits no variable.
    """
    factors = parse(text)
    kinds = [name for name in factors if name.startswith("/")]
    for kind in kinds:
        if not any(name.endswith(kind) for name in names):
            known = dict.fromkeys("/" + name.rpartition("/")[2] for name in names)
            raise UserError(
                f"--layer_rates names no kind of variable by {kind!r}; the kinds are"
                f" {', '.join(known)}"
            )
    beginnings = [name for name in factors if name not in kinds]
    for beginning in beginnings:
        if not any(name.startswith(beginning) for name in names):
            layers = list(dict.fromkeys(name.split("/")[0] for name in names))
            raise UserError(
                f"--layer_rates names no layer by {beginning!r}; the layers are"
                f" {', '.join(layers)}"
            )
    longest_first = sorted(beginnings, key=len, reverse=True)
    of_variables = tuple(
        next((factors[part] for part in longest_first if name.startswith(part)), 1.0)
        * next((factors[kind] for kind in kinds if name.endswith(kind)), 1.0)
        for name in names
    )
    return () if set(of_variables) <= {1.0} else of_variables
