"""`Types.BIG_DEC` has 38 digits: what does not fit is refused by name and never rounded, wherever it comes from."""

from decimal import Decimal

import pytest

from holdfast.datastream import KeyedProcessFunction
from holdfast.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from holdfast.errors import OutputTypeError, UserFunctionError
from holdfast.testing import OperatorHarness
from holdfast.types.arrow import elements_to_batch
from holdfast.types.types import Types

TINY, HUGE = Decimal("1e-20"), Decimal(10**20)
ADVICE = "Declare DECIMAL.*PICKLED_BYTE_ARRAY"


class Keeps(KeyedProcessFunction):
    """Keeps a number in the state that it is told."""

    def __init__(self, kind, number):
        self.kind, self.number = kind, number

    def open(self, runtime_context):
        kept = Types.BIG_DEC()
        self.states = {
            "value": runtime_context.get_state(ValueStateDescriptor("value", kept)).update,
            "list": runtime_context.get_list_state(ListStateDescriptor("list", kept)).add,
            "map": lambda number: self.map.put("k", number),
            "map key": lambda number: self.by_number.put(number, "v"),
        }
        self.map = runtime_context.get_map_state(MapStateDescriptor("map", "string", kept))
        self.by_number = runtime_context.get_map_state(MapStateDescriptor("by", kept, "string"))

    def process_element(self, element, ctx):
        self.states[self.kind](self.number)


@pytest.mark.parametrize("number", [TINY, HUGE, -HUGE, Decimal("1.0000000000000000001")])
@pytest.mark.parametrize("kind", ["value", "list", "map", "map key"])
def test_state_refuses_what_does_not_fit(kind, number):
    with OperatorHarness(Keeps(kind, number), key_by=lambda element: 1, key_type="int") as harness:
        with pytest.raises((OutputTypeError, UserFunctionError)) as caught:
            harness.process_element(0)
        told = str(caught.value) + str(caught.value.__cause__)
    for part in (repr(number), "decimal(38,18)", "PICKLED_BYTE_ARRAY"):
        assert part in told


@pytest.mark.parametrize("element_type", [
    Types.BIG_DEC(), Types.ROW([Types.BIG_DEC()]), Types.TUPLE([Types.BIG_DEC()])
])  # fmt: skip
def test_a_stream_refuses_it_too(element_type):
    element = TINY if element_type == Types.BIG_DEC() else (TINY,)
    with pytest.raises(OutputTypeError, match=ADVICE):
        elements_to_batch([element], element_type, "numbers")


def test_what_fits_is_exact_and_any_precision_is_pickled():
    for number in (Decimal("1e-18"), Decimal("1.50"), Decimal("1e-20") * 100, Decimal("99999999999999999999")):
        assert Types.BIG_DEC().to_list(Types.BIG_DEC().to_array([number])) == [number]
    kept = Types.PICKLED_BYTE_ARRAY()
    assert kept.to_list(kept.to_array([TINY, HUGE])) == [TINY, HUGE]
