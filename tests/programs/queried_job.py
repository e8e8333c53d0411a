"""A job with queryable state on the epoch runner: each epoch adds one amount to each account, known in advance.

So the state after n epochs is `balance_after(account, n)` for every account, whatever happened in between.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from holdfast.datastream.sinks.driver_sinks import CollectSink, Mailbox
from holdfast.runtime.function.user_function import KeyedProcessFunction
from holdfast.runtime.graph.stream_graph import KeyedNode, KeySpec, OperatorSpec, SinkNode, SourceNode, StreamGraph
from holdfast.runtime.master.job_master import JobMaster
from holdfast.state.descriptor import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from holdfast.testing.epoch_runner import LocalEngine, run_job
from holdfast.types.type_parser import parse_schema

ACCOUNTS = [f"account-{i}" for i in range(12)]
DEPOSIT = parse_schema("account string, amount bigint")
NAME = "queried"


def amount(account: str, epoch: int) -> int:
    return (31 * epoch + 7 * ACCOUNTS.index(account)) % 97


def balance_after(account: str, epochs: int) -> int:
    return sum(amount(account, epoch) for epoch in range(epochs))


class Balance(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        balance = ValueStateDescriptor("balance", "struct<epochs: bigint, balance: bigint>")
        balance.set_queryable("balances")
        recent = ListStateDescriptor("recent", "bigint")
        recent.set_queryable("recent")
        kinds = MapStateDescriptor("kinds", "string", "bigint")
        kinds.set_queryable("kinds")
        self.balance = runtime_context.get_state(balance)
        self.recent = runtime_context.get_list_state(recent)
        self.kinds = runtime_context.get_map_state(kinds)

    def process_element(self, value: Any, ctx: Any) -> Any:
        epochs, balance = self.balance.value() or (0, 0)
        self.balance.update((epochs + 1, balance + value.amount))
        self.recent.update([*list(self.recent.get())[-2:], value.amount])
        self.kinds.put("odd" if value.amount % 2 else "even", value.amount)
        return ()


def graph() -> StreamGraph:
    source = SourceNode(name="deposits", uid="deposits", element_type=DEPOSIT, is_streaming=True)
    balance = KeyedNode(
        inputs=(source,),
        name="balance",
        uid="balance",
        element_type=DEPOSIT,
        operator=OperatorSpec(Balance(), "process", True, DEPOSIT, DEPOSIT),
        key=KeySpec(columns=("account",)),
    )
    mailbox = Mailbox(DEPOSIT)
    sink = SinkNode(inputs=(balance,), name="out", uid="out", element_type=DEPOSIT, sink=CollectSink(mailbox.name))
    return StreamGraph([sink])


def job_master(checkpoints: str, epochs: int, pause: float, options: dict[str, str]) -> JobMaster:
    inputs = [{"deposits": [(account, amount(account, epoch)) for account in ACCOUNTS]} for epoch in range(epochs)]

    def hold_up(stage: int, partition: int) -> None:
        if partition == 0:
            time.sleep(pause)

    engine = LocalEngine(inputs, interceptor=hold_up)
    return run_job(graph(), checkpoints, engine, {"restart-strategy.type": "none"} | options, name=NAME)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoints")
    parser.add_argument("--epochs", type=int, default=20_000)
    parser.add_argument("--pause", type=float, default=0.01)
    parser.add_argument("-D", dest="options", action="append", default=[])
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    options = dict(option.split("=", 1) for option in arguments.options)
    print(job_master(arguments.checkpoints, arguments.epochs, arguments.pause, options).run().value)


if __name__ == "__main__":
    main()
